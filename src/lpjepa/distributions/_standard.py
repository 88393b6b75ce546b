"""The standard Generalized Gaussian W ~ GN_p(0, 1): tail, quantile and rectified moments, in float64.

    f(w) = exp(-|w|^p / p) / Z,    Z = 2 p^(1/p - 1) Γ(1/p)

Every distribution of this package is an affine image, a truncation or a rectification of W. Tail and
quantile are custom operators: opaque to `torch.compile` (no graph breaks, no unrolled loops) and with
gradients written in terms of the density, which is finite everywhere, so that no point is singular.
"""

import math

import torch
from torch import Tensor

from lpjepa.distributions._quadrature import scaled_tail_moments, tail_nodes
from lpjepa.distributions._special import log_gamma_q, log_inverse_gamma

_CHUNK = 65536  # elements per pass of the derivative in p, which needs a node axis


def log_partition(p: Tensor) -> Tensor:
    """log Z = log 2 + (1/p - 1) log p + log Γ(1/p): finite where Γ(1/p) itself overflows."""
    return math.log(2.0) + (1 / p - 1) * torch.log(p) + torch.lgamma(1 / p)


def absolute_power(w: Tensor, p: Tensor) -> Tensor:
    """|w|^p, with gradient 0 at w = 0: exact for p > 1, the symmetric subgradient for p <= 1."""
    at_zero = w == 0
    return torch.where(at_zero, 0.0, torch.where(at_zero, 1.0, w).abs() ** p)


def log_density(w: Tensor, p: Tensor) -> Tensor:
    return -absolute_power(w, p) / p - log_partition(p)


def log_absolute_moment(r: Tensor, p: Tensor) -> Tensor:
    """log E|W|^r = (r/p) log p + log Γ((r+1)/p) - log Γ(1/p); it is 0 at r = p."""
    return r / p * torch.log(p) + torch.lgamma((r + 1) / p) - torch.lgamma(1 / p)


def log_sf(w: Tensor, p: Tensor) -> Tensor:
    """log P(W > w), accurate in both tails, differentiable in w and p."""
    w, p = torch.broadcast_tensors(w.double(), p.double())
    return torch.ops.lpjepa.standard_log_sf(w.contiguous(), p.contiguous())


def quantile(log_cdf: Tensor, log_sf: Tensor, p: Tensor) -> Tensor:
    """The w with log P(W < w) = log_cdf and log P(W > w) = log_sf; the smaller of the two is used."""
    log_cdf, log_sf, p = torch.broadcast_tensors(log_cdf.double(), log_sf.double(), p.double())
    return torch.ops.lpjepa.standard_quantile(log_cdf.contiguous(), log_sf.contiguous(), p.contiguous())


def log_rectified_moments(u: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log E[x], log E[x²] and log Var[x] of x = max(0, u + W), for any u, also u << 0.

    With m_k = E[max(0, W - |u|)^k] from quadrature (no cancellation), x for u >= 0 has
    E[x] = u + m_1, E[x²] = u² + Var W - m_2 and Var x = Var W - m_2 - 2 u m_1 - m_1².
    """
    u, p = torch.broadcast_tensors(u.double(), p.double())
    negative = u < 0
    # Long before |u|^p overflows nothing is left of the tail; t stops where the cube of its width, e^-600,
    # is still a number.
    t = torch.minimum(torch.where(negative, -u, u), torch.exp(200 / p.detach()))
    j1, j2 = scaled_tail_moments(t, p)
    log_f = log_density(t, p)
    f = torch.exp(log_f)
    m1, m2 = f * j1, f * j2
    # Each branch sees arguments that are harmless for it, or its unused gradient would be NaN.
    v = torch.exp(log_absolute_moment(torch.full_like(p, 2.0), p))
    mean = torch.where(negative, 1.0, u + m1)
    root_second = torch.where(negative, 1.0, torch.hypot(u, torch.sqrt(v - m2)))  # u² alone may overflow
    variance = torch.where(negative, 1.0, v - m2 - 2 * u * m1 - m1**2)
    return (
        torch.where(negative, log_f + torch.log(j1), torch.log(mean)),
        torch.where(negative, log_f + torch.log(j2), 2 * torch.log(root_second)),
        torch.where(negative, log_f + torch.log(j2 - f * j1**2), torch.log(variance)),
    )


@torch.library.custom_op("lpjepa::standard_log_sf", mutates_args=())
def _log_sf(w: Tensor, p: Tensor) -> Tensor:
    log_half_tail = log_gamma_q(1 / p, p * torch.log(w.abs()) - torch.log(p)) - math.log(2.0)
    return torch.where(w < 0, torch.log1p(-torch.exp(log_half_tail)), log_half_tail)


@torch.library.custom_op("lpjepa::standard_log_sf_dp", mutates_args=())
def _log_sf_dp(w: Tensor, p: Tensor) -> Tensor:
    """∂/∂p log P(W > w) = -E[∂/∂p |W|^p/p given W > w] - ∂/∂p log Z, for w > 0; by reflection for w < 0."""
    pieces = [
        _upper_tail_dp(t, q) for t, q in zip(w.abs().flatten().split(_CHUNK), p.flatten().split(_CHUNK))
    ]
    upper = torch.cat(pieces).reshape(w.shape)
    log_upper = _log_sf(w.abs(), p)
    tail = torch.exp(log_upper)
    slope = torch.where(w < 0, -upper * tail / (1 - tail), upper)
    return torch.where(torch.isinf(w), 0.0, slope)  # the open end of a half line


def _upper_tail_dp(t: Tensor, p: Tensor) -> Tensor:
    s, log_weight, _ = tail_nodes(t, torch.full_like(t, math.inf), p)
    weight = torch.softmax(log_weight, -1)
    x, q = t.unsqueeze(-1) + s, p.unsqueeze(-1)
    mean_slope = (weight * x**q * (torch.log(x) - 1 / q) / q).sum(-1)
    log_z_slope = (1 - torch.log(p) - torch.digamma(1 / p)) / p**2 - 1 / p
    return -mean_slope - log_z_slope


@torch.library.custom_op("lpjepa::standard_quantile", mutates_args=())
def _quantile(log_cdf: Tensor, log_sf: Tensor, p: Tensor) -> Tensor:
    lower = log_cdf < log_sf
    log_q = torch.clamp(torch.where(lower, log_cdf, log_sf) + math.log(2.0), max=0.0)
    t = torch.exp((log_inverse_gamma(1 / p, log_q) + torch.log(p)) / p)
    # The logarithm of what is no probability is NaN, on one side or the other.
    t = torch.where(torch.isnan(log_cdf) | torch.isnan(log_sf), torch.nan, t)
    return torch.where(lower, -t, t)


@_log_sf.register_fake
def _(w: Tensor, p: Tensor) -> Tensor:
    return w.new_empty(w.shape)


@_log_sf_dp.register_fake
def _(w: Tensor, p: Tensor) -> Tensor:
    return w.new_empty(w.shape)


@_quantile.register_fake
def _(log_cdf: Tensor, log_sf: Tensor, p: Tensor) -> Tensor:
    return p.new_empty(p.shape)


def _log_mills_ratio(w: Tensor, p: Tensor, log_tail: Tensor) -> Tensor:
    """log of P(W > w) / f(w), given the logarithm of the tail, whose two terms cancel as w grows.

    Far out it is the asymptotic series w^(1-p) (1 + (1/p - 1)/x + ...), x = w^p/p.
    """
    x = absolute_power(w, p) / p
    far = (w > 0) & (x > 1e5)
    w_far, x_far = torch.where(far, w, 1.0), torch.where(far, x, 1e5)
    asymptotic = (1 - p) * torch.log(w_far) + torch.log1p((1 / p - 1) / x_far)
    return torch.where(far, asymptotic, log_tail - log_density(w, p))


def _save_log_sf(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs, output)


def _backward_log_sf(ctx, grad):  # type: ignore[no-untyped-def]
    w, p, value = ctx.saved_tensors
    # At w = inf (an open end) the slope is 0, not inf - inf.
    hazard = torch.exp(torch.where(torch.isneginf(value), -torch.inf, -_log_mills_ratio(w, p, value)))
    grad_p = None
    if ctx.needs_input_grad[1]:
        grad_p = grad * torch.ops.lpjepa.standard_log_sf_dp(w, p)
    return -grad * hazard, grad_p


def _save_quantile(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs, output)


def _backward_quantile(ctx, grad):  # type: ignore[no-untyped-def]
    log_cdf, log_sf, p, w = ctx.saved_tensors
    lower = log_cdf < log_sf
    log_tail = torch.where(lower, log_cdf, log_sf)
    per_log = grad * torch.exp(_log_mills_ratio(w.abs(), p, log_tail))
    grad_p = None
    if ctx.needs_input_grad[2]:
        slope = torch.ops.lpjepa.standard_log_sf_dp(w.abs(), p)
        grad_p = torch.where(lower, -per_log, per_log) * slope
    return torch.where(lower, per_log, 0.0), torch.where(lower, 0.0, -per_log), grad_p


torch.library.register_autograd("lpjepa::standard_log_sf", _backward_log_sf, setup_context=_save_log_sf)
torch.library.register_autograd("lpjepa::standard_quantile", _backward_quantile, setup_context=_save_quantile)
