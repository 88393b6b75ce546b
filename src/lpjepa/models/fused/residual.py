"""One residual unit, relu(branch(x) + shortcut(x)), with its gradient written out.

The branch is a chain of convolutions, each normalised and all but the last rectified; the shortcut is the
input itself or a normalised 1×1 convolution of some of its pixels. The unit takes its input twice, for the
branch and for the shortcut, and gives its output twice: the gradients of the two uses then meet in the kernel
that reads them, not in an addition of their own. Where the next shortcut sees every second pixel of each
direction, just those are given to it, and the last unit can give the mean over pixels instead: such gradients
are read as they are, too, and never written as a map.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lpjepa.models.fused import batch_norm
from lpjepa.models.fused.layers import Unit

_POOLED = 0  # instead of a stride: the mean of all pixels
_DGRAD, _WGRAD = (True, False, False), (False, True, False)


def residual(
    unit: Unit, main: Tensor, skip: Tensor, kernels: list[Tensor], stride: int = 1
) -> tuple[Tensor, Tensor]:
    """The unit's output, and every `stride`-th pixel of it: what the next unit takes as `main` and `skip`.

    `kernels`: those of the unit's convolutions, in the order of `unit.layers`.
    """
    return _Residual.apply(unit, stride, main, skip, *kernels, *_norms(unit))


def pooled_residual(unit: Unit, main: Tensor, skip: Tensor, kernels: list[Tensor]) -> Tensor:
    """The mean over pixels of the unit's output, (N, C)."""
    return _Residual.apply(unit, _POOLED, main, skip, *kernels, *_norms(unit))


def _norms(unit: Unit) -> list[Tensor]:
    return [parameter for layer in unit.layers for parameter in (layer.bn.weight, layer.bn.bias)]


class _Residual(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, unit: Unit, stride: int, main: Tensor, skip: Tensor, *parameters: Tensor
    ) -> Tensor | tuple[Tensor, Tensor]:
        kernels = parameters[: len(unit.layers)]
        x, saved = main, []
        for i, layer in enumerate(unit.branch):
            a = convolve(x, kernels[i], layer.conv)
            stats = batch_norm.statistics(a, layer.bn)
            saved += [x, a, stats]
            if i + 1 < len(unit.branch):
                x = batch_norm.normalise(a, stats)
        b, b_stats = skip, None
        if unit.shortcut is not None:
            b = product(skip, kernels[-1])
            b_stats = batch_norm.statistics(b, unit.shortcut.bn)
            saved += [skip, b, b_stats]
        if stride == _POOLED:
            y, second = batch_norm.normalise_and_pool(a, stats, b, b_stats)
        else:
            y, second = batch_norm.normalise_and_take(a, stats, b, b_stats, stride)
        ctx.unit, ctx.stride = unit, stride
        ctx.save_for_backward(y, *saved, *kernels)
        ctx.set_materialize_grads(False)
        if stride == _POOLED:
            return second
        return y, second.detach() if stride == 1 else second

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        unit: Unit = ctx.unit
        layers = len(unit.layers)
        y, *rest = ctx.saved_tensors
        saved, kernels = rest[: 3 * layers], rest[3 * layers :]
        triples = [saved[3 * i : 3 * i + 3] for i in range(layers)]
        if ctx.stride > 1 and gradients[0] is None and gradients[1] is not None:
            gradients = (torch.zeros_like(y), gradients[1])  # only a gradient of all pixels can be the first
        d, e = _present(gradients)
        if d is None:
            return (None,) * (4 + 3 * layers)
        dkernels: list[Tensor] = [y] * layers
        dnorms: list[Tensor] = [y] * (2 * layers)

        x, a, stats = triples[len(unit.branch) - 1]
        if unit.shortcut is None:
            coefficients, _, g = batch_norm.gradient_sums(
                d, e, a, stats, y_NCHW=y, keep=True, stride=ctx.stride
            )
            assert g is not None
            da, _ = batch_norm.summand_gradients(g, a, coefficients)
            dskip = g
        else:
            pixels, b, b_stats = triples[-1]
            coefficients, others, g = batch_norm.gradient_sums(
                d, e, a, stats, y_NCHW=y, other_NCHW=b, other_stats=b_stats, keep=True, stride=ctx.stride
            )
            assert g is not None
            assert others is not None
            da, db = batch_norm.summand_gradients(g, a, coefficients, b, others)
            assert db is not None
            dnorms[-2:] = others[0], others[1]
            dkernels[-1] = rows(db).mT.mm(rows(pixels)).view_as(kernels[-1])
            dskip = product_gradient(db, kernels[-1])
        for i in reversed(range(len(unit.branch))):
            x, a, stats = triples[i]
            if i + 1 < len(unit.branch):
                coefficients, _, _ = batch_norm.gradient_sums(da, None, a, stats)
                da = batch_norm.input_gradient(da, a, stats, coefficients)
            dnorms[2 * i : 2 * i + 2] = coefficients[0], coefficients[1]
            conv = unit.branch[i].conv
            dkernels[i] = convolve_backward(da, x, kernels[i], conv, _WGRAD)[1]
            da = convolve_backward(da, x, kernels[i], conv, _DGRAD)[0]
        return (None, None, da, dskip, *dkernels, *dnorms)


def rectified_norm(bn: nn.BatchNorm2d, x_NCHW: Tensor) -> Tensor:
    """relu(bn(x)) by itself."""
    return _RectifiedNorm.apply(bn, x_NCHW.contiguous(memory_format=torch.channels_last), bn.weight, bn.bias)


class _RectifiedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bn: nn.BatchNorm2d, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        stats = batch_norm.statistics(x, bn)
        ctx.save_for_backward(x, stats)
        return batch_norm.normalise(x, stats)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, stats = ctx.saved_tensors
        d = gradients[0].contiguous(memory_format=torch.channels_last)
        coefficients, _, _ = batch_norm.gradient_sums(d, None, x, stats)
        return None, batch_norm.input_gradient(d, x, stats, coefficients), coefficients[0], coefficients[1]


def _present(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, Tensor | None]:
    """The gradients that came, first ones first, in the memory format of the activations or their means."""
    formats = {2: torch.contiguous_format, 4: torch.channels_last}
    there = [g.contiguous(memory_format=formats[g.ndim]) for g in gradients if g is not None]
    first, second = [*there, None, None][:2]
    return first, second


def convolve(x_NCHW: Tensor, kernel: Tensor, conv: nn.Conv2d) -> Tensor:
    y = torch.ops.aten.convolution(
        x_NCHW, kernel, None, conv.stride, conv.padding, conv.dilation, False, (0, 0), conv.groups
    )
    return y.contiguous(memory_format=torch.channels_last)


def convolve_backward(
    d: Tensor, x: Tensor, kernel: Tensor, conv: nn.Conv2d, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    d_x, d_kernel, d_bias = torch.ops.aten.convolution_backward(
        d, x, kernel, None, conv.stride, conv.padding, conv.dilation, False, (0, 0), conv.groups, wanted
    )
    if wanted[0]:  # as the kernels read it, whichever library made it
        d_x = d_x.contiguous(memory_format=torch.channels_last)
    return d_x, d_kernel, d_bias


def rows(x_NCHW: Tensor) -> Tensor:
    """Channels-last activations as (pixels, channels)."""
    return x_NCHW.permute(0, 2, 3, 1).flatten(0, 2)


def product(x_NCHW: Tensor, kernel: Tensor) -> Tensor:
    """A 1×1 convolution as the matrix product it is; cuDNN's choice for it can be ten times slower."""
    y = rows(x_NCHW).mm(kernel.flatten(1).mT)
    n, _, height, width = x_NCHW.shape
    return y.view(n, height, width, -1).permute(0, 3, 1, 2)


def product_gradient(d_NCHW: Tensor, kernel: Tensor) -> Tensor:
    n, _, height, width = d_NCHW.shape
    return rows(d_NCHW).mm(kernel.flatten(1)).view(n, height, width, -1).permute(0, 3, 1, 2)
