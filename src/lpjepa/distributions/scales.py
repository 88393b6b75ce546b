"""The scales of the paper: unit variance before rectification (`gn`) or after it (`rgn`)."""

from typing import overload

import torch
from torch import Tensor

from lpjepa.distributions import _standard
from lpjepa.distributions._base import Parameter, check

_BISECTIONS = 56  # of a bracket in log sigma that is at most a few hundred wide; one Newton step follows


@overload
def sigma_gn(p: float) -> float: ...
@overload
def sigma_gn(p: Tensor) -> Tensor: ...
def sigma_gn(p: Parameter) -> Parameter:
    """sigma_GN = Γ(1/p)^(1/2) / (p^(1/p) Γ(3/p)^(1/2)): Var GN_p(mu, sigma_GN) = 1 for every mu.

    Through log-gamma, so that small p do not overflow. A float gives a float; tensors are differentiable.
    """
    check("p", p)
    if not isinstance(p, Tensor):
        return float(_unit_gn(torch.tensor(float(p), dtype=torch.float64)))
    return _unit_gn(p.double()).to(p.dtype)


@overload
def sigma_rgn(p: float, loc: float) -> float: ...
@overload
def sigma_rgn(p: Tensor, loc: Parameter) -> Tensor: ...
@overload
def sigma_rgn(p: Parameter, loc: Tensor) -> Tensor: ...
def sigma_rgn(p: Parameter, loc: Parameter) -> Parameter:
    """sigma_RGN(p, mu): Var RGN_p(mu, sigma_RGN) = 1 (the paper's bisection algorithm).

    Bisection in log sigma on log Var, between two scales that always enclose the root: the variance after
    rectification is at most that before, so sigma_GN is a lower end; and Var >= sigma² v(-1) once
    sigma >= -mu, with v the variance at sigma = 1, because v grows with mu. A last Newton step brings
    rounding accuracy and, by implicit differentiation, the gradients in p and loc. Floats give a float.
    """
    check("p", p)
    check("loc", loc)
    if not isinstance(p, Tensor) and not isinstance(loc, Tensor):
        wide = (torch.tensor(float(v), dtype=torch.float64) for v in (p, loc))
        return float(_solve_rgn(*wide))
    like = p if isinstance(p, Tensor) else loc
    assert isinstance(like, Tensor)
    wide = (torch.as_tensor(v, dtype=torch.float64, device=like.device) for v in (p, loc))
    return _solve_rgn(*wide).to(like.dtype)


def named_scale(
    scale: str | Parameter, p: Tensor, *, loc: Tensor | None = None, ratio: Tensor | None = None
) -> Tensor:
    """The scale called "gn", "rgn" or given as a number, for a location or a ratio loc/scale.

    With the ratio given, "rgn" is closed: Var = sigma² v(ratio).
    """
    if not isinstance(scale, str):
        check("scale", scale)
        return torch.as_tensor(scale, dtype=torch.float64, device=p.device)
    if scale == "gn":
        return _unit_gn(p)
    if scale == "rgn" and ratio is not None:
        return torch.exp(-0.5 * _standard.log_rectified_moments(ratio, p)[2])
    if scale == "rgn" and loc is not None:
        return _solve_rgn(p, loc)
    raise ValueError(f'scale = {scale!r} is not known: pass "gn", "rgn" or a number above 0.')


def _unit_gn(p: Tensor) -> Tensor:
    return torch.exp(-0.5 * _standard.log_absolute_moment(torch.full_like(p, 2.0), p))


def _ratio(loc: Tensor, log_sigma: Tensor) -> Tensor:
    """loc/sigma, short of where its cube overflows: there rectification takes nothing, or everything."""
    return (loc * torch.exp(-log_sigma)).clamp(-1e90, 1e90)


def _log_variance(log_sigma: Tensor, p: Tensor, loc: Tensor) -> Tensor:
    return 2 * log_sigma + _standard.log_rectified_moments(_ratio(loc, log_sigma), p)[2]


def _solve_rgn(p: Tensor, loc: Tensor) -> Tensor:
    p, loc = torch.broadcast_tensors(p, loc)
    with torch.no_grad():
        low = torch.log(_unit_gn(p))
        unit = -0.5 * _standard.log_rectified_moments(torch.full_like(p, -1.0), p)[2]
        high = torch.maximum(unit, torch.log(loc.abs()))
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            too_wide = _log_variance(middle, p, loc) > 0
            low, high = torch.where(too_wide, low, middle), torch.where(too_wide, middle, high)
        root = 0.5 * (low + high)
        # d log Var / d log sigma = 2 - u v'(u)/v(u), with v'(u) = 2 E[x] P(x = 0) at u = mu/sigma.
        u = _ratio(loc, root)
        log_mean, _, log_unit = _standard.log_rectified_moments(u, p)
        slope = 2 - 2 * u * torch.exp(log_mean + _standard.log_sf(u, p) - log_unit)
    return torch.exp(root - _log_variance(root, p, loc) / slope)
