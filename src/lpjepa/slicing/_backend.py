"""Chooses who computes the sliced matching: Triton kernels where they apply, torch elsewhere.

The kernels (`lpjepa.slicing._triton`) decide by shapes, types and device alone, never by values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType

from torch import Tensor

Result = tuple[Tensor, "Tensor | None"]
# (z_VND, c, y_VMD, weight, want_gradient) -> value, and the gradient by z or None
Matcher = Callable[[Tensor, Tensor, Tensor, "Tensor | float", bool], Result]
# (z_VND, y_VMD, seed, lo, hi, weight, want_gradient) -> the same, along slices lo to hi of kind `random`
RandomMatcher = Callable[[Tensor, Tensor, Tensor, int, int, float, bool], Result]


def choose(z_VND: Tensor, c: Tensor, y_VMD: Tensor, discrepancy: str, precision: str) -> Matcher | None:
    """The kernel for given directions, or None for the torch path."""
    kernels = _kernels(z_VND)
    return None if kernels is None else kernels.matcher(z_VND, c, y_VMD, discrepancy, precision)


def choose_random(z_VND: Tensor, y_VMD: Tensor, discrepancy: str, precision: str) -> RandomMatcher | None:
    """The kernel that draws random directions where it uses them, or None: draw them, then `choose`."""
    kernels = _kernels(z_VND)
    if kernels is None or discrepancy != "wasserstein2" or precision != "fast":
        return None
    return kernels.random_wasserstein2 if kernels.supports(z_VND, y_VMD.shape[1]) else None


def choose_epps_pulley(z_VND: Tensor) -> Callable[..., Result] | None:
    """The kernel for Epps–Pulley along random directions of a seed, or None."""
    kernels = _kernels(z_VND)
    return kernels.random_epps_pulley if kernels is not None and kernels.supports(z_VND) else None


def _kernels(z_VND: Tensor) -> ModuleType | None:
    return _import_kernels() if z_VND.device.type == "cuda" else None


@functools.cache
def _import_kernels() -> ModuleType | None:
    try:
        from lpjepa.slicing import _triton
    except ImportError:
        return None
    return _triton
