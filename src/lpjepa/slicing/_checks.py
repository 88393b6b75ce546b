"""Checks of what callers pass in: each failure is one sentence naming the argument and the remedy.

Shapes and types are always checked. Values (NaN, norms) are checked on the CPU only: on a GPU the check
would wait for the device at every step, and watching for NaN is the training loop's job there.
"""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

import torch
from torch import Tensor

# Wide enough for rows that were rounded to bfloat16; rows nobody normalised are far outside.
_NORM_TOLERANCE = 1e-2


def check_name(argument: str, name: object, known: Collection[str]) -> None:
    """Refuse a name that is not `known`, suggesting the nearest."""
    if name not in known:
        nearest = get_close_matches(str(name), known, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"{argument} {name!r} is unknown; did you mean {nearest!r}? There are {', '.join(known)}."
        )


def checked_features(z: Tensor, name: str = "z") -> Tensor:
    """`z` as (V, N, D); (N, D) counts as one view."""
    if z.dim() not in (2, 3) or 0 in z.shape:
        raise ValueError(
            f"{name} must have shape (N, D) or (views, N, D), none of them zero; got {tuple(z.shape)}."
        )
    if not z.is_floating_point():
        raise TypeError(f"{name} must be a floating-point tensor; got {z.dtype}: convert it with .float().")
    if z.shape[-2] < 2:
        raise ValueError(
            f"{name} holds one sample, which has no distribution; pass at least two (dimension -2)."
        )
    if _values_readable(z) and not bool(z.detach().isfinite().all()):
        raise ValueError(f"{name} contains NaN or infinite values; check the learning rate and the inputs.")
    return z if z.dim() == 3 else z.unsqueeze(0)


def checked_directions(
    c: Tensor, z_VND: Tensor, null_rows_allowed: bool = False, name: str = "projections"
) -> Tensor:
    """`c` as given, (K, D) or (V, K, D), with rows of unit norm."""
    views, _, dim = z_VND.shape
    if c.dim() not in (2, 3) or c.shape[-1] != dim or (c.dim() == 3 and c.shape[0] != views):
        raise ValueError(
            f"{name} must have shape (K, {dim}) or ({views}, K, {dim}) for features of dimension {dim} "
            f"in {views} view(s); got {tuple(c.shape)}."
        )
    if not c.is_floating_point():
        raise TypeError(f"{name} must be a floating-point tensor; got {c.dtype}: convert it with .float().")
    _constant(c, name)
    check_device(c, z_VND, name)
    if _values_readable(c):
        norms = torch.linalg.vector_norm(c, dim=-1, dtype=torch.promote_types(c.dtype, torch.float32))
        fine = (norms - 1).abs() <= _NORM_TOLERANCE
        if null_rows_allowed:
            fine |= norms == 0
        if not bool(fine.all()):
            raise ValueError(f"{name} must have rows of unit norm; divide each row by its norm.")
    return c


def checked_projections(c: Tensor, z_VND: Tensor) -> Tensor:
    """Directions that a caller of a loss passed: as `checked_directions`, and at least one of them."""
    if not isinstance(c, Tensor):
        raise TypeError(
            f"projections must be a tensor of shape (K, {z_VND.shape[2]}); got a {type(c).__name__}."
        )
    checked_directions(c, z_VND)
    if 0 in c.shape:
        raise ValueError(f"projections must hold at least one direction; got shape {tuple(c.shape)}.")
    return c


def checked_target_samples(y: Tensor, z_VND: Tensor, name: str = "target_samples") -> Tensor:
    """`y` as (V, M, D); (M, D) is used for every view."""
    views, _, dim = z_VND.shape
    if y.dim() not in (2, 3) or y.shape[-1] != dim or 0 in y.shape or (y.dim() == 3 and y.shape[0] != views):
        raise ValueError(
            f"{name} must have shape ({views}, M, {dim}) or (M, {dim}) to go with features of shape "
            f"{tuple(z_VND.shape)}; got {tuple(y.shape)}."
        )
    if not y.is_floating_point():
        raise TypeError(f"{name} must be a floating-point tensor; got {y.dtype}: convert it with .float().")
    _constant(y, name)
    check_device(y, z_VND, name)
    if _values_readable(y) and not bool(y.isfinite().all()):
        raise ValueError(f"{name} contains NaN or infinite values; draw them from a proper distribution.")
    return y if y.dim() == 3 else y.expand(views, *y.shape)


def _constant(tensor: Tensor, name: str) -> None:
    if tensor.requires_grad:
        raise ValueError(f"{name} is a constant of the loss and gets no gradient; pass {name}.detach().")


def check_device(tensor: Tensor, z: Tensor, name: str) -> None:
    """Refuse a tensor that is not where the features are."""
    if tensor.device != z.device:
        raise ValueError(f"{name} is on {tensor.device} and the features on {z.device}; move {name} there.")


def _values_readable(tensor: Tensor) -> bool:
    # Reading values would break a graph that is being compiled, as it would stall a GPU.
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()
