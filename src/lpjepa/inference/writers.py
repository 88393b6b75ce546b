"""From the parts of a job to its result, part by part: never more than one of them in memory."""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from lpjepa.inference._optional import need
from lpjepa.inference.embeddings_file import items_path
from lpjepa.inference.index_store import write_from_blocks
from lpjepa.inference.inputs import NO_LABEL, Items
from lpjepa.inference.parts import Part, PartStore
from lpjepa.inference.postings import Block
from lpjepa.inference.vectors import ENGINES, document


def partial_path(out: Path) -> Path:
    return out.with_name(out.name + ".partial")


def check_installed(suffix: str, engine: str) -> None:
    """Complain before the work, not after it."""
    if suffix == ".parquet":
        need("pyarrow.parquet")
    if suffix == ".jsonl" and engine not in ENGINES:
        raise ValueError(f"--engine {engine}: there are {', '.join(ENGINES)}.")


def write_csr(out: Path, store: PartStore, items: Items, info: dict[str, Any], _engine: str) -> None:
    """An .npz as `scipy.sparse.load_npz` reads it: the arrays data, indices, indptr, shape, format."""
    entries = sum(int(_filled(part.counts).sum()) for part in store)
    with zipfile.ZipFile(partial_path(out), "w", zipfile.ZIP_STORED) as archive:

        def stream(name: str, dtype: type, count: int, chunks: Callable[[], Iterator[np.ndarray]]) -> None:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                _header(member, dtype, (count,))  # type: ignore[arg-type]
                for chunk in chunks():
                    member.write(np.ascontiguousarray(chunk, dtype).tobytes())

        stream("data", np.float32, entries, lambda: (_filled(part.values) for part in store))
        stream("indices", np.int32, entries, lambda: (_filled(part.indices) for part in store))
        stream("indptr", np.int64, info["rows"] + 1, lambda: _pointers(store))
        for name, value in (("shape", np.array([info["rows"], info["width"]])), ("format", np.array(b"csr"))):
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, value)
    _write_items(out, store, items)


def write_dense(out: Path, store: PartStore, items: Items, info: dict[str, Any], _engine: str) -> None:
    """A float32 .npy (N, D)."""
    with partial_path(out).open("wb") as file:
        _header(file, np.float32, (info["rows"], info["width"]))
        for part in store:
            file.write(np.ascontiguousarray(_filled(part.dense), np.float32).tobytes())
    _write_items(out, store, items)


def write_parquet(out: Path, store: PartStore, items: Items, _info: dict[str, Any], _engine: str) -> None:
    """Columns indices (list of int32), values (list of float32), path, label (null where unknown)."""
    arrow, parquet = need("pyarrow"), need("pyarrow.parquet")
    schema = arrow.schema(
        [
            ("indices", arrow.list_(arrow.int32())),
            ("values", arrow.list_(arrow.float32())),
            ("path", arrow.string()),
            ("label", arrow.int64()),
        ]
    )
    with parquet.ParquetWriter(partial_path(out), schema) as writer:
        for part in store:
            ends = arrow.array(np.concatenate([[0], _filled(part.counts).cumsum()]).astype(np.int32))
            lists = [
                arrow.ListArray.from_arrays(ends, arrow.array(_filled(values)))
                for values in (part.indices, part.values)
            ]
            names = [_utf8(items.names[place]) for place in part.places]
            labels = arrow.array(part.labels, mask=part.labels == NO_LABEL)
            writer.write_table(arrow.table([*lists, arrow.array(names), labels], schema=schema))


def write_engine(out: Path, store: PartStore, items: Items, info: dict[str, Any], engine: str) -> None:
    """One JSON document a line, as the named engine takes it."""
    number = 0
    with partial_path(out).open("w", encoding="utf-8") as file:
        for part in store:
            ends = _filled(part.counts).cumsum()
            for row, end in enumerate(ends):
                entries = slice(end - _filled(part.counts)[row], end)
                fields = _fields(part, row, items, info["classes"])
                for line in document(
                    engine, number, _filled(part.indices)[entries], _filled(part.values)[entries], fields
                ):
                    file.write(json.dumps(line) + "\n")
                number += 1


def write_index(out: Path, store: PartStore, items: Items, info: dict[str, Any], _engine: str) -> None:
    """A folder that `SparseIndex.load` opens, with int8 values."""

    def blocks() -> Iterator[Block]:
        for part in store:
            yield Block.quantised(
                _filled(part.counts), _filled(part.indices), _filled(part.values), info["width"], "int8"
            )

    names = (items.names[place] for part in store for place in part.places)
    labels = np.concatenate([part.labels for part in store])
    write_from_blocks(partial_path(out), blocks, info["width"], "int8", names, labels, info)


def _write_items(out: Path, store: PartStore, items: Items) -> None:
    with items_path(out).open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        table = csv.writer(file)
        table.writerow(("path", "label"))
        for part in store:
            for place, label in zip(part.places, part.labels):
                table.writerow((items.names[place], "" if label == NO_LABEL else int(label)))


def _fields(part: Part, row: int, items: Items, classes: list[str] | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"path": _utf8(items.names[part.places[row]])}
    if (label := int(part.labels[row])) != NO_LABEL:
        fields["label"] = label
        if classes is not None:
            fields["class"] = classes[label]
    return fields


def _pointers(store: PartStore) -> Iterator[np.ndarray]:
    yield np.zeros(1, np.int64)
    entries = 0
    for part in store:
        ends = _filled(part.counts).cumsum() + entries
        entries = int(ends[-1]) if len(ends) else entries
        yield ends


def _header(file: BinaryIO, dtype: type, shape: tuple[int, ...]) -> None:
    described = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
        "fortran_order": False,
        "shape": shape,
    }
    np.lib.format.write_array_header_1_0(file, described)


def _filled(array: np.ndarray | None) -> np.ndarray:
    assert array is not None
    return array


def _utf8(name: str) -> str:
    """A name whose bytes are not text is shown with replacements: JSON and Parquet hold text only."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
