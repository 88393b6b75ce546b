"""What the sources share: arrays brought to uint8 (N, 3, H, W), held-out splits, where data lies."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lpjepa.data.decoding import Reader
from lpjepa.data.errors import DataError, MissingSplit
from lpjepa.data.image_set import ImageSet, Storage
from lpjepa.data.memory import human
from lpjepa.data.streamed import build_image_set

# Which part of a set answers to a split's name, in order of preference.
SPLIT_NAMES = {
    "train": ("train", "training", "trainval"),
    "val": ("val", "valid", "validation", "test"),
    "test": ("test", "val", "valid", "validation"),
}


def data_root(root: str | Path | None) -> Path:
    """``root``, or the folder in the environment variable LPJEPA_DATA, or ``data`` here."""
    return Path(root if root is not None else os.environ.get("LPJEPA_DATA", "data")).expanduser()


def pixels_to_tensor(images: np.ndarray, name: str) -> Tensor:
    """uint8 (N, 3, H, W) from grey (N, H, W), (N, H, W, C) or (N, C, H, W) with C of 1, 3 or 4 channels.

    Floating-point pixels must lie in [0, 1]. A fourth channel (alpha) is dropped.
    """
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4:
        raise DataError(
            f"{name}: images must be (N, H, W), (N, H, W, C) or (N, C, H, W), not {images.shape}."
        )
    channels = (1, 3, 4)
    _, first, second, last = images.shape
    if last in channels and (first not in channels or second > last):
        images = images.transpose(0, 3, 1, 2)
    if images.shape[1] not in channels:
        raise DataError(f"{name}: images of shape {images.shape} have neither 1, 3 nor 4 channels.")
    if np.issubdtype(images.dtype, np.floating):
        low, high = (float(images.min()), float(images.max())) if images.size else (0.0, 0.0)
        if not (low >= 0 and high <= 1):
            raise DataError(f"{name}: float images must lie in [0, 1], not [{low:g}, {high:g}]; scale them.")
        images = (images * 255).round().astype(np.uint8)
    elif images.dtype != np.uint8:
        raise DataError(f"{name}: images must be uint8 or floats in [0, 1], not {images.dtype}.")
    images = images[:, :3] if images.shape[1] == 4 else images
    if images.shape[1] == 1:
        images = np.broadcast_to(images, (images.shape[0], 3, *images.shape[2:]))
    return torch.from_numpy(np.array(images, order="C"))


def array_set(
    images: np.ndarray,
    labels: np.ndarray | Tensor | Sequence[int] | None,
    classes: Sequence[str] | None,
    name: str,
    storage: Storage,
) -> ImageSet:
    """An image set in memory from arrays, which must fit the cap."""
    grey = images.ndim == 3 or 1 in (images.shape[1], images.shape[-1])
    needed, cap = images.size * (3 if grey else 1), storage.cap
    if needed > cap:
        raise DataError(
            f"{name} needs {human(needed)} in memory but max_memory allows {human(cap)}; raise it."
        )
    tensor = None if labels is None else torch.from_numpy(np.asarray(labels).astype(np.int64).reshape(-1))
    return ImageSet(pixels_to_tensor(images, name), tensor, classes, name)


@dataclass(frozen=True)
class Subset:
    """Some images of a reader."""

    reader: Reader
    indices: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.indices)

    def path(self, index: int) -> str:
        return self.reader.path(self.indices[index])

    def open(self, index: int) -> object:
        return self.reader.open(self.indices[index])


def subset_set(
    reader: Reader,
    labels: Tensor | None,
    classes: Sequence[str] | None,
    name: str,
    storage: Storage,
    indices: Tensor | None = None,
) -> ImageSet:
    """An image set from (some images of) a reader."""
    if indices is not None:
        reader = Subset(reader, tuple(indices.tolist()))  # type: ignore[assignment]
        labels = None if labels is None else labels[indices]
    return build_image_set(reader, labels, classes, name, storage)


def no_split(name: str, split: str, remedy: str) -> MissingSplit:
    return MissingSplit(f"{name} has no {split} images; {remedy}.")


@contextmanager
def no_empty_folder(root: Path) -> Iterator[None]:
    """A download that fails takes the empty folders that it made with it."""
    new = [folder for folder in (root, *root.parents) if not folder.exists()]
    try:
        yield
    except BaseException:
        below = [Path(folder) for folder, _, _ in os.walk(root, topdown=False)][:-1] if new else []
        for folder in (*below, *new):
            with suppress(OSError):  # it is not empty, or has gone
                folder.rmdir()
        raise


def read_lines(path: Path) -> list[str]:
    """The first word of every line that is neither empty nor a comment."""
    lines = (line.split("#")[0].split() for line in path.read_text().splitlines())
    return [words[0] for words in lines if words]
