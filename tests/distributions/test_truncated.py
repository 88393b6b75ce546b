import math

import mpmath as mp
import pytest
import torch
from scipy import integrate, stats

from lpjepa.distributions import TruncatedGeneralizedGaussian

INTERVALS = [
    (0.0, math.inf),
    (-1.0, 2.0),
    (1.5, 3.0),
    (-4.0, -2.0),
    (-math.inf, -0.5),
    (-math.inf, math.inf),
    (0.3, 0.3001),
]


@pytest.mark.parametrize("p", [0.4, 1.0, 2.0, 7.0])
@pytest.mark.parametrize(("low", "high"), INTERVALS)
def test_moments_and_entropy_match_quadrature(float64, oracle, p, low, high):
    mu, sigma = 0.2, 0.9
    d, o = TruncatedGeneralizedGaussian(mu, sigma, p, low, high), oracle(mu, sigma, p)
    mass = o.integral(lambda x: 1, low, high)
    mean = o.integral(lambda x: x, low, high) / mass
    variance = o.integral(lambda x: (x - mean) ** 2, low, high) / mass
    entropy = -o.integral(lambda x: mp.log(o.density(x) / mass), low, high) / mass
    assert d.mean.item() == pytest.approx(float(mean), rel=1e-9, abs=1e-12)
    assert d.variance.item() == pytest.approx(float(variance), rel=1e-9)
    assert d.entropy().item() == pytest.approx(float(entropy), rel=1e-9, abs=1e-10)


@pytest.mark.parametrize(("low", "high"), INTERVALS[:5])
def test_agrees_with_the_truncated_normal_of_scipy(float64, low, high):
    mu, sigma = -0.3, 1.2
    d = TruncatedGeneralizedGaussian(mu, sigma, 2.0, low, high)
    twin = stats.truncnorm((low - mu) / sigma, (high - mu) / sigma, mu, sigma)
    q = torch.linspace(0.01, 0.99, 9)
    x = d.icdf(q)
    torch.testing.assert_close(x, torch.as_tensor(twin.ppf(q.numpy())), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(d.log_prob(x), torch.as_tensor(twin.logpdf(x.numpy())), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(d.cdf(x), q, rtol=1e-10, atol=1e-12)


def test_far_tail_is_the_exponential_it_tends_to(float64):
    """Beyond t = 200 of a normal, x - t is exponential with rate t (to second order in 1/t)."""
    t = 200.0
    d = TruncatedGeneralizedGaussian(-t, 1.0, 2.0)
    # The asymptotic series of the mean excess of a normal: 1/t - 2/t^3 + 10/t^5.
    assert d.mean.item() == pytest.approx(1 / t - 2 / t**3 + 10 / t**5, rel=1e-11)
    assert d.icdf(torch.tensor(0.5)).item() == pytest.approx(math.log(2) / t, rel=1e-4)
    assert torch.isfinite(d.log_prob(torch.tensor(0.01)))
    assert d.cdf(d.icdf(torch.tensor(0.3))).item() == pytest.approx(0.3, rel=1e-9)


@pytest.mark.parametrize(("low", "high"), INTERVALS[:5])
@pytest.mark.parametrize("p", [0.5, 1.0, 3.0])
def test_density_integrates_to_the_cdf(float64, low, high, p):
    d = TruncatedGeneralizedGaussian(0.2, 0.9, p, low, high)
    a, b = d.icdf(torch.tensor([0.2, 0.7])).tolist()
    points = [0.2] if a < 0.2 < b else None
    mass, _ = integrate.quad(lambda x: d.log_prob(torch.tensor(x)).exp().item(), a, b, points=points)
    assert mass == pytest.approx(0.5, rel=1e-8)


def test_samples_lie_inside_and_follow_the_cdf():
    for low, high, mu in ((0.0, math.inf, -6.0), (-1.0, 0.5, 0.0)):
        for dtype in (torch.float32, torch.float64):
            d = TruncatedGeneralizedGaussian(torch.tensor(mu, dtype=dtype), 0.8, 1.5, low, high)
            x = d.sample((4000,))
            assert x.dtype == dtype
            assert ((x >= low) & (x <= high)).all()
            assert (
                stats.kstest(x.double().numpy(), lambda v, d=d: d.cdf(torch.tensor(v)).numpy()).pvalue > 1e-3
            )


@pytest.mark.parametrize(("low", "high"), [(0.0, math.inf), (-1.0, 0.4), (-math.inf, 0.3)])
@pytest.mark.parametrize("name", ["mean", "variance", "entropy", "log_prob", "icdf", "cdf"])
def test_gradients_match_differences(float64, low, high, name):
    def value(loc, scale, p):
        d = TruncatedGeneralizedGaussian(loc, scale, p, low, high)
        if name in ("mean", "variance"):
            return getattr(d, name)
        if name == "entropy":
            return d.entropy()
        argument = torch.tensor([0.1, 0.35]) if high == 0.4 else torch.tensor([0.05, 0.2])
        return getattr(d, name)(argument)

    leaves = tuple(torch.tensor(v, requires_grad=True) for v in (-0.6, 1.3, 1.6))
    assert torch.autograd.gradcheck(value, leaves, atol=1e-7, rtol=1e-5)


def test_outside_is_impossible_and_mode_is_the_nearest_point():
    d = TruncatedGeneralizedGaussian(torch.tensor([-2.0, 0.5, 9.0]), 1.0, 2.0, 0.0, 1.0, validate_args=False)
    assert d.mode.tolist() == [0.0, 0.5, 1.0]
    assert (d.log_prob(torch.tensor(1.5)) == -torch.inf).all()
    assert (d.cdf(torch.tensor(1.5)) == 1).all()
    assert (d.cdf(torch.tensor(-0.5)) == 0).all()


def test_disordered_ends_are_refused():
    with pytest.raises(ValueError, match="low"):
        TruncatedGeneralizedGaussian(0.0, 1.0, 2.0, 1.0, 1.0)
