"""The Epps–Pulley statistic of one slice against a standard normal, with its gradient in the same pass."""

from __future__ import annotations

import triton
import triton.language as tl

# Gradients by the projections are at most 4 Σ w t, about 10 for the usual rule; float16 ends at 65504.
SLOPE_SCALE = 1024.0


@triton.jit
def epps_pulley_kernel(
    p_ptr,  # float32 (K, V·PITCH): projections
    g_ptr,  # the same memory as float16
    loss_ptr,  # float32 (V, loss_stride)
    normal_ptr,  # float32 (POINTS,): exp(-t²/2)
    N,
    PITCH,
    VIEWS,
    loss_stride,
    spacing,
    slope_scale,
    POINTS: tl.constexpr,
    POINTS_BLOCK: tl.constexpr,
    GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """T = N Σ_j w_j |mean exp(i t_j x) − φ(t_j)|² on the points t_j = j·spacing, and dT/dx.

    exp(i t_j x) is the j-th power of exp(i·spacing·x): one cosine and sine for each projection, then
    rotations. The second pass over the samples repeats them instead of keeping 2·POINTS numbers a sample.
    """
    k = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1)
    place = k * (VIEWS * PITCH) + v * PITCH
    j = tl.arange(0, POINTS_BLOCK)
    real = tl.zeros([POINTS_BLOCK], tl.float32)
    imag = tl.zeros([POINTS_BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        x = tl.load(p_ptr + place + n, mask=n < N, other=0.0) * spacing
        turn_cos, turn_sin = tl.cos(x), tl.sin(x)
        cos = tl.where(n < N, 1.0, 0.0)
        sin = tl.zeros([BLOCK], tl.float32)
        for point in tl.static_range(POINTS):
            real += tl.where(j == point, tl.sum(cos), 0.0)
            imag += tl.where(j == point, tl.sum(sin), 0.0)
            cos, sin = cos * turn_cos - sin * turn_sin, sin * turn_cos + cos * turn_sin
    normal = tl.load(normal_ptr + j, mask=j < POINTS, other=0.0)
    # Both signs of t count, and the two ends of the trapezoidal rule count half.
    weight = normal * tl.where((j > 0) & (j < POINTS - 1), 2.0 * spacing, spacing)
    real = real / N - normal
    imag = imag / N
    tl.store(loss_ptr + v * loss_stride + k, N * tl.sum(weight * (real * real + imag * imag)))
    if GRADIENT:
        by_cos = 2.0 * slope_scale * weight * imag * j * spacing
        by_sin = 2.0 * slope_scale * weight * real * j * spacing
        for start in range(0, N, BLOCK):
            n = start + tl.arange(0, BLOCK)
            x = tl.load(p_ptr + place + n, mask=n < N, other=0.0) * spacing
            turn_cos, turn_sin = tl.cos(x), tl.sin(x)
            cos = tl.where(n < N, 1.0, 0.0)
            sin = tl.zeros([BLOCK], tl.float32)
            slope = tl.zeros([BLOCK], tl.float32)
            for point in tl.static_range(POINTS):
                slope += tl.sum(tl.where(j == point, by_cos, 0.0)) * cos
                slope -= tl.sum(tl.where(j == point, by_sin, 0.0)) * sin
                cos, sin = cos * turn_cos - sin * turn_sin, sin * turn_cos + cos * turn_sin
            # Float16 gradients fill half the place of projections that all threads have read by now.
            tl.debug_barrier()
            tl.store(g_ptr + 2 * place + n, slope.to(tl.float16), mask=n < PITCH)
