"""``torchvision:NAME``: any classification set of torchvision.datasets (STL10, DTD, Flowers102, ...).

The sets agree neither on how a split is named (``train=True``, ``split="trainval"``, none at all) nor on
where labels are kept; this file holds those differences.
"""

from __future__ import annotations

import difflib
import inspect
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lpjepa.data.errors import DataError, MissingData
from lpjepa.data.image_set import ImageSet, Storage
from lpjepa.data.order import holdout
from lpjepa.data.sources._common import SPLIT_NAMES, array_set, no_empty_folder, no_split, subset_set

_LABEL_ATTRIBUTES = ("targets", "labels", "_labels", "y")


def torchvision_datasets() -> ModuleType | None:
    """``torchvision.datasets``, or None where torchvision is not installed."""
    from lpjepa._torchvision_shim import declare_missing_ops

    declare_missing_ops()
    try:
        from torchvision import datasets
    except ImportError:
        return None
    return datasets


def load_torchvision(
    name: str,
    root: Path,
    split: str,
    storage: Storage,
    part: str | None = None,
    val_fraction: float = 0.1,
    seed: int = 0,
    download: bool = True,
) -> ImageSet:
    """Set ``name`` of torchvision.

    Args:
        part: the set's own name of a split where ours ("train", "val", "test") do not say it, such as
            "train+unlabeled" of STL10.
        val_fraction: share held out where a set has no splits.
        download: let torchvision download what is missing.
    """
    datasets = torchvision_datasets()
    if datasets is None:
        raise DataError(
            f"torchvision:{name} needs torchvision, which is not installed: pip install torchvision."
        )
    factory = getattr(datasets, name, None)
    if not inspect.isclass(factory):
        near = difflib.get_close_matches(name, [n for n in dir(datasets) if n[0].isupper()], n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise DataError(f"torchvision has no set {name}{hint}")
    dataset, has_split = _construct(factory, name, root, split, part, download)
    title = f"torchvision:{name}"
    labels, classes = _labels(dataset, part), _classes(dataset)
    indices = None
    if not has_split and val_fraction <= 0:
        if split != "train":
            raise no_split(title, split, "set val_fraction above 0 to hold some out")
    elif not has_split:
        train, val = holdout(len(dataset), labels, val_fraction, seed)
        indices = train if split == "train" else val
    data = getattr(dataset, "data", None)
    if isinstance(data, (np.ndarray, Tensor)) and data.ndim in (3, 4) and len(data) == len(dataset):
        if indices is not None:
            data, labels = data[indices.numpy()], None if labels is None else labels[indices]
        return array_set(np.asarray(data), labels, classes, title, storage)
    return subset_set(_DatasetReader(dataset, title), labels, classes, title, storage, indices)


@dataclass(frozen=True)
class _DatasetReader:
    dataset: Any
    title: str

    def __len__(self) -> int:
        return len(self.dataset)

    def path(self, index: int) -> str:
        for attribute in ("_image_files", "_images", "imgs", "samples", "_samples", "_image_paths"):
            files = getattr(self.dataset, attribute, None)
            if isinstance(files, (list, tuple)) and len(files) == len(self):
                return str(files[index][0] if isinstance(files[index], (list, tuple)) else files[index])
        return f"{self.title}[{index}]"

    def open(self, index: int) -> Image.Image:
        image = self.dataset[index][0]
        return image if isinstance(image, Image.Image) else Image.fromarray(np.asarray(image))


def _construct(
    factory: Any, name: str, root: Path, split: str, part: str | None, download: bool
) -> tuple[Any, bool]:
    """The data set, and whether it is the asked split (rather than everything there is)."""
    accepted = inspect.signature(factory).parameters
    if "root" not in accepted:
        raise DataError(f"torchvision:{name} is not a set of images in a folder.")
    trials: list[dict[str, Any]]
    if part is not None:
        if "split" not in accepted:
            raise DataError(f"torchvision:{name} has no parts to choose from; leave part out.")
        trials = [{"split": part}]
    elif "train" in accepted:
        trials = [{"train": split == "train"}]
    elif "split" in accepted:
        trials = [{"split": word} for word in SPLIT_NAMES[split]]
    else:
        trials = [{}]
    missing: Exception | None = None
    # Without download first: some sets contact their server even when everything is on disk.
    for extra in [{"download": False}, {"download": True}] if "download" in accepted else [{}]:
        if extra.get("download") and not download:
            continue
        for trial in trials:
            try:
                with no_empty_folder(root):
                    return factory(str(root), **trial, **extra), bool(trial)
            except (ValueError, TypeError) as error:  # not a split of this set
                missing = missing or error
            except (OSError, RuntimeError) as error:  # not there, or no network
                missing = error
                break
    if isinstance(missing, (ValueError, TypeError)):
        raise DataError(f"torchvision:{name} has no split for {part or split!r}: {missing}") from None
    raise MissingData(
        f"torchvision:{name} is not in {root}" + (" and could not be downloaded" if download else ""),
        f"the address in torchvision's documentation of datasets.{name}",
        f"{root}, unpacked as described there",
    )


def _labels(dataset: Any, part: str | None) -> Tensor | None:
    for attribute in _LABEL_ATTRIBUTES:
        values = getattr(dataset, attribute, None)
        if values is not None and len(values) == len(dataset):
            labels = torch.as_tensor(np.asarray(values))
            break
    else:
        samples = getattr(dataset, "_samples", None)
        if isinstance(samples, (list, tuple)) and len(samples) == len(dataset):
            labels = torch.tensor([int(sample[1]) for sample in samples])
        else:
            try:
                labels = torch.tensor([int(dataset[i][1]) for i in range(len(dataset))])
            except (TypeError, ValueError, IndexError):
                return None  # boxes, masks, captions: no classes
    if labels.ndim != 1 or labels.is_floating_point() or bool((labels < 0).any()):
        return None  # several attributes per image, or images marked as unlabelled (STL10's -1)
    return labels.to(torch.int64)


def _classes(dataset: Any) -> list[str] | None:
    classes = getattr(dataset, "classes", None) or getattr(dataset, "categories", None)
    if not isinstance(classes, (list, tuple)):
        return None
    return [c if isinstance(c, str) else ", ".join(map(str, c)) for c in classes]
