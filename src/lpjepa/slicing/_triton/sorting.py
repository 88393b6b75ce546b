"""The matching of one slice: keys that a network can sort, their comparison, and the gradient.

Features are sorted as 32-bit keys that carry their sample's index in the low bits, so that nothing else needs
to move; targets are sorted as they are.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lpjepa.slicing._triton.network import deal, sort_ascending, undeal


@triton.jit
def _key(z, low, high, n, N, LOG_N: tl.constexpr, LEVELS: tl.constexpr):
    """Keys of features: fixed point over the slice's own range, index in the low bits, as float32 numbers.

    Ties keep the samples' order, and padding comes last. The middle of the range is zero; zero itself,
    subnormal numbers and infinity are left out.
    """
    inverse = (LEVELS + 0.0) / tl.where(high > low, high - low, float("inf"))
    level = tl.minimum(tl.maximum((z - low) * inverse, 0.0), LEVELS).to(tl.int32)
    level = tl.where(n < N, level, LEVELS + 1) - (LEVELS + 2) // 2
    signed = (level << LOG_N) | n
    magnitude = (signed ^ (signed >> 31)) + 0x00800000
    return (magnitude | (signed & -0x80000000)).to(tl.float32, bitcast=True)


@triton.jit
def _signed(key):
    """Level and index, as one integer."""
    bits = key.to(tl.int32, bitcast=True)
    return ((bits & 0x7FFFFFFF) - 0x00800000) ^ (bits >> 31)


@triton.jit
def _value(signed, low, high, LOG_N: tl.constexpr, LEVELS: tl.constexpr):
    """The middle of a key's level."""
    level = (signed >> LOG_N).to(tl.float32) + ((LEVELS + 2) // 2 + 0.5)
    return low + level * ((high - low) / LEVELS)


@triton.jit
def wasserstein2_kernel(
    p_ptr,  # float32 (K, V, 2, PITCH): projections of features, then of targets
    g_ptr,  # the same memory as float16: the gradient replaces the features' projections
    loss_ptr,  # float32 (V, loss_stride)
    weight_ptr,  # float32 (V, weight_stride) relative weights, or unused
    bound_ptr,  # int32: bits of the largest norm of a row
    N,
    PITCH,
    VIEWS,
    loss_stride,
    weight_stride,
    WEIGHTED: tl.constexpr,
    GRADIENT: tl.constexpr,
    FULL: tl.constexpr,  # N is 2^LOG_N
    LOG_N: tl.constexpr,
    LOG_WARPS: tl.constexpr,
):
    """One slice of one view: mean squared difference of the sorted projections, and its gradient.

    The gradient (without the factor 2/N and scaled into the range of float16) is written at the start of
    the memory that the features' projections of this slice and view held.
    """
    BLOCK: tl.constexpr = 2**LOG_N
    WARPS: tl.constexpr = 2**LOG_WARPS
    if FULL:
        # Known when compiled, so that no comparison with it is left.
        N = BLOCK
        PITCH = BLOCK
    # The index leaves 32 - LOG_N bits, of which float32 counts 24 exactly. Patterns that are no
    # normal number are left out, and the last level is the padding's.
    LEVELS: tl.constexpr = 2 ** (32 - LOG_N) - 2 ** (25 - LOG_N) - 2 if LOG_N > 7 else 2**24 - 2
    k = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1)
    z_place = (k * VIEWS + v) * (2 * PITCH)
    y_place = z_place + PITCH
    n = tl.arange(0, BLOCK)
    inside = n < N
    if LOG_WARPS == 0:
        y = tl.load(p_ptr + y_place + n, mask=inside, other=float("inf"))
        # Not finite exactly if some projection is not; sums of finite multiples of zero are zero.
        check = tl.sum(tl.where(inside, y, 0.0) * 0.0)
        y = sort_ascending(deal(y, BLOCK, WARPS), LOG_N, LOG_WARPS)
        z = tl.load(p_ptr + z_place + n, mask=inside, other=0.0)
        check += tl.sum(z * 0.0)
        low = tl.min(tl.where(inside, z, float("inf")))
        high = tl.max(tl.where(inside, z, float("-inf")))
        key = _key(z, low, high, n, N, LOG_N, LEVELS)
        key = sort_ascending(deal(key, BLOCK, WARPS), LOG_N, LOG_WARPS)
        _compare(
            key, y, low, high, check, g_ptr + 2 * z_place, loss_ptr + v * loss_stride + k,
            weight_ptr + v * weight_stride + k, bound_ptr, N, PITCH, WEIGHTED, GRADIENT, FULL, LOG_N, LEVELS
        )  # fmt: skip
    else:
        # Targets, then features, in one loop and one copy of the network. Sorted targets wait in memory,
        # where their projections were.
        check = 0.0
        for side in range(2):
            x = tl.load(p_ptr + tl.where(side == 0, y_place, z_place) + n, mask=inside, other=0.0)
            check += tl.sum(x * 0.0)
            low = tl.min(tl.where(inside, x, float("inf")))
            high = tl.max(tl.where(inside, x, float("-inf")))
            padded = tl.where(inside, x, float("inf"))
            x = tl.where(side == 0, padded, _key(x, low, high, n, N, LOG_N, LEVELS))
            x = sort_ascending(deal(x, BLOCK, WARPS), LOG_N, LOG_WARPS)
            # Every warp has read its projections before any of them is overwritten.
            tl.debug_barrier()
            if side == 0:
                # In the order of the registers if there is room for all of it, else without the padding.
                if FULL:
                    x = undeal(x, BLOCK, WARPS)
                tl.store(p_ptr + y_place + n, x, mask=n < PITCH)
            else:
                y = tl.load(p_ptr + y_place + n, mask=n < PITCH, other=0.0)
                if FULL:
                    y = deal(y, BLOCK, WARPS)
                _compare(
                    x, y, low, high, check, g_ptr + 2 * z_place, loss_ptr + v * loss_stride + k,
                    weight_ptr + v * weight_stride + k, bound_ptr, N, PITCH, WEIGHTED, GRADIENT, FULL, LOG_N,
                    LEVELS,
                )  # fmt: skip


@triton.jit
def _compare(
    key, y, low, high, check, g_ptr, loss_ptr, weight_ptr, bound_ptr, N, PITCH,
    WEIGHTED: tl.constexpr, GRADIENT: tl.constexpr, FULL: tl.constexpr, LOG_N: tl.constexpr,
    LEVELS: tl.constexpr,
):  # fmt: skip
    """The loss of one slice from its sorted sides, and the gradient at the samples' places."""
    signed = _signed(key)
    index = signed & (2**LOG_N - 1)
    real = index < N
    value = _value(signed, low, high, LOG_N, LEVELS)
    difference = tl.where(real, value - tl.where(real, y, 0.0), 0.0) + check
    loss = tl.sum(tl.where(real, difference * difference, 0.0)) / N
    if WEIGHTED:
        weight = tl.load(weight_ptr)
        loss = loss * weight
        difference = difference * weight
    tl.store(loss_ptr, loss)
    if GRADIENT:
        slope = (difference * gradient_scale(bound_ptr)).to(tl.float16)
        if FULL:
            tl.store(g_ptr + index, slope)
        else:
            tl.store(g_ptr + index, slope, mask=index < PITCH)


@triton.jit
def gradient_scale(bound_ptr):
    """The power of two that brings differences of projections, at most twice the bound, below 2^15."""
    exponent = (tl.load(bound_ptr) >> 23) & 255
    field = tl.minimum(tl.maximum(267 - exponent, 1), 253)
    return (field << 23).to(tl.float32, bitcast=True)
