"""What the folders of a set of images say: which part an image belongs to, and which class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lpjepa.data import DataError
from lpjepa.data.sources._common import SPLIT_NAMES

PARTS = {name for names in SPLIT_NAMES.values() for name in names}


class Arrangement(NamedTuple):
    """The images that are asked for, by their places among all, with labels if their folders are classes."""

    places: list[int]
    labels: np.ndarray | None
    classes: list[str] | None


def arrange(names: Sequence[str], split: str | None, where: str) -> Arrangement:
    """Parts and classes of images by the folders in `names`, which start inside the set called `where`.

    A set that holds `train` and no folders but `train`, `val`, `test` and the like is in parts: the folders
    inside these are its classes, numbered alike in all parts. `split` takes one part; None takes every image.
    """
    if not names:
        return Arrangement([], None, None)
    parts = [_head(name) for name in names]
    places = list(range(len(names)))
    wanted = None if split is None else _part(set(parts), split, where)
    if wanted is not None:  # whatever lies beside the parts belongs to none of them
        places = [place for place in places if parts[place] in PARTS]
    inside = [names[place] for place in places]
    if wanted is not None or _in_parts(set(parts)):
        inside = [name.split("/", 1)[1] for name in inside]
    labels, classes = folder_labels(inside)
    if wanted is not None:
        kept = [parts[place] == wanted for place in places]
        places = [place for place, keep in zip(places, kept) if keep]
        labels = None if labels is None else labels[np.array(kept)]
    return Arrangement(places, labels, classes)


def folder_labels(names: Sequence[str]) -> tuple[np.ndarray | None, list[str] | None]:
    """Labels and classes by the first folder of each path; None for fewer than two, or images beside."""
    heads = [_head(name) for name in names]
    classes = sorted(set(heads))
    if len(classes) < 2 or classes[0] == "":
        return None, None
    numbers = {name: number for number, name in enumerate(classes)}
    return np.array([numbers[head] for head in heads], np.int64), classes


def _head(name: str) -> str:
    return name.split("/", 1)[0] if "/" in name else ""


def _in_parts(heads: set[str]) -> bool:
    return heads <= PARTS and any(name in heads for name in SPLIT_NAMES["train"])


def _part(heads: set[str], split: str, where: str) -> str:
    """The folder of one part; parts are parts only beside a `train`, as for the source `folder`."""
    has_train = any(name in heads for name in SPLIT_NAMES["train"])
    found = next((name for name in SPLIT_NAMES[split] if name in heads), None)
    if not has_train or found is None:
        missing = split if has_train else "train"
        raise DataError(
            f"--split {split}: {where} has no folder {missing!r} inside; leave --split out to take every "
            "image, or name the set as folder=PATH to hold a part of it out."
        )
    return found
