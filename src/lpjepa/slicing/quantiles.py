"""One-sample matching where the target's quantiles are known exactly: no sampling noise.

The N sorted projections are compared with the quantiles at the midpoints q_i = (i − ½)/N, i = 1..N.
Along a coordinate axis the target's marginal is the target itself; for a Gaussian target every direction
is known.
"""

from __future__ import annotations

import warnings
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from lpjepa._operators import unobserved
from lpjepa._random import on_device
from lpjepa.distributions import GeneralizedGaussian, RectifiedGeneralizedGaussian
from lpjepa.slicing._checks import checked_directions, checked_features
from lpjepa.slicing._standard_quantiles import is_capturing, midpoints, standard_quantiles
from lpjepa.slicing.discrepancies import get_discrepancy, wasserstein2_sorted
from lpjepa.slicing.matching import (
    accumulation_dtype,
    split_weight,
    sum_over_slices,
    wants_gradient,
    with_gradient,
)


def axes_discrepancy(z_VND: Tensor, target: Distribution, discrepancy: str = "wasserstein2") -> Tensor:
    """mean over views v, coordinates d and samples i of (sort(z_v·d)_i − icdf((i − ½)/N))².

    z is (N, D) or (V, N, D); the target's batch shape is () or (D,). A scalar with gradient by z. Another
    `discrepancy` compares each coordinate with the N quantiles in its own way.
    """
    features = checked_features(z_VND)
    dtype = accumulation_dtype(features)
    quantiles = target_quantiles(target, features.shape[1], features.shape[2], dtype, features.device)
    want_gradient = wants_gradient(z_VND)
    with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
        x_VDN = features.to(dtype).transpose(1, 2).contiguous()
        if discrepancy == "wasserstein2":
            value_VD, slope_VDN = wasserstein2_sorted(x_VDN, quantiles, want_gradient)
        else:
            value_VD, slope_VDN = get_discrepancy(discrepancy)(
                x_VDN, quantiles.expand_as(x_VDN).contiguous(), want_gradient
            )
        if slope_VDN is None:
            return value_VD.mean()
        gradient = (slope_VDN / value_VD.numel()).transpose(1, 2).contiguous()
    return with_gradient(features, value_VD.mean(), gradient)


def gaussian_discrepancy(
    z_VND: Tensor,
    c: Tensor,
    target: Distribution,
    weight_VK: Tensor | float | None = None,
    chunk: int | None = None,
) -> Tensor:
    """One-sample W₂² of every slice against a Gaussian target's exact quantiles.

    With independent coordinates N(μ_d, σ_d²) the projection on c is N(Σ c_d μ_d, Σ c_d² σ_d²). Arguments as
    in `sliced_discrepancy`; see `is_gaussian` for the targets accepted.
    """
    features = checked_features(z_VND)
    directions = checked_directions(c, features, null_rows_allowed=isinstance(weight_VK, Tensor))
    views, n, dim = features.shape
    dtype, device = accumulation_dtype(features), features.device
    weight, uniform = split_weight(weight_VK, views, directions.shape[-2])
    want_gradient = wants_gradient(z_VND)
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        loc_D, scale_D = (
            on_device(getattr(target, name).detach(), device).to(dtype).expand(dim)
            for name in ("loc", "scale")
        )
        normal_N = torch.special.ndtri(midpoints(n, device)).to(dtype)

        def compare(proj: Tensor, lo: int, hi: int) -> tuple[Tensor, Tensor | None]:
            part = directions[..., lo:hi, :].to(dtype)
            mean, deviation = part @ loc_D, (part.square() @ scale_D.square()).sqrt()
            quantiles = mean.unsqueeze(-1) + deviation.unsqueeze(-1) * normal_N
            return wasserstein2_sorted(proj, quantiles, want_gradient)

        value, gradient = sum_over_slices(
            features.to(dtype),
            n,
            directions,
            uniform if weight is None else weight,
            compare,
            chunk,
            want_gradient,
        )
    return value if gradient is None else with_gradient(features, value, gradient)


def is_gaussian(target: Distribution) -> bool:
    """Whether every projection of the target is Gaussian: torch's Normal, or GeneralizedGaussian with p = 2.

    Reads p; call it once, when a loss is built.
    """
    if isinstance(target, GeneralizedGaussian):
        return bool((target.p == 2).all())
    return isinstance(target, Normal)


def target_quantiles(
    target: Distribution, n: int, dim: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The target's n midpoint quantiles along the last dimension: (N,), or (D, N) for a batch of D.

    Those of a Generalized Gaussian are loc + scale · w, and a rectified one takes no less than zero; w, the
    quantiles of GN_p(0, 1), are kept from the first call on, so that loc and scale may move in place at no
    cost. Other targets, and those whose p only a device knows, are asked for their `icdf`, anew whenever a
    parameter was changed in place.
    """
    batch = tuple(target.batch_shape)
    if batch not in ((), (1,), (dim,)):
        raise ValueError(
            f"target must have batch shape () or ({dim},) for features of dimension {dim}; got {batch}."
        )
    if (
        isinstance(target, (GeneralizedGaussian, RectifiedGeneralizedGaussian))
        and target._known_p is not None
    ):
        loc, scale = (on_device(x.detach(), device).unsqueeze(-1) for x in (target.loc, target.scale))
        w_N = standard_quantiles(target.p, target._known_p, n, device)
        quantiles = (loc + scale * w_N).to(dtype)
        if isinstance(target, RectifiedGeneralizedGaussian):
            quantiles = torch.relu(quantiles)
    else:
        quantiles = _kept_quantiles(target, n, dtype, device)
    if unobserved(quantiles) and not is_capturing(device):
        _warn_if_silent(target, n, quantiles)
    return quantiles


_SEEN: WeakKeyDictionary[Distribution, set[int]] = WeakKeyDictionary()


def _warn_if_silent(target: Distribution, n: int, quantiles: Tensor) -> None:
    """Warn once of a target that wants no feature active; on a GPU look only once, as that waits for it."""
    seen = _SEEN.setdefault(target, set())
    if n in seen:
        return
    silent = not bool(quantiles.any())
    if silent or quantiles.device.type != "cpu":
        seen.add(n)
    if silent:
        warnings.warn(
            f"All {n} quantiles of the target are zero, as it wants less than 1/{2 * n} active: "
            "matching them along the axes only silences features; use a larger batch or axes_weight=0.",
            stacklevel=4,
        )


# A run has few batch sizes: that of training, of its last batch, of validation.
_MOST_KEPT = 8
_KEPT: WeakKeyDictionary[Distribution, dict[tuple[Any, ...], Tensor]] = WeakKeyDictionary()


def _kept_quantiles(target: Distribution, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    if torch.compiler.is_compiling():
        return _quantiles(target, n, dtype, device)
    versions = tuple(tensor._version for tensor in _parameters(target))
    kept = _KEPT.setdefault(target, {})
    key = (n, dtype, device, versions)
    if key not in kept:
        quantiles = _quantiles(target, n, dtype, device)
        if is_capturing(device):
            return quantiles  # of a target that moves: replays read where it is
        while len(kept) >= _MOST_KEPT:
            kept.pop(next(iter(kept)))
        kept[key] = quantiles
    return kept[key]


@torch.no_grad()
def _quantiles(target: Distribution, n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    # Computed where the parameters live, in float64 as far as the target's icdf allows.
    home = next((tensor.device for tensor in _parameters(target)), device)
    q_N = midpoints(n, home)
    if tuple(target.batch_shape) in ((), (1,)):
        return target.icdf(q_N).to(device, dtype)
    return target.icdf(q_N.unsqueeze(-1)).to(device, dtype).T.contiguous()


def _parameters(target: Distribution) -> list[Tensor]:
    return [value for value in vars(target).values() if isinstance(value, Tensor)]
