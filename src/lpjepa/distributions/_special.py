"""Regularized incomplete gamma functions P and Q in log space, and their inverse.

    P(a, x) = 1/Γ(a) ∫_0^x t^(a-1) e^(-t) dt,        Q(a, x) = 1 - P(a, x)

`torch.special.gammainc` and `gammaincc` are accurate to about 1e-14 where their values are ordinary (for
a <= 20), but P underflows for small x and Q for x > 700. The functions here go on in log space. The
argument is log x, because x = w^p/p itself underflows for large p near the mode. Values only: gradients
are attached one level up, where they are never singular (`_standard.py`).
"""

import torch
from torch import Tensor

_FRACTION_TERMS = 16  # of the continued fraction, used for x >= 50 only: converged to rounding
_SERIES_TERMS = 20  # of the power series, used for x <= 1 only: the last term is below 1/20!
_NEWTON_STEPS = 9  # 7 reach rounding on a in [0.05, 20] and probabilities down to 1e-300


def log_gamma_q(a: Tensor, log_x: Tensor) -> Tensor:
    """log Q(a, x), for x from 0 to infinity."""
    x = torch.exp(log_x)
    far = x >= torch.clamp(2 * a, min=50.0)
    # Backward evaluation of Legendre's continued fraction:
    # Γ(a, x) = e^-x x^a / (x+1-a - 1(1-a)/(x+3-a - 2(2-a)/(x+5-a - ...)))
    x_far = torch.where(far & torch.isfinite(x), x, 2 * a + 50)
    fraction = x_far + (2 * _FRACTION_TERMS + 1) - a
    for n in range(_FRACTION_TERMS, 0, -1):
        fraction = x_far + (2 * n - 1) - a - n * (n - a) / fraction
    tail = a * torch.log(x_far) - x_far - torch.lgamma(a) - torch.log(fraction)
    tail = torch.where(torch.isfinite(x), tail, -torch.inf)
    # Where x underflows, P is the first term of its series, x^a/Γ(a+1), which need not be small.
    head = torch.log(-torch.expm1(torch.where(x > 0, -1.0, a * log_x - torch.lgamma(a + 1))))
    body = torch.log(torch.special.gammaincc(a, torch.where(far, 1.0, x)))
    return torch.where(far, tail, torch.where(x > 0, body, head))


def log_gamma_p(a: Tensor, log_x: Tensor) -> Tensor:
    """log P(a, x), for x from 0 (log x = -inf) to infinity."""
    x = torch.exp(log_x)
    near = x <= 1
    # P(a, x) = e^-x x^a / Γ(a+1) · (1 + x/(a+1) + x²/((a+1)(a+2)) + ...), by Horner's scheme.
    x_near = torch.where(near, x, 1.0)
    series = torch.ones_like(x_near)
    for n in range(_SERIES_TERMS, 0, -1):
        series = 1 + series * x_near / (a + n)
    head = a * log_x - x_near - torch.lgamma(a + 1) + torch.log(series)
    return torch.where(near, head, torch.log(torch.special.gammainc(a, torch.where(near, 1.0, x))))


def log_inverse_gamma(a: Tensor, log_q: Tensor) -> Tensor:
    """log x such that log Q(a, x) = log_q.

    Newton's method three times, each where it converges. On the side of the mode, log P is concave in log x,
    so that any start will do: P <= x^a/Γ(a+1) gives one, or Wilson and Hilferty's normal approximation where
    a is large and P that far out would underflow. Beyond, while x < 1 (a wide range of x if a is small), Q is
    nearly linear in log x. In the tail, log Q is nearly linear in x (its slope tends to -1).
    """
    log_p = torch.log(-torch.expm1(log_q))
    body = log_p < -0.3  # P < 0.74
    tail = ~body & (log_q < log_gamma_q(a, torch.zeros_like(a)))
    log_norm = torch.lgamma(a)

    target = torch.where(body & torch.isfinite(log_p), log_p, -1.0)
    first_term = (target + log_norm + torch.log(a)) / a
    normal = torch.special.ndtri(torch.exp(target)).clamp(min=-5.0)
    cube_root = (1 - 1 / (9 * a) + normal / (3 * torch.sqrt(a))).clamp(min=0.1)
    log_x = torch.where(a > 20, torch.log(a) + 3 * torch.log(cube_root), first_term)
    for _ in range(_NEWTON_STEPS):
        value = log_gamma_p(a, log_x)
        slope = torch.exp(a * log_x - torch.exp(log_x) - log_norm - value)
        log_x = log_x + (target - value) / slope
    log_x = torch.where(torch.isneginf(log_p), -torch.inf, log_x)

    middle = ~body & ~tail
    target_q = torch.exp(torch.where(middle, log_q, -1.0))
    log_middle = (torch.log1p(-target_q) + log_norm + torch.log(a)) / a
    for _ in range(_NEWTON_STEPS):
        slope = torch.exp(a * log_middle - torch.exp(log_middle) - log_norm)
        excess = torch.exp(log_gamma_q(a, log_middle)) - target_q
        log_middle = torch.clamp(log_middle + excess / slope, max=0.0)

    target = torch.where(tail & torch.isfinite(log_q), log_q, -2.0)
    x = torch.maximum(a, -target + (a - 1) * torch.log(-target) - log_norm)
    for _ in range(_NEWTON_STEPS):
        value = log_gamma_q(a, torch.log(x))
        # Far out the hazard tends to 1, and the difference of two large logarithms is all rounding.
        hazard = torch.exp(torch.where(x > 1e8, 0.0, (a - 1) * torch.log(x) - x - log_norm - value))
        x = torch.maximum(x + (value - target) / hazard, x / 8)
    x = torch.where(torch.isneginf(log_q), torch.inf, x)
    return torch.where(body, log_x, torch.where(tail, torch.log(x), log_middle))
