"""The entropy estimator against its formula in numpy and against closed forms."""

import math

import numpy as np
import pytest
import torch

from lpjepa.distributions import RectifiedGeneralizedGaussian
from lpjepa.metrics import FeatureSample, marginal_entropy


def by_the_formula(x, m=None):
    """One feature, written as the paper prints it."""
    positive = np.sort(x[x > 0])
    count, d = len(positive), (x > 0).mean()
    m = round(math.sqrt(count)) if m is None else m
    h1 = np.mean([math.log((count + 1) / m * (positive[i + m] - positive[i])) for i in range(count - m)])
    return d * h1 - d * math.log(d) - ((1 - d) * math.log(1 - d) if d < 1 else 0)


@pytest.mark.parametrize("m", [None, 3])
def test_equals_the_papers_formula_feature_by_feature(m):
    z = (torch.randn(2, 60, 4, dtype=torch.float64) - torch.tensor([0.0, 0.5, -0.5, -9.0])).relu()
    result = marginal_entropy(z, m=m)
    for view in range(2):
        expected = [by_the_formula(z[view, :, d].numpy(), m) for d in range(4)]
        np.testing.assert_allclose(result.per_feature[view].numpy(), expected, rtol=1e-12)
        assert result.total[view].item() == pytest.approx(sum(expected))
    torch.testing.assert_close(result.dimension, (z > 0).double().mean(-2))


@pytest.mark.parametrize(("mu", "p"), [(0.0, 1.0), (-1.0, 1.0), (0.5, 2.0), (-0.5, 0.5)])
def test_converges_to_the_closed_form(mu, p):
    target = RectifiedGeneralizedGaussian.from_location(mu, p=p)
    closed = float(target.entropy())
    errors = []
    for samples in (400, 40_000):
        estimate = marginal_entropy(target.sample((samples, 16)).double())
        errors.append((estimate.per_feature.mean() - closed).abs().item())
    assert errors[1] < 0.03
    assert errors[1] < errors[0]


def test_dense_features_give_the_differential_entropy():
    z = torch.randn(40_000, 4, dtype=torch.float64) * 3
    expected = 0.5 * math.log(2 * math.pi * math.e * 9)
    assert marginal_entropy(z).per_feature.mean().item() == pytest.approx(expected, abs=0.03)


def test_bias_correction_is_exact_for_uniform_values():
    z = torch.rand(60, 20_000, dtype=torch.float64)  # entropy 0
    plain = marginal_entropy(z, m=2).per_feature
    corrected = marginal_entropy(z, m=2, bias_corrected=True).per_feature
    error = corrected.std().item() / math.sqrt(20_000)
    assert abs(corrected.mean().item()) < 4 * error
    assert plain.mean().item() < -0.2


def test_few_active_samples_ties_and_values_that_are_not_finite():
    z = torch.zeros(10, 5)
    z[0, 1] = 2.0
    z[:, 2] = 3.0
    z[:2, 3] = torch.tensor([1.0, 2.0])
    z[0, 4] = torch.nan
    result = marginal_entropy(z)
    binary = lambda d: -d * math.log(d) - (1 - d) * math.log(1 - d)
    assert result.per_feature[0].item() == 0
    assert result.per_feature[1].item() == pytest.approx(binary(0.1))
    assert math.isfinite(result.per_feature[2].item())
    assert result.per_feature[2].item() < -5
    assert result.per_feature[3].item() == pytest.approx(binary(0.2) + 0.2 * math.log(3.0))
    assert result.per_feature[4].isnan()
    assert result.total.isnan()
    with pytest.raises(ValueError, match="spacing m"):
        marginal_entropy(z, m=0)


def test_a_sample_of_the_rows_is_uniform_and_merges():
    rows = torch.arange(1000.0).unsqueeze(1).expand(1000, 2)
    means = []
    for seed in range(40):
        first, second = FeatureSample(50, seed=2 * seed), FeatureSample(50, seed=2 * seed + 1)
        first.update(rows[:200]).update(rows[200:250])
        second.update(rows[250:].reshape(3, 250, 2))
        kept = first.merge(second).compute()
        assert kept.shape == (50, 2)
        assert kept[:, 0].unique().numel() == 50
        assert first.count == 1000
        means.append(kept[:, 0].mean().item())
    assert np.mean(means) == pytest.approx(499.5, abs=4 * 288 / math.sqrt(50 * 40))
    small = FeatureSample(50).update(rows[:7])
    torch.testing.assert_close(small.compute(), rows[:7])
    with pytest.raises(ValueError, match="no samples"):
        FeatureSample().compute()
