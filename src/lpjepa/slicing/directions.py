"""Directions of the slices, chosen by name or mixed by count.

| name | directions |
|---|---|
| `random` | independent, uniform on the sphere: the paper's choice |
| `orthogonal` | random orthonormal blocks of D rows, each row uniform on the sphere |
| `hadamard` | orthonormal blocks that can be applied in D log D operations, nearly uniform |
| `eigen` | right singular vectors of each view's centred features, largest first; then random |
| `bottom_eigen` | the lower half of those, smallest first; then random |
| `axes` | the coordinates; then random |

A slice's direction depends on the seed and on the slice's number alone, never on how the slices are
divided: random directions are drawn in blocks, one stream a block, and a rank draws the blocks of its share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import NamedTuple

import torch
from torch import Tensor

from lpjepa._random import rand, randn_blocks
from lpjepa._sort import argsort
from lpjepa.slicing._checks import check_name
from lpjepa.slicing._polar import uniform_orthogonal
from lpjepa.slicing.eigen import eigen_directions, max_rank
from lpjepa.slicing.hadamard import SMALLEST_DIM, hadamard_rows

RANDOM_BLOCK = 256  # random directions drawn from one stream
# Each kind draws from streams of its own within the step's seed.
_ORTHOGONAL_STREAM = 1 << 32
_AXES_STREAM = 2 << 32
HADAMARD_STREAM = 3 << 32


class Directions(NamedTuple):
    """Directions of a share of the slices and the weights with which the whole loss counts them.

    c: (K, D), or (V, K, D) where views have directions of their own. Rows of unit norm, no gradient.
    weight: what `sliced_discrepancy` takes as `weight_VK`. Over all slices of the plan the weights add up
        to one (each view has the same part), so that the sum over shares is the loss. One number where
        all slices count alike; (V, K) where some do not exist in some view, which have weight zero.
    """

    c: Tensor
    weight: Tensor | float


@dataclass(frozen=True)
class DirectionPlan:
    """Which kinds of directions make up the slices. `parts`: (kind, count); count None is "all there are"."""

    parts: tuple[tuple[str, int | None], ...]
    num_slices: int

    def counts(self, n: int, dim: int) -> list[tuple[str, int]]:
        """The parts with their counts for n samples in `dim` dimensions."""
        resolved = []
        left = self.num_slices
        for kind, count in self.parts:
            available = _available(kind, n, dim)
            if count is None:
                half = available - available // 2
                count = min(left, half if kind == "bottom_eigen" else available)
            elif count > available:
                raise ValueError(
                    f"directions asks for {count} {kind!r} directions but a batch of {n} samples in {dim} "
                    f"dimensions has only {available}; ask for fewer, or mix: "
                    f"{{{kind!r}: {available}, 'random': {max(self.num_slices - available, 1)}}}."
                )
            left -= count
            if count:
                resolved.append((kind, count))
        return resolved

    def without_axes(self, n: int, dim: int) -> tuple[DirectionPlan, int]:
        """The plan of the other slices, and the number of coordinates among all of them.

        A loss that knows the target compares coordinates with exact quantiles and draws only the rest.
        """
        if all(kind != "axes" for kind, _ in self.parts):
            return self, 0
        counts = self.counts(n, dim)
        rest = tuple((kind, count) for kind, count in counts if kind != "axes")
        slices = sum(count for _, count in rest)
        return DirectionPlan(rest, slices), sum(count for _, count in counts) - slices

    def draw(self, z_VND: Tensor, seed: Tensor, lo: int = 0, hi: int | None = None) -> Directions:
        """Directions of slices lo to hi (all by default) for the global batch z (V, N, D) or (N, D)."""
        z = (z_VND if z_VND.dim() == 3 else z_VND.unsqueeze(0)).detach()
        views, n, dim = z.shape
        hi = self.num_slices if hi is None else hi
        rows: list[Tensor] = []
        masks: list[Tensor] = []
        exists: list[Tensor | int] = []
        start = 0
        for kind, count in self.counts(n, dim):
            a, b = (min(max(edge - start, 0), count) for edge in (lo, hi))
            start += count
            if kind in _OF_FEATURES:
                lower_half = (kind, None) in self.parts
                c, mask = eigen_directions(z, count, kind == "bottom_eigen", lower_half)
                # Every share needs the number that exist in the whole batch, for the mean.
                exists.append(mask.sum(dim=1))
                c, mask = c[:, a:b], mask[:, a:b]
            else:
                exists.append(count)
                if a == b:
                    continue
                c = _OF_SEED[kind](seed, a, b, count, dim, _dtype(z))
                mask = torch.ones((views, b - a), dtype=torch.bool, device=z.device)
            rows.append(c)
            masks.append(mask)
        if not rows:
            return Directions(z.new_empty((0, dim), dtype=_dtype(z)), 1.0 / (views * self.num_slices))
        if all(isinstance(number, int) for number in exists):
            return Directions(rows[0] if len(rows) == 1 else torch.cat(rows), 1.0 / (views * self.num_slices))
        per_view = [c.expand(views, *c.shape) if c.dim() == 2 else c for c in rows]
        # A view in which no direction exists at all counts as matched: 0 / 1 instead of 0 / 0.
        total_V1 = torch.as_tensor(sum(exists)).reshape(-1, 1).clamp(min=1)
        weight_VK = torch.cat(masks, dim=1).to(_dtype(z)) / (views * total_V1)
        return Directions(torch.cat(per_view, dim=1), weight_VK)


def parse_directions(spec: str | Mapping[str, int], num_slices: int) -> DirectionPlan:
    """A plan from a name, for `num_slices` slices, or from a mixture of names and counts.

    A mixture such as {"random": 7936, "bottom_eigen": 256} states its own number of slices.

    >>> parse_directions({"random": 96, "axes": 32}, num_slices=8192).num_slices
    128
    """
    if isinstance(spec, str):
        _known(spec)
        if not _is_count(num_slices):
            raise ValueError(f"num_slices must be a whole number of slices above 0; got {num_slices!r}.")
        if spec in _OF_FEATURES or spec == "axes":
            return DirectionPlan(((spec, None), ("random", None)), int(num_slices))
        return DirectionPlan(((spec, int(num_slices)),), int(num_slices))
    if not isinstance(spec, Mapping) or not spec:
        raise TypeError(
            f"directions must be a name or a mixture such as {{'random': 7936, 'eigen': 256}}; got {spec!r}."
        )
    for kind, count in spec.items():
        _known(kind)
        if not _is_count(count):
            raise ValueError(f"directions[{kind!r}] must be a whole number of slices above 0; got {count!r}.")
    parts = tuple((kind, int(count)) for kind, count in spec.items())
    return DirectionPlan(parts, sum(count for _, count in parts))


def _is_count(value: object) -> bool:
    # Whole numbers of numpy count too; True is a mistake, not a slice.
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _random(seed: Tensor, lo: int, hi: int, count: int, dim: int, dtype: torch.dtype) -> Tensor:
    first, last = lo // RANDOM_BLOCK, -(-hi // RANDOM_BLOCK)
    rows = randn_blocks(seed, last - first, (RANDOM_BLOCK, dim), first, dtype).flatten(0, 1)
    rows = rows[lo - first * RANDOM_BLOCK : hi - first * RANDOM_BLOCK]
    return torch.nn.functional.normalize(rows, dim=-1)


def _orthogonal(seed: Tensor, lo: int, hi: int, count: int, dim: int, dtype: torch.dtype) -> Tensor:
    first, last = lo // dim, -(-hi // dim)
    gaussian = randn_blocks(seed, last - first, (dim, dim), _ORTHOGONAL_STREAM + first, dtype)
    if gaussian.is_cuda:
        # QR would make the host wait, which a CUDA graph under capture refuses.
        rows = torch.nn.functional.normalize(uniform_orthogonal(gaussian), dim=-1)
    else:
        q, r = torch.linalg.qr(gaussian)
        # LAPACK's signs are a convention; with a positive diagonal of R, Q is uniform (Haar).
        sign = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(dtype)
        rows = (q * sign.unsqueeze(-2)).mT
    return rows.flatten(0, 1)[lo - first * dim : hi - first * dim]


def _axes(seed: Tensor, lo: int, hi: int, count: int, dim: int, dtype: torch.dtype) -> Tensor:
    return torch.eye(dim, dtype=dtype, device=seed.device)[coordinates(seed, count, dim)[lo:hi]]


def coordinates(seed: Tensor, count: int, dim: int) -> Tensor:
    """The coordinates that `count` axes stand for: all, or another random subset at each step, so that none
    is left out for good."""
    if count == dim:
        return torch.arange(dim, device=seed.device)
    return argsort(rand(seed, (dim,), _AXES_STREAM))[:count]


def _hadamard(seed: Tensor, lo: int, hi: int, count: int, dim: int, dtype: torch.dtype) -> Tensor:
    if dim < SMALLEST_DIM:
        return _orthogonal(seed, lo, hi, count, dim, dtype)
    return hadamard_rows(seed, lo, hi, dim, dtype, HADAMARD_STREAM)


# Kinds that need only the seed: (seed, lo, hi, count, dim, dtype) -> rows lo to hi of `count`.
_OF_SEED: dict[str, Callable[[Tensor, int, int, int, int, torch.dtype], Tensor]] = {
    "random": _random,
    "orthogonal": _orthogonal,
    "hadamard": _hadamard,
    "axes": _axes,
}
# Kinds that need the features, each view its own.
_OF_FEATURES = ("eigen", "bottom_eigen")


def _known(kind: str) -> None:
    check_name("directions", kind, [*_OF_SEED, *_OF_FEATURES])


def _available(kind: str, n: int, dim: int) -> int:
    limits = {"axes": dim, "eigen": max_rank(n, dim), "bottom_eigen": max_rank(n, dim)}
    return limits.get(kind, 1 << 62)


def _dtype(z: Tensor) -> torch.dtype:
    return torch.float64 if z.dtype == torch.float64 else torch.float32
