"""A set of images under one interface, whether it lies in memory or is decoded when asked for.

``ImageSet`` keeps all pixels as one uint8 tensor (N, 3, H, W): batches are an ``index_select`` on the device
that trains. ``StreamedImageSet`` (``streamed.py``) decodes on demand. Both give ``read(indices)``, and the
order of an epoch as a pure function of (seed, epoch, rank, world).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lpjepa.data.broken import BrokenImages
from lpjepa.data.decoding import Keep
from lpjepa.data.errors import DataError
from lpjepa.data.memory import available_bytes, parse_bytes
from lpjepa.data.order import epoch_order


class Batch(NamedTuple):
    """Some images of a set.

    Attributes:
        images: uint8 (N, 3, H, W).
        labels: int64 (N,), or None for an unlabelled set.
        indices: int64 (N,), where in the set they stand.
        sizes: int64 (N, 2), true (height, width) of images squeezed into their frame, else None.
    """

    images: Tensor
    labels: Tensor | None
    indices: Tensor
    sizes: Tensor | None = None

    def to(self, device: torch.device | str) -> Batch:
        labels, sizes = (
            x if x is None else x.to(device, non_blocking=True) for x in (self.labels, self.sizes)
        )
        images, indices = (x.to(device, non_blocking=True) for x in (self.images, self.indices))
        return Batch(images, labels, indices, sizes)


@dataclass(frozen=True)
class Storage:
    """How the images of a set are kept (the options every source takes).

    Attributes:
        max_memory: bytes, or a string such as "8GB"; None is half of what is available, divided among the
            processes that torchrun started on this machine.
        store_size: side of the square into which images of different sizes are brought; see ``common_frame``.
        keep: "centre" or "whole" (training images only); see ``lpjepa.data.decoding``.
        resident: True demands a set in memory, False streams it, None decides by ``max_memory``.
        max_broken: largest tolerated share of unreadable images.
        workers: threads that decode a resident set at the start; None is one per core.
    """

    max_memory: int | float | str | None = None
    store_size: int | None = None
    keep: Keep = "centre"
    resident: bool | None = None
    max_broken: float = 0.01
    workers: int | None = None

    @property
    def cap(self) -> int:
        if self.max_memory is not None:
            return parse_bytes(self.max_memory)
        # torchrun's processes each keep the images, and see the same memory before any of them has.
        return available_bytes() // 2 // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


class ImageSet:
    """Images in memory, with or without labels.

    Args:
        images: uint8 (N, 3, H, W).
        labels: int64 (N,) or None.
        classes: their names, or None.
        name: the source's name.
        paths: where each image came from, or None.
        sizes: int64 (N, 2), see ``Batch``.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor | None = None,
        classes: Sequence[str] | None = None,
        name: str = "images",
        paths: Sequence[str] | None = None,
        sizes: Tensor | None = None,
    ) -> None:
        if images.ndim != 4 or images.shape[1] != 3 or images.dtype != torch.uint8:
            raise DataError(
                f"{name}: images must be uint8 (N, 3, H, W), not {images.dtype} {tuple(images.shape)}."
            )
        self.images: Tensor | None = images
        self._describe(name, images.shape[0], labels, classes, paths)
        self.shape = (int(images.shape[2]), int(images.shape[3]))
        self.sizes = sizes
        self.broken = BrokenImages(len(self))

    def _describe(
        self,
        name: str,
        count: int,
        labels: Tensor | None,
        classes: Sequence[str] | None,
        paths: Sequence[str] | None,
    ) -> None:
        if count == 0:
            raise DataError(f"{name} has no images.")
        if labels is not None and tuple(labels.shape) != (count,):
            raise DataError(f"{name} has {count} images but labels of shape {tuple(labels.shape)}.")
        self.name, self._count = name, count
        self.labels = None if labels is None else labels.to(torch.int64)
        self.classes = None if classes is None else list(classes)
        self.paths = paths

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        labels = "no labels" if self.labels is None else f"{self.num_classes} classes"
        kind = "in memory" if self.images is not None else "streamed"
        return (
            f"{self.name}: {len(self)} images of {self.shape[0]} x {self.shape[1]} pixels, {labels}, {kind}"
        )

    @property
    def size(self) -> int:
        """The short side of the stored images, in pixels."""
        return min(self.shape)

    @property
    def num_classes(self) -> int:
        """Number of classes (0 without labels)."""
        if self.labels is None:
            return 0
        return len(self.classes) if self.classes is not None else int(self.labels.max()) + 1

    @property
    def nbytes(self) -> int:
        return len(self) * 3 * self.shape[0] * self.shape[1]

    def to(self, device: torch.device | str) -> ImageSet:
        """This set with its pixels and labels on ``device`` (itself where they already are, or streamed)."""
        device = torch.device(device)
        if self.images is None or device in (self.images.device, torch.device(self.images.device.type)):
            return self
        moved = object.__new__(type(self))
        moved.__dict__.update(self.__dict__)
        moved.images = self.images.to(device)
        moved.labels = None if self.labels is None else self.labels.to(device)
        moved.sizes = None if self.sizes is None else self.sizes.to(device)
        return moved

    def read(self, indices: Tensor) -> Batch:
        """The images at ``indices`` that can be read (all, for a set in memory)."""
        assert self.images is not None
        indices = indices.to(self.images.device)
        take = lambda x: None if x is None else x.index_select(0, indices)
        return Batch(self.images.index_select(0, indices), take(self.labels), indices, take(self.sizes))

    def readable(self) -> Tensor:
        """Indices of the images that were not found broken so far (all, for a set in memory)."""
        return torch.arange(len(self))

    def decode(self, indices: Tensor) -> Tensor:
        """uint8 (len(indices), 3, H, W); a ``DataError`` if one of them is broken."""
        batch = self.read(indices)
        if len(batch.indices) < len(indices):
            missing = sorted(set(indices.tolist()) - set(batch.indices.tolist()))
            raise DataError(f"{self.name}: images {missing} cannot be read: {', '.join(self.broken.paths)}.")
        return batch.images

    def order(self, seed: int, epoch: int, batch_size: int, rank: int, world: int) -> Tensor:
        """Indices of one epoch, (steps, batch_size / world); see ``lpjepa.data.order``."""
        return epoch_order(len(self), seed, epoch, batch_size, rank, world)
