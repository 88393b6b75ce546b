"""``fashion-mnist`` (and any set in the same form): idx files, plain or gzipped."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

from lpjepa.data.errors import DataError, MissingData
from lpjepa.data.image_set import ImageSet, Storage
from lpjepa.data.sources._common import array_set

CLASSES = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
]
_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(path: Path) -> np.ndarray:
    """One array in LeCun's idx format: two zero bytes, type, number of axes, their lengths, the values."""
    data = path.read_bytes()
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        zero, kind, axes = struct.unpack_from(">HBB", data)
        shape = struct.unpack_from(f">{axes}I", data, 4)
        values = np.frombuffer(data, _TYPES[kind], offset=4 + 4 * axes)
        if zero != 0:
            raise ValueError("it does not begin with two zero bytes")
        return values.reshape(shape)
    except (struct.error, KeyError, ValueError, EOFError, OSError) as error:
        raise DataError(f"{path} is not a complete idx file ({error}).") from None


def load_fashion_mnist(root: Path, split: str, storage: Storage) -> ImageSet:
    """Fashion-MNIST from the four idx files (``.gz`` or not) in ``root``; split "val" is the test set."""
    prefix = "train" if split == "train" else "t10k"
    arrays = []
    for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        for folder in (root, root / "FashionMNIST" / "raw", root / "fashion-mnist"):
            path = next(
                (p for p in (folder / f"{prefix}-{kind}", folder / f"{prefix}-{kind}.gz") if p.is_file()),
                None,
            )
            if path is not None:
                arrays.append(read_idx(path))
                break
        else:
            raise MissingData(
                f"{prefix}-{kind} is not in {root}",
                "https://github.com/zalandoresearch/fashion-mnist (or Debian's dataset-fashion-mnist)",
                f"{root} (.gz or unpacked)",
            )
    return array_set(arrays[0], arrays[1], CLASSES, "fashion-mnist", storage)
