"""Polar factors by products: against scipy, and uniform where they should be."""

import pytest
import scipy.linalg
import scipy.stats
import torch

from lpjepa.slicing._polar import polar, uniform_orthogonal


@pytest.mark.parametrize("condition", [1.0, 1e3, 1e7])
def test_polar_factor_is_that_of_scipy(condition):
    u, v = (torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64))[0] for _ in range(2))
    singular = torch.logspace(0, -torch.tensor(condition).log10().item(), 12, dtype=torch.float64)
    x = u @ torch.diag(singular) @ v
    expected, _ = scipy.linalg.polar(x.numpy())
    found = polar(x.unsqueeze(0), torch.eye(12, dtype=torch.float64), 1e-8).squeeze(0)
    torch.testing.assert_close(found, torch.from_numpy(expected), atol=1e-12 * condition, rtol=0)


@pytest.mark.parametrize("dim", [1, 3, 64, 200])
def test_orthogonal_in_single_precision(dim):
    q = uniform_orthogonal(torch.randn(3, dim, dim))
    torch.testing.assert_close(q @ q.mT, torch.eye(dim).expand(3, dim, dim), atol=2e-6, rtol=0)


def test_orthogonal_matrices_are_uniform():
    q = uniform_orthogonal(torch.randn(4000, 5, 5))
    # The square of one coordinate of a uniform unit vector is Beta(1/2, (D - 1)/2); one of each matrix.
    squares = q[:, 1, 3].double().square().numpy()
    assert scipy.stats.kstest(squares, scipy.stats.beta(0.5, 2.0).cdf).pvalue > 1e-3
    # Rotations and reflections alike, and no place is preferred.
    rotations = int((torch.linalg.det(q) > 0).sum())
    assert scipy.stats.binomtest(rotations, 4000).pvalue > 1e-3
    assert q.mean(dim=0).abs().max() < 5 / (5 * 4000) ** 0.5


@pytest.mark.gpu
def test_orthogonal_directions_are_captured_in_a_cuda_graph():
    from lpjepa.distributions import RectifiedGeneralizedGaussian
    from lpjepa.losses import RDMReg

    reg = RDMReg(RectifiedGeneralizedGaussian.from_active_fraction(0.3), 96, directions="orthogonal").cuda()
    z = torch.randn(2, 64, 48, device="cuda").relu().requires_grad_()
    for _ in range(2):
        torch.autograd.grad(reg(z), z)
    start = {name: value.clone() for name, value in reg.state_dict().items()}
    expected = torch.autograd.grad(reg(z), z)[0]
    reg.load_state_dict(start)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gradient = torch.autograd.grad(reg(z), z)[0]
    graph.replay()
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-6)
