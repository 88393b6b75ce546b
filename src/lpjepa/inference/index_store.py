"""An index on the disk: a folder of plain .npy arrays that can be memory-mapped, and `index.json`.

`index.json` names the format, the sizes and the checksums of the arrays. Sizes are always checked, checksums
where the index is read whole.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lpjepa._digest import digest
from lpjepa.inference.postings import DTYPES, Block, Postings, invert

FORMAT = "lpjepa-index", 1
_ARRAYS = {
    "indptr": np.int64, "documents": np.int32, "values": None, "ids": np.int64, "scales": np.float32,
    "norms": np.float32, "alive": np.bool_, "labels": np.int64, "name_ends": np.int64, "name_bytes": np.uint8,
}  # fmt: skip


class Names(Sequence[str]):
    """Many strings as one array of bytes and the ends of each: no memory before they are asked for."""

    def __init__(self, ends: np.ndarray, content: np.ndarray):
        self.ends, self.content = ends, content

    @classmethod
    def of(cls, names: Iterable[str]) -> Names:
        encoded = [name.encode("utf-8", "surrogateescape") for name in names]
        ends = np.cumsum([len(name) for name in encoded], dtype=np.int64)
        return cls(ends, np.frombuffer(b"".join(encoded), np.uint8))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, place: Any) -> Any:
        start = int(self.ends[place - 1]) if place else 0
        return self.content[start : int(self.ends[place])].tobytes().decode("utf-8", "surrogateescape")


class Rows(NamedTuple):
    """What is kept of each document besides its entries."""

    ids: np.ndarray
    scales: np.ndarray
    norms: np.ndarray
    alive: np.ndarray
    labels: np.ndarray
    names: Names

    @classmethod
    def empty(cls) -> Rows:
        whole, real = np.zeros(0, np.int64), np.zeros(0, np.float32)
        return cls(whole, real, real, np.zeros(0, bool), whole, Names.of([]))

    def extended(
        self, ids: np.ndarray, scales: np.ndarray, norms: np.ndarray, labels: np.ndarray, names: Sequence[str]
    ) -> Rows:
        added = Names.of(names)
        start = int(self.names.ends[-1]) if len(self.names) else 0
        return Rows(
            np.concatenate([self.ids, ids]),
            np.concatenate([self.scales, scales]),
            np.concatenate([self.norms, norms]),
            np.concatenate([self.alive, np.ones(len(ids), bool)]),
            np.concatenate([self.labels, labels]),
            Names(
                np.concatenate([self.names.ends, added.ends + start]),
                np.concatenate([self.names.content, added.content]),
            ),
        )

    def kept(self, chosen: np.ndarray) -> Rows:
        names = Names.of(self.names[place] for place in np.flatnonzero(chosen))
        ids, scales, norms, alive, labels = (np.asarray(x)[chosen] for x in self[:5])
        return Rows(ids, scales, norms, alive, labels, names)


class Stored(NamedTuple):
    """All of an index."""

    width: int
    values: str
    info: dict[str, Any]
    postings: Postings
    rows: Rows


def save(folder: Path, index: Stored) -> None:
    """Write a new folder, whole or not at all."""
    if folder.exists():
        raise ValueError(f"{folder} exists already; remove it or choose another name.")
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    partial.mkdir(parents=True)
    try:
        for name, array in _arrays(index.postings, index.rows).items():
            np.save(partial / f"{name}.npy", np.asarray(array))
        _describe(partial, index.width, index.values, index.info)
        os.replace(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def write_from_blocks(
    folder: Path,
    blocks: Callable[[], Iterator[Block]],
    width: int,
    values: str,
    names: Iterable[str],
    labels: np.ndarray,
    info: dict[str, Any],
) -> None:
    """The folder of an index of `blocks`, whose postings are placed on the disk, never held in memory."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)

    def on_disk(name: str, length: int, dtype: Any) -> np.ndarray:
        path = folder / f"{name}.npy"
        if not length:  # an empty file cannot be mapped
            np.save(path, np.empty(0, dtype))
            return np.empty(0, dtype)
        return np.lib.format.open_memmap(path, "w+", dtype, (length,))

    postings = invert(blocks, width, on_disk, values)
    for array in (postings.documents, postings.values):
        if isinstance(array, np.memmap):
            array.flush()
    scales = np.concatenate([block.scales for block in blocks()])
    norms = np.concatenate([block.norms for block in blocks()])
    count = len(scales)
    rows = Rows(
        np.arange(count, dtype=np.int64), scales, norms, np.ones(count, bool), labels, Names.of(names)
    )
    for name, array in _arrays(postings, rows).items():
        if name not in ("documents", "values"):
            np.save(folder / f"{name}.npy", array)
    _describe(folder, width, values, info)


def load(folder: Path, mmap: bool = True) -> Stored:
    """An index from its folder; anything that is not one, or damaged, is one sentence."""
    if not folder.is_dir():
        raise ValueError(
            f"{folder}: there is no such index; `lpjepa embed RUN IMAGES --out {folder}` makes one."
        )
    try:
        content = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        kind = (content["format"], content["version"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{folder} is not an index: it has no index.json that can be read.") from None
    if kind != FORMAT:
        raise ValueError(
            f"{folder} is an index of the form {kind[0]} {kind[1]}, which this version does not read."
        )
    try:
        arrays = {name: _read(folder / f"{name}.npy", content["files"][name], mmap) for name in _ARRAYS}
        _check(arrays, content)
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise ValueError(f"the index {folder} is damaged ({error}); make it anew.") from None
    ids, scales, norms, alive, labels = (arrays[name] for name in Rows._fields[:5])
    rows = Rows(ids, scales, norms, alive, labels, Names(arrays["name_ends"], arrays["name_bytes"]))
    postings = Postings(arrays["indptr"], arrays["documents"], arrays["values"])
    return Stored(content["width"], content["values"], content["info"], postings, rows)


def _arrays(postings: Postings, rows: Rows) -> dict[str, np.ndarray]:
    arrays = {**postings._asdict(), **rows._asdict()}
    names = arrays.pop("names")
    return {**arrays, "name_ends": names.ends, "name_bytes": names.content}


def _describe(folder: Path, width: int, values: str, info: dict[str, Any]) -> None:
    files = {}
    for name in _ARRAYS:
        path = folder / f"{name}.npy"
        length = len(np.load(path, mmap_mode="r")) if path.stat().st_size > 128 else 0
        files[name] = {"bytes": path.stat().st_size, "length": length, "sha256": digest(path)}
    content = {"format": FORMAT[0], "version": FORMAT[1], "width": width, "values": values}
    text = json.dumps({**content, "files": files, "info": info}, indent=1)
    (folder / "index.json").write_text(text, encoding="utf-8")


def _read(path: Path, expected: dict[str, Any], mmap: bool) -> np.ndarray:
    if path.stat().st_size != expected["bytes"]:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes instead of {expected['bytes']}")
    if not mmap and digest(path) != expected["sha256"]:
        raise ValueError(f"the checksum of {path.name} does not match")
    # An array without entries cannot be mapped.
    return np.load(path, mmap_mode="r" if mmap and expected["length"] else None)


def _check(arrays: dict[str, np.ndarray], content: dict[str, Any]) -> None:
    """That the arrays fit together."""
    expected = {**_ARRAYS, "values": DTYPES[content["values"]]}
    for name, dtype in expected.items():
        if arrays[name].dtype != dtype or arrays[name].ndim != 1:
            raise ValueError(f"{name}.npy holds {arrays[name].dtype} of {arrays[name].ndim} axes")
    indptr, count = arrays["indptr"], len(arrays["ids"])
    entries = len(arrays["documents"])
    if (
        len(indptr) != content["width"] + 1
        or (np.diff(indptr) < 0).any()
        or (indptr[0], indptr[-1]) != (0, entries)
    ):
        raise ValueError("indptr.npy does not fit the other arrays")
    if len(arrays["values"]) != entries:
        raise ValueError("values.npy does not fit documents.npy")
    for name in ("scales", "norms", "alive", "labels", "name_ends"):
        if len(arrays[name]) != count:
            raise ValueError(f"{name}.npy does not fit ids.npy")
