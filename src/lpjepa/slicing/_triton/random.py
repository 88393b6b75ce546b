"""Random numbers drawn where they are used: Philox 4×32-10, its key read from device memory.

Keys and counters are those of `lpjepa._philox`: the key mixes seed and stream, and number i of a stream is
word i mod 4 of counter i div 4. Normal and uniform numbers agree with its to float32 rounding; generalized
Gaussian ones are drawn from other counters.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from lpjepa.slicing._triton.buffers import Place
from lpjepa.slicing._triton.launch import KEPT, Launch, current_stream
from lpjepa.slicing.directions import RANDOM_BLOCK

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = tl.constexpr(0x94D049BB133111EB)
_POSITIVE = tl.constexpr((1 << 63) - 1)
_TWO_PI = tl.constexpr(6.283185307179586)
# More than 95 % of Marsaglia and Tsang's proposals are accepted.
_ATTEMPTS = tl.constexpr(8)


@triton.jit
def _scramble(x):
    x = x + _GOLDEN
    x = (x ^ (x >> 30)) * _MULTIPLIER_1
    x = (x ^ (x >> 27)) * _MULTIPLIER_2
    return x ^ (x >> 31)


@triton.jit
def stream_key(seed_ptr, stream):
    """`lpjepa._random.mix(seed, stream)`, in unsigned arithmetic."""
    seed = tl.load(seed_ptr).to(tl.uint64, bitcast=True)
    return _scramble(_scramble(seed) + stream.to(tl.uint64)) & _POSITIVE


@triton.jit
def _next_key_kernel(seed_ptr, counter_ptr, out_ptr):
    counter = tl.load(counter_ptr)
    tl.store(out_ptr, stream_key(seed_ptr, counter).to(tl.int64, bitcast=True))
    tl.store(counter_ptr, counter + 1)


@triton.jit
def _words(key, counter, sequence):
    zero = counter * 0
    return tl.philox(
        key,
        counter.to(tl.uint32),
        (counter >> 32).to(tl.uint32),
        (zero + sequence).to(tl.uint32),
        zero.to(tl.uint32),
    )


@triton.jit
def _open_uniform(word):
    return ((word >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07  # 2^-23


@triton.jit
def _box_muller(radius_word, angle_word):
    radius = tl.sqrt(-2.0 * tl.log((radius_word.to(tl.float32) + 1.0) * 2.3283064365386963e-10))
    angle = angle_word.to(tl.float32) * (_TWO_PI * 2.3283064365386963e-10)
    return radius * tl.cos(angle), radius * tl.sin(angle)


@triton.jit
def _four_normals(key, counter, sequence):
    w0, w1, w2, w3 = _words(key, counter, sequence)
    n0, n1 = _box_muller(w0, w1)
    n2, n3 = _box_muller(w2, w3)
    return n0, n1, n2, n3


@triton.jit
def _interleave(n0, n1, n2, n3):
    """Four blocks of Q numbers as one of 4Q, number 4q + i from block i."""
    return tl.interleave(tl.interleave(n0, n2), tl.interleave(n1, n3))


@triton.jit
def _pick(n0, n1, n2, n3, lane):
    return tl.where(lane < 2, tl.where(lane == 0, n0, n1), tl.where(lane == 2, n2, n3))


@triton.jit(do_not_specialize=["stream"])
def _normal_kernel(seed_ptr, out_ptr, numel, stream, QUADS: tl.constexpr):
    block = tl.program_id(1)
    key = stream_key(seed_ptr, stream.to(tl.int64) + block)
    first = tl.program_id(0).to(tl.int64) * QUADS
    n0, n1, n2, n3 = _four_normals(key, first + tl.arange(0, QUADS), 0)
    index = 4 * first + tl.arange(0, 4 * QUADS)
    target = out_ptr + block.to(tl.int64) * numel + index
    tl.store(target, _interleave(n0, n1, n2, n3).to(out_ptr.dtype.element_ty), mask=index < numel)


@triton.jit(do_not_specialize=["stream"])
def _uniform_kernel(seed_ptr, out_ptr, numel, stream, QUADS: tl.constexpr):
    key = stream_key(seed_ptr, stream.to(tl.int64))
    first = tl.program_id(0).to(tl.int64) * QUADS
    w0, w1, w2, w3 = _words(key, first + tl.arange(0, QUADS), 0)
    index = 4 * first + tl.arange(0, 4 * QUADS)
    uniform = _open_uniform(_interleave(w0, w1, w2, w3))
    tl.store(out_ptr + index, uniform, mask=index < numel)


@triton.jit(do_not_specialize=["stream", "first"])
def _directions_kernel(
    seed_ptr,
    out_ptr,
    stream,
    first,
    D,
    PITCH,
    BLOCK_SLICES: tl.constexpr,
    QUADS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """One unit direction, rounded to the output's type; columns D to PITCH are zero."""
    k = first.to(tl.int64) + tl.program_id(0)
    key = stream_key(seed_ptr, stream.to(tl.int64) + k // BLOCK_SLICES)
    start = (k % BLOCK_SLICES) * D
    d = tl.arange(0, 4 * QUADS)
    if ALIGNED:
        n0, n1, n2, n3 = _four_normals(key, start // 4 + tl.arange(0, QUADS), 0)
        c = _interleave(n0, n1, n2, n3)
    else:
        # Rows start inside a counter: draw the whole counter for each number and keep one word's.
        n0, n1, n2, n3 = _four_normals(key, (start + d) // 4, 0)
        c = _pick(n0, n1, n2, n3, (start + d) % 4)
    c = tl.where(d < D, c, 0.0)
    c = c / tl.sqrt(tl.sum(c * c))
    row_ptr = out_ptr + tl.program_id(0).to(tl.int64) * PITCH
    tl.store(row_ptr + d, c.to(out_ptr.dtype.element_ty), mask=d < PITCH)


@triton.jit
def _laplace(word):
    """A standard Laplace number: 23 bits for the magnitude, another one for the sign."""
    magnitude = -tl.log(_open_uniform(word))
    return tl.where((word & 1) == 0, magnitude, -magnitude)


@triton.jit(do_not_specialize=["stream"])
def _generalized_gaussian_kernel(
    seed_ptr,
    out_ptr,
    loc,
    scale,
    p,
    numel,
    stream,
    IN_MEMORY: tl.constexpr,  # the three parameters are pointers
    RECTIFIED: tl.constexpr,
    QUADS: tl.constexpr,
):
    """loc + scale · s · (p G)^(1/p), s = ±1, G ~ Gamma(1/p); see `lpjepa._philox.generalized_gaussian`.

    p = 1 takes one word of a counter for a number, p = 2 two words for two. Any other p takes Marsaglia and
    Tsang's rejection, with one counter for a number and attempt.
    """
    key = stream_key(seed_ptr, stream.to(tl.int64))
    first = tl.program_id(0).to(tl.int64) * QUADS
    i = 4 * first + tl.arange(0, 4 * QUADS)
    if IN_MEMORY:
        loc = tl.load(loc).to(tl.float32)
        scale = tl.load(scale).to(tl.float32)
        p = tl.load(p).to(tl.float32)
    if p == 1.0:
        w0, w1, w2, w3 = _words(key, first + tl.arange(0, QUADS), 0)
        signed = _interleave(_laplace(w0), _laplace(w1), _laplace(w2), _laplace(w3))
    elif p == 2.0:
        n0, n1, n2, n3 = _four_normals(key, first + tl.arange(0, QUADS), 0)
        signed = _interleave(n0, n1, n2, n3)
    else:
        w0, w1, _w2, _w3 = _words(key, i, 0)
        a = 1.0 / p + 2.0 / 3.0
        c = 1.0 / tl.sqrt(9.0 * a)
        gamma = tl.zeros([4 * QUADS], tl.float32) + a
        undecided = tl.full([4 * QUADS], 1, tl.int32)
        attempt = 1
        while (attempt <= _ATTEMPTS) & (tl.max(undecided) > 0):
            r0, r1, r2, _r3 = _words(key, i, attempt)
            x, _x_sine = _box_muller(r0, r1)
            cube = 1.0 + c * x
            v = cube * cube * cube
            log_v = tl.log(tl.maximum(v, 1e-30))
            accepted = (v > 0.0) & (tl.log(_open_uniform(r2)) < 0.5 * x * x + a * (1.0 - v + log_v))
            gamma = tl.where((undecided > 0) & (v > 0.0), a * v, gamma)
            undecided = tl.where(accepted, 0, undecided)
            attempt += 1
        # (p G)^(1/p) with G = G₊ U^p, G₊ ~ Gamma(1 + 1/p).
        magnitude = tl.exp(tl.log(p * gamma) / p) * _open_uniform(w0)
        signed = tl.where((w1 & 1) == 0, magnitude, -magnitude)
    sample = loc + scale * signed
    if RECTIFIED:
        sample = tl.maximum(sample, 0.0)
    tl.store(out_ptr + i, sample.to(out_ptr.dtype.element_ty), mask=i < numel)


def next_key(seed: Tensor, counter: Tensor) -> Tensor:
    """`mix(seed, counter)`; the counter advances in place."""
    key = torch.empty_like(seed)
    types = (seed.device.index, seed.data_ptr() % 16, counter.data_ptr() % 16)
    _next_key_launch(types)(current_stream(seed.device), seed, counter, key)
    return key


@lru_cache(KEPT)
def _next_key_launch(types: Hashable) -> Launch:
    return Launch(_next_key_kernel, (1, 1, 1), (), {}, num_warps=1)


def normal(seed: Tensor, blocks: int, shape: tuple[int, ...], stream: int, dtype: torch.dtype) -> Tensor:
    """Standard normal numbers (blocks, *shape), block b from stream + b."""
    if dtype == torch.float64:
        from lpjepa import _philox
        from lpjepa._random import mix

        keys = mix(seed, torch.arange(stream, stream + blocks, device=seed.device))
        return _philox.normal(keys, shape, dtype)
    out = torch.empty((blocks, *shape), dtype=dtype, device=seed.device)
    numel = math.prod(shape)
    if out.numel():
        _normal_kernel[(triton.cdiv(numel, 1024), blocks)](seed, out, numel, stream, QUADS=256)
    return out


def uniform(seed: Tensor, shape: tuple[int, ...], stream: int, dtype: torch.dtype) -> Tensor:
    """Uniform numbers strictly inside (0, 1)."""
    if dtype != torch.float32:
        from lpjepa import _philox
        from lpjepa._random import mix

        return _philox.uniform(mix(seed, stream), shape, dtype)
    out = torch.empty(shape, dtype=dtype, device=seed.device)
    if out.numel():
        _uniform_kernel[(triton.cdiv(out.numel(), 1024),)](seed, out, out.numel(), stream, QUADS=256)
    return out


def generalized_gaussian(
    seed: Tensor,
    loc: Tensor | float,
    scale: Tensor | float,
    p: Tensor | float,
    rectified: bool,
    shape: tuple[int, ...],
    stream: int,
    dtype: torch.dtype,
) -> Tensor:
    """Samples of GN_p(loc, scale), rectified if asked.

    The parameters are tensors on the device or, without float64, numbers that the launch carries with it.
    """
    numbers: tuple[float, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    if isinstance(loc, Tensor) and isinstance(scale, Tensor) and isinstance(p, Tensor):
        if dtype == torch.float64 or loc.numel() * scale.numel() * p.numel() != 1:
            from lpjepa import _philox
            from lpjepa._random import mix

            return _philox.generalized_gaussian(mix(seed, stream), loc, scale, p, rectified, shape, dtype)
        tensors = (loc, scale, p)
    else:
        numbers = (float(loc), float(scale), float(p))
    out = torch.empty(shape, dtype=dtype, device=seed.device)
    if out.numel():
        types = (seed.device.index, dtype, *[(x.dtype, x.data_ptr() % 16) for x in (seed, *tensors)])
        launch = _sampling_launch(types, out.numel(), stream, rectified, *numbers)
        launch(current_stream(seed.device), seed, out, *tensors)
    return out


@lru_cache(KEPT)
def _sampling_launch(types: Hashable, numel: int, stream: int, rectified: bool, *parameters: float) -> Launch:
    constants = {"IN_MEMORY": not parameters, "RECTIFIED": rectified, "QUADS": 256}
    grid = (triton.cdiv(numel, 1024), 1, 1)
    return Launch(_generalized_gaussian_kernel, grid, (*parameters, numel, stream), constants)


def directions(seed: Tensor, lo: int, hi: int, out: Tensor, dim: int, stream: int = 0) -> None:
    """Directions of slices lo to hi into `out` (hi - lo, pitch), uniform on the sphere of `dim` dimensions.

    The same directions as normalising `normal(seed, blocks, (256, dim), stream)`, rounded to out's type:
    a rounded direction is as good a direction, so this costs no accuracy.
    """
    draw_directions(current_stream(seed.device), seed, lo, hi, out, dim, out.shape[1], stream)


def draw_directions(
    on: int | None, seed: Tensor, lo: int, hi: int, out: Place, dim: int, pitch: int, stream: int = 0
) -> None:
    """`directions`, launched on the stream `on`, into memory of rows of `pitch` numbers."""
    types = (seed.device.index, seed.data_ptr() % 16, out.dtype)
    _directions_launch(types, lo, hi, dim, pitch, stream)(on, seed, out)


@lru_cache(KEPT)
def _directions_launch(types: Hashable, lo: int, hi: int, dim: int, pitch: int, stream: int) -> Launch:
    quads = triton.next_power_of_2(triton.cdiv(pitch, 4))
    return Launch(
        _directions_kernel, (hi - lo, 1, 1), (stream, lo, dim, pitch),
        {"BLOCK_SLICES": RANDOM_BLOCK, "QUADS": quads, "ALIGNED": dim % 4 == 0},
        num_warps=min(max(quads // 128, 1), 8),
    )  # fmt: skip
