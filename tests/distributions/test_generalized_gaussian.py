import math

import pytest
import torch
from scipy import stats
from torch.distributions import Laplace, Normal

from lpjepa.distributions import GeneralizedGaussian, sigma_gn

GRID = [
    (p, mu, sigma) for p in (0.1, 0.5, 1.0, 1.7, 2.0, 5.0, 20.0) for mu, sigma in ((0.0, 1.0), (-3.0, 0.4))
]


def scipy_twin(p, mu, sigma):
    return stats.gennorm(p, loc=mu, scale=p ** (1 / p) * sigma)


@pytest.mark.parametrize(("p", "mu", "sigma"), GRID)
def test_agrees_with_scipy(float64, p, mu, sigma):
    d, twin = GeneralizedGaussian(mu, sigma, p), scipy_twin(p, mu, sigma)
    x = mu + sigma * torch.tensor([-4.0, -1.2, -0.9, -1e-6, 0.0, 0.3, 1.1, 2.0, 6.0])
    q = torch.tensor([1e-12, 1e-4, 0.03, 0.4, 0.5, 0.6, 0.97, 0.9999])

    def close(ours, theirs, rtol=1e-9):
        torch.testing.assert_close(ours, torch.as_tensor(theirs), rtol=rtol, atol=1e-12)

    close(d.log_prob(x), twin.logpdf(x.numpy()))
    close(d.cdf(x), twin.cdf(x.numpy()))
    close(d.icdf(q), twin.ppf(q.numpy()))
    close(d.mean, twin.mean())
    close(d.variance, twin.var())
    close(d.stddev, twin.std())
    close(d.entropy(), twin.entropy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("p", "classic"), [(1.0, Laplace), (2.0, Normal)])
def test_p_1_and_2_are_laplace_and_normal_to_rounding(p, classic, dtype):
    loc, scale = torch.tensor([0.3, -2.0], dtype=dtype), torch.tensor([0.7, 5.0], dtype=dtype)
    # torch's own float32 icdf loses digits near 0 and 1, so it is asked in float64.
    ours, theirs = GeneralizedGaussian(loc, scale, p), classic(loc.double(), scale.double())
    x = torch.linspace(-9, 9, 41, dtype=dtype).unsqueeze(-1)
    q = torch.linspace(0.001, 0.999, 41, dtype=dtype).unsqueeze(-1)
    tight = {"rtol": 8 * torch.finfo(dtype).eps, "atol": 8 * torch.finfo(dtype).eps}
    for ours_value, theirs_value in [
        (ours.log_prob(x), theirs.log_prob(x.double())),
        (ours.cdf(x), theirs.cdf(x.double())),
        (ours.icdf(q), theirs.icdf(q.double())),
        (ours.entropy(), theirs.entropy()),
        (ours.variance, theirs.variance),
    ]:
        torch.testing.assert_close(ours_value, theirs_value.to(dtype), **tight)


def test_far_tail_of_the_cdf_keeps_relative_accuracy(float64):
    d = GeneralizedGaussian(0.0, 1.0, 2.0)
    torch.testing.assert_close(
        d.cdf(torch.tensor(-37.0)), torch.tensor(stats.norm.cdf(-37.0)), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0, 2.0, 4.0])
def test_density_and_its_gradients_are_finite_at_the_mode(p):
    loc, scale, exponent = (torch.tensor(v, requires_grad=True) for v in (0.7, 1.3, p))
    d = GeneralizedGaussian(loc, scale, exponent)
    x = torch.tensor(0.7, requires_grad=True)
    (d.log_prob(x) + d.cdf(x)).backward()
    for leaf in (x, loc, scale, exponent):
        assert torch.isfinite(leaf.grad)
    assert scale.grad == pytest.approx(-1 / 1.3, rel=1e-6)
    # At the mode only the cdf has a slope: the density itself.
    assert x.grad == pytest.approx(d.log_prob(x).exp().item(), rel=1e-5)


@pytest.mark.parametrize("p", [0.5, 1.0, 1.7, 2.0, 6.0])
@pytest.mark.parametrize("method", ["log_prob", "cdf", "icdf", "variance", "entropy"])
def test_gradients_match_differences(float64, p, method):
    x = torch.tensor([-1.1, 0.2, 0.9])

    def value(loc, scale, exponent):
        d = GeneralizedGaussian(loc, scale, exponent)
        if method == "icdf":
            return d.icdf(torch.tensor([0.02, 0.4, 0.9]))
        return (
            getattr(d, method)(x)
            if method in ("log_prob", "cdf")
            else (d.variance if method == "variance" else d.entropy())
        )

    leaves = tuple(torch.tensor(v, requires_grad=True) for v in (-0.3, 1.3, p))
    assert torch.autograd.gradcheck(value, leaves, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0])
def test_expected_norm_is_d_times_sigma_to_the_p(p):
    """Corollary on the full support: E‖x‖_p^p = d σ^p."""
    sigma, d = 0.7, 64
    x = GeneralizedGaussian(0.0, sigma, p).sample((20000, d)).double()
    norms = x.abs().pow(p).sum(-1)
    error = norms.std() / norms.numel() ** 0.5
    assert abs(norms.mean() - d * sigma**p) < 4.5 * error


@pytest.mark.parametrize("p", [1.0, 2.0])
def test_radius_is_gamma_and_independent_of_the_direction(p):
    """For μ = 0: r^p = ‖x‖_p^p ~ Gamma(d/p, p σ^p), independent of x/‖x‖_p."""
    d, sigma = 6, 1.3
    x = GeneralizedGaussian(0.0, sigma, p).sample((20000, d)).double()
    radius = x.abs().pow(p).sum(-1)
    assert stats.kstest(radius.numpy(), stats.gamma(d / p, scale=p * sigma**p).cdf).pvalue > 1e-3
    direction = x / radius.pow(1 / p).unsqueeze(-1)
    for statistic in (direction[:, 0], direction.abs().amax(-1), direction.pow(4).sum(-1)):
        small, large = statistic[radius < radius.median()], statistic[radius >= radius.median()]
        assert stats.ks_2samp(small.numpy(), large.numpy()).pvalue > 1e-3


def test_sigma_gn_gives_unit_variance(float64):
    for p in (0.1, 0.5, 1.0, 2.0, 20.0):
        assert GeneralizedGaussian(5.0, sigma_gn(p), p).variance.item() == pytest.approx(1, rel=1e-12)


def test_quantiles_of_what_is_no_probability_are_nan():
    q = torch.tensor([-0.1, 1.1, torch.nan])
    assert GeneralizedGaussian(0.0, 1.0, 1.5).icdf(q).isnan().all()


def test_density_where_the_gamma_function_overflows(float64):
    # Γ(1/p) is beyond every float64 at p = 0.005.
    d = GeneralizedGaussian(0.0, 1.0, 0.005)
    assert d.log_prob(torch.tensor(0.0)).item() == pytest.approx(
        -math.log(2) - (200 - 1) * math.log(0.005) - math.lgamma(200), rel=1e-12
    )
