"""Structured orthogonal directions: the fast projection is the product with the explicit rows."""

import pytest
import scipy.linalg
import torch

from lpjepa._random import CounterSeed
from lpjepa.slicing import parse_directions
from lpjepa.slicing.hadamard import _transform, hadamard_rows, project_block
from lpjepa.slicing.matching import sliced_discrepancy

SEED = torch.tensor(5)


@pytest.mark.parametrize("size", [1, 2, 8, 64, 128])
def test_transform_is_scipys_matrix(size):
    x = torch.randn(3, size, dtype=torch.float64)
    matrix = torch.from_numpy(scipy.linalg.hadamard(size, dtype=float)) / size**0.5
    torch.testing.assert_close(_transform(x), x @ matrix.T)


@pytest.mark.parametrize("dim", [32, 33, 63, 100, 128])
def test_projection_without_rows(dim):
    x = torch.randn(7, dim, dtype=torch.float64)
    rows = hadamard_rows(SEED, dim, 2 * dim, dim, torch.float64, stream=20)
    torch.testing.assert_close(project_block(x, SEED, stream=21), x @ rows.T)


@pytest.mark.parametrize("dim", [32, 47, 64])
def test_every_row_and_coordinate_is_spread(dim):
    """Over many blocks no row and no column keeps a share of large entries: E[c⁴] = 3/(D(D+2)) for each."""
    seeds = CounterSeed(0)
    blocks = torch.stack(
        [hadamard_rows(seeds.next("cpu"), 0, dim, dim, torch.float64, stream=0) for _ in range(150)]
    )
    fourth = blocks.pow(4).mean(0) * dim * (dim + 2) / 3
    assert (fourth.mean(0) - 1).abs().max() < 0.15
    assert (fourth.mean(1) - 1).abs().max() < 0.15


def test_estimates_vary_less_than_with_independent_directions():
    """At equal count, orthogonal blocks estimate the mean over the sphere with less variance and no bias."""
    z, y = torch.randn(64, 32), torch.randn(64, 32) * torch.linspace(0.2, 2, 32)
    seeds = CounterSeed(1)
    estimates = {}
    for kind in ("random", "orthogonal", "hadamard"):
        plan = parse_directions(kind, 32)
        drawn = (plan.draw(z, seeds.next("cpu")).c for _ in range(300))
        estimates[kind] = torch.stack([sliced_discrepancy(z, c, y) for c in drawn])
    mean, deviation = estimates["random"].mean(), estimates["random"].std()
    for kind in ("orthogonal", "hadamard"):
        assert estimates[kind].var() < 0.8 * estimates["random"].var()
        assert (estimates[kind].mean() - mean).abs() < 5 * deviation / 300**0.5
