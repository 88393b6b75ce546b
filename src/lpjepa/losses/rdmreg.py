"""RDMReg: Rectified Distribution Matching Regularization, the heart of Rectified LpJEPA."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Distribution

from lpjepa._collectives import gather_batch, share
from lpjepa._random import CounterSeed, sample_target
from lpjepa.losses._objective import Matching, check_weight, stack_views
from lpjepa.slicing import (
    axes_discrepancy,
    gaussian_discrepancy,
    is_gaussian,
    parse_directions,
    planned_discrepancy,
    sliced_discrepancy,
)
from lpjepa.slicing._checks import check_name, checked_projections
from lpjepa.slicing.directions import coordinates
from lpjepa.slicing.discrepancies import get_discrepancy
from lpjepa.slicing.matching import PRECISIONS

_QUANTILES = ("sampled", "exact")


class RDMRegParts(NamedTuple):
    loss: Tensor
    slices: Tensor
    axes: Tensor


class RDMReg(Matching):
    """Distance between the distribution of the features and a product of i.i.d. target coordinates,

        mean over views, directions c and ranks i of ((Z c)↑_i − (Y c)↑_i)²,

    where ↑ sorts the samples (the paper's sliced 2-Wasserstein loss, "The Necessity of Two-Sample Hypothesis
    Testing"). Directions are shared by the views and drawn anew at each call, target samples Y anew for each
    view. The paper *sums* the views' terms; this is their mean, as the authors train: a factor V.

    target: a distribution of one coordinate (batch shape ()), such as `RectifiedGeneralizedGaussian`. It is a
        constant of the loss: its parameters get no gradient. Its `loc` and `scale` may be changed in place.
    num_slices: directions per call; the paper uses 8192. A mixture in `directions` states its own number.
    directions: "random", "orthogonal", "hadamard", "eigen", "bottom_eigen", "axes" or a mixture by count; see
        `lpjepa.slicing.directions`. Along coordinates ("axes") the target's marginal is known, so they are
        compared with its quantiles icdf((i − ½)/N) and never with samples.
    axes_weight: weight of one more term, the mean over coordinates and views of the one-sample W2² to the
        target's exact quantiles, mean over i of (z↑_i − icdf((i − ½)/N))². It has no sampling noise, and it
        sees what random slices of many coordinates hardly do: the shape of each, its zeros above all. N
        midpoints miss the tail of a sparse target: with 256 samples their second moment is 0.98 of the
        target's at p = 1, μ = 0, 0.81 at −2 and 0.47 at −3, and features shrink accordingly; where fewer
        than half a sample is to be active they are all zero, of which a warning tells. 0 is the paper's loss.
    discrepancy: "wasserstein2", "wasserstein1", "energy" or "characteristic".
    target_ratio: target samples for each feature sample; more of them lower the noise.
    target_quantiles: "sampled", or "exact" for a Gaussian target (`GeneralizedGaussian` with p = 2), whose
        projections are known in closed form along every direction.
    seed: of the directions and target samples; state and position are saved with the module.
    precision: of the sliced matching: "fast" allows 16-bit GPU kernels, "exact" is float64 on every device.

    Features: (N, D), (V, N, D), or the views one by one. `projections`: (K, D) or (V, K, D), rows of unit
    norm, the same on every rank. `target_samples`: of the features' shape, or with another number of
    samples, or (M, D) for all views; each rank passes its own. `generator` must be in the same state on
    every rank.

    In a job of many processes the features are gathered once, and each rank computes its share of the slices
    (and of the coordinates, for `axes_weight`) on the whole batch.
    """

    def __init__(
        self,
        target: Distribution,
        num_slices: int = 8192,
        directions: str | Mapping[str, int] = "random",
        axes_weight: float = 0.0,
        discrepancy: str = "wasserstein2",
        target_ratio: float = 1.0,
        target_quantiles: str = "sampled",
        seed: int = 0,
        precision: str = "fast",
    ) -> None:
        super().__init__()
        if not 0 < target_ratio < math.inf:
            raise ValueError(f"target_ratio must be positive and finite, got {target_ratio}.")
        check_weight("axes_weight", axes_weight)
        if target_quantiles not in _QUANTILES:
            raise ValueError(f"target_quantiles must be 'sampled' or 'exact', got {target_quantiles!r}.")
        get_discrepancy(discrepancy)
        check_name("precision", precision, PRECISIONS)
        if not isinstance(target, Distribution):
            raise TypeError(
                "target must be a distribution such as RectifiedGeneralizedGaussian, "
                f"got a {type(target).__name__}."
            )
        if tuple(target.batch_shape) not in ((), (1,)) or target.event_shape:
            raise ValueError(
                "target must be the distribution of one coordinate, with batch and event shape (); "
                f"got {tuple(target.batch_shape)} and {tuple(target.event_shape)}."
            )
        if target_quantiles == "exact" and not (is_gaussian(target) and discrepancy == "wasserstein2"):
            raise ValueError(
                "target_quantiles='exact' needs a Gaussian target (GeneralizedGaussian with p = 2) and "
                "discrepancy 'wasserstein2', the only case whose quantiles are known along every direction; "
                "use 'sampled', and axes_weight for exact quantiles along the coordinates."
            )
        self.target = target
        self.directions = parse_directions(directions, num_slices)
        self.axes_weight = axes_weight
        self.discrepancy = discrepancy
        self.target_ratio = target_ratio
        self.target_quantiles = target_quantiles
        self.random = CounterSeed(seed)
        self.precision = precision

    def _share(
        self,
        z_VND: Tensor,
        sizes: list[int],
        projections: Tensor | None = None,
        target_samples: Tensor | Sequence[Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> RDMRegParts:
        seed = self.random.next(z_VND.device, generator)
        all_VND = gather_batch(z_VND, sizes)
        if projections is not None:
            slices = self._given(all_VND, seed, projections, target_samples)
        else:
            slices = self._drawn(all_VND, seed, target_samples)
        if not self.axes_weight:
            return RDMRegParts(slices, slices, torch.zeros_like(slices))
        axes = self._axes(all_VND, "wasserstein2")
        return RDMRegParts(slices + self.axes_weight * axes, slices, axes)

    def _given(
        self,
        all_VND: Tensor,
        seed: Tensor,
        projections: Tensor,
        target_samples: Tensor | Sequence[Tensor] | None,
    ) -> Tensor:
        """This rank's share of the mean over the directions of the caller."""
        c = checked_projections(projections, all_VND)
        lo, hi = share(c.shape[-2])
        weight = 1 / (all_VND.shape[0] * c.shape[-2])
        if self.target_quantiles == "exact":
            return gaussian_discrepancy(all_VND, c[..., lo:hi, :], self.target, weight_VK=weight)
        y_VMD = self._target_samples(all_VND, seed, target_samples)
        return sliced_discrepancy(
            all_VND, c[..., lo:hi, :], y_VMD, self.discrepancy, weight_VK=weight, precision=self.precision
        )

    def _drawn(
        self, all_VND: Tensor, seed: Tensor, target_samples: Tensor | Sequence[Tensor] | None
    ) -> Tensor:
        """This rank's share of the mean over directions drawn here; coordinates meet exact quantiles."""
        _, N, D = all_VND.shape
        plan, coordinate_count = self.directions.without_axes(N, D)
        total = plan.num_slices + coordinate_count
        lo, hi = share(plan.num_slices)
        if plan.num_slices == 0:
            value = all_VND.new_zeros(())
        elif self.target_quantiles == "exact":
            c, weight = plan.draw(all_VND, seed, lo, hi)
            value = gaussian_discrepancy(all_VND, c, self.target, weight_VK=weight)
        else:
            y_VMD = self._target_samples(all_VND, seed, target_samples)
            value = planned_discrepancy(all_VND, y_VMD, plan, seed, lo, hi, self.discrepancy, self.precision)
        if coordinate_count == 0:
            return value
        chosen = all_VND
        if coordinate_count < D:
            chosen = all_VND.index_select(2, coordinates(seed, coordinate_count, D))
        axes = self._axes(chosen, self.discrepancy)
        return (plan.num_slices * value + coordinate_count * axes) / total

    def _target_samples(
        self, all_VND: Tensor, seed: Tensor, given: Tensor | Sequence[Tensor] | None
    ) -> Tensor:
        V, N, D = all_VND.shape
        if given is not None:
            views = (given,) if isinstance(given, Tensor) else tuple(given)
            y_VMD = gather_batch(stack_views(views, fewest=1, name="target_samples"))
            return y_VMD[0] if isinstance(given, Tensor) and given.ndim == 2 else y_VMD
        shape = (V, max(1, round(self.target_ratio * N)), D)
        # The kernels take targets in 16 bits: a rounded sample is still a sample, far within sampling noise.
        rounded = all_VND.is_cuda and all_VND.dtype == torch.float32 and self.precision == "fast"
        return sample_target(seed, self.target, shape, dtype=torch.bfloat16 if rounded else all_VND.dtype)

    def _axes(self, all_VND: Tensor, discrepancy: str) -> Tensor:
        """This rank's share of the mean over these coordinates."""
        dimensions = all_VND.shape[2]
        lo, hi = share(dimensions)
        if lo == hi:
            return all_VND.sum() * 0.0
        return axes_discrepancy(all_VND[..., lo:hi], self.target, discrepancy) * ((hi - lo) / dimensions)

    def extra_repr(self) -> str:
        return f"target={self.target}, directions={self.directions.parts}, discrepancy={self.discrepancy!r}"
