"""The torchmetrics classes, fed in batches, equal the functions on the whole set."""

import pytest
import torch

import lpjepa.metrics as functions

classes = pytest.importorskip("lpjepa.metrics.torchmetrics")

CASES = {
    "l0": (lambda: classes.L0Sparsity(), functions.l0_sparsity),
    "l1": (lambda: classes.L1Sparsity(), functions.l1_sparsity),
    "dead": (lambda: classes.DeadFraction(6), functions.dead_fraction),
    "always_on": (lambda: classes.AlwaysOnFraction(6), functions.always_on_fraction),
    "variance": (lambda: classes.VarianceLoss(6, 0.3), lambda z: functions.variance_loss(z, 0.3)),
    "covariance": (lambda: classes.CovarianceLoss(6), functions.covariance_loss),
    "rank": (lambda: classes.EffectiveRank(6), functions.effective_rank),
    "entropy": (lambda: classes.MarginalEntropy(), lambda z: functions.marginal_entropy(z).total),
    "nhsic": (lambda: classes.NHSIC(), functions.nhsic),
}


@pytest.mark.parametrize("name", CASES)
def test_batches_equal_the_whole_set(name):
    make, function = CASES[name]
    z = torch.randn(30, 6, dtype=torch.float64).relu()
    z[:, 0], z[:, 1] = 0, z[:, 1] + 0.1
    metric = make()
    metric.update(z[:12])
    metric.update(z[12:])
    assert metric.compute().item() == pytest.approx(function(z).item())
    metric.reset()
    metric.update(z[:20])
    assert metric.compute().item() == pytest.approx(function(z[:20]).item())


def test_lidar_concatenates_images():
    z = torch.randn(2, 20, 4, dtype=torch.float64)
    metric = classes.LiDAR()
    metric.update(z[:, :8])
    metric.update(z[:, 8:])
    assert metric.compute().item() == pytest.approx(functions.lidar(z).item())
