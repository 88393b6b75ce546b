"""nHSIC against the definition with explicit centring matrices and traces."""

import numpy as np
import pytest
import torch

from lpjepa.metrics import nhsic


def by_definition(x, scales):
    samples, size = x.shape
    centre = np.eye(samples) - 1 / samples
    kernels = [
        np.exp(-(np.subtract.outer(x[:, d], x[:, d]) ** 2) / (2 * scales[d] ** 2)) for d in range(size)
    ]
    hsic = (
        np.array([[np.trace(k @ centre @ l @ centre) for l in kernels] for k in kernels]) / (samples - 1) ** 2
    )
    normalised = hsic / np.sqrt(np.outer(np.diag(hsic), np.diag(hsic)))
    return normalised[~np.eye(size, dtype=bool)].mean()


def dependent(samples, size):
    z = torch.randn(samples, size, dtype=torch.float64)
    z[:, 1] = z[:, 0] ** 2 + 0.1 * z[:, 1]
    return z


@pytest.mark.parametrize("samples", [24, 23])  # an even and an odd number of pairs
@pytest.mark.parametrize("block", [None, 2])
def test_dense_features_use_the_median_distance(samples, block):
    z = dependent(samples, 5)
    x = z.numpy()
    pairs = np.triu_indices(samples, 1)
    scales = [np.median(np.abs(x[pairs[0], d] - x[pairs[1], d])) for d in range(5)]
    assert nhsic(z, block=block).item() == pytest.approx(by_definition(x, scales), rel=1e-9)
    assert nhsic(z.float(), block=block).item() == pytest.approx(by_definition(x, scales), rel=1e-4)


@pytest.mark.parametrize("block", [None, 3])
def test_rectified_features_use_the_deviation_of_the_positive_values(block):
    z = dependent(30, 5).relu()
    x = z.numpy()
    scales = [x[x[:, d] > 0, d].std(ddof=1) for d in range(5)]
    expected = by_definition(x, scales)
    assert nhsic(z, block=block).item() == pytest.approx(expected, rel=1e-9)
    assert nhsic(z, bandwidth="positive_std").item() == pytest.approx(expected, rel=1e-9)
    assert nhsic(z, bandwidth="median").item() != pytest.approx(expected, rel=1e-3)


def test_sees_dependence_that_correlation_does_not():
    z = torch.randn(200, 2, dtype=torch.float64)
    z = torch.cat([z, z * torch.tensor([-1.0, 1.0])])  # symmetric, so that z and z² are exactly uncorrelated
    independent = nhsic(z).item()
    z[:, 1] = z[:, 0] ** 2
    assert abs(np.corrcoef(z.numpy().T)[0, 1]) < 1e-9
    assert nhsic(z).item() > 10 * independent
    assert nhsic(z[:, :1].expand(400, 2)).item() == pytest.approx(1.0)


def test_constant_features_count_as_independent():
    z = dependent(20, 4)
    alone = nhsic(z).item() * 4 * 3
    constants = torch.cat([z, torch.full((20, 2), 7.3, dtype=torch.float64)], 1)
    assert nhsic(constants).item() == pytest.approx(alone / (6 * 5))
    assert nhsic(torch.zeros(20, 4)).item() == 0
    assert nhsic(torch.full((20, 4), 0.1)).item() == 0


def test_one_positive_value_and_a_median_of_zero_are_defined():
    z = torch.zeros(12, 3, dtype=torch.float64)
    z[0, 0], z[0, 1], z[5, 2] = 1.0, 40.0, 2.0
    # The first two are active on one and the same sample: both kernels have two values, so nHSIC is 1.
    for bandwidth in ("auto", "median"):
        other = nhsic(z[:, [0, 2]], bandwidth=bandwidth).item()
        assert nhsic(z[:, :2], bandwidth=bandwidth).item() == pytest.approx(1.0)
        assert nhsic(z, bandwidth=bandwidth).item() == pytest.approx((1 + 2 * other) / 3)


def test_bad_input_is_named():
    assert nhsic(torch.full((4, 3), torch.nan)).isnan()
    with pytest.raises(ValueError, match="positive_std"):
        nhsic(torch.randn(4, 3), bandwidth="silverman")
    with pytest.raises(ValueError, match="D of 2 or more"):
        nhsic(torch.randn(4, 1))
    with pytest.raises(ValueError, match="at least 2"):
        nhsic(torch.randn(1, 4))
