"""One-sample matching against exact quantiles, by scipy's quantile functions."""

import numpy as np
import pytest
import scipy.stats
import torch
from torch.nn.functional import normalize

from lpjepa.distributions import GeneralizedGaussian, RectifiedGeneralizedGaussian
from lpjepa.slicing import (
    axes_discrepancy,
    gaussian_discrepancy,
    is_gaussian,
    parse_directions,
    sliced_discrepancy,
)


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def quantiles(loc, scale, p, n, rectified):
    q = scipy.stats.gennorm(p, loc=loc, scale=scale * p ** (1 / p)).ppf((np.arange(n) + 0.5) / n)
    return np.maximum(q, 0) if rectified else q


@pytest.mark.parametrize("p", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("rectified", [False, True])
def test_axes_against_scipys_quantiles(p, rectified):
    kind = RectifiedGeneralizedGaussian if rectified else GeneralizedGaussian
    target = kind(double(-0.3), double(0.8), double(p))
    z = torch.randn(2, 31, 4, dtype=torch.float64)
    expected = np.mean((np.sort(z.numpy(), axis=1) - quantiles(-0.3, 0.8, p, 31, rectified)[:, None]) ** 2)
    assert axes_discrepancy(z, target).item() == pytest.approx(expected, rel=1e-9)
    assert axes_discrepancy(z[0], target).shape == ()


def test_axes_with_a_target_for_each_coordinate():
    loc, scale = [-1.0, 0.0, 2.0], [0.5, 1.0, 1.5]
    target = RectifiedGeneralizedGaussian(double(loc), double(scale), double(1.0))
    z = torch.randn(2, 20, 3, dtype=torch.float64)
    expected = np.mean(
        [
            (np.sort(z[:, :, d].numpy(), axis=1) - quantiles(loc[d], scale[d], 1.0, 20, True)) ** 2
            for d in range(3)
        ]
    )
    assert axes_discrepancy(z, target).item() == pytest.approx(expected, rel=1e-9)
    with pytest.raises(ValueError, match=r"target must have batch shape \(\) or \(4,\)"):
        axes_discrepancy(torch.randn(2, 20, 4), target)


def test_axes_gradient():
    target = RectifiedGeneralizedGaussian(double(-0.3), double(0.8), double(1.0))
    z = torch.randn(2, 7, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: axes_discrepancy(z, target), (z,))


def test_axes_are_the_limit_of_many_target_samples():
    target = RectifiedGeneralizedGaussian(0.2, 0.7, 1.0)
    z = torch.randn(1, 16, 3)
    y = target.sample((1, 16 * 4000, 3), generator=torch.Generator().manual_seed(0))
    sampled = sliced_discrepancy(z, torch.eye(3), y)
    q = (torch.arange(64000) + 0.5) / 64000
    # Midpoints leave out the variance of the target within each of the 16 bins.
    within = target.icdf(q).view(16, 4000).var(dim=1, correction=0).mean()
    torch.testing.assert_close(axes_discrepancy(z, target), sampled - within, rtol=0.05, atol=0.01)


@pytest.mark.parametrize("per_view", [False, True])
def test_gaussian_against_scipys_quantiles(per_view):
    loc, scale = np.array([-1.0, 0.0, 2.0, 0.5]), np.array([0.5, 1.0, 1.5, 1.0])
    target = GeneralizedGaussian(double(loc.tolist()), double(scale.tolist()), double(2.0))
    z = torch.randn(2, 17, 4, dtype=torch.float64)
    c = normalize(torch.randn((2, 6, 4) if per_view else (6, 4), dtype=torch.float64), dim=-1)
    levels = (np.arange(17) + 0.5) / 17
    values = []
    for v in range(2):
        for direction in (c[v] if per_view else c).numpy():
            law = scipy.stats.norm(direction @ loc, np.sqrt(direction**2 @ scale**2))
            values.append(np.mean((np.sort(z[v].numpy() @ direction) - law.ppf(levels)) ** 2))
    value = gaussian_discrepancy(z, c, target, chunk=4)
    assert value.item() == pytest.approx(np.mean(values), rel=1e-10)
    weighted = gaussian_discrepancy(z, c, target, weight_VK=torch.full((2, 6), 1 / 12, dtype=torch.float64))
    torch.testing.assert_close(weighted, value)


def test_gaussian_gradient():
    target = GeneralizedGaussian(double(0.1), double(1.2), double(2.0))
    z = torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True)
    c = normalize(torch.randn(5, 3, dtype=torch.float64), dim=-1)
    assert torch.autograd.gradcheck(lambda z: gaussian_discrepancy(z, c, target, chunk=2), (z,))


def test_both_forms_agree_along_the_axes():
    target = GeneralizedGaussian(double(0.1), double(1.2), double(2.0))
    z = torch.randn(2, 15, 4, dtype=torch.float64)
    along_axes = gaussian_discrepancy(z, torch.eye(4, dtype=torch.float64), target)
    torch.testing.assert_close(along_axes, axes_discrepancy(z, target), rtol=1e-8, atol=0)


def test_which_targets_are_gaussian():
    assert is_gaussian(GeneralizedGaussian(0.0, 1.0, 2.0))
    assert is_gaussian(torch.distributions.Normal(0.0, 1.0))
    assert not is_gaussian(GeneralizedGaussian(0.0, 1.0, 1.0))
    assert not is_gaussian(GeneralizedGaussian(0.0, 1.0, torch.tensor([2.0, 1.0])))
    assert not is_gaussian(RectifiedGeneralizedGaussian(0.0, 1.0, 2.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_types_under_autocast(dtype):
    target = GeneralizedGaussian(0.0, 1.0, 2.0)
    z = torch.randn(2, 32, 8).to(dtype)
    c = normalize(torch.randn(16, 8), dim=-1)
    for loss in (lambda z: axes_discrepancy(z, target), lambda z: gaussian_discrepancy(z, c, target)):
        exact = loss(z.double())
        leaf = z.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss(leaf)
        value.backward()
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(exact.item(), rel=1e-5)
        assert leaf.grad.dtype == dtype


def test_backward_keeps_one_tensor_of_the_size_of_the_features():
    target = GeneralizedGaussian(0.0, 1.0, 2.0)
    z = torch.randn(2, 32, 8, requires_grad=True)
    c = normalize(torch.randn(256, 8), dim=-1)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        losses = axes_discrepancy(z, target), gaussian_discrepancy(z, c, target)
    assert all(loss.requires_grad for loss in losses)
    assert kept == [z.shape, z.shape]


def test_kept_quantiles_follow_changed_parameters_and_sizes():
    loc = torch.tensor(0.0, dtype=torch.float64)
    target = GeneralizedGaussian(loc, double(1.0), double(1.0))
    z = torch.randn(2, 12, 3, dtype=torch.float64)
    for n in (12, 7, 12):
        expected = axes_discrepancy(z[:, :n], GeneralizedGaussian(double(0.0), double(1.0), double(1.0)))
        torch.testing.assert_close(axes_discrepancy(z[:, :n], target), expected)
    target.loc.add_(0.5)
    expected = axes_discrepancy(z, GeneralizedGaussian(double(0.5), double(1.0), double(1.0)))
    torch.testing.assert_close(axes_discrepancy(z, target), expected)


def test_quantiles_are_computed_once(monkeypatch):
    target = GeneralizedGaussian(0.0, 1.0, 1.0)
    calls = []
    original = GeneralizedGaussian.icdf
    monkeypatch.setattr(
        GeneralizedGaussian, "icdf", lambda self, q: calls.append(q.shape) or original(self, q)
    )
    for n in (6, 6, 9, 6):
        axes_discrepancy(torch.randn(2, n, 3), target)
    assert calls == [(6,), (9,)]


def test_compiles_as_one_graph():
    target = GeneralizedGaussian(0.0, 1.0, 2.0)
    rectified = RectifiedGeneralizedGaussian(-0.3, 0.7, 1.0)
    plan = parse_directions("random", 16)
    seed = torch.tensor(3)

    def loss(z):
        return gaussian_discrepancy(z, plan.draw(z, seed).c, target) + axes_discrepancy(z, rectified)

    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    eager, fused = (torch.randn(2, 12, 5, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    loss(eager.requires_grad_()).backward()
    compiled(fused.requires_grad_()).backward()
    torch.testing.assert_close(fused.grad, eager.grad)


def test_a_target_beyond_the_batch_is_warned_of_once():
    target = RectifiedGeneralizedGaussian.from_active_fraction(0.01, p=1.0)
    with pytest.warns(UserWarning, match="All 20 quantiles of the target are zero, .* use a larger batch"):
        axes_discrepancy(torch.rand(20, 3), target)
    axes_discrepancy(torch.rand(20, 3), target)
    axes_discrepancy(torch.rand(60, 3), target)  # 0.6 of a sample: its largest quantile is positive
