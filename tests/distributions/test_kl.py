import math

import mpmath as mp
import pytest
import torch
from torch.distributions import Laplace, Normal, kl_divergence

from lpjepa.distributions import (
    GeneralizedGaussian,
    RectifiedGeneralizedGaussian,
    TruncatedGeneralizedGaussian,
)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((0.3, 0.9, 1.5), (0.3, 1.4, 0.7)),
        ((0.3, 0.9, 0.6), (-0.8, 1.4, 2.0)),
        ((0.3, 0.9, 3.0), (-0.8, 1.4, 1.0)),
        ((0.3, 0.9, 1.0), (1.1, 0.5, 1.0)),
    ],
)
def test_generalized_matches_quadrature(float64, oracle, first, second):
    f, g = oracle(*first), oracle(*second)
    ratio = lambda x: mp.log(f.density(x) / g.density(x))
    a, b = sorted((first[0], second[0]))  # both modes are cusps of the integrand
    expected = f.integral(ratio, -math.inf, a) + f.integral(ratio, b, math.inf)
    expected += f.integral(ratio, a, b) if a < b else 0
    ours = kl_divergence(GeneralizedGaussian(*first), GeneralizedGaussian(*second))
    assert ours.item() == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((-0.4, 0.9, 1.0), (0.7, 1.3, 1.0)),
        ((0.5, 0.9, 1.6), (-1.0, 1.3, 1.0)),
        ((-2.0, 0.9, 2.0), (0.4, 1.3, 2.0)),
        ((-0.6, 0.9, 0.7), (-0.6, 1.3, 0.7)),
    ],
)
def test_rectified_matches_quadrature(float64, oracle, first, second):
    f, g = oracle(*first), oracle(*second)
    ratio = lambda x: mp.log(f.density(x) / g.density(x))
    split = max(second[0], 0.5)
    continuous = f.integral(ratio, 0, split) + f.integral(ratio, split, math.inf)
    atoms = (1 - f.active()) * mp.log((1 - f.active()) / (1 - g.active()))
    d, e = RectifiedGeneralizedGaussian(*first), RectifiedGeneralizedGaussian(*second)
    assert kl_divergence(d, e).item() == pytest.approx(float(continuous + atoms), rel=1e-9)
    assert kl_divergence(d, d).item() == pytest.approx(0, abs=1e-14)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((0.3, 0.9, 1.5, -1.0, 2.0), (0.3, 1.4, 0.7, -1.0, 2.0)),
        ((-0.6, 0.9, 0.7, 0.0, math.inf), (-0.6, 1.3, 1.0, 0.0, math.inf)),
        ((0.3, 0.9, 1.0, 0.5, 2.0), (-0.8, 1.4, 2.0, -math.inf, 3.0)),
    ],
)
def test_truncated_matches_quadrature(float64, oracle, first, second):
    f, g = oracle(*first[:3]), oracle(*second[:3])
    masses = f.integral(lambda x: 1, *first[3:]), g.integral(lambda x: 1, *second[3:])
    ratio = lambda x: mp.log(f.density(x) / masses[0] / g.density(x) * masses[1])
    expected = f.integral(ratio, *first[3:]) / masses[0]
    d, e = TruncatedGeneralizedGaussian(*first), TruncatedGeneralizedGaussian(*second)
    assert kl_divergence(d, e).item() == pytest.approx(float(expected), rel=1e-9)
    assert kl_divergence(d, d.expand((2,))).abs().max() < 1e-14
    assert (kl_divergence(e, d) == torch.inf) == (first[3:] != second[3:])


def test_rectified_is_its_positive_part_and_its_atom(float64):
    """KL = P(x > 0) KL(positive parts) + KL(Bernoulli), each by a formula of its own."""
    d, e = RectifiedGeneralizedGaussian(-0.4, 0.9, 1.6), RectifiedGeneralizedGaussian(0.7, 1.3, 2.0)
    a, b = d.active_probability, e.active_probability
    parts = a * kl_divergence(d.positive_part, e.positive_part)
    parts += a * (a / b).log() + (1 - a) * ((1 - a) / (1 - b)).log()
    torch.testing.assert_close(kl_divergence(d, e), parts, rtol=1e-12, atol=0)


def test_agrees_with_torch_on_laplace_and_normal(float64):
    for classic, p in ((Normal, 2.0), (Laplace, 1.0)):
        a, b = classic(0.3, 0.8), classic(-1.0, 2.0)
        ours_a, ours_b = GeneralizedGaussian(0.3, 0.8, p), GeneralizedGaussian(-1.0, 2.0, p)
        expected = kl_divergence(a, b)
        for pair in ((ours_a, ours_b), (ours_a, b), (a, ours_b)):
            torch.testing.assert_close(kl_divergence(*pair), expected, rtol=1e-13, atol=1e-14)


def test_no_closed_form_says_so():
    with pytest.raises(NotImplementedError, match="closed form"):
        kl_divergence(GeneralizedGaussian(0.0, 1.0, 1.5), GeneralizedGaussian(1.0, 1.0, 1.5))
    with pytest.raises(NotImplementedError, match="closed form"):
        kl_divergence(
            TruncatedGeneralizedGaussian(0.0, 1.0, 1.5), TruncatedGeneralizedGaussian(1.0, 1.0, 1.5)
        )
    with pytest.raises(NotImplementedError, match="closed form"):
        kl_divergence(
            RectifiedGeneralizedGaussian(0.0, 1.0, 1.5), RectifiedGeneralizedGaussian(0.0, 1.0, 1.7)
        )
