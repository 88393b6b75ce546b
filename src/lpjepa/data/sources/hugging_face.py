"""``hf:NAME``: an image set of the Hugging Face hub, through the ``datasets`` library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from lpjepa.data.errors import DataError, MissingData
from lpjepa.data.image_set import ImageSet, Storage
from lpjepa.data.order import holdout
from lpjepa.data.sources._common import SPLIT_NAMES, no_split, subset_set


def load_hugging_face(
    name: str,
    root: Path | None,
    split: str,
    storage: Storage,
    config: str | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    val_fraction: float = 0.1,
    seed: int = 0,
) -> ImageSet:
    """Set ``name`` (``owner/name``) of the hub, kept in ``root`` or the library's own cache.

    Args:
        config: the set's configuration, where it has several.
        image_column, label_column: their names; otherwise the first column of images, and the first of
            classes (or the column ``label``).
        val_fraction: share held out where the set has only training images.
    """
    try:
        import datasets
    except ImportError:
        raise DataError(
            f"hf:{name} needs the datasets library, not installed: pip install datasets."
        ) from None
    title = f"hf:{name}"
    try:
        parts = datasets.load_dataset(name, config, cache_dir=None if root is None else str(root))
    except Exception as error:  # the library raises many types: no network, no such set, config missing
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MissingData(
            f"{title} could not be loaded ({reason})",
            f"https://huggingface.co/datasets/{name}",
            f"{root or 'the cache of the datasets library'} by loading it once with a network",
        ) from None
    own = next((part for part in SPLIT_NAMES[split] if part in parts), None)
    held_out = next((part for part in SPLIT_NAMES["val"] if part in parts), None)
    train = next((part for part in SPLIT_NAMES["train"] if part in parts), None)
    chosen = own or train
    if chosen is None:
        raise DataError(f"{title} has the splits {', '.join(parts)}, none of which can serve as {split}.")
    rows = parts[chosen]
    image_column = image_column or _first(rows, "Image", ("image", "img"))
    label_column = label_column or _first(rows, "ClassLabel", ("label", "labels", "fine_label"))
    if image_column is None or image_column not in rows.features:
        columns = ", ".join(rows.features)
        raise DataError(f"{title} has the columns {columns}; name the one with images (image_column).")
    labels: Tensor | None = None
    classes = None
    if label_column is not None:
        if label_column not in rows.features:
            columns = ", ".join(rows.features)
            raise DataError(f"{title} has the columns {columns}, but no {label_column} (label_column).")
        labels, classes = _labels(rows[label_column], rows.features[label_column])
    indices = None
    if held_out is None and val_fraction > 0:
        parts_of = holdout(len(rows), labels, val_fraction, seed)
        indices = parts_of[0] if split == "train" else parts_of[1]
    elif own is None:
        raise no_split(title, split, "set val_fraction above 0 to hold some out")
    return subset_set(_RowReader(rows, image_column, title), labels, classes, title, storage, indices)


@dataclass(frozen=True)
class _RowReader:
    rows: Any
    column: str
    title: str

    def __len__(self) -> int:
        return len(self.rows)

    def path(self, index: int) -> str:
        return f"{self.title}[{index}]"

    def open(self, index: int) -> Image.Image:
        image: Image.Image = self.rows[index][self.column]
        return image


def _labels(values: Any, feature: Any) -> tuple[Tensor | None, list[str] | None]:
    """Class numbers and names: words are numbered in their order; None where a label is missing."""
    classes = getattr(feature, "names", None)
    if any(value is None for value in values):
        return None, None
    if all(isinstance(value, str) for value in values):
        classes = sorted(set(values))
        number = {name: i for i, name in enumerate(classes)}
        values = [number[value] for value in values]
    labels = torch.tensor([int(value) for value in values], dtype=torch.int64)
    return (None if bool((labels < 0).any()) else labels), classes


def _first(rows: Any, kind: str, names: tuple[str, ...]) -> str | None:
    """The first column whose feature is of class ``kind``, or that has one of ``names``."""
    for column, feature in rows.features.items():
        if type(feature).__name__ == kind:
            return str(column)
    return next((name for name in names if name in rows.features), None)
