"""Reading what `lpjepa embed` wrote: the matrix, the names and labels of its rows, and where it came from."""

from __future__ import annotations

import csv
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lpjepa.inference._optional import need
from lpjepa.inference.inputs import NO_LABEL

INFO_FORMAT = 1


@dataclass(frozen=True)
class Embeddings:
    """Features of images: `matrix` is a scipy CSR array (N, D) of float32, `labels` -1 where unknown."""

    matrix: Any
    names: list[str]
    labels: np.ndarray
    info: dict[str, Any]

    def __len__(self) -> int:
        return len(self.names)


def info_path(path: Path) -> Path:
    """The file beside an embeddings file, or in the folder of an index, that says what it is."""
    return path / "index.json" if path.suffix == ".index" else path.with_name(path.name + ".json")


def items_path(path: Path) -> Path:
    """The file beside .npz and .npy with the path and label of every row."""
    return path.with_name(path.name + ".items.csv")


def read_info(path: Path) -> dict[str, Any]:
    """What is known of an embeddings file or index folder: its model, features, images, classes."""
    where = path / "index.json" if path.is_dir() else info_path(path)
    try:
        info = json.loads(where.read_text(encoding="utf-8"))
        info = info["info"] if path.is_dir() else info
        if info["format"] != INFO_FORMAT:
            raise ValueError
    except FileNotFoundError:
        raise ValueError(
            f"{path} has no {where.name} beside it; it is not what `lpjepa embed` wrote."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{where} is damaged, or was written by another version; embed the images again."
        ) from None
    return info


def read_embeddings(path: str | Path) -> Embeddings:
    """The content of an .npz, .parquet or .npy file that `lpjepa embed` wrote."""
    path = Path(path)
    if path.suffix not in (".npz", ".parquet", ".npy"):
        raise ValueError(f"{path} is not a file of embeddings; these end in .npz, .parquet or .npy.")
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file of embeddings.")
    info = read_info(path)
    sparse = need("scipy.sparse")
    try:
        if path.suffix == ".parquet":
            matrix, names, labels = _read_parquet(path, info["width"])
        else:
            with path.open("rb") as file:
                loaded = sparse.load_npz(file) if path.suffix == ".npz" else np.load(file)
            matrix = sparse.csr_array(loaded)
            names, labels = _read_items(items_path(path))
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} is damaged ({str(error).splitlines()[0]}); embed the images again."
        ) from None
    if matrix.shape != (info["rows"], info["width"]) or len(names) != info["rows"]:
        raise ValueError(f"{path} does not hold what {info_path(path).name} says; embed the images again.")
    return Embeddings(matrix, names, labels, info)


def _read_items(path: Path) -> tuple[list[str], np.ndarray]:
    with path.open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = list(csv.reader(file))[1:]
    labels = np.array([int(label) if label else NO_LABEL for _, label in rows], np.int64)
    return [name for name, _ in rows], labels


def _read_parquet(path: Path, width: int) -> tuple[Any, list[str], np.ndarray]:
    sparse, parquet = need("scipy.sparse"), need("pyarrow.parquet")
    table = parquet.read_table(path)
    indices, values = (table.column(name).combine_chunks() for name in ("indices", "values"))
    ends = indices.offsets.to_numpy()
    matrix = sparse.csr_array(
        (values.flatten().to_numpy(), indices.flatten().to_numpy(), ends - ends[0]), (len(table), width)
    )
    labels = table.column("label").fill_null(NO_LABEL).to_numpy().astype(np.int64)
    return matrix, table.column("path").to_pylist(), labels
