"""One process or many: start the group that torchrun asks for, wrap the model, agree on things."""

from __future__ import annotations

import atexit
import os
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lpjepa._collectives import world


def pick_device(name: str) -> torch.device:
    """`auto` is the GPU of this process where there is one, else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        if device.type != "cuda":
            torch.empty(0, device=device)  # a backend that torch knows may be missing here
    except (RuntimeError, NotImplementedError):
        raise ValueError(f"device: {name!r} is not a device here; use auto, cpu or cuda") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device: {name} was asked for, and torch sees no GPU here; use cpu")
        index = int(os.environ.get("LOCAL_RANK", 0)) if device.index is None else device.index
        if index >= torch.cuda.device_count():
            raise ValueError(
                f"device: cuda:{index} was asked for, and this machine has {torch.cuda.device_count()} GPUs, "
                "numbered from 0; start at most one process for each"
            )
        device = torch.device("cuda", index)
    return device


def join_group(device: torch.device) -> tuple[int, int]:
    """(rank, world) of this process; joins torchrun's group where there is one.

    The group stays until the process ends, for the next training in it: joining twice would have to wait
    for processes that may still be leaving.
    """
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # where kernels are launched, whichever tensors they are given
    if int(os.environ.get("WORLD_SIZE", 1)) > 1 and not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        atexit.register(_leave_group)
    return world()


def _leave_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def replicate(module: nn.Module, device: torch.device) -> nn.Module:
    """`module` with its gradients averaged over the processes (itself where there is only one)."""
    if world()[1] == 1:
        return module
    # Buffers need no broadcast: BatchNorm statistics are those of the global batch on every rank.
    ids = [device.index] if device.type == "cuda" else None
    renamed = "forward_sync_buffers" in signature(DistributedDataParallel).parameters  # since torch 2.13
    switch = "forward_sync_buffers" if renamed else "broadcast_buffers"
    return DistributedDataParallel(module, device_ids=ids, **{switch: False})  # type: ignore[arg-type]


def shard(module: nn.Module, children: list[nn.Module]) -> nn.Module:
    """`module` with its parameters divided among the processes (FSDP2), each child gathered by itself."""
    from torch.distributed.fsdp import fully_shard

    for child in children:
        fully_shard(child)
    fully_shard(module)
    return module


def any_rank(flag: bool) -> bool:
    """True on every process if it is on one."""
    if world()[1] == 1:
        return flag
    found = torch.tensor([int(flag)])
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    found = found.to(device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return bool(found.item())


def mean_over_ranks(values: Tensor) -> Tensor:
    """The mean of `values` over the processes."""
    if world()[1] == 1:
        return values
    total = values.clone()
    dist.all_reduce(total)
    return total / world()[1]


def from_first_rank(value: Any) -> Any:
    """The first process's `value` on every process."""
    if world()[1] == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def whole(tensor: Tensor) -> Tensor:
    """A tensor put together from its shards (the tensor itself where FSDP does not divide it)."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[attr-defined]


def is_first() -> bool:
    """Whether this is the process that speaks and writes, also after the group has ended."""
    return int(os.environ.get("RANK", 0)) == 0
