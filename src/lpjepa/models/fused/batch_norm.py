"""Batch normalisation, rectifier and residual sum as the few passes over memory that they need.

    y = relu(bn(x))          y = relu(bn(x) + other)          y = relu(bn(x) + bn'(other))

Forward: one pass for the statistics, one for y. Backward: one for the sums, one for the gradients. All is
computed in float32 from what is stored in 16 bits, with torch's running statistics.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor, nn

from lpjepa.models.fused import kernels

TILE = 8192  # elements a program holds at a time
POOLED_TILE = 4096  # the same where it holds pixels of one image only
_counters: dict[tuple[torch.device, int], Tensor] = {}


class Blocks(NamedTuple):
    """How a tensor of (rows, channels) is cut."""

    rows: int
    channels: int
    block_m: int
    block_c: int

    @property
    def tiles(self) -> tuple[int, int]:
        return triton.cdiv(self.rows, self.block_m), triton.cdiv(self.channels, self.block_c)

    def programs(self, most: int) -> tuple[int, int]:
        """A grid of at most `most` programs, each of which takes every so manieth tile."""
        rows, columns = self.tiles
        return min(rows, max(1, most // columns)), columns


def cut(x_NCHW: Tensor, tile: int = TILE, widest: int = 128) -> Blocks:
    channels = x_NCHW.shape[1]
    block_c = min(widest, max(16, triton.next_power_of_2(channels)))
    return Blocks(x_NCHW.numel() // channels, channels, tile // block_c, block_c)


class Summing(NamedTuple):
    """How a kernel that sums over rows is launched: programs in all, and what each holds at a time."""

    programs: int
    tile: int
    warps: int
    stages: int
    summed: int = 4096  # elements of other programs' sums that the last one holds at a time
    widest: int = 64  # channels: with few, the last program reads sums of many others at a time

    def cut(self, x_NCHW: Tensor) -> Blocks:
        found = cut(x_NCHW, self.tile, self.widest)
        if found.rows < 2:
            raise ValueError(
                f"batch statistics need more than one value a channel, not a map of {tuple(x_NCHW.shape)}; "
                f"use more or larger images, or eval()"
            )
        return found

    def options(self, cutting: Blocks) -> dict[str, int]:
        return {
            "BLOCK_M": cutting.block_m, "BLOCK_C": cutting.block_c, "BLOCK_P": self.summed // cutting.block_c,
            "STAGES": self.stages, "num_warps": self.warps,
        }  # fmt: skip


STATISTICS = Summing(256, 8192, 4, 3)
GRADIENT = Summing(256, 4096, 4, 3)


def counter(device: torch.device, columns: int) -> Tensor:
    """Zeros that kernels leave as zeros, for this device and stream: two streams may sum at once."""
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    found = _counters.get((device, stream))
    if found is None or len(found) < columns:
        found = torch.zeros(max(64, columns), dtype=torch.int32, device=device)
        if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            _counters[device, stream] = found  # memory made during capture is the graph's own
    return found


def new_statistics(bn: nn.BatchNorm2d, x: Tensor) -> Tensor:
    return torch.empty((4, bn.num_features), dtype=torch.float32, device=x.device)


def statistics(x_NCHW: Tensor, bn: nn.BatchNorm2d) -> Tensor:
    """(4, C): mean, 1/√(var + eps), scale, offset; bn(x) = x · scale + offset. Moves running statistics."""
    cutting = STATISTICS.cut(x_NCHW)
    programs, columns = cutting.programs(STATISTICS.programs)
    stats = new_statistics(bn, x_NCHW)
    sums = torch.empty((programs, 3, cutting.channels), dtype=torch.float32, device=x_NCHW.device)
    kernels.statistics_kernel[programs, columns](
        x_NCHW, bn.weight, bn.bias, stats, bn.running_mean, bn.running_var, sums,
        counter(x_NCHW.device, columns), cutting.rows, cutting.channels, programs, bn.momentum, bn.eps,
        **STATISTICS.options(cutting),
    )  # fmt: skip
    return stats


def normalise(
    x_NCHW: Tensor, stats: Tensor, other_NCHW: Tensor | None = None, other_stats: Tensor | None = None
) -> Tensor:
    """relu(bn(x) + other), the second summand being normalised too where it has statistics."""
    return normalise_and_take(x_NCHW, stats, other_NCHW, other_stats, stride=1)[0]


def normalise_and_take(
    x_NCHW: Tensor, stats: Tensor, other_NCHW: Tensor | None, other_stats: Tensor | None, stride: int
) -> tuple[Tensor, Tensor]:
    """y = `normalise` and every `stride`-th pixel of each direction of it, y itself where that is all."""
    cutting = cut(x_NCHW)
    n, channels, height, width = x_NCHW.shape
    y = small = torch.empty_like(x_NCHW)
    if stride > 1:
        small = torch.empty(
            (n, channels, -(-height // stride), -(-width // stride)), dtype=y.dtype, device=y.device,
            memory_format=torch.channels_last,
        )  # fmt: skip
    kernels.normalise_kernel[cutting.tiles](
        x_NCHW, stats, _or(other_NCHW, x_NCHW), _or(other_stats, stats), y, small,
        cutting.rows, cutting.channels, *_size(x_NCHW, stride > 1),
        OTHER=_summand(other_NCHW, other_stats), STRIDE=stride,
        BLOCK_M=cutting.block_m, BLOCK_C=cutting.block_c, num_warps=8,
    )  # fmt: skip
    return y, small


def normalise_and_pool(
    x_NCHW: Tensor, stats: Tensor, other_NCHW: Tensor | None, other_stats: Tensor | None
) -> tuple[Tensor, Tensor]:
    """y = `normalise` and its mean over pixels, (N, C)."""
    n, channels, height, width = x_NCHW.shape
    cutting = cut(x_NCHW, POOLED_TILE)
    y = torch.empty_like(x_NCHW)
    mean_NC = torch.empty((n, channels), dtype=y.dtype, device=y.device)
    kernels.pool_kernel[n, cutting.tiles[1]](
        x_NCHW, stats, _or(other_NCHW, x_NCHW), _or(other_stats, stats), y, mean_NC, height * width, channels,
        OTHER=_summand(other_NCHW, other_stats),
        BLOCK_M=min(cutting.block_m, triton.next_power_of_2(height * width)), BLOCK_C=cutting.block_c,
        num_warps=4,
    )  # fmt: skip
    return y, mean_NC


def _summand(other: Tensor | None, other_stats: Tensor | None) -> int:
    return 0 if other is None else 1 if other_stats is None else 2


def _size(x_NCHW: Tensor, needed: bool) -> tuple[int, int]:
    """Height and width, where a kernel reads them: it is compiled again for another kind of number."""
    return (x_NCHW.shape[2], x_NCHW.shape[3]) if needed else (0, 0)


def new_coefficients(stats: Tensor) -> Tensor:
    """(5, C): gradients of weight and bias, then what makes the gradient of the input of g and x."""
    return torch.empty((5, stats.shape[1]), dtype=torch.float32, device=stats.device)


def gradient_sums(
    d: Tensor, e_NCHW: Tensor | None, x_NCHW: Tensor, stats: Tensor, *, y_NCHW: Tensor | None = None,
    other_NCHW: Tensor | None = None, other_stats: Tensor | None = None, keep: bool = False, stride: int = 1,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Coefficients of x, of the second summand where it is normalised, and the gradient behind the rectifier.

    Args:
        d: gradient of y, (N, C, H, W), or of its mean over pixels, (N, C).
        e_NCHW: gradient of every `stride`-th pixel of y from another use.
        y_NCHW: the output, needed where something was added; otherwise its sign is computed again.
        keep: whether the gradient behind the rectifier is written.
    """
    cutting = GRADIENT.cut(x_NCHW)
    programs, columns = cutting.programs(GRADIENT.programs)
    coefficients = new_coefficients(stats)
    both = other_stats is not None
    others = new_coefficients(stats) if both else None
    sums = torch.empty((programs, 3, cutting.channels), dtype=torch.float32, device=x_NCHW.device)
    g = torch.empty_like(x_NCHW) if keep else None
    pooled, second = d.ndim == 2, 0 if e_NCHW is None else stride
    kernels.gradient_sums_kernel[programs, columns](
        d, _or(e_NCHW, d), _or(y_NCHW, d), x_NCHW, stats, coefficients,
        _or(other_NCHW, x_NCHW), _or(other_stats, stats), _or(others, coefficients), _or(g, d), sums,
        counter(x_NCHW.device, columns), cutting.rows, cutting.channels, programs,
        *_size(x_NCHW, pooled or second > 1), POOLED=pooled, SECOND=second, STORED=y_NCHW is not None,
        OTHER=both, KEEP=keep, **GRADIENT.options(cutting),
    )  # fmt: skip
    return coefficients, others, g


def input_gradient(d_NCHW: Tensor, x_NCHW: Tensor, stats: Tensor, coefficients: Tensor) -> Tensor:
    """Gradient of x in y = relu(bn(x)), d being that of y."""
    return _input_gradient(d_NCHW, x_NCHW, stats, coefficients, None, None, relu=True)[0]


def summand_gradients(
    g_NCHW: Tensor, x_NCHW: Tensor, coefficients: Tensor,
    other_NCHW: Tensor | None = None, others: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Gradients of x and other in bn(x) + bn'(other), g being that of the sum."""
    return _input_gradient(g_NCHW, x_NCHW, coefficients, coefficients, other_NCHW, others, relu=False)


def _input_gradient(
    d: Tensor, x: Tensor, stats: Tensor, coefficients: Tensor, other: Tensor | None, others: Tensor | None,
    relu: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    cutting = cut(x)
    both = others is not None
    dx = torch.empty_like(x)
    dother = torch.empty_like(x) if both else None
    kernels.input_gradient_kernel[cutting.tiles](
        d, x, stats, coefficients, dx, _or(other, x), _or(others, coefficients), _or(dother, dx),
        cutting.rows, cutting.channels, RELU=relu, OTHER=both,
        BLOCK_M=cutting.block_m, BLOCK_C=cutting.block_c, num_warps=8,
    )  # fmt: skip
    return dx, dother


def _or(tensor: Tensor | None, stand_in: Tensor) -> Tensor:
    """Kernels take a pointer where they read nothing, too."""
    return stand_in if tensor is None else tensor
