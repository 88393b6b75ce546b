import mpmath as mp
import pytest
import torch

from lpjepa.distributions import (
    GeneralizedGaussian,
    RectifiedGeneralizedGaussian,
    sigma_gn,
    sigma_rgn,
)

# Every p with locations on both sides of zero; far below zero, p < 1 reach further than p > 1.
GRID = [(p, mu) for p in (0.3, 0.5, 1.0, 1.5, 2.0, 5.0) for mu in (-8.0, -3.0, -0.7, 0.0, 1.2)] + [
    (2.0, -30.0),
    (1.0, -200.0),
    (20.0, -1.4),
    (20.0, 0.5),
    (0.1, -50.0),
]


@pytest.mark.parametrize(("p", "mu"), GRID)
def test_moments_match_quadrature(float64, oracle, p, mu):
    d, o = RectifiedGeneralizedGaussian(mu, 1.1, p), oracle(mu, 1.1, p)
    mean, square = o.integral(lambda x: x), o.integral(lambda x: x * x)
    assert d.mean.item() == pytest.approx(float(mean), rel=1e-9)
    assert d.variance.item() == pytest.approx(float(square - mean**2), rel=1e-9)
    assert d.stddev.item() == pytest.approx(float(mp.sqrt(square - mean**2)), rel=1e-9)
    assert d.expected_l1_metric.item() == pytest.approx(float(mean**2 / square), rel=1e-9)
    assert d.active_probability.item() == pytest.approx(float(o.active()), rel=1e-11)
    assert d.log_active_probability.item() == pytest.approx(float(mp.log(o.active())), rel=1e-12, abs=1e-14)
    assert torch.equal(d.information_dimension, d.active_probability)


def test_moments_match_the_reference_numbers(float64, parity):
    for row in parity[2]:
        p, mu = row["p"], row["mu"]
        d = RectifiedGeneralizedGaussian.from_location(mu, p)
        assert d.scale.item() == pytest.approx(row["sigma_gn"], rel=1e-9)
        assert d.mean.item() == pytest.approx(row["mean_at_sigma_gn"], rel=1e-9)
        assert d.variance.item() == pytest.approx(row["var_at_sigma_gn"], rel=1e-9)
        assert sigma_rgn(p, mu) == pytest.approx(row["sigma_rgn"], rel=1e-9)


def test_the_papers_own_figures(float64):
    """Appendix on the choice of sigma: Var RGN_2(-3, sigma_GN) and Var GN_2(-3, sigma_RGN)."""
    assert RectifiedGeneralizedGaussian(-3.0, sigma_gn(2.0), 2.0).variance.item() == pytest.approx(
        2e-4, abs=5e-5
    )
    assert GeneralizedGaussian(-3.0, sigma_rgn(2.0, -3.0), 2.0).variance.item() == pytest.approx(
        11.56, abs=0.005
    )


def test_deep_tail_of_the_active_probability_and_its_gradient(float64):
    """At mu/sigma = -30, p = 2: log P = -454.32..., and d/dmu is the inverse Mills ratio."""
    loc = torch.tensor(-30.0, requires_grad=True)
    scale = torch.tensor(1.0, requires_grad=True)
    value = RectifiedGeneralizedGaussian(loc, scale, 2.0).log_active_probability
    value.backward()
    hazard = mp.npdf(30) / mp.ncdf(-30)
    assert value.item() == pytest.approx(float(mp.log(mp.ncdf(-30))), rel=1e-14)
    assert loc.grad.item() == pytest.approx(float(hazard), rel=1e-12)
    assert scale.grad.item() == pytest.approx(float(30 * hazard), rel=1e-12)


def test_far_below_every_float_moments_underflow_to_zero_without_nan():
    loc = torch.tensor([-60.0, -1e4], requires_grad=True)
    d = RectifiedGeneralizedGaussian(loc, 1.0, 2.0)
    total = d.mean + d.variance + d.entropy() + d.log_active_probability
    total.sum().backward()
    assert torch.isfinite(total).all()
    assert torch.isfinite(loc.grad).all()
    assert (d.mean == 0).all()


def test_log_prob_has_an_atom_a_density_and_nothing_below(float64):
    d = RectifiedGeneralizedGaussian(-0.4, 0.8, 1.3, validate_args=False)
    base = GeneralizedGaussian(-0.4, 0.8, 1.3)
    x = torch.tensor([-1.0, 0.0, 0.5, 4.0])
    expected = torch.stack([torch.tensor(-torch.inf), base.cdf(x[1]).log(), *base.log_prob(x[2:])])
    torch.testing.assert_close(d.log_prob(x), expected, rtol=1e-13, atol=0)
    assert d.log_prob(torch.tensor(0.0)).exp() + d.active_probability == pytest.approx(1)
    with pytest.raises(ValueError, match="support"):
        RectifiedGeneralizedGaussian(-0.4, 0.8, 1.3, validate_args=True).log_prob(torch.tensor(-1.0))


def test_atom_keeps_its_log_probability_when_it_underflows(float64):
    d = RectifiedGeneralizedGaussian(50.0, 1.0, 2.0)
    assert d.log_prob(torch.tensor(0.0)).item() == pytest.approx(float(mp.log(mp.ncdf(-50))), rel=1e-13)


def test_cdf_jumps_at_zero_and_icdf_is_zero_below_the_atom(float64):
    d = RectifiedGeneralizedGaussian(-1.0, 1.0, 2.0, validate_args=False)
    assert d.cdf(torch.tensor(-1e-9)) == 0
    atom = d.cdf(torch.tensor(0.0))
    assert atom.item() == pytest.approx(float(mp.ncdf(1)), rel=1e-14)
    assert (d.icdf(torch.tensor([0.0, 0.2, atom.item() - 1e-9])) == 0).all()
    assert d.icdf(atom + 1e-6) > 0


def test_mode_is_the_atom_unless_the_density_peaks_higher(float64):
    d = RectifiedGeneralizedGaussian(torch.tensor([-1.0, 0.1, 3.0]), torch.tensor([1.0, 1.0, 0.3]), 2.0)
    assert d.mode.tolist() == [0.0, 0.0, 3.0]
    x = torch.tensor([0.0, 0.1, 3.0]).unsqueeze(-1)
    best = x[d.log_prob(x).argmax(0)].squeeze(-1)
    assert torch.equal(best, d.mode)


# Without (p < 1, mu = 0), where |mu|^p has no second derivative, which finite differences need.
@pytest.mark.parametrize(
    ("p", "mu"),
    [(p, mu) for p in (0.5, 1.0, 1.7, 2.0, 6.0) for mu in (-2.5, 0.0, 0.8) if p >= 1 or mu != 0],
)
@pytest.mark.parametrize(
    "name", ["mean", "variance", "expected_l1_metric", "log_active_probability", "entropy", "log_prob"]
)
def test_gradients_match_differences(float64, p, mu, name):
    def value(loc, scale, exponent):
        d = RectifiedGeneralizedGaussian(loc, scale, exponent)
        if name == "log_prob":
            return d.log_prob(torch.tensor([0.0, 0.3, 2.0]))
        return d.entropy() if name == "entropy" else getattr(d, name)

    leaves = tuple(torch.tensor(v, requires_grad=True) for v in (mu, 1.3, p))
    assert torch.autograd.gradcheck(value, leaves, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0])
def test_gradient_of_the_mean_in_loc_is_the_active_probability(float64, p):
    """d/dmu E[max(0, mu + sigma W)] = P(x > 0), also at mu = 0 exactly and far below."""
    loc = torch.tensor([-20.0, -3.0, 0.0, 2.0], requires_grad=True)
    d = RectifiedGeneralizedGaussian(loc, 0.8, p)
    (grad,) = torch.autograd.grad(d.mean.sum(), loc)
    torch.testing.assert_close(grad, d.active_probability, rtol=1e-10, atol=0)


@pytest.mark.parametrize("scale", ["gn", "rgn", 0.3])
@pytest.mark.parametrize("fraction", [1e-12, 1e-3, 0.05, 0.5, 0.97])
def test_from_active_fraction(scale, fraction):
    for p in (0.1, 1.0, 2.0, 20.0):
        d = RectifiedGeneralizedGaussian.from_active_fraction(fraction, p, scale, dtype=torch.float64)
        assert d.active_probability.item() == pytest.approx(fraction, rel=1e-10)
        if scale == "rgn":
            assert d.variance.item() == pytest.approx(1, rel=1e-10)
        else:
            assert d.scale.item() == pytest.approx(sigma_gn(p) if scale == "gn" else 0.3, rel=1e-12)


def test_from_active_fraction_takes_tensors():
    fraction, p = torch.tensor([0.02, 0.3, 0.9]), torch.tensor([[1.0], [2.0]])
    d = RectifiedGeneralizedGaussian.from_active_fraction(fraction, p)
    assert d.batch_shape == (2, 3)
    assert d.loc.dtype == torch.float32
    torch.testing.assert_close(d.active_probability, fraction.expand(2, 3), rtol=1e-5, atol=0)


def test_from_location_with_unit_variance_after_rectification():
    d = RectifiedGeneralizedGaussian.from_location(-2.0, 1.0, "rgn", dtype=torch.float64)
    assert d.loc.item() == -2.0
    assert d.variance.item() == pytest.approx(1, rel=1e-12)


def test_dtype_follows_the_tensors_that_are_passed():
    wide = torch.tensor(0.05, dtype=torch.float64)
    assert RectifiedGeneralizedGaussian.from_active_fraction(wide).loc.dtype == torch.float64
    assert RectifiedGeneralizedGaussian.from_location(-1.0, scale=wide).loc.dtype == torch.float64
    assert (
        RectifiedGeneralizedGaussian.from_active_fraction(wide, dtype=torch.float32).loc.dtype
        == torch.float32
    )
    assert RectifiedGeneralizedGaussian.from_active_fraction(0.05).loc.dtype == torch.float32


@pytest.mark.parametrize(("p", "mu"), [(20.0, -3.0), (20.0, -30.0), (5.0, -300.0), (0.5, -1e14)])
def test_gradient_where_the_log_probability_is_beyond_1e7(float64, p, mu):
    """d/dmu log P(x > 0) is the hazard f(0) / P(x > 0), where two logarithms of 1e7 and more cancel."""
    loc = torch.tensor(mu, requires_grad=True)
    (gradient,) = torch.autograd.grad(RectifiedGeneralizedGaussian(loc, 1.0, p).log_active_probability, loc)
    with mp.workdps(60):
        x = mp.mpf(-mu) ** mp.mpf(p) / mp.mpf(p)
        # e^x Gamma(a, x) by its asymptotic series, which at these x ends far below rounding.
        a = 1 / mp.mpf(p)
        series = sum(mp.rf(1 - a, k) * (-1 / x) ** k for k in range(4))
        hazard = mp.mpf(-mu) ** (mp.mpf(p) - 1) / series
    assert gradient.item() == pytest.approx(float(hazard), rel=1e-9)


def test_positive_part_can_be_sampled_at_any_depth(float64):
    loc = torch.tensor(-30.0, requires_grad=True)
    x = RectifiedGeneralizedGaussian(loc, 1.0, 20.0).positive_part.rsample((100,))
    (gradient,) = torch.autograd.grad(x.sum(), loc)
    # Given x > 0, x is of the size of 30^-19; what is left of it is the rounding of 30.
    assert ((x >= 0) & (x < 1e-13)).all()
    assert gradient.isfinite()


def test_ends_of_the_quantile_function_and_their_gradients(float64):
    loc, scale = torch.tensor([-0.5, 60.0], requires_grad=True), torch.tensor(1.0, requires_grad=True)
    x = RectifiedGeneralizedGaussian(loc, scale, 2.0).icdf(torch.tensor(0.0))
    assert x.tolist() == [0.0, 0.0]
    assert [g.abs().sum().item() for g in torch.autograd.grad(x.sum(), (loc, scale))] == [0.0, 0.0]
    top = RectifiedGeneralizedGaussian(-0.5, 1.0, 2.0).icdf(torch.tensor([1.0, -0.1, 1.1]))
    assert top[0] == torch.inf
    assert top[1:].isnan().all()


def test_unit_variance_at_a_fraction_whose_scale_squared_overflows():
    d = RectifiedGeneralizedGaussian.from_active_fraction(1e-320, 2.0, "rgn", dtype=torch.float64)
    assert d.scale.item() > 1e155
    assert d.variance.item() == pytest.approx(1, rel=1e-9)
    assert d.mean.isfinite()


def test_float32_gradients_at_the_atom_where_the_density_is_beyond_float32():
    """|mu/sigma|^p / p is 1.7e48 here; the atom has all the probability, and no slope."""
    leaves = [torch.tensor(v, requires_grad=True) for v in (-3.0, 0.01, 20.0)]
    value = RectifiedGeneralizedGaussian(*leaves).log_prob(torch.tensor(0.0))
    assert value == 0
    assert torch.autograd.grad(value, leaves) == (0, 0, 0)
