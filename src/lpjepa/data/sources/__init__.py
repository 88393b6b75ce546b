"""Sources of images by name."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from lpjepa._names import suggestion
from lpjepa.data.decoding import FileReader
from lpjepa.data.errors import DataError
from lpjepa.data.image_set import ImageSet, Storage
from lpjepa.data.sources._common import data_root
from lpjepa.data.sources.arrays import load_npz
from lpjepa.data.sources.cifar import load_cifar
from lpjepa.data.sources.digits import load_digits
from lpjepa.data.sources.folder import load_folder
from lpjepa.data.sources.hugging_face import load_hugging_face
from lpjepa.data.sources.idx import load_fashion_mnist
from lpjepa.data.sources.imagenet import load_imagenet
from lpjepa.data.sources.shards import load_shards
from lpjepa.data.sources.torchvision_sets import load_torchvision
from lpjepa.data.streamed import build_image_set

SOURCES: dict[str, Callable[..., ImageSet]] = {
    "digits": load_digits,
    "npz": load_npz,
    "cifar10": partial(load_cifar, "cifar10"),
    "cifar100": partial(load_cifar, "cifar100"),
    "fashion-mnist": load_fashion_mnist,
    "folder": load_folder,
    "imagenet": partial(load_imagenet, "imagenet"),
    "imagenet100": partial(load_imagenet, "imagenet100"),
}
# Named as "prefix:NAME"; the part after the colon goes to the loader.
FAMILIES: dict[str, Callable[..., ImageSet]] = {
    "torchvision": load_torchvision,
    "hf": load_hugging_face,
    "wds": load_shards,
}


def source_names() -> list[str]:
    """Every name that ``load_source`` takes; families end in ``:NAME``."""
    return [*SOURCES, *(f"{family}:NAME" for family in FAMILIES)]


def load_source(name: str, root: str | Path | None = None, split: str = "train", **options: Any) -> ImageSet:
    """Load one split of a set of images.

    >>> load_source("digits", split="val")
    digits: 359 images of 8 x 8 pixels, 10 classes, in memory

    Args:
        name: see ``source_names()``.
        root: the folder (or file) that holds it; by default the environment variable LPJEPA_DATA, or
            ``data`` in the working directory (for ``wds:``, that directory itself).
        split: "train", "val" or "test" (a set with one held-out part gives it for both of these).
        options: how images are kept (see ``Storage``), and what the source itself takes.
    """
    if split not in ("train", "val", "test"):
        raise DataError(f"split must be 'train', 'val' or 'test', not {split!r}.")
    loader = _loader(name)
    storage_names = [field.name for field in fields(Storage)]
    parameters = list(inspect.signature(loader).parameters)
    own = parameters[parameters.index("storage") + 1 :]
    for option in options:
        if option not in storage_names + own:
            takes = own + storage_names
            hint = suggestion(option, takes, f"it takes {', '.join(takes)}.")
            raise DataError(f"the source {name} has no option {option}; {hint}")
    storage = Storage(**{key: value for key, value in options.items() if key in storage_names})
    if split != "train" and storage.keep == "whole":
        storage = replace(storage, keep="centre")  # held-out images are only ever seen through a centre crop
    rest = {key: value for key, value in options.items() if key in own}
    folder: Path | None = data_root(root)
    if root is None and name.startswith("hf:"):
        folder = None  # the library behind it keeps its own cache unless told otherwise
    elif root is None and name.startswith("wds:") and "LPJEPA_DATA" not in os.environ:
        folder = Path()  # a pattern is a path: wds:shards/train-{000..127}.tar
    return loader(folder, split, storage, **rest)


def from_paths(paths: Sequence[str | Path], name: str = "paths", **options: Any) -> ImageSet:
    """An unlabelled set of the image files in ``paths``, in their order; options as in ``Storage``."""
    return build_image_set(FileReader(tuple(map(str, paths))), None, None, name, Storage(**options))


def _loader(name: str) -> Callable[..., ImageSet]:
    if name in SOURCES:
        return SOURCES[name]
    family, _, rest = name.partition(":")
    if family in FAMILIES and rest:
        return partial(FAMILIES[family], rest)
    near = difflib.get_close_matches(name, source_names(), n=1)
    if kind := _kind_of_path(Path(name)):
        hint = (
            f"to read what lies there, say {kind}={name} (pretrain: --data.source {kind} --data.root {name})."
        )
    elif near:
        hint = f"did you mean {near[0]}?"
    else:
        hint = f"there are {', '.join(source_names())}."
    raise DataError(f"there is no source {name!r}; {hint}")


def _kind_of_path(path: Path) -> str | None:
    """The source that reads a path which was given in the place of a name."""
    if path.is_dir():
        return "folder"
    return "npz" if path.suffix == ".npz" and path.is_file() else None
