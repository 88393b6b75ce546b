"""The matrix products around the sort, in 16-bit inputs and float32 accumulation.

float16 carries 11 significant bits (bfloat16 has 8). A float32 row is scaled by a power of two and split
into two float16 parts, high and low, that together carry 22; the products of both parts with a direction
are accumulated together. Directions drawn in 16 bits are exact as they stand.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _load_row(z_row, y_row, d, inside, is_target):
    # Two types may differ (bfloat16 features, float32 targets), so there are two loads, one of them masked.
    z = tl.load(z_row + d, mask=inside & (is_target == 0), other=0.0).to(tl.float32)
    return z + tl.load(y_row + d, mask=inside & is_target, other=0.0).to(tl.float32)


@triton.jit
def split_kernel(
    z_ptr,  # (V, N, D), contiguous
    y_ptr,  # the same
    high_ptr,  # float16 (V·sides·PITCH, DIM_PITCH): features, then targets, of each view
    low_ptr,  # float16 (V·PITCH, DIM_PITCH): of the features alone
    factor_ptr,  # float32 (V·sides·PITCH,): what a product with a row must be multiplied by
    bound_ptr,  # int32: maximum over rows of the bits of the row's norm
    N,
    D,
    PITCH,
    DIM_PITCH,
    unscale,  # the inverse of the directions' scale
    VIEWS,
    BLOCK: tl.constexpr,
):
    """One row into float16 parts. Its largest entry is brought to 2^14..2^15: no overflow, few subnormals."""
    n = tl.program_id(0)
    v = tl.program_id(1)  # over both sides
    real = n < N  # rows up to PITCH are zero
    is_target = v >= VIEWS
    d = tl.arange(0, BLOCK)
    z_row = z_ptr + (v.to(tl.int64) * N + n) * D
    y_row = y_ptr + ((v - VIEWS).to(tl.int64) * N + n) * D
    largest = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, D, BLOCK):
        x = _load_row(z_row, y_row, start + d, real & (start + d < D), is_target)
        largest = tl.maximum(largest, tl.abs(x))
        squares += x * x
    exponent = (tl.max(largest).to(tl.int32, bitcast=True) >> 23) & 255
    field = tl.minimum(tl.maximum(268 - exponent, 1), 253)
    scale = (field << 23).to(tl.float32, bitcast=True)
    # Features and targets of a view below each other.
    row = (v % VIEWS) * (tl.num_programs(1) // VIEWS) * PITCH + (v // VIEWS) * PITCH + n
    out = row.to(tl.int64) * DIM_PITCH
    low_out = (v.to(tl.int64) * PITCH + n) * DIM_PITCH
    for start in range(0, DIM_PITCH, BLOCK):
        x = _load_row(z_row, y_row, start + d, real & (start + d < D), is_target) * scale
        high = x.to(tl.float16)
        low = (x - high.to(tl.float32)).to(tl.float16)
        tl.store(high_ptr + out + start + d, high, mask=start + d < DIM_PITCH)
        tl.store(low_ptr + low_out + start + d, low, mask=(start + d < DIM_PITCH) & (v < VIEWS))
    tl.store(factor_ptr + row, ((254 - field) << 23).to(tl.float32, bitcast=True) * unscale)
    # The order of a maximum does not matter, so this atomic is deterministic.
    norm = tl.sqrt(tl.sum(squares))
    tl.atomic_max(bound_ptr, norm.to(tl.int32, bitcast=True))


@triton.jit
def project_kernel(
    c_ptr,  # float16 (K, DIM_PITCH)
    c_low_ptr,  # the same: what the rounding of given directions left, or unused
    high_ptr,  # float16 (V, R, DIM_PITCH)
    low_ptr,  # float16 (V, R_LOW, DIM_PITCH)
    factor_ptr,  # float32 (V, R)
    p_ptr,  # float32 (K, V, R)
    K,
    R,
    R_LOW,
    DIM_PITCH,
    C_LOW: tl.constexpr,
    EVEN: tl.constexpr,  # no block holds both rows with a low part and rows without
    BLOCK_K: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """P[k, v, r] = factor_vr · Σ_d C[k, d] · (high + low)[v, r, d]: slices as rows, samples contiguous."""
    blocks_k = tl.cdiv(K, BLOCK_K)
    v = tl.program_id(1)
    # Neighbouring programs share the rows and walk through the slices; feature rows, which cost more, first.
    first_r = (tl.program_id(0) // blocks_k) * BLOCK_R
    first_k = (tl.program_id(0) % blocks_k) * BLOCK_K
    k = first_k + tl.arange(0, BLOCK_K)
    r = first_r + tl.arange(0, BLOCK_R)
    d = tl.arange(0, BLOCK_D)
    # Rows beyond the end wrap around: computed, not stored.
    c_tile = c_ptr + (k % K).to(tl.int64)[:, None] * DIM_PITCH + d[None, :]
    c_low_tile = c_low_ptr + (k % K).to(tl.int64)[:, None] * DIM_PITCH + d[None, :]
    high_tile = high_ptr + (v.to(tl.int64) * R + r % R)[None, :] * DIM_PITCH + d[:, None]
    low_tile = low_ptr + (v.to(tl.int64) * R_LOW + r % R_LOW)[None, :] * DIM_PITCH + d[:, None]
    acc = tl.zeros([BLOCK_K, BLOCK_R], tl.float32)
    if first_r < R_LOW:
        for start in range(0, DIM_PITCH, BLOCK_D):
            c = tl.load(c_tile + start)
            high = tl.load(high_tile + start)
            acc = tl.dot(c, high, acc)
            if EVEN:
                low = tl.load(low_tile + start)
            else:
                low = tl.load(low_tile + start, mask=(r < R_LOW)[None, :], other=0.0)
            acc = tl.dot(c, low, acc)
            if C_LOW:
                acc = tl.dot(tl.load(c_low_tile + start), high, acc)
    else:
        for start in range(0, DIM_PITCH, BLOCK_D):
            high = tl.load(high_tile + start)
            acc = tl.dot(tl.load(c_tile + start), high, acc)
            if C_LOW:
                acc = tl.dot(tl.load(c_low_tile + start), high, acc)
    acc = acc * tl.load(factor_ptr + v * R + r, mask=r < R, other=0.0)[None, :]
    out = p_ptr + (k.to(tl.int64)[:, None] * tl.num_programs(1) + v) * R + r[None, :]
    tl.store(out, acc, mask=(k < K)[:, None] & (r < R)[None, :])


@triton.jit
def _with_factors(x, bound_ptr, weight_max_ptr, factor, SCALED: tl.constexpr, WEIGHTED: tl.constexpr):
    if SCALED:
        # The inverse of `gradient_scale`, a power of two.
        exponent = (tl.load(bound_ptr) >> 23) & 255
        field = 254 - tl.minimum(tl.maximum(267 - exponent, 1), 253)
        x = x * (field << 23).to(tl.float32, bitcast=True)
    if WEIGHTED:
        x = x * tl.load(weight_max_ptr)
    return x * factor


@triton.jit(do_not_specialize=["add"])
def gradient_kernel(
    g_ptr,  # float16 gradients by the projections: slice k at k·SLICE_PITCH, view v at v·VIEW_PITCH
    c_ptr,  # float16 (K, DIM_PITCH)
    acc_ptr,  # float32 (SPLITS, V, PITCH, DIM_PITCH)
    bound_ptr,
    weight_max_ptr,
    K,
    PITCH,
    DIM_PITCH,
    SLICE_PITCH,
    VIEW_PITCH,
    SPLIT,
    factor,
    add,  # 1 to add to what `acc` holds, 0 to replace it
    FACTORS: tl.constexpr,  # the factors that the float16 gradients left out are applied here
    SCALED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """acc[s, v, n, d] (+)= Σ_k G[k, v, n] · C[k, d] over the s-th part of the slices.

    Each program owns its part of `acc`: sums have one order, and the result is the same each time. What is
    added is not read first: memory adds it, one number to each, which nobody waits for.
    """
    blocks_d = tl.cdiv(DIM_PITCH, BLOCK_D)
    n = (tl.program_id(0) // blocks_d) * BLOCK_N + tl.arange(0, BLOCK_N)
    d = (tl.program_id(0) % blocks_d) * BLOCK_D + tl.arange(0, BLOCK_D)
    v = tl.program_id(1)
    s = tl.program_id(2)
    first = s * SPLIT
    last = tl.minimum(first + SPLIT, K)
    k = first + tl.arange(0, BLOCK_K)
    g_tile = g_ptr + v * VIEW_PITCH + k.to(tl.int64)[:, None] * SLICE_PITCH + (n % PITCH)[None, :]
    c_tile = c_ptr + k.to(tl.int64)[:, None] * DIM_PITCH + (d % DIM_PITCH)[None, :]
    acc = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for start in range(first, last, BLOCK_K):
        inside = (start + tl.arange(0, BLOCK_K) < last)[:, None]
        g = tl.load(g_tile, mask=inside, other=0.0)
        c = tl.load(c_tile, mask=inside, other=0.0)
        acc = tl.dot(tl.trans(g), c, acc)
        g_tile += BLOCK_K * SLICE_PITCH
        c_tile += BLOCK_K * DIM_PITCH
    row = (s * tl.num_programs(1) + v).to(tl.int64) * PITCH + n
    out = acc_ptr + row[:, None] * DIM_PITCH + d[None, :]
    mask = (n < PITCH)[:, None] & (d < DIM_PITCH)[None, :]
    if FACTORS:
        acc = _with_factors(acc, bound_ptr, weight_max_ptr, factor, SCALED, WEIGHTED)
    if add == 0:
        tl.store(out, acc, mask=mask)
    else:
        tl.atomic_add(out, acc, mask=mask, sem="relaxed")


@triton.jit
def collect_kernel(
    acc_ptr,  # float32 (SPLITS, V, PITCH, DIM_PITCH)
    out_ptr,  # float32 (V, N, D)
    bound_ptr,
    weight_max_ptr,
    N,
    D,
    PITCH,
    DIM_PITCH,
    factor,
    SPLITS,
    SCALED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The sum over the parts, with the factors that the float16 gradients left out."""
    v = tl.program_id(1)
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < N * D
    n = i // D
    source = acc_ptr + (v.to(tl.int64) * PITCH + n) * DIM_PITCH + i % D
    stride = tl.num_programs(1).to(tl.int64) * PITCH * DIM_PITCH
    total = tl.zeros([BLOCK], tl.float32)
    for _ in range(SPLITS):
        total += tl.load(source, mask=inside, other=0.0)
        source += stride
    total = _with_factors(total, bound_ptr, weight_max_ptr, factor, SCALED, WEIGHTED)
    tl.store(out_ptr + v.to(tl.int64) * N * D + i, total, mask=inside)
