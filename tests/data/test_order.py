"""The order of an epoch as a pure function of (seed, epoch, rank, world)."""

import itertools

import pytest
import torch
from scipy import stats

from lpjepa.data import DataError
from lpjepa.data.order import epoch_order, holdout, mixed_generator, shard_order, shuffle_buffer


@pytest.mark.parametrize("world", [2, 3, 4])
def test_processes_see_together_what_one_sees(world):
    alone = epoch_order(100, seed=3, epoch=2, batch_size=12, rank=0, world=1)
    parts = [epoch_order(100, 3, 2, 12, rank, world) for rank in range(world)]
    assert torch.equal(torch.cat(parts, 1), alone)
    assert alone.shape == (8, 12)
    assert len(alone.unique()) == 96  # nothing twice


def test_epochs_and_seeds_differ_and_repeat():
    first = epoch_order(50, 0, 0, 10, 0, 1)
    assert torch.equal(first, epoch_order(50, 0, 0, 10, 0, 1))
    for seed, epoch in ((0, 1), (1, 0), (1, 1)):
        assert not torch.equal(first, epoch_order(50, seed, epoch, 10, 0, 1))
    # (seed, epoch) does not collapse to a sum: (0, 1) and (1, 0) are different orders
    assert not torch.equal(epoch_order(50, 0, 1, 10, 0, 1), epoch_order(50, 1, 0, 10, 0, 1))


def test_every_image_is_equally_often_in_every_place():
    places = torch.stack([epoch_order(8, 0, epoch, 8, 0, 1)[0] for epoch in range(400)])
    for place in range(8):
        assert stats.chisquare(torch.bincount(places[:, place], minlength=8).numpy()).pvalue > 1e-4


@pytest.mark.parametrize(
    ("count", "batch", "world", "message"),
    [(10, 16, 1, "larger than the 10"), (10, 5, 2, "multiple"), (10, 0, 1, "sense")],
)
def test_impossible_batches(count, batch, world, message):
    with pytest.raises(DataError, match=message):
        epoch_order(count, 0, 0, batch, 0, world)


def test_shuffle_buffer_mixes_within_its_reach():
    order = shuffle_buffer(1000, 50, mixed_generator(0))
    moved = (order - torch.arange(1000)).abs()
    assert order.sort().values.equal(torch.arange(1000))
    assert moved.max() <= 50
    assert moved.float().mean() > 10
    assert torch.equal(shuffle_buffer(20, 1, mixed_generator(0)), torch.arange(20))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_shards_are_split_by_rank_and_worker(world):
    shards = [(100 * i, 100 * i + 100) for i in range(48)]
    orders = [shard_order(shards, 0, 0, 12, rank, world, buffer=30) for rank in range(world)]
    assert len({len(order) for order in orders}) == 1  # the same number of steps everywhere
    seen = torch.cat([order.flatten() for order in orders])
    assert len(seen.unique()) == len(seen) > 0.95 * 4800
    by_shard = [set((order // 100).flatten().tolist()) for order in orders]
    for a in range(world):
        for b in range(a):
            assert not by_shard[a] & by_shard[b]
    # a worker that takes every fourth batch stays with its own shards
    workers = [set((orders[0][w::4] // 100).flatten().tolist()) for w in range(4)]
    for a in range(4):
        for b in range(a):
            assert not workers[a] & workers[b]
    assert not torch.equal(orders[0], shard_order(shards, 0, 1, 12, 0, world, buffer=30))


def test_unequal_shards_give_every_epoch_the_same_steps():
    bounds = [0, 7, 50, 51, 230, 300, 420]
    shards = list(itertools.pairwise(bounds))
    lengths = {
        len(shard_order(shards, 0, epoch, 8, rank, 2, buffer=9)) for epoch in range(9) for rank in (0, 1)
    }
    assert len(lengths) == 1
    assert lengths.pop() * 8 > 0.9 * 420


def test_large_sets_use_all_lanes():
    order = shard_order([(0, 50_003)], 0, 0, 64, 0, 1, buffer=10)
    starts = order[:8].float().mean(1) / 50_003  # where the first eight batches read: eighths of the set
    assert torch.allclose(starts.sort().values, torch.arange(8) / 8, atol=0.01)


def test_few_shards_are_cut():
    orders = [shard_order([(0, 40), (40, 90)], 0, 0, 6, rank, 3, buffer=10) for rank in range(3)]
    seen = torch.cat([order.flatten() for order in orders])
    assert len(seen.unique()) == len(seen) >= 84
    with pytest.raises(DataError, match="too large"):
        shard_order([(0, 5)], 0, 0, 64, 0, 1, buffer=4)


def test_holdout_is_stratified_and_disjoint():
    labels = torch.tensor([0] * 50 + [1] * 20 + [2] * 2 + [3])
    train, val = holdout(len(labels), labels, 0.2, seed=0)
    assert torch.cat([train, val]).sort().values.equal(torch.arange(len(labels)))
    assert torch.bincount(labels[val], minlength=4).tolist() == [10, 4, 1, 0]
    assert torch.equal(val, holdout(len(labels), labels, 0.2, seed=0)[1])
    assert not torch.equal(val, holdout(len(labels), labels, 0.2, seed=1)[1])
    assert len(holdout(40, None, 0.25, 0)[1]) == 10
    with pytest.raises(DataError, match="val_fraction"):
        holdout(10, None, 1.5, 0)
