"""Label regimes: stratified or not, seeded, and defined for small classes."""

import pytest
import torch

from lpjepa.evaluation import mean_std, plain_draw, stratified_draw


def test_every_class_gives_its_share():
    labels = torch.cat([torch.full((n,), c) for c, n in enumerate([200, 50, 4, 1])])
    labels = labels[torch.randperm(len(labels))]
    chosen = stratified_draw(labels, 0.1, seed=3)
    assert torch.bincount(labels[chosen]).tolist() == [20, 5, 1, 1]
    assert chosen.unique().numel() == len(chosen)
    assert chosen.tolist() == sorted(chosen.tolist())


def test_one_per_cent_of_all_is_ten_of_a_thousand_images_whatever_their_classes():
    labels = torch.arange(1020) // 10  # Oxford Flowers
    chosen = plain_draw(labels, 0.01, seed=3)
    assert len(chosen) == 10
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    found = [len(labels[plain_draw(labels, 0.01, seed)].unique()) for seed in range(200)]
    assert min(found) < 10, "some draw has two of a class"
    assert plain_draw(labels, 1.0).tolist() == list(range(1020))
    assert len(plain_draw(labels[:3], 0.01)) == 1


@pytest.mark.parametrize("draw", [stratified_draw, plain_draw])
def test_draws_follow_their_seed_and_are_uniform(draw):
    labels = torch.arange(40) % 2
    assert draw(labels, 0.1, 1).tolist() == draw(labels, 0.1, 1).tolist()
    hits = torch.zeros(40)
    for seed in range(2000):
        hits[draw(labels, 0.1, seed)] += 1
    expected = 2000 * 0.1
    assert ((hits - expected).abs() < 5 * (expected * 0.9) ** 0.5).all()


def test_all_labels_and_labels_with_gaps():
    labels = torch.tensor([7, 7, 3, 9])
    assert stratified_draw(labels, 1.0).tolist() == [0, 1, 2, 3]
    assert sorted(labels[stratified_draw(labels, 0.01)].tolist()) == [3, 7, 9]


@pytest.mark.parametrize("draw", [stratified_draw, plain_draw])
@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.5, 10])
def test_fractions_outside_are_named(fraction, draw):
    with pytest.raises(ValueError, match=r"1 % is 0\.01"):
        draw(torch.zeros(3), fraction)
    with pytest.raises(ValueError, match="labels of shape"):
        draw(torch.zeros(0), 0.5)


def test_mean_and_deviation_over_draws():
    assert mean_std([1.0, 3.0]) == (2.0, pytest.approx(2**0.5))
    assert mean_std([4.0]) == (4.0, None)
    with pytest.raises(ValueError, match="at least one"):
        mean_std([])
