"""Images that do not fit in memory: decoded on demand, behind a cache that worker processes share."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from lpjepa.data.broken import BrokenImages
from lpjepa.data.decoding import Frame, Reader, common_frame, quiet_pillow, read_frame
from lpjepa.data.errors import BrokenImage, DataError
from lpjepa.data.image_set import Batch, ImageSet, Storage
from lpjepa.data.memory import human


class StreamedImageSet(ImageSet):
    """Images that are decoded when asked for, behind a cache shared by worker processes.

    The cache holds the first ``cache_bytes / bytes per image`` images of the set: with every epoch touching
    every image once in random order, any fixed choice is hit equally often, and a fixed one needs no locks.

    Args:
        reader: where the encoded images come from.
        frame: the size they are decoded to.
        cache_bytes: memory for decoded images.
    """

    def __init__(
        self,
        reader: Reader,
        frame: Frame,
        labels: Tensor | None = None,
        classes: Sequence[str] | None = None,
        name: str = "images",
        cache_bytes: int = 0,
        max_broken: float = 0.01,
    ) -> None:
        self.images = None
        self.sizes = None
        self._describe(name, len(reader), labels, classes, getattr(reader, "paths", None))
        self.shape = (frame.height, frame.width)
        self.reader, self.frame = reader, frame
        self.broken = BrokenImages(len(self), max_broken)
        self.cached = min(cache_bytes // frame.bytes, len(self))
        # Anonymous shared pages: workers inherit them, untouched ones cost nothing, and they do not count
        # against /dev/shm, which containers often limit to 64 MB.
        self._pixels = _shared(self.cached * frame.bytes).view(self.cached, 3, *self.shape)
        self._extent = _shared(self.cached * 8).view(torch.int32).view(self.cached, 2)  # 0: not yet decoded

    def order(self, seed: int, epoch: int, batch_size: int, rank: int, world: int) -> Tensor:
        # Shards know an order that reads them from front to back.
        own = getattr(self.reader, "order", super().order)
        order: Tensor = own(seed, epoch, batch_size, rank, world)
        return order

    def read(self, indices: Tensor, replace: bool = False) -> Batch:
        """The images at ``indices``; broken ones are left out, or replaced by the next readable one.

        Broken images are counted in ``self.broken`` of this process.
        """
        batch, broken = self.read_quietly(indices, replace)
        for path, reason in broken:
            self.broken.add(path, reason)
        return batch

    def readable(self) -> Tensor:
        broken = self.broken.reasons
        places = [i for i in range(len(self)) if self.reader.path(i) not in broken] if broken else None
        return super().readable() if places is None else torch.tensor(places, dtype=torch.int64)

    def read_quietly(self, indices: Tensor, replace: bool) -> tuple[Batch, list[tuple[str, str]]]:
        """``read`` for worker processes: the broken images are returned for the main process to count."""
        images: list[Tensor] = []
        found: list[int] = []
        sizes: list[tuple[int, int]] = []
        broken: list[tuple[str, str]] = []
        for index in indices.tolist():
            # Which image stands in for a broken one depends on nothing but the set, so that a resumed run
            # sees the same; past the limit there is no point in searching on, the run will stop.
            for candidate in range(index, index + self.broken.limit + 2 if replace else index + 1):
                try:
                    pixels, size = self._one(candidate % len(self))
                except BrokenImage as error:
                    broken.append((error.path, error.reason))
                    continue
                images.append(pixels)
                found.append(candidate % len(self))
                sizes.append(size)
                break
        where = torch.tensor(found, dtype=torch.int64)
        pixels_NCHW = torch.stack(images) if images else torch.empty(0, 3, *self.shape, dtype=torch.uint8)
        true_sizes = (
            torch.tensor(sizes, dtype=torch.int64).view(-1, 2) if self.frame.keep == "whole" else None
        )
        labels = None if self.labels is None else self.labels[where]
        return Batch(pixels_NCHW, labels, where, true_sizes), broken

    def _one(self, index: int) -> tuple[Tensor, tuple[int, int]]:
        if index < self.cached:
            height, width = self._extent[index].tolist()
            if height and width:
                return self._pixels[index], (height, width)
        with quiet_pillow():
            array, size = read_frame(self.reader, index, self.frame)
        pixels = torch.from_numpy(array)
        if index < self.cached:
            self._pixels[index] = pixels
            self._extent[index] = torch.tensor(size, dtype=torch.int32)  # last: marks the pixels as there
        return pixels, size


def build_image_set(
    reader: Reader,
    labels: Tensor | None,
    classes: Sequence[str] | None,
    name: str,
    storage: Storage,
) -> ImageSet:
    """An image set from encoded images: in memory if it fits the cap, streamed otherwise."""
    if len(reader) == 0:
        raise DataError(f"{name} has no images.")
    frame = common_frame(reader, storage.store_size, storage.keep)
    needed, cap = len(reader) * frame.bytes, storage.cap
    if storage.resident and needed > cap:
        raise DataError(
            f"{name} needs {human(needed)} in memory ({len(reader)} images of {frame.height} x {frame.width})"
            f" but max_memory allows {human(cap)}; stream it (resident=False) or lower store_size."
        )
    if storage.resident is False or needed > cap:
        return StreamedImageSet(reader, frame, labels, classes, name, cap, storage.max_broken)
    return _load_all(reader, frame, labels, classes, name, storage)


def _load_all(
    reader: Reader,
    frame: Frame,
    labels: Tensor | None,
    classes: Sequence[str] | None,
    name: str,
    storage: Storage,
) -> ImageSet:
    """Decode every image now, with threads (Pillow decodes outside the interpreter lock)."""
    count = len(reader)
    pixels = np.empty((count, 3, frame.height, frame.width), np.uint8)
    sizes = np.empty((count, 2), np.int64)
    broken = BrokenImages(count, storage.max_broken)

    def load(index: int) -> BrokenImage | None:
        try:
            pixels[index], sizes[index] = read_frame(reader, index, frame)
        except BrokenImage as error:
            return error
        return None

    good = []
    with quiet_pillow(), ThreadPoolExecutor(storage.workers or os.cpu_count() or 1) as pool:
        try:
            for index, error in enumerate(pool.map(load, range(count))):
                if error is None:
                    good.append(index)
                else:
                    broken.add(error.path, error.reason)
        except DataError:
            pool.shutdown(cancel_futures=True)
            raise
    if len(good) < count:
        pixels, sizes = pixels[good], sizes[good]
        labels = None if labels is None else labels[good]
    images = ImageSet(
        torch.from_numpy(pixels),
        labels,
        classes,
        name,
        [reader.path(i) for i in good],
        torch.from_numpy(sizes) if frame.keep == "whole" else None,
    )
    images.broken = broken
    return images


def _shared(count: int) -> Tensor:
    """``count`` zero bytes shared with child processes."""
    if count == 0:
        return torch.zeros(0, dtype=torch.uint8)
    return torch.frombuffer(mmap.mmap(-1, count), dtype=torch.uint8)
