"""What all objectives share: how features come in, and how a loss is the sum of the ranks' shares."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from lpjepa._collectives import batch_sizes, sum_over_ranks, world


class Objective(nn.Module):
    """A loss of two or more views of the same samples.

    Call it with the views, each (N, D), or with one tensor (V, N, D). Statistics are over N; in a job of many
    processes they are over the samples of all of them, and the value is the same on every rank. Features may
    be in bfloat16, float16, float32 or float64; the loss is computed in float32 or better under any autocast.

    Every objective takes the same keywords, which fix its randomness: `projections`, the directions to slice
    along; `target_samples`; and `generator`, from which both are drawn when not given. An objective that has
    no such randomness has nothing to fix and ignores them, so that one training loop serves all objectives.
    """

    fewest_views = 2

    def forward(
        self,
        *views: Tensor,
        projections: Tensor | None = None,
        target_samples: Tensor | Sequence[Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The loss, a scalar."""
        return self.components(
            *views, projections=projections, target_samples=target_samples, generator=generator
        ).loss

    def components(
        self,
        *views: Tensor,
        projections: Tensor | None = None,
        target_samples: Tensor | Sequence[Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> Any:
        """The loss and its parts, unweighted, as a named tuple that begins with `loss`."""
        z_VND = stack_views(views, self.fewest_views)
        sizes = batch_sizes(z_VND.shape[1])
        if sum(sizes) < 2:
            raise ValueError(
                f"features: the batch has {sum(sizes)} sample(s), and a distribution over samples needs at "
                "least two; use a larger batch or drop the last, incomplete one."
            )
        with without_autocast(z_VND.device.type):
            return self._components(
                z_VND, sizes, projections=projections, target_samples=target_samples, generator=generator
            )

    def _components(self, z_VND: Tensor, sizes: list[int], **randomness: Any) -> Any:
        """The parts, given this rank's features and the number of samples on every rank."""
        raise NotImplementedError


class Matching(Objective):
    """A regularizer of the features' distribution, for one or more views, averaged over them."""

    fewest_views = 1

    def _components(self, z_VND: Tensor, sizes: list[int], **randomness: Any) -> Any:
        share = self._share(z_VND, sizes, **randomness)
        return type(share)(*sum_parts(*share))

    def _share(
        self,
        z_VND: Tensor,
        sizes: list[int],
        projections: Tensor | None = None,
        target_samples: Tensor | Sequence[Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> Any:
        """This rank's share of every part; the parts are the sums of the shares."""
        raise NotImplementedError


def stack_views(views: Sequence[Tensor], fewest: int, name: str = "features") -> Tensor:
    """Views (N, D) or one tensor (V, N, D) as one tensor (V, N, D), checked."""
    for z in views:
        if not isinstance(z, Tensor) or not z.is_floating_point():
            kind = f"a tensor of {z.dtype}" if isinstance(z, Tensor) else f"a {type(z).__name__}"
            raise TypeError(f"{name} must be floating-point tensors, got {kind}.")
    if not views:
        raise TypeError(f"{name}: pass the views, each (N, D), or one tensor (V, N, D).")
    if len(views) == 1:
        z_VND = views[0].unsqueeze(0) if views[0].ndim == 2 else views[0]
    elif any(z.shape != views[0].shape or z.ndim != 2 for z in views):
        shapes = ", ".join(str(tuple(z.shape)) for z in views)
        raise ValueError(f"{name}: views must have one shape (N, D), got {shapes}.")
    else:
        z_VND = torch.stack(tuple(views))
    if z_VND.ndim != 3:
        raise ValueError(f"{name} must have shape (N, D) or (V, N, D), got {tuple(z_VND.shape)}.")
    if z_VND.shape[0] < fewest:
        raise ValueError(
            f"{name}: this objective compares at least {fewest} views, got {z_VND.shape[0]}; pass "
            "(z1, z2) or one tensor (V, N, D)."
        )
    if z_VND.shape[2] == 0:
        raise ValueError(f"{name} must have at least one dimension, got shape {tuple(z_VND.shape)}.")
    check_finite(z_VND, name)
    return z_VND


def sum_parts(*shares: Tensor) -> tuple[Tensor, ...]:
    """The parts of a loss from this rank's shares of them, by one message."""
    if world()[1] == 1:
        return shares
    return sum_over_ranks(torch.stack(shares)).unbind()


def without_autocast(device_type: str) -> AbstractContextManager[Any]:
    """Switches autocast off where it is on; to enter and leave its context takes as long as a kernel."""
    if torch.compiler.is_compiling() or torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def check_finite(x: Tensor, name: str) -> None:
    """Refuse NaN and infinity on the CPU; on a GPU the look would wait for it, and is the loop's job."""
    if x.device.type == "cpu" and not torch.compiler.is_compiling() and not bool(x.isfinite().all()):
        raise ValueError(f"{name} contain NaN or infinite values.")


def check_weight(name: str, value: float) -> None:
    check_number(name, value)
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be zero or positive, and finite, got {value}.")


def check_number(name: str, value: float) -> None:
    """Name what was given in a number's place, such as a target to an objective that has none."""
    if not isinstance(value, (Real, Tensor)):
        raise TypeError(f"{name} must be a number, got a {type(value).__name__}.")


def upcast(z: Tensor) -> Tensor:
    """`z` in float32, or float64 where it is."""
    return z.to(torch.promote_types(z.dtype, torch.float32))


def pair_invariance(z_VND: Tensor, count: int) -> Tensor:
    """This rank's share of the invariance of V views of `count` samples in all:

        mean over pairs of views i < j, samples and dimensions of (z_i − z_j)².

    For two views this is the mean squared error between them. The sum over pairs is V times the sum of
    squared distances to the mean view, so the cost grows with V and not with the number of pairs.
    """
    z_VND = upcast(z_VND)
    V, _, D = z_VND.shape
    return (z_VND - z_VND.mean(0)).square().sum() * (2 / ((V - 1) * count * D))
