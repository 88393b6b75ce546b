import math

import mpmath as mp
import pytest
import torch

from lpjepa.distributions import RectifiedGeneralizedGaussian, sigma_gn, sigma_rgn


def exact_variance(p, mu, sigma):
    """Proposition on mean and variance, at 80 digits, where its cancellation does no harm."""
    with mp.workdps(80):
        p, mu, sigma = mp.mpf(p), mp.mpf(mu), mp.mpf(sigma)
        z, sign = abs(mu) ** p / (p * sigma**p), mp.sign(mu)
        one = 1 + sign * mp.gammainc(1 / p, 0, z, regularized=True)
        two = p ** (1 / p) * sigma * mp.gammainc(2 / p, z) / mp.gamma(1 / p)
        three = 1 + sign * mp.gammainc(3 / p, 0, z, regularized=True)
        three *= p ** (2 / p) * sigma**2 * mp.gamma(3 / p) / mp.gamma(1 / p)
        mean = (mu * one + two) / 2
        return (mu**2 * one + 2 * mu * two + three) / 2 - mean**2


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 1.0, 2.0, 3.3, 20.0])
def test_sigma_gn_matches_its_formula_at_high_precision(p):
    with mp.workdps(40):
        exact = mp.sqrt(mp.gamma(1 / mp.mpf(p)) / mp.gamma(3 / mp.mpf(p))) / mp.mpf(p) ** (1 / mp.mpf(p))
    assert sigma_gn(p) == pytest.approx(float(exact), rel=1e-11)


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0, 2.0, 6.0, 20.0])
@pytest.mark.parametrize("mu", [-1e5, -300.0, -4.0, -0.1, 0.0, 0.5, 20.0, 1e5])
def test_sigma_rgn_solves_its_equation_to_1e_10(p, mu):
    sigma = sigma_rgn(p, mu)
    assert isinstance(sigma, float)
    below, above = (exact_variance(p, mu, mp.mpf(sigma) * (1 + e)) for e in (-1e-10, 1e-10))
    assert below < 1 < above


@pytest.mark.parametrize("p", [0.1, 1.0, 20.0])
def test_sigma_rgn_at_locations_whose_powers_overflow(p):
    """Far right rectification does nothing; far left sigma/|mu| still solves the equation."""
    for mu in (1e30, 1e150):
        assert sigma_rgn(p, mu) == pytest.approx(sigma_gn(p), rel=1e-10)
        sigma = sigma_rgn(p, -mu)
        assert RectifiedGeneralizedGaussian(
            torch.tensor(-mu, dtype=torch.float64), sigma, p
        ).variance.item() == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("p", [0.02, 0.05, 1e6])
def test_sigma_rgn_at_exponents_and_locations_beyond_use(p):
    assert sigma_rgn(p, 1e300) == pytest.approx(sigma_gn(p), rel=1e-10)
    assert 0 < sigma_rgn(p, -1e300) < math.inf


@pytest.mark.parametrize("mu", [-5.0, 0.0, 0.7, 3.0])
def test_sigma_rgn_of_an_enormous_exponent_is_that_of_a_uniform_distribution(mu):
    """GN_p tends to the uniform distribution on (mu - sigma, mu + sigma)."""
    sigma = sigma_rgn(1e6, mu)
    low, high = max(mu - sigma, 0), mu + sigma
    mean, square = ((high ** (k + 1) - low ** (k + 1)) / (2 * sigma * (k + 1)) for k in (1, 2))
    assert square - mean**2 == pytest.approx(1, rel=1e-4)


def test_tensors_broadcast_keep_their_dtype_and_agree_with_floats():
    p, mu = torch.tensor([[0.5], [2.0]]), torch.tensor([-3.0, 0.0, 1.0])
    sigma = sigma_rgn(p, mu)
    assert sigma.shape == (2, 3)
    assert sigma.dtype == torch.float32
    assert sigma[1, 0].item() == pytest.approx(sigma_rgn(2.0, -3.0), rel=1e-6)
    assert sigma_rgn(1.0, mu).shape == (3,)
    assert sigma_gn(p).dtype == torch.float32
    assert sigma_gn(p)[1, 0].item() == pytest.approx(1, rel=1e-6)


def test_gradients_by_implicit_differentiation():
    p = torch.tensor([0.6, 1.0, 2.5], dtype=torch.float64, requires_grad=True)
    mu = torch.tensor([-2.0, 0.7, -0.4], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(sigma_rgn, (p, mu), atol=1e-7)
    assert torch.autograd.gradcheck(sigma_gn, (p,), atol=1e-8)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: sigma_gn(0.0), "p = 0.0"),
        (lambda: sigma_gn(math.nan), "p = nan"),
        (lambda: sigma_gn(torch.tensor([1.0, -2.0])), "p = -2.0"),
        (lambda: sigma_rgn(1.0, math.inf), "loc = inf"),
        (lambda: sigma_rgn(math.inf, 0.0), "p = inf"),
        (lambda: RectifiedGeneralizedGaussian(math.nan, 1.0, 1.0), "loc = nan"),
        (lambda: RectifiedGeneralizedGaussian(0.0, 0.0, 1.0), "scale = 0.0"),
        (lambda: RectifiedGeneralizedGaussian(0.0, 1.0, -1.0), "p = -1.0"),
        (lambda: RectifiedGeneralizedGaussian(0.0, 1.0, torch.tensor([1.0, math.nan])), "p = nan"),
        (lambda: RectifiedGeneralizedGaussian.from_active_fraction(0.0), "fraction = 0.0"),
        (lambda: RectifiedGeneralizedGaussian.from_active_fraction(1.0), "fraction = 1.0"),
        (lambda: RectifiedGeneralizedGaussian.from_active_fraction(0.5, scale="unit"), "'unit'"),
        (lambda: RectifiedGeneralizedGaussian.from_active_fraction(0.5, scale=-1.0), "scale = -1.0"),
        (lambda: RectifiedGeneralizedGaussian.from_location(0.0, p=0.0), "p = 0.0"),
    ],
)
def test_bad_parameters_get_one_error_that_names_them_and_the_remedy(call, name):
    with pytest.raises(ValueError, match="pass") as error:
        call()
    assert name in str(error.value)
    assert "\n" not in str(error.value)


def test_a_string_is_not_a_parameter():
    with pytest.raises(TypeError, match="loc"):
        RectifiedGeneralizedGaussian("0", 1.0, 1.0)
