"""Sparse vectors as vector databases take them: Qdrant, Milvus, OpenSearch.

All three score by dot product over shared indices, so that vectors of unit length give cosines, which is
what is written here. An image without any active feature is an empty vector, which no query finds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

VECTOR = "features"  # the name of the vector's field in every engine


def unit(values: np.ndarray) -> np.ndarray:
    """Values of a vector of length 1 (an empty one as it is)."""
    norm = float(np.sqrt(np.square(values, dtype=np.float64).sum()))
    return values / norm if norm > 0 else values


def qdrant(
    number: int, indices: np.ndarray, values: np.ndarray, fields: dict[str, Any]
) -> list[dict[str, Any]]:
    """A point for `PUT /collections/NAME/points`: a sparse vector is a list of indices and one of values."""
    vector = {"indices": indices.tolist(), "values": unit(values).tolist()}
    return [{"id": number, "vector": {VECTOR: vector}, "payload": fields}]


def milvus(
    number: int, indices: np.ndarray, values: np.ndarray, fields: dict[str, Any]
) -> list[dict[str, Any]]:
    """A row for `insert`: a SPARSE_FLOAT_VECTOR is a mapping of index to value (metric IP).

    JSON's keys are strings; Milvus reads them as indices.
    """
    vector = {str(i): v for i, v in zip(indices.tolist(), unit(values).tolist())}
    return [{"id": number, VECTOR: vector, **fields}]


def opensearch(
    number: int, indices: np.ndarray, values: np.ndarray, fields: dict[str, Any]
) -> list[dict[str, Any]]:
    """Two lines for `_bulk`: a `rank_features` field is a mapping of token to a positive weight."""
    if (values < 0).any():
        raise ValueError("OpenSearch takes positive weights only; these features are not rectified.")
    vector = {str(i): v for i, v in zip(indices.tolist(), unit(values).tolist())}
    return [{"index": {"_id": str(number)}}, {VECTOR: vector, **fields}]


ENGINES: dict[str, Callable[[int, np.ndarray, np.ndarray, dict[str, Any]], list[dict[str, Any]]]] = {
    "qdrant": qdrant,
    "milvus": milvus,
    "opensearch": opensearch,
}


def document(
    engine: str, number: int, indices: np.ndarray, values: np.ndarray, fields: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The JSON documents (one, or two for OpenSearch) of one sparse vector, with what else is stored."""
    if engine not in ENGINES:
        raise ValueError(f"there is no engine {engine!r} here; choose one of {', '.join(ENGINES)}.")
    return ENGINES[engine](number, indices, values, fields or {})
