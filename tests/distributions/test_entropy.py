"""Entropy: against quadrature, by Rényi's definition, and as a maximum."""

import math

import mpmath as mp
import pytest
import torch
from scipy import stats

from lpjepa.distributions import (
    GeneralizedGaussian,
    RectifiedGeneralizedGaussian,
    TruncatedGeneralizedGaussian,
)


@pytest.mark.parametrize("p", [0.3, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("mu", [-8.0, -3.0, -0.5, 0.0, 1.5])
def test_rectified_entropy_matches_quadrature(float64, oracle, p, mu):
    """-∫ f log f over the density, plus the atom's term, with respect to Lebesgue + Dirac."""
    o, d = oracle(mu, 1.1, p), RectifiedGeneralizedGaussian(mu, 1.1, p)
    atom = 1 - o.active()
    expected = -o.integral(lambda x: mp.log(o.density(x))) - atom * mp.log(atom)
    assert d.entropy().item() == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize(("p", "mu"), [(0.5, -1.0), (1.0, -2.0), (2.0, 0.5)])
def test_entropy_is_the_limit_of_renyis_definition(float64, p, mu):
    """H_0([n x]/n) - d log n tends to the d(ξ)-dimensional entropy, d being the information dimension."""
    d = RectifiedGeneralizedGaussian(mu, 0.8, p)
    errors = []
    for n in (8, 64, 512):
        top = d.icdf(torch.tensor(1 - 1e-13)).item()
        edges = torch.arange(0, math.ceil(top * n) + 2) / n
        cdf = d.cdf(edges)
        # The integral part of n x is 0 for the atom and for all of [0, 1/n).
        probabilities = torch.cat([cdf[1:2], cdf[2:] - cdf[1:-1]]).clamp(min=0)
        shannon = torch.special.entr(probabilities).sum()
        errors.append(abs((shannon - d.information_dimension * math.log(n) - d.entropy()).item()))
    assert errors[0] > errors[1] > errors[2]
    # The first cell merges with the atom, which costs O(log n / n).
    assert errors[2] < 0.02


def test_information_dimension_is_the_growth_of_shannon_entropy(float64):
    d = RectifiedGeneralizedGaussian(-1.0, 1.0, 1.0)
    values = []
    for n in (2**11, 2**14):
        cdf = d.cdf(torch.arange(1, 40 * n) / n)
        values.append(torch.special.entr(torch.cat([cdf[:1], cdf.diff()])).sum().item())
    assert (values[1] - values[0]) / math.log(8) == pytest.approx(d.information_dimension.item(), rel=4e-3)


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0])
def test_truncated_has_the_largest_entropy_for_its_p_norm_on_the_half_line(float64, p):
    """Among families on (0, ∞) with the same E x^p, TGN_p(0, σ) has the largest entropy (σ^p = E x^p)."""
    best = TruncatedGeneralizedGaussian(0.0, 1.0, p).entropy().item()
    rivals = [
        stats.expon(),
        stats.halfnorm(),
        stats.gamma(2.0),
        stats.gamma(0.7),
        stats.weibull_min(1.5),
        stats.lognorm(0.6),
        stats.uniform(),
        stats.beta(1.0, 3.0),
    ]
    closest = math.inf
    for rival in rivals:
        norm = rival.expect(lambda x: x**p)
        # Scaling x by c = norm^(-1/p) makes E x^p = 1 and adds log c to the entropy.
        entropy = float(rival.entropy()) - math.log(norm) / p
        assert entropy <= best + 1e-6
        closest = min(closest, best - entropy)
    if p in (1.0, 2.0):  # expon and halfnorm are the maximum itself
        assert closest < 1e-6


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0])
def test_generalized_has_the_largest_entropy_on_the_line(float64, p):
    best = GeneralizedGaussian(0.0, 1.0, p).entropy().item()
    for rival in (stats.norm(), stats.laplace(), stats.logistic(), stats.t(9), stats.uniform(-1, 2)):
        norm = 2 * rival.expect(lambda x: abs(x) ** p, lb=0, ub=math.inf)
        assert float(rival.entropy()) - math.log(norm) / p <= best + 1e-6
