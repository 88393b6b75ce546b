"""Samples: Kolmogorov–Smirnov on the continuous part, binomial on the atom, for each dtype."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lpjepa.distributions import GeneralizedGaussian, RectifiedGeneralizedGaussian, sigma_gn

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
N = 40000


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0, 2.0, 3.0, 20.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_generalized_samples_follow_scipys_law(p, dtype):
    d = GeneralizedGaussian(torch.tensor(0.4, dtype=dtype), 1.5, p)
    x = d.sample((N,))
    assert x.dtype == dtype
    twin = stats.gennorm(p, loc=d.loc.item(), scale=p ** (1 / p) * 1.5)
    assert stats.kstest(x.double().numpy(), twin.cdf).pvalue > 1e-3


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rectified_samples_have_the_atom_and_the_positive_part(p, dtype):
    mu, sigma = -0.75, 1.25  # exact in every dtype
    d = RectifiedGeneralizedGaussian(torch.tensor(mu, dtype=dtype), sigma, p)
    x = d.sample((N,)).double()
    assert (x >= 0).all()
    exact = RectifiedGeneralizedGaussian(torch.tensor(mu, dtype=torch.float64), sigma, p)
    active = int((x > 0).sum())
    assert stats.binomtest(active, N, exact.active_probability.item()).pvalue > 1e-3
    # Half precision rounds the values, by at most 2^-8 of them; spread them over that again.
    positive = x[x > 0]
    width = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}.get(dtype, 0.0)
    positive = positive * (1 + width * (torch.rand_like(positive) - 0.5))
    pvalue = stats.kstest(positive.numpy(), lambda v: exact.positive_part.cdf(torch.tensor(v)).numpy()).pvalue
    assert pvalue > 1e-3


@pytest.mark.parametrize("dtype", DTYPES)
def test_second_moment_survives_every_dtype_at_mu_minus_3(dtype):
    """Sampling in half precision loses 24 % of E[y²] at p = 1, mu = -3; float32 then cast does not."""
    loc = torch.tensor(-3.0, dtype=dtype)
    d = RectifiedGeneralizedGaussian(loc, torch.tensor(sigma_gn(1.0)).to(dtype), 1.0)
    exact = RectifiedGeneralizedGaussian(d.loc.double(), d.scale.double(), 1.0)
    squares = d.sample((2_000_000,)).double().square()
    expected = (exact.variance + exact.mean**2).item()
    error = squares.std().item() / math.sqrt(squares.numel())
    rounding = {torch.float16: 2e-3, torch.bfloat16: 2e-3}.get(dtype, 1e-5) * expected
    assert abs(squares.mean().item() - expected) < 4.5 * error + rounding


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 4.0])
def test_a_generator_fixes_the_sample_and_leaves_the_global_stream_alone(p):
    d = RectifiedGeneralizedGaussian(0.1, 1.0, p)
    before = torch.get_rng_state()
    first = d.sample((7,), generator=torch.Generator().manual_seed(3))
    second = d.rsample((7,), generator=torch.Generator().manual_seed(3))
    assert torch.equal(first, second)
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(first, d.sample((7,), generator=torch.Generator().manual_seed(4)))


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("rectified", [False, True])
def test_reparameterised_gradients_match_the_moments(p, rectified):
    """E over samples of d x²/dθ is d E[x²]/dθ, for loc, scale and p."""
    cls = RectifiedGeneralizedGaussian if rectified else GeneralizedGaussian
    leaves = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.3, 0.8, p)]
    d = cls(*leaves)
    second = d.variance + d.mean**2
    expected = torch.autograd.grad(second, leaves)
    batches = []
    for seed in range(24):
        x = cls(*leaves).rsample((20000,), generator=torch.Generator().manual_seed(seed))
        batches.append(torch.stack(torch.autograd.grad(x.square().mean(), leaves)))
    batches = torch.stack(batches)
    error = batches.std(0) / len(batches) ** 0.5
    assert ((batches.mean(0) - torch.stack(expected)).abs() < 5 * error).all()


def test_direct_paths_do_not_hide_the_gradient_in_p():
    p = torch.tensor(2.0, requires_grad=True)
    x = GeneralizedGaussian(0.0, 1.0, p).rsample((5,))
    (grad,) = torch.autograd.grad(x.sum(), p)
    assert grad != 0


exponents = st.floats(0.1, 20.0)
ratios = st.floats(-4.0, 4.0)
scales = st.floats(1e-3, 1e3)


@settings(max_examples=60, deadline=None)
@given(p=exponents, u=ratios, scale=scales, q=st.floats(1e-9, 1 - 1e-9))
def test_cdf_inverts_icdf(p, u, scale, q):
    loc = torch.tensor(u * scale, dtype=torch.float64)
    level = torch.tensor(q, dtype=torch.float64)
    d = GeneralizedGaussian(loc, scale, p)
    assert d.cdf(d.icdf(level)).item() == pytest.approx(q, rel=1e-7, abs=1e-12)
    r = RectifiedGeneralizedGaussian(loc, scale, p)
    atom = 1 - r.active_probability.item()
    assert r.cdf(r.icdf(level)).item() == pytest.approx(max(q, atom), rel=1e-7, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(p=exponents, u=ratios, scale=scales)
def test_cdf_is_monotone_from_0_to_1(p, u, scale):
    loc = torch.tensor(u * scale, dtype=torch.float64)
    for d in (
        GeneralizedGaussian(loc, scale, p),
        RectifiedGeneralizedGaussian(loc, scale, p, validate_args=False),
    ):
        x = loc + scale * torch.cat([-torch.logspace(3, -6, 40), torch.logspace(-6, 3, 40)]).double()
        cdf = d.cdf(x)
        assert (cdf.diff() >= -1e-15).all()
        assert (cdf >= 0).all()
        assert (cdf <= 1).all()


@settings(max_examples=60, deadline=None)
@given(
    fraction=st.floats(1e-12, 1 - 1e-9), p=exponents, scale=st.one_of(st.sampled_from(["gn", "rgn"]), scales)
)
def test_from_active_fraction_returns_what_was_asked(fraction, p, scale):
    d = RectifiedGeneralizedGaussian.from_active_fraction(fraction, p, scale, dtype=torch.float64)
    assert d.active_probability.item() == pytest.approx(fraction, rel=1e-9)
    assert d.mean > 0
    assert 0 < d.expected_l1_metric <= d.active_probability * (1 + 1e-12)
