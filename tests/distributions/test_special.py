"""Incomplete gamma functions in log space against mpmath."""

import mpmath as mp
import pytest
import torch

from lpjepa.distributions._special import log_gamma_p, log_gamma_q, log_inverse_gamma
from lpjepa.distributions._standard import log_sf, quantile

SHAPES = [0.05, 0.2, 0.5, 1.0, 1.5, 3.0, 10.0, 20.0]
POINTS = [1e-200, 1e-30, 1e-3, 0.3, 1.0, 2.5, 10.0, 20.0, 49.0, 51.0, 700.0, 1e4]


def f64(value):
    return torch.tensor(value, dtype=torch.float64)


def relative(value, reference):
    """Relative error of exp(value), beyond what rounding of a large logarithm costs anyway."""
    return abs(mp.expm1(mp.mpf(value) - reference)) / max(1, abs(reference))


@pytest.mark.parametrize("a", SHAPES)
def test_log_p_and_log_q_match_mpmath(a):
    with mp.workdps(40):
        for x in POINTS:
            shape, log_x = f64(a), f64(x).log()
            exact_a, exact_x = mp.mpf(shape.item()), mp.exp(mp.mpf(log_x.item()))
            log_p = mp.log(mp.gammainc(exact_a, 0, exact_x, regularized=True))
            log_q = mp.log(mp.gammainc(exact_a, exact_x, regularized=True))
            assert relative(log_gamma_p(shape, log_x).item(), log_p) < 1e-14
            assert relative(log_gamma_q(shape, log_x).item(), log_q) < 1e-14


@pytest.mark.parametrize("a", SHAPES)
def test_inverse_recovers_the_argument(a):
    with mp.workdps(40):
        for x in [1e-9, 1e-3, 0.3, 2.0, 10.0, 60.0, 690.0]:
            log_q = mp.log(mp.gammainc(mp.mpf(a), mp.mpf(x), regularized=True))
            if abs(log_q) < 1e-3:  # then log Q in float64 does not determine x
                continue
            log_x = log_inverse_gamma(f64(a), f64(float(log_q)))
            assert abs(mp.expm1(log_x.item() - mp.log(x))) < 1e-13


@pytest.mark.parametrize("p", [0.01, 0.05, 30.0, 100.0, 300.0, 1e3, 1e5])
def test_active_fractions_of_extreme_exponents(p):
    """Large p, nearly uniform: between the mode and the tail x = w^p/p runs over hundreds of orders."""
    from lpjepa.distributions import RectifiedGeneralizedGaussian

    with mp.workdps(40):
        for fraction in [1e-6, 0.003, 0.02, 0.05, 0.12, 0.14, 0.3, 0.9, 0.99]:
            d = RectifiedGeneralizedGaussian.from_active_fraction(fraction, p, dtype=torch.float64)
            u = mp.mpf(d.loc.item()) / mp.mpf(d.scale.item())
            beyond = mp.gammainc(1 / mp.mpf(p), abs(u) ** p / mp.mpf(p), regularized=True) / 2
            active = beyond if u < 0 else 1 - beyond
            # torch's incomplete gamma functions have nine digits above a = 20; u has as many as p allows.
            assert abs(active / fraction - 1) < (5e-9 if p < 0.05 else 1e-13 * max(1, p / 100)), fraction


def test_inverse_at_the_ends():
    a = f64(0.7)
    assert log_inverse_gamma(a, f64(0.0)) == -torch.inf
    assert log_inverse_gamma(a, f64(-torch.inf)) == torch.inf


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0, 2.0, 7.0, 20.0])
def test_quantile_inverts_the_tail_at_tiny_probabilities(p):
    p = f64(p)
    log_q = f64([-690.0, -300.0, -30.0, -3.0, -0.7])
    w = quantile(torch.log(-torch.expm1(log_q)), log_q, p)
    torch.testing.assert_close(log_sf(w, p), log_q, rtol=1e-13, atol=0)


@pytest.mark.parametrize("p", [20.0, 800.0, 5000.0])
def test_tail_where_the_power_underflows(p):
    """w^p is below every float64, P(|W| < w) = (w^p/p)^(1/p)/Γ(1 + 1/p) is not."""
    with mp.workdps(40):
        for w in (1e-20, 0.3, 0.8):
            inside = mp.gammainc(1 / mp.mpf(p), 0, mp.mpf(w) ** mp.mpf(p) / p, regularized=True)
            assert relative(log_sf(f64(w), f64(p)).item(), mp.log((1 - inside) / 2)) < 1e-13


@pytest.mark.parametrize("p", [0.4, 1.0, 2.0, 3.7, 15.0])
def test_gradient_of_the_tail_in_p_matches_mpmath(p):
    with mp.workdps(40):
        for w in [-2.0, -0.3, 0.0, 0.4, 1.1, 3.0]:

            def tail(q, w=w):
                upper = mp.gammainc(1 / q, abs(mp.mpf(w)) ** q / q, regularized=True) / 2
                return mp.log(upper if w >= 0 else 1 - upper)

            expected = 0 if w == 0 else mp.diff(tail, mp.mpf(p))
            q = torch.tensor(p, dtype=torch.float64, requires_grad=True)
            log_sf(f64(w), q).backward()
            error = abs(float(q.grad) - float(expected))
            assert error < 1e-10 * max(1, abs(float(expected)))


def test_gradient_of_a_quantile_in_p_matches_differences():
    def median_of_upper_half(q):
        return quantile(f64(0.75).log(), f64(0.25).log(), q)

    p = torch.tensor([0.5, 1.3, 6.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(median_of_upper_half, (p,), atol=1e-8)


def test_second_derivative_in_p_says_that_it_is_missing():
    p = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(log_sf(f64(1.0), p), p, create_graph=True)
    with pytest.raises(RuntimeError, match=r"autograd|differentiable"):
        first.backward()
