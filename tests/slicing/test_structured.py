"""Hadamard directions applied by fast transforms, against the same directions written out."""

import pytest
import torch

from lpjepa.slicing import parse_directions, planned_discrepancy, sliced_discrepancy
from lpjepa.slicing._structured import HadamardBlock
from lpjepa.slicing.hadamard import hadamard_rows

SEED = torch.tensor(11)


@pytest.mark.parametrize("dim", [32, 48, 64, 100])
def test_a_block_projects_and_pulls_back_as_its_directions_do(dim):
    c = hadamard_rows(SEED, 0, dim, dim, torch.float64, 5)
    x = torch.randn(3, dim, dtype=torch.float64)
    before = x.clone()
    block = HadamardBlock(SEED, 5, dim)
    torch.testing.assert_close(block.project(x), x @ c.T)
    torch.testing.assert_close(block.pull_back(x), x @ c)
    assert torch.equal(x, before)


@pytest.mark.parametrize("discrepancy", ["wasserstein2", "energy"])
@pytest.mark.parametrize(("lo", "hi"), [(0, 100), (10, 75), (40, 41)])
def test_a_share_of_the_slices_matches_the_drawn_directions(lo, hi, discrepancy):
    plan = parse_directions("hadamard", 100)
    z, y = torch.randn(2, 20, 40, dtype=torch.float64), torch.randn(2, 30, 40, dtype=torch.float64)
    fast, slow = z.clone().requires_grad_(), z.clone().requires_grad_()
    value = planned_discrepancy(fast, y, plan, SEED, lo, hi, discrepancy)
    c, weight = plan.draw(z, SEED, lo, hi)
    expected = sliced_discrepancy(slow, c, y, discrepancy, weight_VK=weight)
    torch.testing.assert_close(value, expected)
    value.backward()
    expected.backward()
    torch.testing.assert_close(fast.grad, slow.grad)
