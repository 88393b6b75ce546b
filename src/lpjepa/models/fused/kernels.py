"""Triton kernels of batch normalisation, fused with what stands around it in a residual network.

Activations are rows of channels, (M, C) with M = images · height · width: what channels-last memory is.
Every kernel reads its tensors once. Sums over rows are taken in float32 by many programs, each over every
P-th tile; the program that finishes last adds up what the others left, always in the same order, so that the
result does not depend on which one it is.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _is_last(counter_ptr, programs):
    """Whether all other programs of this counter have stored their sums. The counter returns to zero."""
    tl.debug_barrier()  # the stores of all threads come before the ticket
    last = tl.atomic_add(counter_ptr, 1, sem="acq_rel") == programs - 1
    if last:
        tl.store(counter_ptr, 0)
    return last


@triton.jit
def _totals(
    sums_ptr, programs, c, channels, THREE: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Sums over programs of the two or three rows of channels that each has left."""
    first = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    second = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    third = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for start in range(0, programs, BLOCK_P):
        p = start + tl.arange(0, BLOCK_P)
        inside = (p[:, None] < programs) & (c < channels)[None, :]
        at = sums_ptr + p[:, None] * (3 * channels) + c[None, :]
        # Past the first-level cache, which does not see what other multiprocessors wrote.
        first += tl.load(at, inside, 0.0, cache_modifier=".cg")
        second += tl.load(at + channels, inside, 0.0, cache_modifier=".cg")
        if THREE:
            third += tl.load(at + 2 * channels, inside, 0.0, cache_modifier=".cg")
    return tl.sum(first, 0), tl.sum(second, 0), tl.sum(third, 0)


@triton.jit
def _parameters(weight_ptr, bias_ptr, running_mean_ptr, running_var_ptr, c, inside):
    """What `_finish_statistics` needs, read before it is known who finishes: then nobody waits for it."""
    weight = tl.load(weight_ptr + c, inside, 0.0)
    bias = tl.load(bias_ptr + c, inside, 0.0)
    return weight, bias, tl.load(running_mean_ptr + c, inside, 0.0), tl.load(running_var_ptr + c, inside, 0.0)


@triton.jit
def _finish_statistics(
    sums_ptr, programs, c, inside, channels, shift_C, weight, bias, old_mean, old_var, stats_ptr,
    running_mean_ptr, running_var_ptr, count, momentum, eps, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Mean and variance from sums of x − shift and its squares; scale, offset, running statistics."""
    first, second, _ = _totals(sums_ptr, programs, c, channels, False, BLOCK_P, BLOCK_C)
    first /= count
    second /= count
    mean = shift_C + first
    var = second - first * first
    var = tl.where(var < 0.0, 0.0, var)  # not `maximum`, which on a GPU makes zero of what is no number
    rstd = 1.0 / tl.sqrt_rn(var + eps)
    scale = weight * rstd
    tl.store(stats_ptr + c, mean, inside)
    tl.store(stats_ptr + channels + c, rstd, inside)
    tl.store(stats_ptr + 2 * channels + c, scale, inside)
    tl.store(stats_ptr + 3 * channels + c, bias - mean * scale, inside)
    unbiased = var * (count / (count - 1))
    tl.store(running_mean_ptr + c, old_mean + momentum * (mean - old_mean), inside)
    tl.store(running_var_ptr + c, old_var + momentum * (unbiased - old_var), inside)


@triton.jit
def _close_statistics(
    first, second, counter_ptr, sums_ptr, programs, c, inside, channels, shift_C, weight, bias, old_mean,
    old_var, stats_ptr, running_mean_ptr, running_var_ptr, count, momentum, eps,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Leave this program's sums of x − shift and its squares; whoever comes last finishes."""
    out_ptr = sums_ptr + tl.program_id(0) * 3 * channels + c
    tl.store(out_ptr, tl.sum(first, 0), inside)
    tl.store(out_ptr + channels, tl.sum(second, 0), inside)
    if _is_last(counter_ptr + tl.program_id(1), programs):
        _finish_statistics(
            sums_ptr, programs, c, inside, channels, shift_C, weight, bias, old_mean, old_var, stats_ptr,
            running_mean_ptr, running_var_ptr, count, momentum, eps, BLOCK_P, BLOCK_C,
        )  # fmt: skip


@triton.jit
def _own_tile(rows, channels, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):
    """Rows and channels of this program, which channels exist, which entries do, and where those lie."""
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = c < channels
    there = (m < rows)[:, None] & inside[None, :]
    return m, c, inside, there, m.to(tl.int64)[:, None] * channels + c[None, :]


@triton.jit
def statistics_kernel(
    x_ptr, weight_ptr, bias_ptr, stats_ptr, running_mean_ptr, running_var_ptr, sums_ptr, counter_ptr,
    rows, channels, programs, momentum, eps,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Batch statistics of x_MC. stats: mean, 1/√(var + eps), scale, offset, one row of channels each."""
    p = tl.program_id(0)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = c < channels
    # Sums of differences from some row: their squares lose no digits where the mean is large.
    shift = tl.load(x_ptr + c, inside, 0.0).to(tl.float32)
    weight, bias, old_mean, old_var = _parameters(
        weight_ptr, bias_ptr, running_mean_ptr, running_var_ptr, c, inside
    )
    first = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    second = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for start in tl.range(p * BLOCK_M, rows, programs * BLOCK_M, num_stages=STAGES):
        m = start + tl.arange(0, BLOCK_M)
        there = (m < rows)[:, None] & inside[None, :]
        at = m.to(tl.int64)[:, None] * channels + c[None, :]
        x = tl.load(x_ptr + at, there, 0.0).to(tl.float32)
        x = tl.where(there, x - shift[None, :], 0.0)
        first += x
        second += x * x
    _close_statistics(
        first, second, counter_ptr, sums_ptr, programs, c, inside, channels, shift, weight, bias, old_mean,
        old_var, stats_ptr, running_mean_ptr, running_var_ptr, rows.to(tl.float32), momentum, eps,
        BLOCK_P, BLOCK_C,
    )  # fmt: skip


@triton.jit
def _taken(m, height, width, STRIDE: tl.constexpr):
    """The row of pixel m among every STRIDE-th of each direction, and whether it is one of those."""
    line = m // width
    n = line // height
    y, x = line - n * height, m - line * width  # without the divisions that remainders are
    small_height = (height + STRIDE - 1) // STRIDE
    small_width = (width + STRIDE - 1) // STRIDE
    row = (n * small_height + y // STRIDE) * small_width + x // STRIDE
    return row.to(tl.int64), (y % STRIDE == 0) & (x % STRIDE == 0)


@triton.jit
def _rectified(
    x_ptr, stats_ptr, other_ptr, other_stats_ptr, at, there, c, inside, channels, OTHER: tl.constexpr
):
    """relu(bn(x) + other); other: nothing (0), a tensor (1) or another one normalised (2)."""
    scale = tl.load(stats_ptr + 2 * channels + c, inside, 0.0)
    offset = tl.load(stats_ptr + 3 * channels + c, inside, 0.0)
    y = tl.load(x_ptr + at, there, 0.0).to(tl.float32) * scale[None, :] + offset[None, :]
    if OTHER > 0:
        other = tl.load(other_ptr + at, there, 0.0).to(tl.float32)
        if OTHER == 2:
            scale = tl.load(other_stats_ptr + 2 * channels + c, inside, 0.0)
            offset = tl.load(other_stats_ptr + 3 * channels + c, inside, 0.0)
            other = other * scale[None, :] + offset[None, :]
        y += other
    return tl.where(y < 0.0, 0.0, y)


@triton.jit
def normalise_kernel(
    x_ptr, stats_ptr, other_ptr, other_stats_ptr, y_ptr, small_ptr, rows, channels, height, width,
    OTHER: tl.constexpr, STRIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """y as `_rectified` says and, with a STRIDE above 1, small = every STRIDE-th pixel of y."""
    m, c, inside, there, at = _own_tile(rows, channels, BLOCK_M, BLOCK_C)
    y = _rectified(x_ptr, stats_ptr, other_ptr, other_stats_ptr, at, there, c, inside, channels, OTHER)
    y = y.to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + at, y, there)
    if STRIDE > 1:
        row, taken = _taken(m, height, width, STRIDE)
        tl.store(small_ptr + row[:, None] * channels + c[None, :], y, there & taken[:, None])


@triton.jit
def pool_kernel(
    x_ptr, stats_ptr, other_ptr, other_stats_ptr, y_ptr, mean_ptr, pixels, channels,
    OTHER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """y as `_rectified` says, and its mean over the pixels of one image."""
    n = tl.program_id(0)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = c < channels
    total = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for start in range(0, pixels, BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        there = (m < pixels)[:, None] & inside[None, :]
        at = (n.to(tl.int64) * pixels + m)[:, None] * channels + c[None, :]
        y = _rectified(x_ptr, stats_ptr, other_ptr, other_stats_ptr, at, there, c, inside, channels, OTHER)
        tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), there)
        total += tl.where(there, y, 0.0)
    mean = tl.sum(total, 0) / pixels
    tl.store(mean_ptr + n.to(tl.int64) * channels + c, mean.to(mean_ptr.dtype.element_ty), inside)


@triton.jit
def _gradient(
    d_ptr, e_ptr, m, at, there, c, channels, height, width, POOLED: tl.constexpr, SECOND: tl.constexpr
):
    """d + e, the gradients of y from its uses. d: that of y or, if POOLED, of its mean over each image.

    e: there is none (0), that of y (1) or of every SECOND-th pixel of y.
    """
    if POOLED:
        image = (m // (height * width)).to(tl.int64)
        g = tl.load(d_ptr + image[:, None] * channels + c[None, :], there, 0.0).to(tl.float32)
        g *= 1.0 / (height * width)
    else:
        g = tl.load(d_ptr + at, there, 0.0).to(tl.float32)
    if SECOND == 1:
        g += tl.load(e_ptr + at, there, 0.0).to(tl.float32)
    if SECOND > 1:
        row, taken = _taken(m, height, width, SECOND)
        taken = there & taken[:, None]
        g += tl.load(e_ptr + row[:, None] * channels + c[None, :], taken, 0.0).to(tl.float32)
    return g


@triton.jit
def _through_relu(g, y_ptr, x, stats_ptr, at, there, c, inside, channels, STORED: tl.constexpr):
    """The gradient behind the rectifier: g where y > 0, y being stored or computed again from x."""
    if STORED:
        active = tl.load(y_ptr + at, there, 0.0) > 0.0
    else:
        scale = tl.load(stats_ptr + 2 * channels + c, inside, 0.0)
        offset = tl.load(stats_ptr + 3 * channels + c, inside, 0.0)
        active = x * scale[None, :] + offset[None, :] > 0.0
    return tl.where(active, g, 0.0)


@triton.jit
def _finish_gradient(total_g, total_gx, c, inside, channels, stats_ptr, coefficients_ptr, count):
    """Gradients of weight and bias, and a, b, c of the input's gradient a · g + b · x + c, per channel.

    dx = scale · (g − mean(g) − x̂ · mean(g · x̂)) with x̂ = (x − mean) · rstd and total_gx = Σ g (x − mean).
    """
    mean = tl.load(stats_ptr + c, inside, 0.0)
    rstd = tl.load(stats_ptr + channels + c, inside, 0.0)
    scale = tl.load(stats_ptr + 2 * channels + c, inside, 0.0)
    b = -scale * rstd * rstd * total_gx / count
    tl.store(coefficients_ptr + c, total_gx * rstd, inside)
    tl.store(coefficients_ptr + channels + c, total_g, inside)
    tl.store(coefficients_ptr + 2 * channels + c, scale, inside)
    tl.store(coefficients_ptr + 3 * channels + c, b, inside)
    tl.store(coefficients_ptr + 4 * channels + c, -scale * total_g / count - b * mean, inside)


@triton.jit
def gradient_sums_kernel(
    d_ptr, e_ptr, y_ptr, x_ptr, stats_ptr, coefficients_ptr,
    other_ptr, other_stats_ptr, other_coefficients_ptr, g_ptr, sums_ptr, counter_ptr,
    rows, channels, programs, height, width,
    POOLED: tl.constexpr, SECOND: tl.constexpr, STORED: tl.constexpr, OTHER: tl.constexpr, KEEP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_P: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sums that the gradients of y = relu(bn(x) + ...) need, and the gradient behind the rectifier if KEEP.

    d, e: see `_gradient`. OTHER: the second summand was normalised too.
    coefficients: gradients of weight and bias, then a, b, c (see `_finish_gradient`).
    """
    p = tl.program_id(0)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = c < channels
    mean = tl.load(stats_ptr + c, inside, 0.0)
    total_g = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    total_gx = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    total_go = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for start in tl.range(p * BLOCK_M, rows, programs * BLOCK_M, num_stages=STAGES):
        m = start + tl.arange(0, BLOCK_M)
        there = (m < rows)[:, None] & inside[None, :]
        at = m.to(tl.int64)[:, None] * channels + c[None, :]
        x = tl.load(x_ptr + at, there, 0.0).to(tl.float32)
        g = _gradient(d_ptr, e_ptr, m, at, there, c, channels, height, width, POOLED, SECOND)
        g = _through_relu(g, y_ptr, x, stats_ptr, at, there, c, inside, channels, STORED)
        if KEEP:
            rounded = g.to(g_ptr.dtype.element_ty)
            tl.store(g_ptr + at, rounded, there)
            g = rounded.to(tl.float32)
        total_g += g
        total_gx += g * (x - mean[None, :])
        if OTHER:
            other_mean = tl.load(other_stats_ptr + c, inside, 0.0)
            other = tl.load(other_ptr + at, there, 0.0).to(tl.float32)
            total_go += g * (other - other_mean[None, :])
    out_ptr = sums_ptr + p * 3 * channels + c
    tl.store(out_ptr, tl.sum(total_g, 0), inside)
    tl.store(out_ptr + channels, tl.sum(total_gx, 0), inside)
    if OTHER:
        tl.store(out_ptr + 2 * channels, tl.sum(total_go, 0), inside)
    if _is_last(counter_ptr + tl.program_id(1), programs):
        count = rows.to(tl.float32)
        sum_g, sum_gx, sum_go = _totals(sums_ptr, programs, c, channels, OTHER, BLOCK_P, BLOCK_C)
        _finish_gradient(sum_g, sum_gx, c, inside, channels, stats_ptr, coefficients_ptr, count)
        if OTHER:
            _finish_gradient(
                sum_g, sum_go, c, inside, channels, other_stats_ptr, other_coefficients_ptr, count
            )


@triton.jit
def _affine(g, x, coefficients_ptr, c, inside, channels):
    """a · g + b · x + c."""
    a = tl.load(coefficients_ptr + 2 * channels + c, inside, 0.0)
    b = tl.load(coefficients_ptr + 3 * channels + c, inside, 0.0)
    constant = tl.load(coefficients_ptr + 4 * channels + c, inside, 0.0)
    return a[None, :] * g + b[None, :] * x + constant[None, :]


@triton.jit
def input_gradient_kernel(
    d_ptr, x_ptr, stats_ptr, coefficients_ptr, dx_ptr, other_ptr, other_coefficients_ptr, dother_ptr,
    rows, channels,
    RELU: tl.constexpr, OTHER: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Gradient of the normalised tensor(s), from that behind the rectifier or, with RELU, that before it."""
    _, c, inside, there, at = _own_tile(rows, channels, BLOCK_M, BLOCK_C)
    x = tl.load(x_ptr + at, there, 0.0).to(tl.float32)
    g = tl.load(d_ptr + at, there, 0.0).to(tl.float32)
    if RELU:
        g = _through_relu(g, d_ptr, x, stats_ptr, at, there, c, inside, channels, False)
    dx = _affine(g, x, coefficients_ptr, c, inside, channels)
    tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), there)
    if OTHER:
        other = tl.load(other_ptr + at, there, 0.0).to(tl.float32)
        dother = _affine(g, other, other_coefficients_ptr, c, inside, channels)
        tl.store(dother_ptr + at, dother.to(dother_ptr.dtype.element_ty), there)
