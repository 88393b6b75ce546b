"""k nearest neighbours in feature space: search in bounded memory, and the classifier."""

import torch
import torch.nn.functional as F
from torch import Tensor

METRICS = ("cosine", "euclidean")
TEMPERATURE = 0.07  # of votes by cosine
BUDGET = 2**24  # entries of the largest matrix made at a time: 64 MB in float32


def nearest(query: Tensor, gallery: Tensor, k: int, metric: str = "cosine") -> tuple[Tensor, Tensor]:
    """The k nearest rows of `gallery` (M, F) for each row of `query` (N, F): indices and values (N, k).

    Values are cosine similarities (that of an all-zero vector is 0) or Euclidean distances. Queries and
    gallery are taken in blocks of at most `BUDGET` entries, so neither the (N, M) matrix nor a copy of the
    gallery is made. Fewer than k rows in the gallery give as many as there are.
    """
    if metric not in METRICS:
        raise ValueError(f"There is no metric {metric!r}; choose one of {', '.join(METRICS)}.")
    if query.ndim != 2 or gallery.ndim != 2 or query.shape[1] != gallery.shape[1]:
        raise ValueError(
            f"Queries (N, F) and gallery (M, F) do not fit together: {tuple(query.shape)} and "
            f"{tuple(gallery.shape)}."
        )
    if len(gallery) == 0:
        raise ValueError("There are no neighbours to find: the gallery is empty.")
    if k < 1:
        raise ValueError(f"k must be 1 or more, not {k}.")
    k = min(k, len(gallery))
    width = query.shape[1]
    rows = max(1, min(1024, BUDGET // (k * width)))
    columns = max(k, min(BUDGET // rows, BUDGET // width))
    found = [_nearest_block(part, gallery, k, metric, columns) for part in query.split(rows)]
    return torch.cat([i for i, _ in found]), torch.cat([v for _, v in found])


def _nearest_block(q: Tensor, gallery: Tensor, k: int, metric: str, columns: int) -> tuple[Tensor, Tensor]:
    best = q.new_full((len(q), 0), 0.0)
    index = torch.empty((len(q), 0), dtype=torch.long, device=q.device)
    if metric == "cosine":
        q = F.normalize(q, dim=1)
    for start in range(0, len(gallery), columns):
        part = gallery[start : start + columns]
        # Larger is nearer: the cosine, or -|q - g|² without the |q|² that ranks nothing.
        near = q @ F.normalize(part, dim=1).T if metric == "cosine" else 2 * q @ part.T - part.square().sum(1)
        best, chosen = torch.cat([best, near], 1).topk(min(k, best.shape[1] + len(part)), dim=1)
        here = torch.arange(start, start + len(part), device=q.device).expand(len(q), -1)
        index = torch.cat([index, here], 1).gather(1, chosen)
    if metric == "cosine":
        return index, best
    # Differences of squares lose the digits of short distances: measure the chosen ones again.
    distance, order = (gallery[index] - q.unsqueeze(1)).square().sum(-1).sqrt().sort(dim=1, stable=True)
    return index.gather(1, order), distance


def knn_classify(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    k: int = 20,
    metric: str = "cosine",
    weighted: bool = True,
) -> Tensor:
    """Labels (N,) voted by the k nearest training samples; ties go to the lower class.

    Votes weigh exp(cosine / 0.07) for `cosine` and 1/distance for `euclidean` (where a training sample
    lies at distance 0, only such samples vote), or 1 with `weighted=False`.
    """
    if train_labels.shape != train.shape[:1]:
        raise ValueError(
            f"Features {tuple(train.shape)} and labels {tuple(train_labels.shape)} do not fit together."
        )
    index, value = nearest(test, train, k, metric)
    if not weighted:
        vote = torch.ones_like(value)
    elif metric == "cosine":
        vote = ((value - value[:, :1]) / TEMPERATURE).exp()  # relative to the nearest: no overflow
    else:
        same = value == 0
        vote = torch.where(same.any(1, keepdim=True), same.to(value.dtype), 1 / value.clamp(min=1e-38))
    votes = vote.new_zeros(len(test), int(train_labels.max()) + 1)
    votes.scatter_add_(1, train_labels[index], vote)
    return votes.argmax(1)
