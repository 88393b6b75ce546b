"""Retrieval: which images a model takes for alike ("k-Nearest Neighbors Visualizations")."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lpjepa.evaluation.features import Features, extract
from lpjepa.evaluation.knn import nearest

Box = tuple[float, float, float, float]


class Neighbours(NamedTuple):
    """For each query its neighbours, nearest first; `match` is whether labels agree (None without labels)."""

    indices: Tensor  # (Q, k) into the gallery
    similarities: Tensor  # (Q, k) cosines of projector features
    match: Tensor | None  # (Q, k)


def crop(x_NCHW: Tensor, box: Box) -> Tensor:
    """The part `box` = (top, left, height, width), in fractions of the image, enlarged to its size."""
    top, left, height, width = box
    if not (0 <= top < 1 and 0 <= left < 1 and 0 < height <= 1 - top + 1e-9 and 0 < width <= 1 - left + 1e-9):
        raise ValueError(
            f"A crop is (top, left, height, width) in fractions of the image and inside it, not {box}."
        )
    rows, columns = x_NCHW.shape[-2:]
    first_row, first_column = int(top * rows), int(left * columns)
    last_row = max(first_row + 1, round((top + height) * rows))
    last_column = max(first_column + 1, round((left + width) * columns))
    part = x_NCHW[..., first_row:last_row, first_column:last_column]
    dtype = part.dtype
    part = F.interpolate(part.float(), size=(rows, columns), mode="bilinear", antialias=True)
    return part.round().to(dtype) if not dtype.is_floating_point else part.to(dtype)


def neighbours(
    query_z: Tensor,
    gallery: Features,
    k: int = 7,
    labels: Tensor | None = None,
    exclude: Tensor | None = None,
) -> Neighbours:
    """Top-k of the gallery by cosine over projector features for queries (Q, D).

    `labels` (Q,) are those of the queries. `exclude` (Q,) is each query's own place in the gallery, left
    out of its neighbours; -1 where it is not part of it.
    """
    gallery_z = gallery.projector.to(query_z.device)
    indices, similarities = nearest(query_z, gallery_z, k + (exclude is not None), "cosine")
    if exclude is not None:
        # Move the query itself behind the others, then drop the last column.
        own = indices == exclude.to(indices.device).unsqueeze(1)
        order = own.to(torch.int8).sort(dim=1, stable=True).indices[:, :-1]
        indices, similarities = indices.gather(1, order), similarities.gather(1, order)
    match = None
    if labels is not None and gallery.labels is not None:
        match = gallery.labels.to(indices.device)[indices] == labels.to(indices.device).unsqueeze(1)
    return Neighbours(indices, similarities, match)


def retrieve(
    model: nn.Module,
    x_NCHW: Tensor,
    gallery: Features,
    k: int = 7,
    box: Box | None = None,
    labels: Tensor | None = None,
    exclude: Tensor | None = None,
) -> Neighbours:
    """Neighbours of query images (the model's input), cropped to `box` first where one is given."""
    if box is not None:
        x_NCHW = crop(x_NCHW, box)
    return neighbours(extract(model, x_NCHW).projector, gallery, k, labels, exclude)
