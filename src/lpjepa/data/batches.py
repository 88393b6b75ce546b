"""Batches for training, in an order that is a pure function of (seed, epoch, step, rank, world)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lpjepa.data.image_set import Batch, ImageSet
from lpjepa.data.order import local_batch
from lpjepa.data.streamed import StreamedImageSet

RESIDENT = 2**28  # bytes: sets up to this size go to the device in one copy when they are read in order


class Batches:
    """The batches of a set, epoch by epoch.

        batches = Batches(images, batch_size=256, seed=0, device="cuda")
        for batch in batches.epoch(3, start=17):     # resumes epoch 3 at step 17
            views(batch.images, seed, batch.sizes)

    Each epoch is a new permutation; the incomplete last batch is dropped. A set in memory is moved to
    ``device`` once and indexed there (or stays where it is, if it would take more than half of what is free
    on a GPU); a streamed one is decoded by worker processes ahead of time.

    Args:
        images: the set.
        batch_size: samples per step over all processes together.
        seed: of the order.
        rank, world: this process and the number of processes.
        device: where batches go.
        workers: processes that decode a streamed set; 0 decodes in this one. They change speed only.
        prefetch: batches each worker keeps ready.
    """

    def __init__(
        self,
        images: ImageSet,
        batch_size: int,
        *,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        device: torch.device | str = "cpu",
        workers: int = 4,
        prefetch: int = 4,
    ) -> None:
        self.local_batch_size = local_batch(batch_size, rank, world)
        self.device = torch.device(device)
        self.images = images.to(self.device) if _fits(images, self.device) else images
        self.batch_size, self.seed, self.rank, self.world = batch_size, seed, rank, world
        self.workers, self.prefetch = workers, prefetch
        self._current: tuple[int, Tensor] | None = None
        self.steps_per_epoch = len(self.order(0))

    def order(self, epoch: int) -> Tensor:
        """Indices of this process in ``epoch``, int64 (steps, local batch), on the images' device."""
        if self._current is None or self._current[0] != epoch:
            order = self.images.order(self.seed, epoch, self.batch_size, self.rank, self.world)
            if self.images.images is not None:
                order = order.to(self.images.images.device)
            self._current = (epoch, order)
        return self._current[1]

    def batch(self, epoch: int, step: int) -> Batch:
        """One batch; of a streamed set it is decoded now, in this process."""
        indices = self.order(epoch)[step]
        if isinstance(self.images, StreamedImageSet):
            return self.images.read(indices, replace=True).to(self.device)
        return self.images.read(indices).to(self.device)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of ``epoch`` from step ``start``."""
        order = self.order(epoch)
        if not isinstance(self.images, StreamedImageSet):
            for step in range(start, len(order)):
                yield self.images.read(order[step]).to(self.device)
            return
        for batch, broken in stream(
            self.images, list(order[start:]), self.workers, self.prefetch, True, self.device
        ):
            for path, reason in broken:
                self.images.broken.add(path, reason)
            yield batch.to(self.device)


def _fits(images: ImageSet, device: torch.device) -> bool:
    """Whether a set may move to ``device`` as a whole."""
    return device.type != "cuda" or images.nbytes <= torch.cuda.mem_get_info(device)[0] // 2


def in_order(
    images: ImageSet,
    batch_size: int,
    *,
    device: torch.device | str = "cpu",
    start: int = 0,
    stop: int | None = None,
    workers: int = 4,
    prefetch: int = 4,
) -> Iterator[Batch]:
    """Every readable image of ``images[start:stop]`` once, in order: for evaluation and embedding.

    Broken images of a streamed set are left out (``Batch.indices`` tells which remain), reported and
    counted; the last batch may be smaller. Batches of a set in memory are parts of it: not to be written to.
    """
    device = torch.device(device)
    indices = torch.arange(start, len(images) if stop is None else min(stop, len(images)))
    if not isinstance(images, StreamedImageSet):
        # Small sets travel in one copy. Slices, unlike reads by index, do not wait for the device.
        near = images.to(device) if images.nbytes <= RESIDENT else images
        assert near.images is not None
        for part in indices.split(batch_size):
            if len(part):
                here = slice(int(part[0]), int(part[-1]) + 1)
                labels, sizes = (None if x is None else x[here] for x in (near.labels, near.sizes))
                yield Batch(near.images[here], labels, part, sizes).to(device)
        return
    chunks = [part for part in indices.split(batch_size) if len(part)]
    for batch, broken in stream(images, chunks, workers, prefetch, False, device):
        for path, reason in broken:
            images.broken.add(path, reason)
        if len(batch.indices):
            yield batch.to(device)


class _Chunks(Dataset[tuple[Batch, list[tuple[str, str]]]]):
    """Map-style: item i is the decoded batch of ``chunks[i]``."""

    def __init__(self, images: StreamedImageSet, chunks: list[Tensor], replace: bool) -> None:
        self.images, self.chunks, self.replace = images, chunks, replace

    def __len__(self) -> int:
        return len(self.chunks)

    def __getitem__(self, index: int) -> tuple[Batch, list[tuple[str, str]]]:
        return self.images.read_quietly(self.chunks[index], self.replace)


def stream(
    images: StreamedImageSet,
    chunks: list[Tensor],
    workers: int,
    prefetch: int,
    replace: bool,
    device: torch.device,
) -> Iterator[tuple[Batch, list[tuple[str, str]]]]:
    """Decoded batches of index ``chunks``, in their order, each with the broken images it met."""
    loader = DataLoader(
        _Chunks(images, chunks, replace),
        batch_size=None,
        num_workers=min(workers, len(chunks)),
        prefetch_factor=prefetch if workers and chunks else None,
        pin_memory=device.type == "cuda",
        collate_fn=_as_it_is,
        # The loader draws a seed for its workers; they use none, and the global generator stays untouched.
        generator=torch.Generator(),
    )
    with warnings.catch_warnings():
        # Python 3.12+ warns of forking beside threads; the workers only decode, with threads of their own.
        warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
        # More workers than cores is the user's choice (decoding may wait for a network).
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        iterator = iter(loader)
    yield from iterator


def _as_it_is(item: Any) -> Any:
    return item
