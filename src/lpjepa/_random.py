"""Counter-based randomness: every draw is a function of a seed tensor and a stream number.

A loss that runs on many processes, inside `torch.compile` or inside a captured CUDA graph cannot use a
generator's hidden state: ranks would have to exchange it, the compiler would not see it, and a graph
would replay the same numbers. Here a step's seed is an int64 tensor that lives on the device, and every
draw names the stream it takes from that seed. Ranks that hold the same seed therefore agree without
communication, and a rank can draw only the streams it needs.

The draws are custom operators, opaque to the compiler. On the CPU a stream is a `torch.Generator` seeded
with `mix(seed, stream)`; on CUDA it is a Philox sequence with that key, written in Triton
(`slicing/_triton/random.py`) or, where triton is missing, in torch operations (`_philox.py`).
Devices draw different numbers from the same seed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Generator, Tensor, nn
from torch.distributions import Distribution

from lpjepa import _philox
from lpjepa._operators import unobserved

# Streams of one step's seed. Direction kinds take one stream a block, so each kind gets a range of its own.
TARGET_STREAM = 1 << 40


def mix(seed: Tensor, stream: Tensor | int) -> Tensor:
    """A well-mixed, non-negative int64 key for (seed, stream): two rounds of SplitMix64, wrapping."""
    return _scramble(_scramble(seed) + stream) & _POSITIVE


def _scramble(x: Tensor) -> Tensor:
    x = x + _GOLDEN
    # `>>` keeps the sign on int64; the mask makes it the unsigned shift that SplitMix64 asks for.
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _MULTIPLIER_1
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _MULTIPLIER_2
    return x ^ ((x >> 31) & ((1 << 33) - 1))


# SplitMix64's constants, read as signed 64-bit numbers.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MULTIPLIER_2 = 0x94D049BB133111EB - (1 << 64)
_POSITIVE = (1 << 63) - 1


class CounterSeed(nn.Module):
    """The seeds of successive steps: `mix(seed, 0)`, `mix(seed, 1)`, ...

    `seed` and `counter` are int64 buffers: they are saved and restored with the state dict, and the
    counter advances on the device, so that a replayed CUDA graph draws anew each time. Both follow the
    features to their device at the first call if the module was not moved there before.
    """

    seed: Tensor
    counter: Tensor

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.register_buffer("seed", torch.tensor(seed, dtype=torch.int64))
        self.register_buffer("counter", torch.tensor(0, dtype=torch.int64))

    def next(self, device: torch.device | str, generator: Generator | None = None) -> Tensor:
        """The next step's seed, an int64 scalar on `device`; from `generator` instead where one is given."""
        if generator is not None:
            drawn = torch.randint(_POSITIVE, (), generator=generator, device=generator.device)
            return drawn.to(device)
        seed, counter = self.seed, self.counter
        if counter.device != torch.device(device):
            seed, counter = seed.to(device), counter.to(device)
            self.seed, self.counter = seed, counter
        draw = _next_key_on_gpu if _direct(seed) else _next_key
        return draw(seed, counter)

    def extra_repr(self) -> str:
        return "seed and counter are buffers"


def randn(seed: Tensor, shape: Sequence[int], stream: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers of `shape` from one stream, on the seed's device."""
    return randn_blocks(seed, 1, shape, stream, dtype).squeeze(0)


def randn_blocks(
    seed: Tensor, blocks: int, shape: Sequence[int], stream: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Standard normal numbers, shape (blocks, *shape): block b is `randn(seed, shape, stream + b)`."""
    return _normal(seed, blocks, shape, stream, dtype)


def rand(seed: Tensor, shape: Sequence[int], stream: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform numbers strictly inside (0, 1), so that a quantile function of them is finite.

    `dtype` is float32 or float64; 16-bit types would round some of them to 0 or 1.
    """
    return _uniform(seed, shape, stream, dtype)


def sample_target(
    seed: Tensor,
    target: Distribution,
    shape: Sequence[int],
    stream: int = TARGET_STREAM,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Samples of `target` of the whole `shape`, whose last dimensions hold the target's batch shape.

    Generalized Gaussians and their rectification have samplers of their own; any other distribution is
    sampled through its `icdf`. Computed in float32, or in float64 if `dtype` says so.
    """
    from lpjepa.distributions import GeneralizedGaussian, RectifiedGeneralizedGaussian

    if isinstance(target, (RectifiedGeneralizedGaussian, GeneralizedGaussian)):
        parameters = (target.loc, target.scale, target.p)
        rectified = isinstance(target, RectifiedGeneralizedGaussian)
        if _direct(seed):
            return _generalized_gaussian_on_gpu(seed, *parameters, rectified, shape, stream, dtype)
        loc, scale, p = (parameter.detach() for parameter in parameters)
        return _generalized_gaussian(seed, loc, scale, p, rectified, shape, stream, dtype)
    exact = dtype if dtype == torch.float64 else torch.float32
    try:
        return target.icdf(rand(seed, shape, stream, exact)).to(dtype)
    except NotImplementedError:
        raise ValueError(
            f"target {type(target).__name__} cannot be sampled: it has no icdf; "
            "pass target_samples, or a distribution of lpjepa.distributions."
        ) from None


def on_device(parameter: Tensor, device: torch.device) -> Tensor:
    """A distribution's parameter on `device`, without waiting for the device where it is one number.

    Parameters given as floats live on the CPU. Copying them from there would synchronise, which a CUDA graph
    under capture refuses; filling a new tensor with the number does not.
    """
    if parameter.device == device or torch.compiler.is_compiling():
        return parameter.to(device)
    if parameter.device.type == "cpu" and parameter.numel() == 1:
        return torch.full(parameter.shape, parameter.item(), dtype=parameter.dtype, device=device)
    return parameter.to(device)


# The operators. Each has a CPU kernel, a CUDA kernel and a fake one that only knows the shape. Schemas are
# written out because versions of torch differ in the annotations that they can infer one from.


@torch.library.custom_op(
    "lpjepa::next_key",
    mutates_args=("counter",),
    device_types="cpu",
    schema="(Tensor seed, Tensor(a!) counter) -> Tensor",
)
def _next_key(seed: Tensor, counter: Tensor) -> Tensor:
    key = mix(seed, counter)
    counter.add_(1)
    return key


@_next_key.register_fake
def _(seed: Tensor, counter: Tensor) -> Tensor:
    return torch.empty_like(seed)


@_next_key.register_kernel("cuda")
def _next_key_on_gpu(seed: Tensor, counter: Tensor) -> Tensor:
    kernels = _kernels()
    if kernels is not None:
        # One launch instead of a dozen for two rounds of integer arithmetic.
        return kernels.next_key(seed, counter)
    key = mix(seed, counter)
    counter.add_(1)
    return key


@torch.library.custom_op(
    "lpjepa::normal",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor seed, SymInt blocks, SymInt[] shape, SymInt stream, ScalarType dtype) -> Tensor",
)
def _normal(seed: Tensor, blocks: int, shape: Sequence[int], stream: int, dtype: torch.dtype) -> Tensor:
    out = torch.empty((blocks, *shape), dtype=dtype)
    for block in range(blocks):
        torch.randn(shape, generator=_keyed(seed, stream + block), out=out[block])
    return out


@_normal.register_fake
def _(seed: Tensor, blocks: int, shape: Sequence[int], stream: int, dtype: torch.dtype) -> Tensor:
    return seed.new_empty((blocks, *shape), dtype=dtype)


@_normal.register_kernel("cuda")
def _(seed: Tensor, blocks: int, shape: Sequence[int], stream: int, dtype: torch.dtype) -> Tensor:
    kernels = _kernels()
    if kernels is not None:
        return kernels.normal(seed, blocks, tuple(shape), stream, dtype)
    keys = mix(seed, torch.arange(stream, stream + blocks, device=seed.device))
    return _philox.normal(keys, tuple(shape), dtype)


@torch.library.custom_op(
    "lpjepa::uniform",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor seed, SymInt[] shape, SymInt stream, ScalarType dtype) -> Tensor",
)
def _uniform(seed: Tensor, shape: Sequence[int], stream: int, dtype: torch.dtype) -> Tensor:
    # torch.rand may return 0; half its step is the middle of the interval that 0 stands for.
    return torch.rand(shape, generator=_keyed(seed, stream), dtype=dtype).clamp_(min=2.0**-25)


@_uniform.register_fake
def _(seed: Tensor, shape: Sequence[int], stream: int, dtype: torch.dtype) -> Tensor:
    return seed.new_empty(shape, dtype=dtype)


@_uniform.register_kernel("cuda")
def _(seed: Tensor, shape: Sequence[int], stream: int, dtype: torch.dtype) -> Tensor:
    kernels = _kernels()
    if kernels is not None:
        return kernels.uniform(seed, tuple(shape), stream, dtype)
    return _philox.uniform(mix(seed, stream), tuple(shape), dtype)


@torch.library.custom_op(
    "lpjepa::generalized_gaussian",
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor seed, Tensor loc, Tensor scale, Tensor p, bool rectified, SymInt[] shape, SymInt stream, "
    "ScalarType dtype) -> Tensor",
)
def _generalized_gaussian(
    seed: Tensor,
    loc: Tensor,
    scale: Tensor,
    p: Tensor,
    rectified: bool,
    shape: Sequence[int],
    stream: int,
    dtype: torch.dtype,
) -> Tensor:
    from lpjepa.distributions import GeneralizedGaussian, RectifiedGeneralizedGaussian

    exact = dtype if dtype == torch.float64 else torch.float32
    kind = RectifiedGeneralizedGaussian if rectified else GeneralizedGaussian
    target = kind(loc.to(exact), scale.to(exact), p.to(exact), validate_args=False)
    batch = target.batch_shape
    outer = tuple(shape)[: len(shape) - len(batch)]
    return target.sample(outer, generator=_keyed(seed, stream)).expand(tuple(shape)).to(dtype).contiguous()


@_generalized_gaussian.register_fake
def _(
    seed: Tensor,
    loc: Tensor,
    scale: Tensor,
    p: Tensor,
    rectified: bool,
    shape: Sequence[int],
    stream: int,
    dtype: torch.dtype,
) -> Tensor:
    return seed.new_empty(shape, dtype=dtype)


@_generalized_gaussian.register_kernel("cuda")
def _generalized_gaussian_on_gpu(
    seed: Tensor,
    loc: Tensor,
    scale: Tensor,
    p: Tensor,
    rectified: bool,
    shape: Sequence[int],
    stream: int,
    dtype: torch.dtype,
) -> Tensor:
    parameters, kernels = (loc, scale, p), _kernels()
    on_host = all(parameter.device.type == "cpu" and parameter.numel() == 1 for parameter in parameters)
    if kernels is not None and on_host and dtype != torch.float64:
        numbers = [parameter.item() for parameter in parameters]
        return kernels.generalized_gaussian(seed, *numbers, rectified, tuple(shape), stream, dtype)
    loc, scale, p = (on_device(parameter.detach(), seed.device) for parameter in parameters)
    if kernels is not None:
        return kernels.generalized_gaussian(seed, loc, scale, p, rectified, tuple(shape), stream, dtype)
    return _philox.generalized_gaussian(mix(seed, stream), loc, scale, p, rectified, tuple(shape), dtype)


def _direct(seed: Tensor) -> bool:
    """Whether a draw may be called as a function: as an operator it would take several times as long."""
    return seed.is_cuda and unobserved(seed)


def _keyed(seed: Tensor, stream: int) -> Generator:
    return Generator().manual_seed(int(mix(seed, stream)))


@functools.cache
def _kernels() -> ModuleType | None:
    """The Triton kernels, imported when a CUDA draw first needs them; None where triton is missing."""
    try:
        from lpjepa.slicing._triton import random
    except ImportError:
        return None
    return random
