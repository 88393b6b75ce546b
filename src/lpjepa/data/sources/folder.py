"""``folder``: any folder of images, labelled by its subfolders or not labelled at all."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from lpjepa.data.decoding import FileReader
from lpjepa.data.errors import DataError, MissingData
from lpjepa.data.image_set import ImageSet, Storage
from lpjepa.data.order import holdout
from lpjepa.data.sources._common import SPLIT_NAMES, no_split, subset_set

_SUFFIXES = "jpg jpeg jfif png webp bmp gif tif tiff ppm pgm pbm pnm tga jp2 avif"
EXTENSIONS = frozenset("." + suffix for suffix in _SUFFIXES.split())


def is_image(name: str) -> bool:
    """By extension; hidden files (such as the ``._x.jpg`` that macOS leaves) are none."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in EXTENSIONS


def find_images(folder: str | Path) -> Iterator[str]:
    """Paths of all images below ``folder``, sorted; symbolic links are followed, cycles are not."""
    yield from _walk(str(folder), frozenset())


def _walk(folder: str, above: frozenset[str]) -> Iterator[str]:
    real = os.path.realpath(folder)
    if real in above:
        return
    # Sorting names, not paths: one sort per folder, and the same order on every file system.
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir():
            if not entry.name.startswith(".") and entry.name != "__MACOSX":
                yield from _walk(entry.path, above | {real})
        elif is_image(entry.name):
            yield entry.path


def load_folder(
    root: Path,
    split: str,
    storage: Storage,
    labelled: bool | None = None,
    val_fraction: float = 0.1,
    seed: int = 0,
    classes: Sequence[str] | None = None,
) -> ImageSet:
    """Images below ``root``.

    ``root/train`` and ``root/val`` (``valid``, ``validation``, ``test``) are the splits where they exist;
    otherwise ``val_fraction`` of the training images is held out, seeded and stratified.

    Args:
        labelled: whether subfolders are classes; None decides: they are if there are two or more with
            images, and no image lies beside them.
        classes: use only these subfolders, in this order.
    """
    root = Path(root)
    if not root.is_dir():
        wrong = f"{root} is a file, not a folder" if root.exists() else f"there is no folder {root}"
        raise MissingData(
            f"{wrong}; name the folder that holds your images (--data.root PATH, or folder=PATH)"
        )
    own = next((root / name for name in SPLIT_NAMES[split] if (root / name).is_dir()), None)
    train = next((root / name for name in SPLIT_NAMES["train"] if (root / name).is_dir()), None)
    if train is not None and split != "train" and own is not None:
        known = list(classes) if classes is not None else _class_folders(train, labelled)
        return _scan(own, known, root.name, storage)
    base = train or root
    known = list(classes) if classes is not None else _class_folders(base, labelled)
    has_val = train is not None and any((root / name).is_dir() for name in SPLIT_NAMES["val"])
    if has_val or (val_fraction <= 0 and split == "train"):
        return _scan(base, known, root.name, storage)
    if val_fraction <= 0:
        raise no_split(f"the folder {root}", split, f"add {root / 'val'} or set val_fraction above 0")
    return _scan(base, known, root.name, storage, (val_fraction, seed, split))


def _class_folders(folder: Path, labelled: bool | None) -> list[str] | None:
    """Names of the class folders, sorted, or None for an unlabelled set."""
    if labelled is False:
        return None
    entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    loose = [entry.name for entry in entries if entry.is_file() and is_image(entry.name)]
    folders = [e for e in entries if e.is_dir() and not e.name.startswith(".") and e.name != "__MACOSX"]
    if labelled is None and len(folders) < 2:
        return None
    names = [entry.name for entry in folders if next(find_images(entry.path), None) is not None]
    if labelled is None and len(names) < 2:
        return None
    if labelled is None and loose:
        _say_unlabelled(folder, len(names), loose[0] + (f" and {len(loose) - 1} more" if loose[1:] else ""))
        return None
    if not names:
        raise DataError(f"{folder} has no subfolders with images to take labels from; set labelled=False.")
    return names


@cache  # once a process: every split of a set asks for its classes
def _say_unlabelled(folder: Path, count: int, loose: str) -> None:
    warnings.warn(
        f"{folder} has {count} folders of images, but {loose} beside them, so that no image has a label; "
        "--data.options.labelled true takes the folders as classes and leaves out what is beside them "
        "(false: no labels, without this line).",
        stacklevel=3,
    )


def _scan(
    folder: Path,
    classes: list[str] | None,
    name: str,
    storage: Storage,
    split: tuple[float, int, str] | None = None,
) -> ImageSet:
    labels: Tensor | None = None
    if classes is None:
        paths = list(find_images(folder))
    else:
        _check_classes(folder, classes)
        paths, numbers = [], []
        for number, label in enumerate(classes):
            found = list(find_images(folder / label)) if (folder / label).is_dir() else []
            paths += found
            numbers += [number] * len(found)
        labels = torch.tensor(numbers, dtype=torch.int64)
    if not paths:
        raise DataError(f"there are no images ({_SUFFIXES.replace(' ', ', ')}) in {folder}.")
    indices = None
    if split is not None:
        fraction, seed, part = split
        if len(paths) < 2:
            raise DataError(f"{folder} has a single image, too few to hold one out; set val_fraction=0.")
        train, val = holdout(len(paths), labels, fraction, seed)
        indices = train if part == "train" else val
        if len(indices) == 0:
            raise no_split(f"the folder {folder}", part, "every class has a single image; set val_fraction=0")
    return subset_set(FileReader(tuple(paths)), labels, classes, name, storage, indices)


def _check_classes(folder: Path, classes: list[str]) -> None:
    present = [c for c in classes if (folder / c).is_dir()]
    if not present:
        raise DataError(
            f"{folder} has none of the {len(classes)} class subfolders ({', '.join(classes[:3])}, ...); "
            "its images must be sorted into one subfolder per class."
        )
