"""The inverted form of sparse vectors: for every feature the documents in which it is active.

Values are stored relative to the largest of their vector, as int8 (in 127 steps) or fp16; a scale per vector
brings them back: v ≈ scale · stored. Values that round to zero are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

STEPS = {"int8": 127.0, "fp16": 1.0}
DTYPES: dict[str, Any] = {"int8": np.int8, "fp16": np.float16}


@dataclass(frozen=True)
class Block:
    """Quantised rows: `rows`, `columns` and `values` of the entries in row order; `scales`, `norms` (n,).

    Norms are those of the stored vectors, scale · stored.
    """

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    scales: np.ndarray
    norms: np.ndarray

    @classmethod
    def quantised(
        cls, counts: np.ndarray, columns: np.ndarray, values: np.ndarray, width: int, form: str
    ) -> Block:
        """Rows with `counts` entries each, of float values, in the stored form."""
        if form not in DTYPES:
            raise ValueError(f"values are stored as {' or '.join(DTYPES)}, not {form!r}.")
        if not np.isfinite(values).all():
            raise ValueError("the vectors hold values that are not finite.")
        if columns.size and not 0 <= int(columns.min()) <= int(columns.max()) < width:
            raise ValueError(f"the vectors have features outside 0 to {width - 1}.")
        rows = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        largest = np.zeros(len(counts), np.float32)
        np.maximum.at(largest, rows, np.abs(values).astype(np.float32))
        scales = np.where(largest > 0, largest / STEPS[form], 1).astype(np.float32)
        stored = values / scales[rows]
        stored = (np.rint(stored) if form == "int8" else stored).astype(DTYPES[form])
        kept = stored != 0
        rows, columns, stored = rows[kept], columns[kept].astype(np.int32), stored[kept]
        squares = np.bincount(rows, np.square(stored.astype(np.float64)), minlength=len(counts))
        return cls(rows, columns, stored, scales, (np.sqrt(squares) * scales).astype(np.float32))


class Postings(NamedTuple):
    """Entries ordered by feature, then document: those of feature j are `indptr[j]` to `indptr[j + 1]`."""

    indptr: np.ndarray  # int64 (D + 1,)
    documents: np.ndarray  # int32
    values: np.ndarray


def invert(
    blocks: Callable[[], Iterator[Block]],
    width: int,
    allocate: Callable[[str, int, Any], np.ndarray],
    form: str,
) -> Postings:
    """Postings of blocks of rows, read twice (to count, then to place), so that one block is in memory.

    `allocate(name, length, dtype)` makes the arrays, in memory or on the disk.
    """
    lengths = np.zeros(width, np.int64)
    for block in blocks():
        lengths += np.bincount(block.columns, minlength=width)
    indptr = np.concatenate([[0], lengths.cumsum()])
    documents = allocate("documents", int(indptr[-1]), np.int32)
    values = allocate("values", int(indptr[-1]), DTYPES[form])
    free, first = indptr[:-1].copy(), 0
    for block in blocks():
        order = np.argsort(block.columns, kind="stable")
        columns = block.columns[order]
        own = np.bincount(columns, minlength=width)
        # The place of an entry: the feature's next free one, plus its rank among the block's own.
        rank = np.arange(len(columns)) - np.repeat(own.cumsum() - own, own)
        place = free[columns] + rank
        documents[place] = block.rows[order] + first
        values[place] = block.values[order]
        free += own
        first += len(block.scales)
    return Postings(indptr, documents, values)


def in_memory(_name: str, length: int, dtype: Any) -> np.ndarray:
    return np.empty(length, dtype)


def merge(first: Postings, second: Postings, offset: int) -> Postings:
    """Postings of both, the documents of `second` numbered from `offset`."""
    lengths = [np.diff(postings.indptr) for postings in (first, second)]
    indptr = first.indptr + second.indptr
    documents = np.empty(int(indptr[-1]), np.int32)
    values = np.empty(int(indptr[-1]), first.values.dtype)
    # Within a feature the entries of `first` come before those of `second`.
    place = np.arange(len(first.documents)) + np.repeat(second.indptr[:-1], lengths[0])
    documents[place], values[place] = first.documents, first.values
    place = np.arange(len(second.documents)) + np.repeat(first.indptr[1:], lengths[1])
    documents[place], values[place] = second.documents + offset, second.values
    return Postings(indptr, documents, values)


def keep(postings: Postings, kept: np.ndarray) -> Postings:
    """Postings of the documents where `kept` is true, numbered anew in their order."""
    numbers = np.cumsum(kept, dtype=np.int32) - 1
    chosen = kept[postings.documents]
    features = np.repeat(np.arange(len(postings.indptr) - 1), np.diff(postings.indptr))[chosen]
    lengths = np.bincount(features, minlength=len(postings.indptr) - 1)
    indptr = np.concatenate([[0], lengths.cumsum()])
    return Postings(indptr, numbers[postings.documents[chosen]].astype(np.int32), postings.values[chosen])
