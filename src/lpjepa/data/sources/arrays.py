"""``npz``: arrays in one NumPy file."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch

from lpjepa.data.errors import DataError, MissingData
from lpjepa.data.image_set import ImageSet, Storage
from lpjepa.data.order import holdout
from lpjepa.data.sources._common import array_set, no_split

_HELD_OUT = ("x_test", "x_val")
_MOST_CLASSES = 1_000_000  # labels beyond are not numbers of classes


def load_npz(root: Path, split: str, storage: Storage, val_fraction: float = 0.1, seed: int = 0) -> ImageSet:
    """Images and labels from ``root``, a ``.npz`` file.

    Its arrays are ``x_train, y_train, x_test, y_test`` (or ``x_val, y_val``), or ``images`` and ``labels``,
    from which ``val_fraction`` is held out; labels may be absent, names may stand in ``classes``.
    Pickled objects are refused.
    """
    path = root
    if not path.is_file():
        raise MissingData(
            f"there is no array file {path}; name as root (--data.root) one that "
            "numpy.savez(FILE, x_train=..., y_train=..., x_test=..., y_test=...) has written"
        )
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            names = set(stored.files)
            wanted = _names(names, split, path)
            classes = [str(c) for c in stored["classes"]] if "classes" in names else None
            if wanted is not None:
                x, y = wanted
                if len(stored[x]) == 0:
                    raise DataError(
                        f"{path}: its array {x} is empty; fill it, or write one array of images, of which "
                        "a part is held out."
                    )
                known = _checked(stored[y], y, path) if y in names else None
                return array_set(stored[x], known, classes, path.stem, storage)
            images = stored["images"]
            labels = None
            if "labels" in names:
                labels = torch.as_tensor(_checked(stored["labels"], "labels", path))
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read as NumPy arrays ({error}).") from None
    if len(images) == 0:
        raise DataError(f"{path}: its array images is empty; fill it.")
    if val_fraction <= 0:
        if split != "train":
            raise no_split(str(path), split, "add x_test and y_test, or set val_fraction above 0")
        return array_set(images, labels, classes, path.stem, storage)
    train, val = holdout(len(images), labels, val_fraction, seed)
    chosen = train if split == "train" else val
    chosen_labels = None if labels is None else labels[chosen]
    return array_set(images[chosen.numpy()], chosen_labels, classes, path.stem, storage)


def _checked(labels: np.ndarray, name: str, path: Path) -> np.ndarray:
    """Labels as whole numbers, which count classes from 0."""
    numeric = labels.dtype.kind in "iufb"
    whole = labels.astype(np.int64) if numeric else labels
    if not numeric or not np.array_equal(whole, labels):
        raise DataError(
            f"{path}: its array {name} must hold whole numbers, not {labels.dtype} such as "
            f"{labels.flat[0]}; number the classes from 0 and put their names into an array classes."
        )
    if whole.size and not 0 <= whole.min() <= whole.max() < _MOST_CLASSES:
        raise DataError(
            f"{path}: its array {name} has labels from {whole.min()} to {whole.max()}; number the classes "
            "from 0 (where some images have no label, leave them out, or the array)."
        )
    return whole


def _names(names: set[str], split: str, path: Path) -> tuple[str, str] | None:
    """The arrays of a split, or None where one array must be split."""
    if "x_train" in names:
        for x in ("x_train",) if split == "train" else _HELD_OUT:
            if x in names:
                return x, x.replace("x_", "y_")
        raise no_split(str(path), split, "add x_test and y_test")
    if "images" in names:
        return None
    raise DataError(
        f"{path} must hold x_train (with y_train, x_test, y_test) or images (with labels), "
        f"not {sorted(names)}."
    )
