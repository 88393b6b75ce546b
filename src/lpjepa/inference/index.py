"""Exact search over sparse vectors: an inverted index over their active features.

A query touches only the postings of its own active features. With a fraction a of D features active in
queries and documents alike, that is about a² · D · N entries instead of the D · N of a dense search.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lpjepa.inference import index_store
from lpjepa.inference._optional import need
from lpjepa.inference.embeddings_file import Embeddings
from lpjepa.inference.inputs import NO_LABEL
from lpjepa.inference.model import FeatureKind, Model
from lpjepa.inference.postings import Block, in_memory, invert, keep, merge
from lpjepa.inference.sparse_rows import as_rows

METRICS = ("cosine", "dot")
BLOCK = 2**18  # postings that are unpacked at a time


class Hits(NamedTuple):
    """For each query the ids of its nearest documents, nearest first (ties: lower id), and their scores."""

    ids: np.ndarray  # int64 (Q, k)
    scores: np.ndarray  # float32 (Q, k)


class SparseIndex:
    """Documents with sparse vectors, searched exactly by cosine or dot product.

        index = SparseIndex(width=256)
        ids = index.add(vectors, names)
        hits = index.search(queries, k=10)
        index.save("photos.index"); index = SparseIndex.load("photos.index")
        kind = index.require_model(model)       # of an index that `lpjepa embed` wrote

    Vectors are scipy sparse arrays, NumPy arrays or tensors (N, D). What is exact is the search: values are
    stored as int8 or fp16 (see `postings`). Ids are given in order, stay when others are removed, and are
    not used again.

    Args:
        width: D.
        values: "int8" or "fp16".
        info: what is known of the vectors, such as their model; see `of_embeddings`.
    """

    def __init__(self, width: int, values: str = "int8", info: dict[str, Any] | None = None):
        if width < 1:
            raise ValueError(f"vectors need a width of 1 or more, not {width}.")
        empty = Block.quantised(np.zeros(0, int), np.zeros(0, int), np.zeros(0, np.float32), width, values)
        self.width, self.values, self.info = width, values, info or {}
        self._postings = invert(lambda: iter([empty]), width, in_memory, values)
        self._rows = index_store.Rows.empty()
        self._kept: tuple[index_store.Rows, dict[str, np.ndarray], np.ndarray | None, int] | None = None

    @classmethod
    def of_embeddings(cls, embeddings: Embeddings, values: str = "int8") -> SparseIndex:
        """An index of what `lpjepa embed` wrote; it remembers the model."""
        index = cls(embeddings.matrix.shape[1], values, embeddings.info)
        index.add(embeddings.matrix, embeddings.names, embeddings.labels)
        return index

    @classmethod
    def load(cls, folder: str | Path, mmap: bool = True) -> SparseIndex:
        """An index from its folder: memory-mapped, or read whole with its checksums verified."""
        stored = index_store.load(Path(folder), mmap)
        index = cls.__new__(cls)
        index.width, index.values, index.info = stored.width, stored.values, stored.info
        index._postings, index._rows, index._kept = stored.postings, stored.rows, None
        return index

    def save(self, folder: str | Path) -> None:
        """Write the index as a new folder, without what was removed."""
        self.compact()
        stored = index_store.Stored(self.width, self.values, self.info, self._postings, self._rows)
        index_store.save(Path(folder), stored)

    def __len__(self) -> int:
        self._weights("dot")
        assert self._kept is not None
        return self._kept[3]

    @property
    def nbytes(self) -> int:
        """Bytes of the postings and of what a search needs of each document (ids, scale, norm)."""
        rows = self._rows
        arrays = (*self._postings, rows.ids, rows.scales, rows.norms, rows.alive)
        return sum(array.nbytes for array in arrays)

    def add(self, vectors: Any, names: Sequence[Any] | None = None, labels: Any = None) -> np.ndarray:
        """Add documents and give their ids, int64 (n,)."""
        given = as_rows(vectors, self.width)
        count = len(given.indptr) - 1
        start = int(self._rows.ids[-1]) + 1 if len(self._rows.ids) else 0
        ids = np.arange(start, start + count, dtype=np.int64)
        names = [str(name) for name in (ids if names is None else names)]
        labels = np.full(count, NO_LABEL, np.int64) if labels is None else np.asarray(labels, np.int64)
        if len(names) != count or len(labels) != count:
            raise ValueError(
                f"{count} vectors need as many names and labels, not {len(names)} and {len(labels)}."
            )
        block = Block.quantised(np.diff(given.indptr), given.indices, given.data, self.width, self.values)
        added = invert(lambda: iter([block]), self.width, in_memory, self.values)
        before = len(self._rows.ids)
        postings = merge(self._postings, added, before) if before else added
        rows = self._rows.extended(ids, block.scales, block.norms, labels, names)
        self._postings, self._rows = postings, rows  # together: a posting must never name a missing row
        return ids

    def remove(self, ids: Any) -> None:
        """Take documents out; unknown ids are an error. Their space returns when half of it is theirs."""
        rows = self._places(np.asarray(ids, np.int64).reshape(-1))
        alive = np.array(self._rows.alive)  # a copy: the stored one may be read-only
        alive[rows] = False
        self._rows = self._rows._replace(alive=alive)
        if 2 * len(self) < len(alive):
            self.compact()

    def compact(self) -> None:
        """Give back the space of what was removed."""
        alive = np.asarray(self._rows.alive)
        if not alive.all():
            self._postings = keep(self._postings, alive)
            self._rows = self._rows.kept(alive)

    def name(self, document: int) -> str:
        return self._rows.names[int(self._places(np.array([document]))[0])]

    def label(self, document: int) -> int:
        """The label of a document, -1 where it is unknown."""
        return int(self._rows.labels[int(self._places(np.array([document]))[0])])

    def search(self, queries: Any, k: int = 10, metric: str = "cosine", threads: int | None = None) -> Hits:
        """The k nearest documents of each query (fewer where there are fewer), by `cosine` or `dot`.

        A vector without active features has cosine 0 with everything. `threads`: one per core by default.
        """
        if metric not in METRICS:
            raise ValueError(f"there is no metric {metric!r}; choose cosine or dot.")
        if k < 1:
            raise ValueError(f"k must be 1 or more, not {k}.")
        if not len(self):
            raise ValueError("the index is empty; add vectors before searching.")
        rows, k = as_rows(queries, self.width), min(k, len(self))
        if not np.isfinite(rows.data).all():
            raise ValueError("the queries hold values that are not finite.")
        weights, hidden = self._weights(metric)

        def one(query: int) -> tuple[np.ndarray, np.ndarray]:
            part = slice(rows.indptr[query], rows.indptr[query + 1])
            scores = self._scores(rows.indices[part], rows.data[part], metric) * weights
            if hidden is not None:
                scores[hidden] = -np.inf
            best = top(scores, k)
            return best, scores[best]

        threads = threads or os.cpu_count() or 1
        count = len(rows.indptr) - 1
        if threads == 1 or count == 1:
            found = [one(query) for query in range(count)]
        else:
            with ThreadPoolExecutor(threads) as pool:
                found = list(pool.map(one, range(count)))
        if not found:
            return Hits(np.empty((0, k), np.int64), np.empty((0, k), np.float32))
        best = np.stack([rows for rows, _ in found])
        return Hits(np.asarray(self._rows.ids)[best], np.stack([scores for _, scores in found]))

    def require_model(self, model: Model) -> FeatureKind:
        """The kind of features of this index, projector or encoder, if `model` made them; else an error.

        `add` and `search` see vectors, which do not say where they are from: ask before, as `lpjepa search`
        does.
        """
        made_by = self.info.get("model", {}).get("fingerprint")
        kind: FeatureKind = "encoder" if self.info.get("features") == "encoder" else "projector"
        if made_by is None:
            raise ValueError(
                "the index does not say which model its vectors are from; search it with vectors."
            )
        if model.fingerprint(kind) != made_by:
            raise ValueError(
                f"the index was made with another model ({made_by}, this one is {model.fingerprint(kind)}); "
                "embed the images with this model, or give the one of the index."
            )
        return kind

    def _weights(self, metric: str) -> tuple[np.ndarray, np.ndarray | None]:
        """What brings a product with stored values to a score, and which documents are removed; kept."""
        if self._kept is None or self._kept[0] is not self._rows:
            scales, norms = np.asarray(self._rows.scales), np.asarray(self._rows.norms)
            alive = np.asarray(self._rows.alive)
            by_metric = {
                "dot": scales,
                "cosine": np.divide(scales, norms, out=np.zeros_like(scales), where=norms > 0),
            }
            self._kept = (self._rows, by_metric, None if alive.all() else ~alive, int(alive.sum()))
        return self._kept[1][metric], self._kept[2]

    def _scores(self, features: np.ndarray, values: np.ndarray, metric: str) -> np.ndarray:
        """q · stored for every document; for cosines with q of unit length."""
        if metric == "cosine" and (norm := float(np.linalg.norm(values))) > 0:
            values = values / norm
        scores = np.zeros(len(self._rows.ids), np.float32)
        indptr, values = self._postings.indptr, values.astype(np.float32)
        # Blocks of features, so that what is unpacked for a query stays in the processor's cache.
        block = np.cumsum(indptr[features + 1] - indptr[features]) // BLOCK
        for number in np.unique(block):
            part = block == number
            scores += self._product(features[part], values[part])
        return scores

    def _product(self, features: np.ndarray, values: np.ndarray) -> np.ndarray:
        """One sparse product over some features' postings, in compiled code that lets other threads run."""
        indptr, documents, stored = self._postings
        pieces = [slice(indptr[j], indptr[j + 1]) for j in features]
        ends = np.cumsum([0, *(piece.stop - piece.start for piece in pieces)])
        places = np.concatenate([documents[piece] for piece in pieces])
        # That code does not look where it writes, and a mapped file is not read before it is used.
        if len(places) and int(places.view(np.uint32).max()) >= len(self._rows.ids):
            raise ValueError(
                "the index is damaged (it names a document that it does not hold); make it anew."
            )
        entries = np.concatenate([stored[piece] for piece in pieces]).astype(np.float32)
        shape = (len(self._rows.ids), len(pieces))
        return need("scipy.sparse").csc_array((entries, places, ends), shape=shape) @ values

    def _places(self, ids: np.ndarray) -> np.ndarray:
        """Rows of documents by id (ids rise)."""
        own = np.asarray(self._rows.ids)
        rows = np.searchsorted(own, ids)
        found = rows < len(own)
        found[found] = (own[rows[found]] == ids[found]) & np.asarray(self._rows.alive)[rows[found]]
        if not found.all():
            raise ValueError(f"the index has no document {int(ids[~found][0])}.")
        return rows


def top(scores: np.ndarray, k: int) -> np.ndarray:
    """Places of the k largest scores, largest first, the lower place first among equals."""
    # Of sparse vectors most share nothing with a query: the zeros need not be looked at where others suffice.
    places = np.flatnonzero(scores > 0)
    places = places if len(places) >= k else np.arange(len(scores))
    if k < len(places):
        few = scores[places]
        least = np.partition(few, len(few) - k)[len(few) - k]
        above, equal = places[few > least], places[few == least]
        places = np.concatenate([above, equal[: k - len(above)]])
    return places[np.lexsort((places, -scores[places]))][:k]


def open_index(path: str | Path) -> SparseIndex:
    """An index folder, or a file of embeddings, of which an index is made in memory."""
    from lpjepa.inference.embeddings_file import read_embeddings

    path = Path(path)
    if path.suffix in (".npz", ".parquet", ".npy") or path.is_file():
        return SparseIndex.of_embeddings(read_embeddings(path))
    return SparseIndex.load(path)
