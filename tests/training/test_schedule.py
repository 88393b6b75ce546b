"""Warmup and cosine."""

import itertools
import math

import pytest
import torch
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR

from lpjepa.training.schedule import scaled_by_batch, warmup_cosine


def test_cosine_is_torchs():
    optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
    theirs = CosineAnnealingLR(optimizer, T_max=50, eta_min=0.01)
    for step in range(50):
        assert warmup_cosine(step, 50, 0, 0.4, final=0.01) == pytest.approx(theirs.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        theirs.step()


def test_warmup_is_linear_from_start_to_peak():
    rates = [warmup_cosine(step, 100, 11, 1.0, start=0.5) for step in range(11)]
    assert rates[0] == 0.5
    assert rates[10] == 1.0
    steps = [b - a for a, b in itertools.pairwise(rates)]
    assert all(math.isclose(step, 0.05) for step in steps)
    assert warmup_cosine(11, 100, 11, 1.0) == 1.0  # the cosine begins at the peak


def test_warmup_longer_than_the_training_and_of_one_step():
    assert warmup_cosine(4, 5, 50, 2.0) == 2.0
    assert warmup_cosine(0, 5, 1, 2.0) == 2.0
    assert warmup_cosine(5, 5, 1, 2.0, final=0.25) == 0.25


def test_batch_scaling():
    assert scaled_by_batch(0.3, 512) == pytest.approx(0.6)
