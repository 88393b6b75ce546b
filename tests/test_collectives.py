"""Without a process group the collectives are the identity; with one, see losses/test_distributed.py."""

import pytest
import torch

from lpjepa import _collectives


def test_one_process():
    z = torch.randn(2, 5, 3, requires_grad=True)
    assert _collectives.world() == (0, 1)
    assert _collectives.batch_sizes(5) == [5]
    assert _collectives.sum_over_ranks(z) is z
    assert _collectives.gather_batch(z) is z


def test_gathered_features_are_float32_or_better():
    assert _collectives.gather_batch(torch.zeros(1, 2, 3, dtype=torch.bfloat16)).dtype == torch.float32
    assert _collectives.gather_batch(torch.zeros(1, 2, 3, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("total", [0, 1, 5, 8192])
def test_shares_cover_everything_once_and_are_balanced(monkeypatch, size, total):
    shares = []
    for rank in range(size):
        monkeypatch.setattr(_collectives, "world", lambda rank=rank: (rank, size))
        shares.append(_collectives.share(total))
    assert [i for lo, hi in shares for i in range(lo, hi)] == list(range(total))
    lengths = [hi - lo for lo, hi in shares]
    assert max(lengths) - min(lengths) <= 1
