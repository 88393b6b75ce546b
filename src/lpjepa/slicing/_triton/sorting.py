"""A sorting network in registers, and the matching of one slice that stands on it.

One program sorts one slice: one warp up to 2^10 samples, beyond that as many warps as it takes to hold them
in registers. The network is Batcher's bitonic one over the hypercube of index
bits, as in `tl.sort`, with three changes that matter for speed:

- the bits are arranged so that the *low* index bits live in a thread's registers, the next ones across lanes
  and the highest across warps. Low bits are compared most often, and comparing registers costs one
  instruction where lanes cost a shuffle and two more, and warps a way through shared memory. A sort does not
  care in which order its input is dealt out, so this is free;
- descending runs are sorted as ascending runs of complemented keys, so that a register comparison is a
  plain minimum or maximum;
- features are sorted as 32-bit keys that carry their sample's index in the low bits, so that nothing else
  needs to move.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _bit(n_dims: tl.constexpr, j: tl.constexpr):
    """The j-th index bit, as a tensor over the hypercube."""
    shape: tl.constexpr = [1] * (n_dims - 1 - j) + [2] + [1] * j
    return tl.reshape(tl.arange(0, 2), shape)


@triton.jit
def _exchange(x, n_dims: tl.constexpr, j: tl.constexpr, in_registers: tl.constexpr):
    """Ascending compare-and-exchange of the elements that differ in index bit j."""
    bits = x.to(tl.int32, bitcast=True)
    other = (bits ^ tl.xor_sum(bits, n_dims - 1 - j, True)).to(x.dtype, bitcast=True)
    upper = _bit(n_dims, j) == 1
    if in_registers:
        out = tl.where(upper, tl.maximum(x, other), tl.minimum(x, other))
    else:
        out = tl.where((x > other) != upper, other, x)
    return out


@triton.jit
def _exchange_warps(x, j: tl.constexpr, LOG_N: tl.constexpr, LOG_WARPS: tl.constexpr):
    """The same for elements in different warps, a way through shared memory.

    There neighbouring lanes should find neighbouring addresses: lanes become the low bits for the while.
    """
    REGISTERS: tl.constexpr = 2 ** (LOG_N - LOG_WARPS - 5)
    x = tl.permute(tl.reshape(x, [2**LOG_WARPS, 32, REGISTERS]), (0, 2, 1))
    x = tl.reshape(x, [2 ** (LOG_N - 1 - j), 2, 2**j])
    bits = x.to(tl.int32, bitcast=True)
    other = (bits ^ tl.xor_sum(bits, 1, True)).to(x.dtype, bitcast=True)
    upper = tl.reshape(tl.arange(0, 2), [1, 2, 1]) == 1
    x = tl.where((x > other) != upper, other, x)
    x = tl.permute(tl.reshape(x, [2**LOG_WARPS, REGISTERS, 32]), (0, 2, 1))
    return tl.reshape(x, [2] * LOG_N)


@triton.jit
def _complement(x, where):
    """Keys in reversed order where `where` is 1: all bits of an integer, the sign of a float."""
    bits = x.to(tl.int32, bitcast=True)
    if x.dtype.is_floating():
        flipped = bits ^ (where << 31)
    else:
        flipped = bits ^ -where
    return flipped.to(x.dtype, bitcast=True)


@triton.jit
def sort_ascending(x, LOG_N: tl.constexpr, LOG_WARPS: tl.constexpr):
    """Sorts a dealt block of 2^LOG_N 32-bit keys that 2^LOG_WARPS warps hold."""
    h = tl.reshape(x, [2] * LOG_N)
    for stage in tl.static_range(1, LOG_N + 1):
        # Runs of 2^stage with index bit `stage` set end up descending, except in the last stage.
        if stage < LOG_N:
            h = _complement(h, _bit(LOG_N, stage))
        for step in tl.static_range(stage):
            if stage - 1 - step < LOG_N - LOG_WARPS:
                h = _exchange(h, LOG_N, stage - 1 - step, stage - 1 - step < LOG_N - LOG_WARPS - 5)
            else:
                h = _exchange_warps(h, stage - 1 - step, LOG_N, LOG_WARPS)
        if stage < LOG_N:
            h = _complement(h, _bit(LOG_N, stage))
    return tl.reshape(h, [2**LOG_N])


@triton.jit
def deal(x, N: tl.constexpr, WARPS: tl.constexpr):
    """Reorders a block as it was loaded, without moving data: a thread's elements become neighbours.

    A coalesced load gives each thread four neighbours, then the next thread, the next warp, and starts over
    after all of them; here the rounds become the middle of the index, the threads its high bits.
    """
    if N > 128 * WARPS:
        x = tl.reshape(tl.permute(tl.reshape(x, [N // (128 * WARPS), WARPS, 32, 4]), (1, 2, 0, 3)), [N])
    return x


@triton.jit
def _join(level, index, LOG_N: tl.constexpr):
    """A key of 32 unsigned bits, with the top one flipped: signed numbers of the same order."""
    return ((level << LOG_N) | index) ^ -0x80000000


@triton.jit
def _level(key, LOG_N: tl.constexpr):
    return ((key ^ -0x80000000).to(tl.uint32, bitcast=True) >> LOG_N).to(tl.float32)


@triton.jit
def wasserstein2_kernel(
    p_ptr,  # float32 (K, 2·V·PITCH): projections of the features' views, then of the targets'
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
    LOG_N: tl.constexpr,
    LOG_WARPS: tl.constexpr,
):
    """One slice of one view: mean squared difference of the sorted projections, and its gradient.

    The gradient (without the factor 2/N and scaled into the range of float16) is written at the start of
    the memory that the features' projections of this slice and view held.
    """
    BLOCK: tl.constexpr = 2**LOG_N
    k = tl.program_id(0).to(tl.int64)
    v = tl.program_id(1)
    z_ptr = p_ptr + k * (2 * VIEWS * PITCH) + v * PITCH
    y_ptr = z_ptr + VIEWS * PITCH
    n = tl.arange(0, BLOCK)
    inside = n < N

    y = tl.load(y_ptr + n, mask=inside, other=float("inf"))
    y_check = tl.sum(tl.where(inside, y, 0.0) * 0.0)
    y = sort_ascending(deal(y, BLOCK, 2**LOG_WARPS), LOG_N, LOG_WARPS)

    z = tl.load(z_ptr + n, mask=inside, other=0.0)
    low = tl.min(tl.where(inside, z, float("inf")))
    high = tl.max(tl.where(inside, z, float("-inf")))
    # Not finite exactly if some projection is not; sums of finite multiples of zero are zero.
    check = tl.sum(z * 0.0) + y_check
    # Fixed point over the slice's own range, index in the low bits: ties keep the samples' order. The index
    # leaves 32 - LOG_N bits, of which float32 counts 24 exactly; the last level is the padding's.
    LEVELS: tl.constexpr = 2.0 ** (32 - LOG_N if LOG_N > 8 else 24) - 2.0
    step = (high - low) / LEVELS
    inverse = LEVELS / tl.where(high > low, high - low, float("inf"))
    level = tl.minimum(tl.maximum((z - low) * inverse, 0.0), LEVELS).to(tl.int32)
    key = tl.where(inside, _join(level, n, LOG_N), 0x7FFFFFFF - (BLOCK - 1) + n)
    key = sort_ascending(deal(key, BLOCK, 2**LOG_WARPS), LOG_N, LOG_WARPS)

    index = key & (BLOCK - 1)
    real = index < N
    value = low + (_level(key, LOG_N) + 0.5) * step
    difference = tl.where(real, value - tl.where(real, y, 0.0), 0.0) + check
    loss = tl.sum(tl.where(real, difference * difference, 0.0)) / N
    if WEIGHTED:
        weight = tl.load(weight_ptr + v * weight_stride + k)
        loss = loss * weight
        difference = difference * weight
    tl.store(loss_ptr + v * loss_stride + k, loss)
    if GRADIENT:
        if LOG_WARPS > 0:
            tl.debug_barrier()  # every warp has read its projections before any of them is overwritten
        slope = (difference * gradient_scale(bound_ptr)).to(tl.float16)
        tl.store(g_ptr + k * (4 * VIEWS * PITCH) + 2 * v * PITCH + index, slope, mask=index < PITCH)


@triton.jit
def gradient_scale(bound_ptr):
    """The power of two that brings differences of projections, at most twice the bound, below 2^15."""
    exponent = (tl.load(bound_ptr) >> 23) & 255
    field = tl.minimum(tl.maximum(267 - exponent, 1), 253)
    return (field << 23).to(tl.float32, bitcast=True)
