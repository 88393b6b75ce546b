"""Kullback–Leibler divergences that are closed, registered with `torch.distributions.kl_divergence`.

With r = (mu', sigma', p') the second distribution, all need E|x - mu'|^p' under the first. It is closed
when mu = mu', for p' = 2 and, without truncation, for p' = 1, which reaches every pair of Laplace, Normal and
Generalized Gaussian with a Laplace or Normal second. The remaining pairs raise NotImplementedError. Which
case holds is read from the parameters on the host.
"""

import torch
from torch import Tensor
from torch.distributions import Laplace, Normal, register_kl

from lpjepa.distributions import _standard
from lpjepa.distributions.generalized_gaussian import GeneralizedGaussian
from lpjepa.distributions.rectified import RectifiedGeneralizedGaussian
from lpjepa.distributions.truncated import TruncatedGeneralizedGaussian


def _require(closed: Tensor, condition: str) -> None:
    if not bool(closed.all()):
        raise NotImplementedError(f"This divergence has no closed form: it needs {condition}.")


def _log_constant(scale: Tensor, p: Tensor) -> Tensor:
    return torch.log(scale) + _standard.log_partition(p)


@register_kl(GeneralizedGaussian, GeneralizedGaussian)
def _kl_gg_gg(first: GeneralizedGaussian, second: GeneralizedGaussian) -> Tensor:
    (loc, scale, p), (loc2, scale2, p2) = first._wide(), second._wide()
    same = loc == loc2
    _require(same | (p2 == 1) | (p2 == 2), "equal loc, or p = 1 or 2 in the second distribution")
    shift = ((loc - loc2) / scale).abs()
    absolute = shift + 2 * torch.exp(_standard.log_rectified_moments(-shift, p)[0])  # E|W - shift|
    square = shift**2 + torch.exp(_standard.log_absolute_moment(torch.full_like(p, 2.0), p))
    centred = torch.exp(_standard.log_absolute_moment(p2, p))
    moment = torch.where(same, centred, torch.where(p2 == 1, absolute, square))
    energy = moment * torch.exp(p2 * (torch.log(scale) - torch.log(scale2))) / p2
    return (_log_constant(scale2, p2) - _log_constant(scale, p) + energy - 1 / p).to(first.loc.dtype)


@register_kl(RectifiedGeneralizedGaussian, RectifiedGeneralizedGaussian)
def _kl_rgg_rgg(first: RectifiedGeneralizedGaussian, second: RectifiedGeneralizedGaussian) -> Tensor:
    (loc, scale, p), (loc2, scale2, p2) = first._wide(), second._wide()
    same = (loc == loc2) & (p == p2)
    _require(same | (p2 == 1) | (p2 == 2), "p = 1 or 2 in the second distribution, or equal loc and p")
    u = loc / scale
    log_mean, log_second, _ = _standard.log_rectified_moments(u, p)
    log_active = _standard.log_sf(-u, p)
    active, mean, square = (
        torch.exp(log_active),
        scale * torch.exp(log_mean),
        scale**2 * torch.exp(log_second),
    )
    # E[|x - mu|^p; x > 0] / sigma^p by parts.
    own = active - u * torch.exp(_standard.log_density(u, p))
    beyond = scale * torch.exp(_standard.log_rectified_moments((loc - loc2.clamp(min=0)) / scale, p)[0])
    absolute = torch.where(loc2 > 0, 2 * beyond - mean + loc2 * active, mean - loc2 * active)
    quadratic = square - 2 * loc2 * mean + loc2**2 * active
    other = torch.where(p2 == 1, absolute / scale2, quadratic / scale2**2)
    other = torch.where(same, own * torch.exp(p * (torch.log(scale) - torch.log(scale2))), other)
    continuous = active * (_log_constant(scale2, p2) - _log_constant(scale, p)) + other / p2 - own / p
    log_atom, log_atom2 = _standard.log_sf(u, p), _standard.log_sf(loc2 / scale2, p2)
    return (continuous + torch.exp(log_atom) * (log_atom - log_atom2)).to(first.loc.dtype)


@register_kl(TruncatedGeneralizedGaussian, TruncatedGeneralizedGaussian)
def _kl_tgg_tgg(first: TruncatedGeneralizedGaussian, second: TruncatedGeneralizedGaussian) -> Tensor:
    loc2, scale2, p2 = second._wide()
    nested = (first.low >= second.low) & (first.high <= second.high)
    closed = (first.loc == second.loc) | (p2 == 2) | ~nested
    _require(closed, "equal loc, or p = 2 in the second distribution")
    anchor, s, weight, _ = first._nodes()
    distance = ((anchor - loc2).unsqueeze(-1) + first.scale.double().unsqueeze(-1) * s) / scale2.unsqueeze(-1)
    energy = (weight * _standard.absolute_power(distance, p2.unsqueeze(-1))).sum(-1) / p2
    divergence = energy + _log_constant(scale2, p2) + second._log_mass() - first.entropy().double()
    return torch.where(nested, divergence, torch.inf).to(first.loc.dtype)


def _generalized(d: Normal | Laplace) -> GeneralizedGaussian:
    return GeneralizedGaussian(d.loc, d.scale, 2.0 if isinstance(d, Normal) else 1.0, validate_args=False)


@register_kl(GeneralizedGaussian, Normal)
@register_kl(GeneralizedGaussian, Laplace)
def _kl_gg_classic(first: GeneralizedGaussian, second: Normal | Laplace) -> Tensor:
    return _kl_gg_gg(first, _generalized(second))


@register_kl(Normal, GeneralizedGaussian)
@register_kl(Laplace, GeneralizedGaussian)
def _kl_classic_gg(first: Normal | Laplace, second: GeneralizedGaussian) -> Tensor:
    return _kl_gg_gg(_generalized(first), second)
