"""A sorting network of float32 keys in registers.

One program sorts one slice: one warp up to 2^10 samples, beyond that as many warps as it takes to hold them
in registers. The network is Batcher's bitonic one over the hypercube of index bits, as in `tl.sort`, with
three changes that matter for speed:

- the bits are arranged so that the *low* index bits live in a thread's registers, the next ones across lanes
  and the highest across warps. Low bits are compared most often, and comparing registers costs one
  instruction where lanes cost a shuffle and two more, and warps a way through shared memory. A sort does not
  care in which order its input is dealt out, so this is free;
- descending runs are sorted as ascending runs of negated keys, and so are the upper halves of a comparison
  between threads, so that every comparison is one minimum or maximum;
- stages that reach beyond a thread run in a loop, whose instructions fit the cache and compile once.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

# The interpreter walks through a reduction by exclusive or element by element.
_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y"))


@triton.jit
def _sign(bit):
    """1 where `bit` is 0, -1 where it is 1; from bits, so that a product with it stays a product."""
    return (0x3F800000 | (bit << 31)).to(tl.float32, bitcast=True)


@triton.jit
def _bit(n_dims: tl.constexpr, j: tl.constexpr):
    """The j-th index bit, as a tensor over the hypercube."""
    shape: tl.constexpr = [1] * (n_dims - 1 - j) + [2] + [1] * j
    return tl.reshape(tl.arange(0, 2), shape)


@triton.jit
def _other(x, n_dims: tl.constexpr, j: tl.constexpr):
    """The element that differs in index bit j."""
    if _INTERPRETED:
        flat = tl.reshape(x, [2**n_dims])
        out = tl.reshape(tl.gather(flat, tl.arange(0, 2**n_dims) ^ (2**j), 0), [2] * n_dims)
    else:
        bits = x.to(tl.int32, bitcast=True)
        out = (bits ^ tl.xor_sum(bits, n_dims - 1 - j, True)).to(x.dtype, bitcast=True)
    return out


@triton.jit
def _exchange_warps(x, j: tl.constexpr, LOG_N: tl.constexpr, LOG_WARPS: tl.constexpr):
    """The larger of -x and the element of another warp, which comes through shared memory.

    There neighbouring lanes should find neighbouring addresses: lanes become the low bits for the while.
    """
    REGISTERS: tl.constexpr = 2 ** (LOG_N - LOG_WARPS - 5)
    x = tl.permute(tl.reshape(x, [2**LOG_WARPS, 32, REGISTERS]), (0, 2, 1))
    x = tl.reshape(x, [2**LOG_N])
    x = tl.maximum(x * -1.0, tl.gather(x, tl.arange(0, 2**LOG_N) ^ (2**j), 0))
    x = tl.permute(tl.reshape(x, [2**LOG_WARPS, REGISTERS, 32]), (0, 2, 1))
    return tl.reshape(x, [2] * LOG_N)


@triton.jit
def _merge(h, stage, BITS: tl.constexpr, LOG_N: tl.constexpr, LOG_WARPS: tl.constexpr):
    """Merges runs of 2^(stage - 1), which span threads of 2^BITS elements, into runs of 2^stage.

    Elements come negated where index bit stage - 1 is set, and leave negated where bit `stage` is: a run
    that descends is one that ascends, negated. Within a comparison of bit j, elements with that bit set are
    negated once more. So every comparison is min(h, -other) = -max(-h, other), whatever thread and run it is
    in, and the signs change by a product, for which there is another unit than for the maximum.
    """
    thread = _bit(LOG_N, BITS) << BITS
    for i in tl.static_range(BITS + 1, LOG_N):
        thread += _bit(LOG_N, i) << i
    h = h * _sign((thread >> stage) & 1)
    for i in tl.static_range(LOG_N - BITS):
        if stage >= LOG_N - i:
            if i < LOG_WARPS:
                h = _exchange_warps(h, LOG_N - 1 - i, LOG_N, LOG_WARPS)
            else:
                h = tl.maximum(h * -1.0, _other(h, LOG_N, LOG_N - 1 - i))
            if i < LOG_N - BITS - 1:
                h = h * _sign(1 ^ _bit(LOG_N, LOG_N - 1 - i) ^ _bit(LOG_N, LOG_N - 2 - i))
            else:
                h = h * _sign(1 ^ _bit(LOG_N, BITS))
    for i in tl.static_range(BITS):
        other = _other(h, LOG_N, BITS - 1 - i)
        h = tl.where(_bit(LOG_N, BITS - 1 - i) == 1, tl.maximum(h, other), tl.minimum(h, other))
    return h


@triton.jit
def sort_ascending(x, LOG_N: tl.constexpr, LOG_WARPS: tl.constexpr):
    """Sorts a dealt block of 2^LOG_N float32 keys, none of them NaN, that 2^LOG_WARPS warps hold.

    Where a key's bits carry more than its value, zero is to be avoided: 0 and -0 are equal.
    """
    BITS: tl.constexpr = LOG_N - LOG_WARPS - 5 if LOG_N > 5 else 0  # of the index, in a thread's registers
    h = tl.reshape(x, [2] * LOG_N)
    for stage in tl.static_range(1, BITS + 1):
        if stage == BITS:
            h = h * _sign(_bit(LOG_N, BITS))
        for step in tl.static_range(stage):
            other = _other(h, LOG_N, stage - 1 - step)
            upper = _bit(LOG_N, stage - 1 - step)
            if stage < BITS:
                upper = upper ^ _bit(LOG_N, stage)
            h = tl.where(upper == 1, tl.maximum(h, other), tl.minimum(h, other))
    if BITS == 0:
        h = h * _sign(_bit(LOG_N, 0))
    for stage in range(BITS + 1, LOG_N + 1):
        h = _merge(h, stage, BITS, LOG_N, LOG_WARPS)
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
def undeal(x, N: tl.constexpr, WARPS: tl.constexpr):
    """The inverse of `deal`: the order in which to store what was dealt out, so that no data moves."""
    if N > 128 * WARPS:
        x = tl.reshape(tl.permute(tl.reshape(x, [WARPS, 32, N // (128 * WARPS), 4]), (2, 0, 1, 3)), [N])
    return x
