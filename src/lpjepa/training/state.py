"""The state of a training as tensors and plain containers, and back: whole on disk, divided by FSDP."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lpjepa.training.processes import whole
from lpjepa.training.step import Step


def collect(step: Step) -> dict[str, Any]:
    """Everything the next step depends on. Every process must call this; only one needs to write it."""
    state: dict[str, Any] = {
        "trainee": _to_host(step.trainee.state_dict()),
        "optimizers": [_to_host(_without_rates(o.state_dict())) for o in step.optimizers],
        "criterion": _to_host(step.criterion.state_dict()),
        "step_tensors": _to_host(step.state_tensors()),
        "rng": torch.get_rng_state(),
    }
    if step.device.type == "cuda":
        state["rng_cuda"] = torch.cuda.get_rng_state(step.device)
    if step.ema is not None:
        state["ema"] = _to_host(step.ema[0].state_dict())
    return state


def restore(step: Step, state: dict[str, Any]) -> None:
    """Put a collected state back."""
    load_weights(step.trainee, state["trainee"])
    for optimizer, saved in zip(step.optimizers, state["optimizers"]):
        rates = [group["lr"] for group in optimizer.param_groups]
        saved = {**saved, "param_groups": [{**g, "lr": r} for g, r in zip(saved["param_groups"], rates)]}
        optimizer.load_state_dict(saved)
        for group, rate in zip(optimizer.param_groups, rates):
            group["lr"] = rate  # the tensor a captured step reads, not a copy of it
            for p in group["params"]:
                optimizer.state[p] = {key: _like(value, p) for key, value in optimizer.state[p].items()}
    step.criterion.load_state_dict(state["criterion"])
    step.load_state_tensors(state["step_tensors"])
    torch.set_rng_state(state["rng"].cpu())
    if step.device.type == "cuda" and "rng_cuda" in state:
        torch.cuda.set_rng_state(state["rng_cuda"].cpu(), step.device)
    if step.ema is not None:
        step.ema[0].load_state_dict(state["ema"])


def load_weights(module: nn.Module, weights: dict[str, Tensor]) -> None:
    """Load whole tensors into a module, dividing them where its own are divided."""
    own = module.state_dict()
    module.load_state_dict({name: _like(value, own[name]) for name, value in weights.items()})


def state_bytes(step: Step) -> int:
    """An upper estimate of a checkpoint's size before the first step: weights, two moments, the average."""
    weights = sum(t.numel() * t.element_size() for t in step.trainee.state_dict().values())
    return weights * (4 if step.ema is not None else 3)


def _without_rates(state: dict[str, Any]) -> dict[str, Any]:
    """Rates follow from the schedule and the step; saved ones would only go stale."""
    groups = [{k: v for k, v in group.items() if k != "lr"} for group in state["param_groups"]]
    return {"state": state["state"], "param_groups": groups}


def _to_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        return whole(value.detach()).cpu()
    if isinstance(value, dict):
        return {key: _to_host(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_host(item) for item in value]
    return value


def _like(value: Any, own: Any) -> Any:
    """`value` divided among the processes as `own` is, where it has its shape."""
    if not hasattr(own, "device_mesh") or not isinstance(value, Tensor) or value.shape != own.shape:
        return value
    if hasattr(value, "device_mesh"):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(own.device), own.device_mesh, own.placements)
