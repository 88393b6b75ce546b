"""``cifar10`` and ``cifar100``: the official Python files, read without executing what they hold."""

from __future__ import annotations

import codecs
import io
import pickle
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lpjepa.data.errors import DataError, MissingData
from lpjepa.data.image_set import ImageSet, Storage
from lpjepa.data.sources._common import array_set, no_empty_folder

_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
# folder, archive, train files, test files, label key, file and key of the class names
_LAYOUT = {
    "cifar10": (
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
        [f"data_batch_{i}" for i in range(1, 6)],
        ["test_batch"],
        "labels",
        ("batches.meta", "label_names"),
    ),
    "cifar100": (
        "cifar-100-python",
        "cifar-100-python.tar.gz",
        ["train"],
        ["test"],
        "fine_labels",
        ("meta", "fine_label_names"),
    ),
}


class _ArraysOnly(pickle.Unpickler):
    """Unpickles containers and NumPy arrays; any other name in the file is refused, so no code can run."""

    # NumPy's rebuilding function moved between modules over the years, so it is known by name only.
    _ALLOWED: ClassVar[dict[str, Any]] = {
        "ndarray": np.ndarray,
        "dtype": np.dtype,
        "_reconstruct": np.zeros(0).__reduce__()[0],
        "encode": codecs.encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] not in ("numpy", "_codecs") or name not in self._ALLOWED:
            raise DataError(f"it asks for {module}.{name}, which the official files do not")
        return self._ALLOWED[name]


def load_cifar(
    name: str, root: Path, split: str, storage: Storage, coarse: bool = False, download: bool = True
) -> ImageSet:
    """CIFAR-10 or CIFAR-100 from ``root`` (or its official subfolder or archive).

    Split "val" is the test set.

    Args:
        coarse: CIFAR-100's 20 superclasses instead of its 100 classes.
        download: try torchvision's download where the files are missing.
    """
    folder, archive, train_files, test_files, label_key, (meta_file, meta_key) = _LAYOUT[name]
    if coarse:
        if name != "cifar100":
            raise DataError("coarse labels exist in cifar100 only.")
        label_key, meta_key = "coarse_labels", "coarse_label_names"
    files = train_files if split == "train" else test_files
    stored = _find(name, root, folder, archive, [*files, meta_file], download)
    parts = [_unpickle(stored[file], file) for file in files]
    try:
        images = np.concatenate([np.asarray(part["data"], np.uint8).reshape(-1, 3, 32, 32) for part in parts])
        labels = np.concatenate([np.asarray(part[label_key]) for part in parts])
        classes = [str(c) for c in _unpickle(stored[meta_file], meta_file)[meta_key]]
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(f"the {name} files in {root} are not the official ones ({error!r}).") from None
    return array_set(images, labels, classes, name, storage)


def _find(
    name: str, root: Path, folder: str, archive: str, files: list[str], download: bool
) -> dict[str, bytes | Path]:
    """Where each file is: on disk, or the bytes of the archive's member."""
    for place in (root, root / folder):
        if all((place / file).is_file() for file in files):
            return {file: place / file for file in files}
    if (root / archive).is_file():
        try:
            with tarfile.open(root / archive) as tar:
                found = {file: tar.extractfile(f"{folder}/{file}") for file in files}
                return {file: handle.read() for file, handle in found.items() if handle is not None}
        except (tarfile.TarError, KeyError, OSError, EOFError) as error:
            raise DataError(
                f"{root / archive} is damaged ({error}); download it again from {_PAGE}."
            ) from None
    if download and _download(name, root):
        return {file: root / folder / file for file in files}
    raise MissingData(f"{name} is not in {root}", f"{_PAGE} ({archive})", f"{root} (as it is, or unpacked)")


def _download(name: str, root: Path) -> bool:
    """Try torchvision's download; False where it is not installed or the machine is offline."""
    from lpjepa.data.sources.torchvision_sets import torchvision_datasets

    datasets = torchvision_datasets()
    if datasets is None:
        return False
    try:
        with no_empty_folder(root):
            getattr(datasets, name.upper())(root=str(root), download=True)
    except (OSError, RuntimeError):
        return False
    return True


def _unpickle(source: bytes | Path, file: str) -> dict[str, Any]:
    data = source.read_bytes() if isinstance(source, Path) else source
    try:
        content = _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
        return {_text(key): _text(value) for key, value in content.items()}
    except Exception as error:  # a damaged pickle raises almost anything
        raise DataError(f"{file} is not an official CIFAR file: {error}.") from None


def _text(value: Any) -> Any:
    """Names as text: Python 2, which wrote these files, kept them as bytes."""
    if isinstance(value, list):
        return [_text(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value
