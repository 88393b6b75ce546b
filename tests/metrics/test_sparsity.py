"""Sparsity against the authors' numbers, numpy and cases worked by hand."""

import math

import numpy as np
import pytest
import torch

from lpjepa.distributions import RectifiedGeneralizedGaussian
from lpjepa.metrics import (
    SparsityStream,
    active_fraction,
    always_on_fraction,
    dead_fraction,
    l0_sparsity,
    l1_sparsity,
    predicted_sparsity,
    relative_mad,
    sparsity_by_correctness,
)


def test_equals_the_authors_numbers(parity):
    cases, arrays, _ = parity
    z = arrays["metrics_z"]
    assert l1_sparsity(z).item() == pytest.approx(cases["metrics"]["l1"], rel=1e-6)
    assert l0_sparsity(z).item() == pytest.approx(cases["metrics"]["l0"], rel=1e-6)


def test_l1_per_sample_equals_the_ratio_of_norms():
    z = torch.randn(3, 7, 11).relu()
    x = z.double().numpy()
    expected = np.linalg.norm(x, 1, axis=-1) ** 2 / np.linalg.norm(x, 2, axis=-1) ** 2 / 11
    np.testing.assert_allclose(l1_sparsity(z, reduce=False).numpy(), expected, rtol=1e-5)
    assert l1_sparsity(z).item() == pytest.approx(expected.mean(), rel=1e-5)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_bounds_hold_at_any_scale(scale):
    one_active = torch.eye(5) * scale
    constant = torch.full((4, 5), scale)
    assert l1_sparsity(one_active).item() == pytest.approx(1 / 5)
    assert l1_sparsity(constant).item() == pytest.approx(1.0)
    assert l0_sparsity(one_active).item() == pytest.approx(1 / 5)
    assert l0_sparsity(constant).item() == 1.0


def test_all_zero_features_are_zero():
    z = torch.zeros(4, 6)
    assert l0_sparsity(z) == l1_sparsity(z) == always_on_fraction(z) == 0
    assert dead_fraction(z) == 1


def test_nan_features_give_nan_for_their_sample_only():
    z = torch.ones(3, 4)
    z[1, 2] = torch.nan
    for measure in (l0_sparsity, l1_sparsity):
        values = measure(z, reduce=False)
        assert values.isnan().tolist() == [False, True, False]
        assert measure(z).isnan()
    assert active_fraction(z).isnan().tolist() == [False, False, True, False]
    assert dead_fraction(z).isnan()


def test_dead_and_always_on_features():
    z = torch.tensor([[0.0, 1.0, 0.0, 2.0], [0.0, 1.0, 3.0, -1.0]])
    assert dead_fraction(z) == 0.25
    assert always_on_fraction(z) == 0.5
    assert active_fraction(z).tolist() == [0.0, 1.0, 0.5, 1.0]


def test_prediction_is_what_samples_of_the_target_measure():
    target = RectifiedGeneralizedGaussian.from_active_fraction(0.2, p=1.0)
    z = target.sample((400, 2000))
    predicted = predicted_sparsity(target)
    assert predicted.l0 == pytest.approx(0.2, rel=1e-5)
    assert l0_sparsity(z).item() == pytest.approx(predicted.l0, rel=0.01)
    assert l1_sparsity(z).item() == pytest.approx(predicted.l1, rel=0.02)
    with pytest.raises(TypeError, match="RectifiedGeneralizedGaussian"):
        predicted_sparsity(torch.distributions.Normal(0.0, 1.0))


def test_stream_and_merge_equal_the_whole_set():
    z = (torch.randn(50, 9) - 1).relu()
    z[:, 0], z[:, 1] = 0, 1
    first, second = SparsityStream(), SparsityStream()
    first.update(z[:7]).update(z[7:20])
    second.update(z[20:50].reshape(3, 10, 9)).update(z[:0])
    whole = first.merge(second).merge(SparsityStream()).compute()
    assert whole.l0.item() == pytest.approx(l0_sparsity(z).item())
    assert whole.l1.item() == pytest.approx(l1_sparsity(z).item())
    assert whole.dead.item() == pytest.approx(dead_fraction(z).item())
    assert whole.always_on.item() == pytest.approx(always_on_fraction(z).item())
    torch.testing.assert_close(whole.active.float(), active_fraction(z))
    with pytest.raises(ValueError, match="no samples"):
        SparsityStream().compute()
    with pytest.raises(ValueError, match="9 features"):
        first.update(torch.ones(2, 4))


def test_relative_mad_by_hand_and_at_its_edges():
    assert relative_mad([1.0, 2.0, 4.0]) == pytest.approx((1 + 0 + 2) / 3 / 2)
    assert relative_mad([1.0, 3.0]) == pytest.approx(0.5)
    assert relative_mad([0.0, 0.0]) == 0
    assert relative_mad([0.0, 0.0, 1.0]) == math.inf
    with pytest.raises(ValueError, match="at least one"):
        relative_mad([])


def test_sparsity_of_right_and_wrong_predictions():
    z = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    groups = sparsity_by_correctness(z, torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]))
    assert groups.l0_correct.tolist() == [1.0, 0.0]
    assert groups.l0_incorrect.tolist() == [0.5]
    assert groups.l1_incorrect.tolist() == [0.5]
    assert sparsity_by_correctness(z, torch.zeros(3), torch.zeros(3)).l1_incorrect.numel() == 0
    with pytest.raises(ValueError, match="predictions and labels"):
        sparsity_by_correctness(z, torch.zeros(2), torch.zeros(3))


@pytest.mark.parametrize("bad", [torch.ones(3), torch.ones(0, 3), torch.ones(3, 0)])
def test_wrong_shapes_are_named(bad):
    with pytest.raises(ValueError, match="l0_sparsity"):
        l0_sparsity(bad)
