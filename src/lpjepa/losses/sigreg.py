"""SIGReg: sliced features tested for normality (LeJEPA, Balestriero and LeCun, 2025)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lpjepa._collectives import gather_batch, share
from lpjepa._random import CounterSeed
from lpjepa.losses._epps_pulley import drawn_epps_pulley, epps_pulley
from lpjepa.losses._objective import Matching
from lpjepa.slicing import parse_directions
from lpjepa.slicing._checks import checked_projections


class SIGRegParts(NamedTuple):
    loss: Tensor


class SIGReg(Matching):
    """Sketched Isotropic Gaussian Regularization: the distance of sliced features from a standard normal,

        mean over views and directions c of N ∫ from −t_max to t_max of
            |(1/N) Σ over n of exp(i t ⟨c, z_n⟩) − exp(−t²/2)|² exp(−t²/2) dt,

    the Epps–Pulley statistic, with N the size of the global batch. Directions are uniform on the sphere,
    drawn anew at each call and shared by the views. The defaults are those of LeJEPA's code: 1024 slices and
    17 points of the trapezoidal rule on [0, 3].

    Features: (N, D), (V, N, D), or the views one by one. `projections`: (K, D) or (V, K, D), rows of unit
    norm, the same on every rank. `generator` must be in the same state on every rank.
    """

    def __init__(
        self, num_slices: int = 1024, t_max: float = 3.0, num_points: int = 17, seed: int = 0
    ) -> None:
        super().__init__()
        if not 0 < t_max < math.inf:
            raise ValueError(f"t_max must be positive and finite, got {t_max}.")
        if num_points < 2:
            raise ValueError(f"num_points must be at least 2, got {num_points}.")
        self.t_max, self.num_points = t_max, num_points
        self.directions = parse_directions("random", num_slices)
        self.random = CounterSeed(seed)

    def _share(
        self,
        z_VND: Tensor,
        sizes: list[int],
        projections: Tensor | None = None,
        target_samples: Tensor | Sequence[Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> SIGRegParts:
        seed = self.random.next(z_VND.device, generator)
        all_VND = gather_batch(z_VND, sizes)
        if projections is None:
            num_slices = self.directions.num_slices
            lo, hi = share(num_slices)
            weight = 1 / (all_VND.shape[0] * num_slices)
            value = drawn_epps_pulley(all_VND, seed, lo, hi, weight, self.t_max, self.num_points)
            if value is not None:
                return SIGRegParts(value)
            c = self.directions.draw(all_VND, seed, lo, hi).c
        else:
            num_slices = checked_projections(projections, all_VND).shape[-2]
            lo, hi = share(num_slices)
            c = projections[..., lo:hi, :]
        weight = 1 / (all_VND.shape[0] * num_slices)
        return SIGRegParts(epps_pulley(all_VND, c, weight, self.t_max, self.num_points))

    def extra_repr(self) -> str:
        return f"num_slices={self.directions.num_slices}, t_max={self.t_max}, num_points={self.num_points}"
