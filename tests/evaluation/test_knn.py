"""Neighbours and votes against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from lpjepa.evaluation import knn, knn_classify, nearest


@pytest.fixture(params=["whole", "blocks"])
def budget(request, monkeypatch):
    """The same with a budget so small that queries and gallery are cut into many blocks."""
    if request.param == "blocks":
        monkeypatch.setattr(knn, "BUDGET", 100)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_neighbours_equal_scikit_learns(budget, metric):
    gallery, query = torch.randn(61, 6) + 5, torch.randn(17, 6) + 5
    distance, index = NearestNeighbors(n_neighbors=7, metric=metric).fit(gallery).kneighbors(query)
    ours, value = nearest(query, gallery, 7, metric)
    np.testing.assert_array_equal(ours.numpy(), index)
    np.testing.assert_allclose(value.numpy(), 1 - distance if metric == "cosine" else distance, atol=1e-5)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("weighted", [True, False])
def test_votes_equal_scikit_learns(budget, metric, weighted):
    centres = torch.randn(4, 6) * 1.5
    labels, test_labels = torch.randint(0, 4, (200,)), torch.randint(0, 4, (90,))
    train, test = centres[labels] + torch.randn(200, 6), centres[test_labels] + torch.randn(90, 6)
    test[:5] = train[:5]  # at distance 0 the others have no vote
    weights = "uniform"
    if weighted:
        weights = (lambda d: np.exp((1 - d) / 0.07)) if metric == "cosine" else "distance"
    theirs = KNeighborsClassifier(10, weights=weights, metric=metric).fit(train, labels).predict(test)
    ours = knn_classify(train, labels, test, 10, metric, weighted)
    assert (ours.numpy() == theirs).mean() > 0.98  # an even vote may fall either way
    if weighted and metric == "euclidean":
        assert (ours[:5] == labels[:5]).all()


def test_few_samples_zero_vectors_and_bad_input():
    gallery = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    index, value = nearest(torch.zeros(1, 2), gallery, 5)
    assert index.shape == (1, 2)
    assert value.tolist() == [[0.0, 0.0]]
    assert knn_classify(gallery, torch.tensor([1, 0]), torch.tensor([[2.0, 0.0]]), k=5).tolist() == [1]
    with pytest.raises(ValueError, match="gallery is empty"):
        nearest(gallery, gallery[:0], 1)
    with pytest.raises(ValueError, match="cosine, euclidean"):
        nearest(gallery, gallery, 1, "manhattan")
    with pytest.raises(ValueError, match="do not fit together"):
        nearest(gallery, torch.randn(3, 3), 1)
    with pytest.raises(ValueError, match="k must be 1"):
        nearest(gallery, gallery, 0)
    with pytest.raises(ValueError, match="do not fit"):
        knn_classify(gallery, torch.tensor([1]), gallery)
