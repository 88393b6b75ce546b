"""Variance, covariance and rank measures against numpy."""

import numpy as np
import pytest
import torch

from lpjepa.distributions import RectifiedGeneralizedGaussian
from lpjepa.metrics import MomentStream, covariance_loss, effective_rank, lidar, variance_loss


def test_variance_loss_is_the_distance_to_the_targets_variance():
    z = torch.randn(2, 30, 6, dtype=torch.float64)
    expected = np.mean([np.linalg.norm(np.var(view, axis=0, ddof=1) - 0.7) for view in z.numpy()])
    assert variance_loss(z, 0.7).item() == pytest.approx(expected)
    wanted = torch.rand(6, dtype=torch.float64)
    expected = np.linalg.norm(np.var(z[0].numpy(), axis=0, ddof=1) - wanted.numpy())
    assert variance_loss(z[0], wanted).item() == pytest.approx(expected)
    with pytest.raises(ValueError, match="6 features"):
        variance_loss(z, torch.ones(5))
    with pytest.raises(ValueError, match="at least 2"):
        variance_loss(z[:, :1], 1.0)


def test_variance_loss_vanishes_on_samples_of_the_target():
    target = RectifiedGeneralizedGaussian(-1.0, 1.0, 1.0)
    z = target.sample((200_000, 4))
    assert variance_loss(z, target).item() < 0.02
    assert variance_loss(z + z, target).item() > 0.5


def test_covariance_loss_equals_numpy_and_the_authors_sum():
    z = torch.randn(2, 20, 7, dtype=torch.float64)
    z[..., 1] += z[..., 0]
    expected = []
    for view in z.numpy():
        covariance = np.cov(view.T)
        expected.append((covariance**2).sum() - (np.diag(covariance) ** 2).sum())
    assert covariance_loss(z).item() == pytest.approx(np.mean(expected) / 7)


def test_covariance_loss_stays_in_full_precision_under_autocast():
    z = torch.randn(64, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = covariance_loss(z)
    assert inside.item() == covariance_loss(z).item()


@pytest.mark.parametrize("shape", [(40, 6), (6, 40)])
@pytest.mark.parametrize("center", [False, True])
def test_effective_rank_equals_the_entropy_of_singular_values(shape, center):
    z = torch.randn(shape) + 1.0
    x = z.double().numpy()
    singular = np.linalg.svd(x - x.mean(0) * center, compute_uv=False)
    share = singular[singular > 1e-9 * singular[0]] / singular.sum()
    assert effective_rank(z, center=center).item() == pytest.approx(
        np.exp(-(share * np.log(share)).sum()), rel=1e-5
    )


def test_effective_rank_of_known_matrices():
    assert effective_rank(torch.eye(5)).item() == pytest.approx(5.0)
    assert effective_rank(torch.ones(9, 5)).item() == pytest.approx(1.0)
    assert effective_rank(torch.ones(9, 5), center=True).item() == 0.0
    assert effective_rank(torch.zeros(9, 5)).item() == 0.0
    assert effective_rank(torch.full((9, 5), torch.nan)).isnan()


def test_moment_stream_and_merge_equal_the_whole_set():
    z = torch.randn(40, 5, dtype=torch.float64) + 3
    stream = MomentStream().update(z[:10]).merge(MomentStream().update(z[10:]).merge(MomentStream()))
    np.testing.assert_allclose(stream.covariance().numpy(), np.cov(z.numpy().T))
    np.testing.assert_allclose(stream.mean().numpy(), z.numpy().mean(0))
    assert stream.variance_loss(0.5).item() == pytest.approx(variance_loss(z, 0.5).item())
    assert stream.covariance_loss().item() == pytest.approx(covariance_loss(z).item())
    for center in (False, True):
        assert stream.effective_rank(center).item() == pytest.approx(effective_rank(z, center).item())
    with pytest.raises(ValueError, match="2 samples"):
        MomentStream().update(z[:1]).covariance()


def test_lidar_equals_the_definition_with_matrix_roots():
    views, images, size, shrinkage = 3, 30, 5, 1e-4
    z = torch.randn(1, images, size, dtype=torch.float64) + 0.5 * torch.randn(
        views, images, size, dtype=torch.float64
    )
    x = z.numpy()
    between = np.cov(x.mean(0).T)
    deviation = (x - x.mean(0)).reshape(-1, size)
    within = deviation.T @ deviation / (images * (views - 1)) + shrinkage * np.eye(size)
    values, vectors = np.linalg.eigh(within)
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    share = np.linalg.eigvalsh(root @ between @ root)
    share = share / share.sum()
    assert lidar(z).item() == pytest.approx(np.exp(-(share * np.log(share)).sum()))


def test_lidar_with_more_features_than_images_and_at_its_edges():
    z = torch.randn(1, 6, 20, dtype=torch.float64).expand(2, 6, 20) + 1e-3 * torch.randn(
        2, 6, 20, dtype=torch.float64
    )
    assert 1 <= lidar(z).item() <= 5 + 1e-9
    assert lidar(torch.ones(2, 6, 3)).item() == 0
    assert lidar(torch.full((2, 6, 3), torch.nan)).isnan()
    with pytest.raises(ValueError, match="V of 2"):
        lidar(z[:1])
