"""Sparse vectors in whatever form a user has them, as rows of entries."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lpjepa.inference._optional import need


class SparseRows(NamedTuple):
    """As in CSR: the entries of row i are `indices` and `data` from `indptr[i]` to `indptr[i + 1]`."""

    indptr: np.ndarray
    indices: np.ndarray  # int32
    data: np.ndarray  # float32


def as_rows(vectors: Any, width: int) -> SparseRows:
    """The entries of scipy sparse arrays, NumPy arrays and tensors (n, D) or (D,), without stored zeros.

    Dense vectors are converted here and not by scipy, whose checks take longer than a search.
    """
    if hasattr(vectors, "detach"):
        vectors = vectors.detach().cpu().numpy()
    is_sparse = hasattr(vectors, "tocsr")
    vectors = vectors if is_sparse else np.atleast_2d(np.asarray(vectors))
    if vectors.ndim != 2 or vectors.shape[1] != width:
        raise ValueError(f"the index holds vectors of {width} features, not of shape {vectors.shape}.")
    if is_sparse:
        rows = need("scipy.sparse").csr_array(vectors, dtype=np.float32, copy=True)
        rows.sum_duplicates()
        rows.eliminate_zeros()
        return SparseRows(rows.indptr, rows.indices, rows.data)
    places, columns = np.nonzero(vectors)
    ends = np.bincount(places, minlength=len(vectors)).cumsum()
    values = vectors[places, columns].astype(np.float32)
    return SparseRows(np.concatenate([[0], ends]), columns.astype(np.int32), values)
