"""A training's Triton kernels, compiled side by side while its first step is still being prepared.

Triton compiles a kernel when it is launched for the first time, on the thread that launches it: some forty
kernels one after the other. Nearly all of that is LLVM, ptxas and a C compiler, which run beside Python. So
the code that launches is *rehearsed* when training starts: it runs once, on tensors without memory where it
can, its launches are noted instead of made, and threads compile what was noted into Triton's cache. Launch
constants thus stand in one place. A kernel that a rehearsal misses, or that fails here, compiles when it is
called.
"""

from __future__ import annotations

import copy
import os
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lpjepa.training.lars import LARS
from lpjepa.training.precision import _DTYPES
from lpjepa.training.step import Step


@dataclass(frozen=True)
class Pointer:
    """What Triton looks at in a tensor."""

    dtype: torch.dtype
    address: int

    def data_ptr(self) -> int:
        return self.address


class Launch(NamedTuple):
    """A kernel with arguments of which only type, alignment and, for integers, value matter."""

    kernel: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]

    def variant(self) -> Hashable:
        """The same for launches that run one compiled kernel."""
        arguments = (id(self.kernel), *map(_specialised, self.arguments))
        return arguments, tuple(sorted(self.options.items()))


def _specialised(argument: Any) -> Hashable:
    """By Triton's rules: numbers count by type, but integers also if they are 1 or divide by 16."""
    if isinstance(argument, int) and not isinstance(argument, bool):
        return argument == 1, argument % 16 == 0, -(2**31) <= argument < 2**31
    found: Hashable = float if isinstance(argument, float) else argument
    return found


@contextmanager
def launches_noted() -> Iterator[list[Launch]]:
    """Within it, kernels that this thread launches are noted in the list and do not run."""
    from triton.runtime.jit import KernelInterface

    here, launching, noted = threading.get_ident(), KernelInterface.__getitem__, []  # type: ignore[var-annotated]

    def note(kernel: Any, grid: Any) -> Callable[..., Any]:
        if threading.get_ident() != here:
            return launching(kernel, grid)
        return lambda *arguments, **options: noted.append(
            Launch(kernel, tuple(map(_without_memory, arguments)), options)
        )

    KernelInterface.__getitem__ = note
    try:
        yield noted
    finally:
        KernelInterface.__getitem__ = launching


def _without_memory(argument: Any) -> Any:
    return Pointer(argument.dtype, argument.data_ptr() % 16) if isinstance(argument, Tensor) else argument


def rehearse(step: Step, shape_VNCHW: tuple[int, ...], alone: bool = True) -> list[Launch]:
    """What a step on views of this shape will launch in encoder, loss and optimizers; each variant once.

    alone: no other processes take part. With them, the loss would talk to all of them, and is left out.
    """
    dtype = _DTYPES.get(step.precision, torch.float32)
    encoder = step.trainee.model.encoder
    rehearsals: list[Callable[[], None]] = [lambda: _rehearse_encoder(encoder, shape_VNCHW, dtype)]
    if alone:
        views, count = shape_VNCHW[:2]
        z_VND = torch.zeros((views, count, step.trainee.model.projector_dim), dtype=dtype, device=step.device)
        rehearsals.append(lambda: _rehearse_loss(step.criterion, z_VND))
    rehearsals.append(lambda: _rehearse_optimizers(step))
    with launches_noted() as noted:
        for rehearsal in rehearsals:
            with suppress(Exception):
                rehearsal()
    return list({launch.variant(): launch for launch in noted}.values())


def _rehearse_encoder(encoder: nn.Module, shape_VNCHW: tuple[int, ...], dtype: torch.dtype) -> None:
    from lpjepa.models.fused.layers import Layer
    from lpjepa.models.fused.resnet import FusedResNet, fused_features, plan, pools_by_mean
    from lpjepa.models.fused.stem import applies

    if not isinstance(encoder, FusedResNet) or dtype == torch.float32:
        return
    stand_in: Any = copy.deepcopy(encoder).to("meta").train()
    units = plan(stand_in)
    if units is not None:
        views, count, *pixels = shape_VNCHW
        images = torch.empty((views * count, *pixels), device="meta")
        images = images.contiguous(memory_format=torch.channels_last)
        if not applies(Layer(stand_in.conv1, stand_in.bn1)):
            # A convolution of torch's own, which autocast would give 16 bits, but not without memory.
            stand_in.conv1.to(dtype)
            images = images.to(dtype)
        pooled = pools_by_mean(stand_in)
        fused_features(stand_in, units, images, dtype, pooled).sum().backward()


def _rehearse_loss(criterion: nn.Module, z_VND: Tensor) -> None:
    # On the device, since that decides who computes the loss. With kernels left out, what is computed is
    # garbage, and harmless: what is used as an index comes from sorting or is clamped.
    copy.deepcopy(criterion).components(z_VND.requires_grad_()).loss.backward()  # type: ignore[operator]


def _rehearse_optimizers(step: Step) -> None:
    from lpjepa.training import _lars_kernels

    w = nn.Parameter(torch.zeros(1, device="meta"))
    w.grad = torch.zeros_like(w)
    one = torch.ones((), device="meta")
    found_inf = None if step.loss_scale is None else one
    for optimizer, clip in zip(step.optimizers, (step.grad_clip, None)):
        if isinstance(optimizer, LARS):
            group = optimizer.param_groups[0]
            table = _lars_kernels.build_table([w], group["exclude_1d"])
            table.measure([w], [w])
            table.move([w], [w], group, found_inf, found_inf if clip is None else one)


def compile_launches(launches: list[Launch], device: torch.device) -> None:
    """Compile these, several at a time, ready to be launched on `device`. Those that fail are left out."""
    from triton.runtime import driver

    def compile_one(launch: Launch) -> None:
        with suppress(Exception), torch.cuda.device(device):
            kernel = launch.kernel.warmup(*launch.arguments, grid=(1,), **launch.options)
            # Up to version 3.6, Triton has a C compiler build how each signature is launched.
            driver.active.launcher_cls(kernel.src, kernel.metadata)

    with suppress(Exception):
        driver.active.get_current_target()  # which builds Triton's own library, once
        cores = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        with ThreadPoolExecutor(max(1, min(16, cores))) as pool:
            list(pool.map(compile_one, launches))


def precompile(step: Step, shape_VNCHW: tuple[int, ...], alone: bool = True) -> threading.Thread | None:
    """Start compiling what a step on views of this shape will launch, and go on; never raises."""
    if step.device.type != "cuda":
        return None
    with suppress(Exception):  # no triton, or another one than we know
        launches = rehearse(step, shape_VNCHW, alone)
        torch.cuda.empty_cache()  # training may take another stream, which cannot use this memory
        thread = threading.Thread(target=compile_launches, args=(launches, step.device), daemon=True)
        thread.start()
        return thread
    return None


def wake_compiler() -> None:
    """Start the processes in which torch.compile compiles GPU kernels; they take seconds to be ready.

    torch starts them with its first graph, whose kernels then do not find them ready and compile in turn.
    """
    # What torch 2.11, compiling, says of its own code is of no use to who trains.
    warnings.filterwarnings("ignore", "`torch._prims_common.check` is deprecated", FutureWarning)
    with suppress(Exception):
        from torch._inductor.async_compile import maybe_warm_pool

        maybe_warm_pool()
