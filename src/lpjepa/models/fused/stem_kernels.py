"""Triton kernels of a 3×3 convolution of images: few channels, so all of its inputs fit one matrix product.

cuDNN's convolutions want multiples of eight channels and are slow with three. Here the nine neighbours of a
pixel are gathered as the row of a small product, the batch statistics are taken on the way out, and backward
the gradient of the normalised map is never written: it goes straight into the product with the neighbours.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lpjepa.models.fused.kernels import (
    _affine,
    _close_statistics,
    _gradient,
    _parameters,
    _through_relu,
)


@triton.jit
def _neighbours(
    image_ptr, m, rows, height, width, stride_n, stride_c, stride_h, stride_w, k,
    INPUTS: tl.constexpr,
):  # fmt: skip
    """Tile (pixels m, taps k) of the 3×3 neighbourhoods; k counts channel, row, column, as weights do."""
    n = m // (height * width)
    rest = m - n * (height * width)
    y = (rest // width)[:, None] + (k % 9 // 3 - 1)[None, :]
    x = (rest % width)[:, None] + (k % 3 - 1)[None, :]
    at = n.to(tl.int64)[:, None] * stride_n + (k // 9)[None, :] * stride_c + y * stride_h + x * stride_w
    there = (m < rows)[:, None] & (k < 9 * INPUTS)[None, :] & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    return tl.load(image_ptr + at, there, 0.0)


@triton.jit
def stem_kernel(
    image_ptr, kernel_ptr, out_ptr, weight_ptr, bias_ptr, stats_ptr, running_mean_ptr, running_var_ptr,
    sums_ptr, counter_ptr, rows, channels, programs, height, width, stride_n, stride_c, stride_h, stride_w,
    kernel_o, kernel_i, kernel_h, kernel_w, momentum, eps,
    INPUTS: tl.constexpr, TAPS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """out = convolution of the images with kernel_CK, and the batch statistics of it."""
    p = tl.program_id(0)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    k = tl.arange(0, TAPS)
    inside = c < channels
    dtype = out_ptr.dtype.element_ty
    tap = (k // 9) * kernel_i + (k % 9 // 3) * kernel_h + (k % 3) * kernel_w
    exists = inside[None, :] & (k < 9 * INPUTS)[:, None]
    kernel = tl.load(kernel_ptr + c[None, :] * kernel_o + tap[:, None], exists, 0.0).to(dtype)
    weight, bias, old_mean, old_var = _parameters(
        weight_ptr, bias_ptr, running_mean_ptr, running_var_ptr, c, inside
    )
    first = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    second = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for start in tl.range(p * BLOCK_M, rows, programs * BLOCK_M, num_stages=STAGES):
        m = start + tl.arange(0, BLOCK_M)
        tile = _neighbours(
            image_ptr, m, rows, height, width, stride_n, stride_c, stride_h, stride_w, k, INPUTS
        )
        out = tl.dot(tile.to(dtype), kernel, input_precision=PRECISION).to(dtype)
        at = m.to(tl.int64)[:, None] * channels + c[None, :]
        tl.store(out_ptr + at, out, (m < rows)[:, None] & inside[None, :])
        # The statistics are those of the rounded map. No shift: a convolution of normalised images has a
        # mean that is small beside its spread.
        rounded = out.to(tl.float32)
        first += rounded
        second += rounded * rounded
    _close_statistics(
        first, second, counter_ptr, sums_ptr, programs, c, inside, channels,
        tl.zeros((BLOCK_C,), tl.float32), weight, bias, old_mean, old_var, stats_ptr, running_mean_ptr,
        running_var_ptr, rows.to(tl.float32), momentum, eps, BLOCK_P, BLOCK_C,
    )  # fmt: skip


@triton.jit
def stem_gradient_kernel(
    d_ptr, e_ptr, x_ptr, stats_ptr, coefficients_ptr, image_ptr, partial_ptr,
    rows, channels, programs, height, width, stride_n, stride_c, stride_h, stride_w,
    SECOND: tl.constexpr, INPUTS: tl.constexpr, TAPS: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Gradient of the convolution's kernel, (programs, TAPS, channels) to be summed over programs."""
    p = tl.program_id(0)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    k = tl.arange(0, TAPS)
    inside = c < channels
    dtype = x_ptr.dtype.element_ty
    total = tl.zeros((TAPS, BLOCK_C), tl.float32)
    for start in tl.range(p * BLOCK_M, rows, programs * BLOCK_M, num_stages=STAGES):
        m = start + tl.arange(0, BLOCK_M)
        there = (m < rows)[:, None] & inside[None, :]
        at = m.to(tl.int64)[:, None] * channels + c[None, :]
        x = tl.load(x_ptr + at, there, 0.0).to(tl.float32)
        g = _gradient(d_ptr, e_ptr, m, at, there, c, channels, height, width, False, SECOND)
        g = _through_relu(g, d_ptr, x, stats_ptr, at, there, c, inside, channels, False)
        dx = tl.where(there, _affine(g, x, coefficients_ptr, c, inside, channels), 0.0)
        tile = _neighbours(
            image_ptr, m, rows, height, width, stride_n, stride_c, stride_h, stride_w, k, INPUTS
        )
        total += tl.dot(tl.trans(tile.to(dtype)), dx.to(dtype), input_precision=PRECISION)
    at = p * TAPS * channels + k[:, None] * channels + c[None, :]
    tl.store(partial_ptr + at, total, inside[None, :] & (k < TAPS)[:, None])


@triton.jit
def stem_total_kernel(
    partial_ptr, out_ptr, channels, programs, kernel_o, kernel_i, kernel_h, kernel_w,
    TAPS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One tap of the kernel's gradient, in the layout of the kernel: the sum of what all programs left."""
    k = tl.program_id(0)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = c < channels
    total = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for start in range(0, programs, BLOCK_P):
        p = start + tl.arange(0, BLOCK_P)
        there = (p < programs)[:, None] & inside[None, :]
        total += tl.load(partial_ptr + (p[:, None] * TAPS + k) * channels + c[None, :], there, 0.0)
    tap = (k // 9) * kernel_i + (k % 9 // 3) * kernel_h + (k % 3) * kernel_w
    tl.store(out_ptr + c * kernel_o + tap, tl.sum(total, 0), inside)
