"""One-dimensional discrepancies against scipy and POT, one slice at a time."""

import numpy as np
import ot
import pytest
import scipy.integrate
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpjepa.slicing.discrepancies import DISCREPANCIES, get_discrepancy

# (N, M): equal, integer ratios both ways, common divisor, none.
COUNTS = [(12, 12), (6, 18), (18, 6), (12, 8), (7, 5), (5, 23)]


def samples(n, m, slices=3):
    generator = torch.Generator().manual_seed(n * 100 + m)
    x = torch.randn(slices, n, generator=generator, dtype=torch.float64)
    y = 1.5 * torch.randn(slices, m, generator=generator, dtype=torch.float64) + 0.3
    return x, y


def epps_pulley(x, y):
    """The statistic of the docstring by complex exponentials and scipy's trapezoidal rule on [-3, 3]."""
    t = np.linspace(-3, 3, 33)
    phi_x, phi_y = (np.exp(1j * np.outer(t, s)).mean(axis=1) for s in (x, y))
    integrand = np.abs(phi_x - phi_y) ** 2 * np.exp(-(t**2) / 2)
    return len(x) * len(y) / (len(x) + len(y)) * scipy.integrate.trapezoid(integrand, t)


ORACLES = {
    "wasserstein1": scipy.stats.wasserstein_distance,
    "wasserstein2": lambda x, y: ot.wasserstein_1d(x, y, p=2),
    "energy": lambda x, y: scipy.stats.energy_distance(x, y) ** 2,
    "characteristic": epps_pulley,
}


@pytest.mark.parametrize(("n", "m"), COUNTS)
@pytest.mark.parametrize("name", DISCREPANCIES)
def test_value_is_the_oracles(name, n, m):
    x, y = samples(n, m)
    value, gradient = get_discrepancy(name)(x, y, False)
    expected = [ORACLES[name](a, b) for a, b in zip(x.numpy(), y.numpy())]
    np.testing.assert_allclose(value.numpy(), expected, rtol=1e-12)
    assert gradient is None


@pytest.mark.parametrize(("n", "m"), COUNTS)
@pytest.mark.parametrize("name", DISCREPANCIES)
def test_gradient_is_the_derivative_of_the_oracle(name, n, m):
    x, y = samples(n, m, slices=1)
    gradient = get_discrepancy(name)(x, y, True)[1]
    step = 1e-6
    for i in range(n):
        values = []
        for sign in (1, -1):
            moved = x[0].numpy().copy()
            moved[i] += sign * step
            values.append(ORACLES[name](moved, y[0].numpy()))
        derivative = (values[0] - values[1]) / (2 * step)
        assert gradient[0, i].item() == pytest.approx(derivative, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("name", DISCREPANCIES)
def test_asking_for_the_gradient_does_not_change_the_value_or_the_inputs(name):
    x, y = samples(9, 6)
    x_before, y_before = x.clone(), y.clone()
    plain = get_discrepancy(name)(x, y, False)[0]
    with_gradient = get_discrepancy(name)(x, y, True)[0]
    assert torch.equal(plain, with_gradient)
    assert torch.equal(x, x_before)
    assert torch.equal(y, y_before)


@pytest.mark.parametrize("name", DISCREPANCIES)
@pytest.mark.parametrize("repeats", [1, 3])
def test_zero_between_equal_distributions(name, repeats):
    x, _ = samples(10, 10)
    y = x.flip(-1).repeat(1, repeats)
    value = get_discrepancy(name)(x, y, False)[0]
    # The means of cosines differ by rounding; what is sorted agrees exactly.
    assert value.abs().max() <= (1e-28 if name == "characteristic" else 0)


def test_quadratic_gradient_vanishes_where_samples_agree():
    x, _ = samples(10, 10)
    assert get_discrepancy("wasserstein2")(x, x.flip(-1), True)[1].abs().max() == 0


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 40), m=st.integers(1, 40), name=st.sampled_from(["wasserstein1", "wasserstein2"]))
def test_any_pair_of_counts(n, m, name):
    x, y = samples(n, m, slices=1)
    value, gradient = get_discrepancy(name)(x, y, True)
    assert value.item() == pytest.approx(ORACLES[name](x[0].numpy(), y[0].numpy()), rel=1e-10)
    # Shifting all of x: d/ds W2² = 2 (mean x − mean y), d/ds W1 lies within [−1, 1].
    shift = gradient.sum().item()
    if name == "wasserstein2":
        assert shift == pytest.approx(2 * (x.mean() - y.mean()).item(), abs=1e-10)
    else:
        assert abs(shift) <= 1 + 1e-12


def test_tied_features_meet_targets_in_the_order_of_their_positions():
    x = torch.tensor([[0.0, 1.0, 0.0, 0.0, 1.0]])
    y = torch.tensor([[5.0, 1.0, 2.0, 3.0, 4.0]])
    gradient = get_discrepancy("wasserstein2")(x, y, True)[1]
    expected = 2 / 5 * (x - torch.tensor([[1.0, 4.0, 2.0, 3.0, 5.0]]))
    torch.testing.assert_close(gradient, expected)


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"wasserstein3.*wasserstein2, wasserstein1, energy, characteristic"):
        get_discrepancy("wasserstein3")
