"""``imagenet`` and ``imagenet100``: a folder of class subfolders, and a list of the classes to use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lpjepa.data.errors import DataError, MissingData
from lpjepa.data.image_set import ImageSet, Storage
from lpjepa.data.sources._common import read_lines
from lpjepa.data.sources.folder import load_folder

_COUNTS = {"imagenet": 1000, "imagenet100": 100}


def load_imagenet(
    name: str, root: Path, split: str, storage: Storage, classes: str | Path | Sequence[str] | None = None
) -> ImageSet:
    """ImageNet-1K, or its 100-class subset, from ``root/train/WNID/*`` and ``root/val/WNID/*``.

    Args:
        classes: the class folders to use, as names or as a text file with one name per line. For
            ``imagenet100`` it may be left out only if ``root`` holds exactly those 100 classes.
    """
    if not (root / "train").is_dir() or not (root / "val").is_dir():
        raise MissingData(
            f"{name} needs {root / 'train'} and {root / 'val'}, each with one subfolder per class",
            "https://image-net.org/download-images (ILSVRC 2012)",
            f"{root}, the validation images sorted into class subfolders like the training images",
        )
    wanted = _class_list(name, root, classes)
    missing = [c for c in wanted if not (root / "train" / c).is_dir()]
    if missing:
        raise DataError(
            f"{root / 'train'} lacks {len(missing)} of the {len(wanted)} classes, such as {missing[0]}."
        )
    images = load_folder(root, split, storage, classes=wanted)
    images.name = name
    return images


def _class_list(name: str, root: Path, classes: str | Path | Sequence[str] | None) -> list[str]:
    if isinstance(classes, (str, Path)):
        path = Path(classes).expanduser()
        if not path.is_file():
            raise DataError(
                f"there is no class list {path}; it is a text file with one class folder per line."
            )
        classes = read_lines(path)
    if classes is None:
        classes = sorted(entry.name for entry in (root / "train").iterdir() if entry.is_dir())
        if name == "imagenet100" and len(classes) != _COUNTS[name]:
            raise DataError(
                f"{root / 'train'} has {len(classes)} classes; name the 100 of ImageNet-100 with classes, "
                "a text file with one class folder per line."
            )
    if not classes:
        raise DataError(f"{name}: the class list is empty.")
    return list(dict.fromkeys(classes))
