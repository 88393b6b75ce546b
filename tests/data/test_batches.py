"""Batches of resident and streamed sets: the same samples, resumable, broken images replaced."""

import pytest
import torch

from lpjepa.data import Batches, DataError, ImageSet, in_order, load_source
from lpjepa.data.streamed import StreamedImageSet


@pytest.fixture
def both(image_folder):
    """The same set in memory and streamed."""
    root, _ = image_folder
    return [load_source("folder", root, val_fraction=0, resident=resident) for resident in (True, False)]


def pairs(batches, epoch, start=0):
    return [(batch.images, batch.labels, batch.indices) for batch in batches.epoch(epoch, start)]


def test_streamed_batches_equal_resident_ones(both):
    resident, streamed = (Batches(images, 8, seed=5, workers=0) for images in both)
    assert resident.steps_per_epoch == streamed.steps_per_epoch == 3
    for a, b in zip(pairs(resident, 2), pairs(streamed, 2)):
        assert all(torch.equal(x, y) for x, y in zip(a, b))


def test_worker_processes_change_nothing(both):
    here, workers = (pairs(Batches(both[1], 8, workers=w), 0) for w in (0, 2))
    assert len(here) == len(workers) == 3
    for a, b in zip(here, workers):
        assert all(torch.equal(x, y) for x, y in zip(a, b))


@pytest.mark.parametrize("kind", [0, 1])
def test_resumes_at_any_step(both, kind):
    whole = pairs(Batches(both[kind], 6, workers=0), 1)
    for start in range(5):
        fresh = Batches(both[kind], 6, workers=0)
        rest = pairs(fresh, 1, start)
        assert len(rest) == 5 - start
        assert all(torch.equal(x, y) for a, b in zip(whole[start:], rest) for x, y in zip(a, b))
        assert torch.equal(fresh.batch(1, start).images, whole[start][0])


def test_ranks_share_a_batch(both):
    alone = pairs(Batches(both[0], 6), 0)
    ranks = [pairs(Batches(both[0], 6, rank=r, world=3), 0) for r in range(3)]
    for step, (_, _, indices) in enumerate(alone):
        assert torch.equal(torch.cat([rank[step][2] for rank in ranks]), indices)


def test_the_global_generator_is_left_alone(both):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    pairs(Batches(both[1], 8, workers=1), 0)
    list(in_order(both[1], 7, workers=0))
    assert torch.equal(torch.get_rng_state(), before)


def test_broken_images_are_replaced_by_the_next(image_folder):
    root, _ = image_folder
    (root / "ant" / "04.png").write_bytes(b"broken")
    images = load_source("folder", root, val_fraction=0, resident=False)
    seen = torch.cat([batch.indices for batch in Batches(images, 10, workers=2).epoch(0)])
    assert len(seen) == 30
    assert 4 not in seen
    assert torch.bincount(seen, minlength=30)[5] == 2
    assert [path.endswith("ant/04.png") for path in images.broken.paths] == [True]
    for batch in Batches(images, 10, workers=0).epoch(0):
        assert torch.equal(batch.labels, images.labels[batch.indices])


def test_in_order_leaves_broken_images_out(image_folder):
    root, _ = image_folder
    (root / "ant" / "04.png").write_bytes(b"broken")
    images = load_source("folder", root, val_fraction=0, resident=False)
    batches = list(in_order(images, 8, workers=0))
    assert [len(batch.images) for batch in batches] == [7, 8, 8, 6]
    assert torch.cat([batch.indices for batch in batches]).tolist() == [i for i in range(30) if i != 4]
    part = torch.cat([batch.indices for batch in in_order(images, 3, start=3, stop=9, workers=0)])
    assert part.tolist() == [3, 5, 6, 7, 8]
    with pytest.raises(DataError, match=r"images \[4\] cannot be read"):
        images.decode(torch.tensor([3, 4]))
    assert images.decode(torch.tensor([3, 5])).shape == (2, 3, 12, 12)


def test_in_order_of_a_resident_set(both):
    batches = list(in_order(both[0], 16))
    assert torch.equal(torch.cat([batch.images for batch in batches]), both[0].images)
    assert [len(batch.indices) for batch in batches] == [16, 14]


@pytest.mark.parametrize("keep", ["centre", "whole"])
def test_cache_is_filled_by_workers_and_bounded(image_folder, keep, monkeypatch):
    root, _ = image_folder
    bytes_each = 3 * 12 * 12
    images = load_source(
        "folder", root, val_fraction=0, resident=False, max_memory=20 * bytes_each, keep=keep
    )
    assert isinstance(images, StreamedImageSet)
    assert images.cached == 20
    first = list(in_order(images, 10, workers=2))
    opened = []
    read = type(images.reader).open
    monkeypatch.setattr(type(images.reader), "open", lambda self, i: opened.append(i) or read(self, i))
    second = list(in_order(images, 10, workers=0))
    assert opened == list(range(20, 30))  # the cached ones came from shared memory
    for a, b in zip(first, second):
        assert torch.equal(a.images, b.images)
        assert (a.sizes is None) == (keep == "centre")
        assert a.sizes is None or torch.equal(a.sizes, b.sizes)


def test_image_set_checks_its_input():
    pixels = torch.zeros(4, 3, 5, 5, dtype=torch.uint8)
    assert ImageSet(pixels).decode(torch.tensor([1, 1])).shape == (2, 3, 5, 5)
    for bad in (pixels.float(), pixels[:, :1], pixels[0]):
        with pytest.raises(DataError, match="uint8"):
            ImageSet(bad)
    with pytest.raises(DataError, match="4 images but labels"):
        ImageSet(pixels, torch.zeros(3))
    with pytest.raises(DataError, match="no images"):
        ImageSet(pixels[:0])
