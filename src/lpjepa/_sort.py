"""Sorting along the last dimension; on the CPU by numpy's vectorised sort where numpy is installed.

torch.sort on a CPU compares element by element and carries an index along; numpy sorts plain numbers with
SIMD instructions, many times faster (AVX2, AVX-512, NEON). A stable order comes from sorting 64-bit keys: the
float's bits above, its position below.

To torch.compile a sort is one operator that it does not look into: on a GPU it would write out a network of
its own for up to 512 elements, and take minutes to compile it. An exported graph, which others run without
this package, has torch's own.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sort_values(x: Tensor) -> Tensor:
    """x (..., N) in ascending order, a new tensor."""
    if torch.compiler.is_compiling() and not _exporting():
        return _sort(x)[0]
    if not _numpy_sorts(x) or x.dtype not in (torch.float32, torch.float64):
        return x.sort(dim=-1).values
    result = x.clone(memory_format=torch.contiguous_format)
    result.numpy().sort(axis=-1)
    return result


def sort_stable(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (..., N) in ascending order and the int64 positions its values had; equal values stay in order."""
    if torch.compiler.is_compiling() and not _exporting():
        return _sort(x)
    if not _numpy_sorts(x) or x.dtype != torch.float32:
        # ONNX has no stable sort; which of two equal values comes first is its own matter there.
        values, order = x.sort(dim=-1) if _exporting() else x.sort(dim=-1, stable=True)
        return values, order
    # Adding zero makes one number of −0 and 0, which compare equal but differ in their bits.
    keys = _flip_negative((x + 0.0).contiguous().view(torch.int32)).long() << 32
    keys |= torch.arange(x.shape[-1])
    keys.numpy().sort(axis=-1)
    order = keys & 0xFFFFFFFF
    return _flip_negative((keys >> 32).int()).view(torch.float32), order


def argsort(x: Tensor) -> Tensor:
    """The int64 positions in x (..., N) of its values in ascending order; equal values stay in order."""
    return sort_stable(x)[1]


@torch.library.custom_op("lpjepa::sort", mutates_args=())
def _sort(x: Tensor) -> tuple[Tensor, Tensor]:
    values, order = x.contiguous().sort(dim=-1, stable=True)
    return values, order


@_sort.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape, dtype=torch.int64)


def _exporting() -> bool:
    known = getattr(torch.compiler, "is_exporting", None)  # since torch 2.7
    return bool(known()) if known is not None else False


def _flip_negative(bits: Tensor) -> Tensor:
    """float32 bits to int32 numbers in the floats' order, and back: negative floats have theirs reversed."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _numpy_sorts(x: Tensor) -> bool:
    # Other tracers than the compiler can follow torch.sort only; their tensors are no plain ones.
    return x.device.type == "cpu" and type(x) is Tensor and _HAS_NUMPY


def _has_numpy() -> bool:
    try:
        torch.empty(1).numpy()
    except RuntimeError:  # torch's own word for a missing or incompatible numpy
        return False
    return True


_HAS_NUMPY = _has_numpy()
