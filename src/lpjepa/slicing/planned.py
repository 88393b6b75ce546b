"""The sliced matching along the directions of a plan, which need not exist as a tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from lpjepa.slicing import _backend
from lpjepa.slicing._checks import check_device, checked_features, checked_target_samples
from lpjepa.slicing._structured import hadamard_matching
from lpjepa.slicing.directions import HADAMARD_STREAM, DirectionPlan
from lpjepa.slicing.hadamard import SMALLEST_DIM
from lpjepa.slicing.matching import matched, sliced_discrepancy, wants_gradient, with_gradient


def planned_discrepancy(
    z_VND: Tensor,
    y_VMD: Tensor,
    plan: DirectionPlan,
    seed: Tensor,
    lo: int = 0,
    hi: int | None = None,
    discrepancy: str = "wasserstein2",
    precision: str = "fast",
) -> Tensor:
    """The part of slices lo to hi (all by default) in the mean over all views and slices of the plan.

    `sliced_discrepancy` along `plan.draw(z_VND, seed, lo, hi)`; where a kernel can draw random directions as
    it uses them, they are never written to memory (its directions are those of `draw`, rounded to 16 bits),
    and on the CPU Hadamard directions are applied by fast transforms. The parts of disjoint shares add up to
    the loss.
    """
    hi = plan.num_slices if hi is None else hi
    random_only = all(kind == "random" for kind, _ in plan.parts)
    # The choice looks at shapes and types alone; the checks come first, so that those are right.
    features = checked_features(z_VND)
    targets = checked_target_samples(y_VMD, features)
    kernel = None
    if random_only and hi > lo:
        kernel = _backend.choose_random(features, targets, discrepancy, precision)
    if kernel is not None:
        check_device(seed, features, "seed")
        weight = 1.0 / (features.shape[0] * plan.num_slices)
        return matched(kernel, _random_matching, features, targets, seed, lo, hi, weight)
    structured = all(kind == "hadamard" for kind, _ in plan.parts) and features.shape[2] >= SMALLEST_DIM
    if structured and hi > lo and features.device.type == "cpu" and precision == "fast":
        # On the CPU products bound the loss, and structured directions need none.
        weight = 1.0 / (features.shape[0] * plan.num_slices)
        value, gradient = hadamard_matching(
            features.detach(),
            targets,
            seed,
            HADAMARD_STREAM,
            lo,
            hi,
            weight,
            discrepancy,
            wants_gradient(z_VND),
        )
        return with_gradient(features, value, gradient)
    c, weight_VK = plan.draw(features, seed, lo, hi)
    return sliced_discrepancy(z_VND, c, y_VMD, discrepancy, weight_VK=weight_VK, precision=precision)


@torch.library.custom_op("lpjepa::random_matching", mutates_args=())
def _random_matching(
    z_VND: Tensor, y_VMD: Tensor, seed: Tensor, lo: int, hi: int, weight: float, want_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Value and gradient (empty if not wanted) by the kernel that `choose_random` found to apply."""
    matcher = _backend.choose_random(z_VND, y_VMD, "wasserstein2", "fast")
    assert matcher is not None
    value, gradient = matcher(z_VND, y_VMD, seed, lo, hi, weight, want_gradient)
    return value, value.new_empty(0) if gradient is None else gradient


@_random_matching.register_fake
def _(
    z_VND: Tensor, y_VMD: Tensor, seed: Tensor, lo: int, hi: int, weight: float, want_gradient: bool
) -> tuple[Tensor, Tensor]:
    shape = z_VND.shape if want_gradient else (0,)
    return z_VND.new_empty((), dtype=torch.float32), z_VND.new_empty(shape, dtype=torch.float32)
