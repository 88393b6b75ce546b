"""The first convolution of a residual network for small images: 3×3, normalised, rectified."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from lpjepa.models.fused import batch_norm, stem_kernels
from lpjepa.models.fused.layers import Layer
from lpjepa.models.fused.residual import _present

_FORWARD = batch_norm.Summing(256, 4096, 4, 3)
_BACKWARD = batch_norm.Summing(264, 2048, 4, 3)
_PARTS = 512  # sums of programs that are read at a time: all, so that memory is waited for once


def stem(layer: Layer, images_NCHW: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """relu(bn(conv(images))), twice (see `residual`), in `dtype`. There is no gradient of the images."""
    if images_NCHW.shape[1] != layer.conv.in_channels:
        raise ValueError(
            f"the encoder takes images of {layer.conv.in_channels} channels, "
            f"these have {images_NCHW.shape[1]}"
        )
    return _Stem.apply(layer, images_NCHW, dtype, layer.conv.weight, layer.bn.weight, layer.bn.bias)


def applies(layer: Layer) -> bool:
    conv = layer.conv
    return (
        conv.kernel_size == (3, 3)
        and conv.stride == conv.padding == conv.dilation == (1, 1)
        and conv.groups == 1
        and conv.in_channels <= 4
        and conv.bias is None
    )


class _Stem(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        layer: Layer,
        images: Tensor,
        dtype: torch.dtype,
        kernel: Tensor,
        weight: Tensor,
        bias: Tensor,
    ) -> tuple[Tensor, Tensor]:
        bn = layer.bn
        n, inputs, height, width = images.shape
        a = torch.empty(
            (n, bn.num_features, height, width), dtype=dtype, device=images.device,
            memory_format=torch.channels_last,
        )  # fmt: skip
        cutting = _FORWARD.cut(a)
        programs, columns = cutting.programs(_FORWARD.programs)
        stats = batch_norm.new_statistics(bn, a)
        sums = torch.empty((programs, 3, cutting.channels), dtype=torch.float32, device=a.device)
        stem_kernels.stem_kernel[programs, columns](
            images, kernel, a, weight, bias, stats, bn.running_mean, bn.running_var, sums,
            batch_norm.counter(a.device, columns), cutting.rows, cutting.channels, programs,
            height, width, *images.stride(), *kernel.stride(), bn.momentum, bn.eps,
            **_constants(inputs, dtype), **_FORWARD.options(cutting),
        )  # fmt: skip
        ctx.save_for_backward(images, a, stats, kernel)
        ctx.set_materialize_grads(False)
        y = batch_norm.normalise(a, stats)
        return y, y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        images, a, stats, kernel = ctx.saved_tensors
        d, e = _present(gradients)
        if d is None:
            return (None,) * 6
        coefficients, _, _ = batch_norm.gradient_sums(d, e, a, stats)
        inputs, (height, width) = images.shape[1], images.shape[2:]
        constants = _constants(inputs, a.dtype)
        cutting = _BACKWARD.cut(a)
        programs, columns = cutting.programs(_BACKWARD.programs)
        partial = torch.empty(
            (programs, constants["TAPS"], cutting.channels), dtype=torch.float32, device=a.device
        )
        stem_kernels.stem_gradient_kernel[programs, columns](
            d, d if e is None else e, a, stats, coefficients, images, partial,
            cutting.rows, cutting.channels, programs, height, width, *images.stride(),
            SECOND=0 if e is None else 1, **constants, BLOCK_M=cutting.block_m, BLOCK_C=cutting.block_c,
            STAGES=_BACKWARD.stages, num_warps=_BACKWARD.warps,
        )  # fmt: skip
        dkernel = torch.empty_like(kernel)
        stem_kernels.stem_total_kernel[9 * inputs, triton.cdiv(cutting.channels, 16)](
            partial, dkernel, cutting.channels, programs, *dkernel.stride(),
            TAPS=constants["TAPS"], BLOCK_P=_PARTS, BLOCK_C=16, num_warps=8,
        )  # fmt: skip
        return None, None, None, dkernel, coefficients[0], coefficients[1]


def _constants(inputs: int, dtype: torch.dtype) -> dict[str, Any]:
    taps = max(16, triton.next_power_of_2(9 * inputs))
    return {"INPUTS": inputs, "TAPS": taps, "PRECISION": "ieee" if dtype == torch.float32 else "tf32"}
