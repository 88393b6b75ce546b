"""Features that are free to move reach the target under RDMReg alone, from wherever they start."""

import pytest
import torch

from lpjepa.distributions import RectifiedGeneralizedGaussian
from lpjepa.losses import RDMReg

SAMPLES, DIM = 512, 64


def optimise(regularizer, start, steps):
    """Yields the rectified features of every step.

    The tensor w moves by the gradient with respect to relu(w), also where that is off, so that what is off
    can come back. Along D orthonormal directions a step of N·D/2 would put every projection on its quantile.
    """
    w = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([w], lr=0.25 * SAMPLES * DIM, momentum=0.5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        regularizer(w.relu().detach() + (w - w.detach())).backward()
        optimizer.step()
        schedule.step()
        yield w.detach().relu()


def covariance_error(z, target):
    """Root mean square of the off-diagonal covariances, in units of the target's variance."""
    covariance = torch.cov(z.T) / target.variance
    return (covariance - covariance.diag().diag()).square().sum().div(DIM * (DIM - 1)).sqrt().item()


STARTS = {
    # All samples the same vector: only the random directions tell them apart.
    "collapsed": lambda: torch.full((SAMPLES, DIM), 0.5),
    "dense": lambda: 0.5 + 2 * torch.rand(SAMPLES, DIM),
    # Rank 8 and a little noise: strongly correlated coordinates.
    "correlated": lambda: torch.rand(SAMPLES, 8) @ torch.rand(8, DIM) + 0.01 * torch.rand(SAMPLES, DIM),
}


@pytest.mark.parametrize("start", ["collapsed", "dense"])
@pytest.mark.parametrize("mu", [-1.0, 0.0, 0.5])
@pytest.mark.parametrize("p", [0.5, 1.0, 2.0])
def test_the_target_is_reached(p, mu, start):
    target = RectifiedGeneralizedGaussian.from_location(mu, p=p)
    # With exact quantiles along the axes: a random slice of 64 coordinates hardly shows their zeros, and the
    # paper's loss alone (axes_weight=0) leaves the active fraction of free features where it happens to be.
    regularizer = RDMReg(target, num_slices=64, axes_weight=1.0)
    *_, z = optimise(regularizer, STARTS[start](), steps=300)
    assert (z.mean(0) - target.mean).abs().max() < 0.03 * target.stddev
    # Heavy tails (p = 0.5) have some of their variance beyond the largest of 512 quantiles.
    assert z.var(0).mean().item() == pytest.approx(target.variance.item(), rel=0.1 if p < 1 else 0.04)
    assert (z.var(0) / target.variance - 1).abs().max() < (0.2 if p < 1 else 0.1)
    # Independent samples of the target itself would have about 1/√512 = 0.044.
    assert covariance_error(z, target) < 0.09
    # For p = 0.5 the density has a cusp at μ: at μ = 0 much of what is on is barely so.
    tolerance = 0.07 if (p, mu) == (0.5, 0.0) else 0.025
    assert (z > 0).float().mean().item() == pytest.approx(target.active_probability.item(), abs=tolerance)


@pytest.mark.parametrize("mu", [-1.0, 0.5])
def test_the_papers_loss_reaches_mean_and_covariance(mu):
    target = RectifiedGeneralizedGaussian.from_location(mu, p=1.0)
    *_, z = optimise(RDMReg(target, num_slices=128, directions="eigen"), STARTS["correlated"](), steps=60)
    assert z.mean().item() == pytest.approx(target.mean.item(), rel=0.1)
    assert z.var(0).mean().item() == pytest.approx(target.variance.item(), rel=0.1)
    assert covariance_error(z, target) < 0.05


@pytest.mark.parametrize("mu", [-1.0, 0.0, 0.5])
def test_eigenvectors_take_fewer_steps(mu):
    target = RectifiedGeneralizedGaussian.from_location(mu, p=1.0)

    def steps_to_uncorrelated(directions):
        regularizer = RDMReg(target, num_slices=DIM, directions=directions)
        for step, z in enumerate(optimise(regularizer, STARTS["correlated"](), steps=60)):
            if covariance_error(z, target) < 0.06:
                return step
        return 60

    assert steps_to_uncorrelated("eigen") < 0.5 * steps_to_uncorrelated("random")
