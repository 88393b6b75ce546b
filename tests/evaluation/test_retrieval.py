"""Retrieval by cosine over projector features, with the query left out, and cropped queries."""

import numpy as np
import pytest
import torch
from torch import nn

from lpjepa.evaluation import Features, crop, extract, neighbours, retrieve


def test_neighbours_are_the_largest_cosines_without_the_query_itself():
    z, labels = torch.randn(30, 5), torch.arange(30) % 3
    gallery = Features(torch.zeros(30, 1), z, labels)
    own = torch.tensor([4, 11])
    found = neighbours(z[own], gallery, k=6, labels=labels[own], exclude=own)
    x = z.numpy() / np.linalg.norm(z.numpy(), axis=1, keepdims=True)
    for row, query in enumerate(own.tolist()):
        order = [i for i in np.argsort(-x @ x[query]) if i != query][:6]
        assert found.indices[row].tolist() == order
        assert found.match[row].tolist() == [i % 3 == query % 3 for i in order]
    assert (found.similarities.diff(dim=1) <= 0).all()
    outside = neighbours(z[own], gallery, k=6, exclude=torch.tensor([-1, 11]))
    assert outside.indices[0, 0] == 4
    assert outside.match is None


class Mean(nn.Module):
    """Projects an image to the mean of each channel."""

    def forward(self, x):
        return x.mean((2, 3)), x.mean((2, 3))


def test_a_crop_changes_what_is_retrieved():
    red, blue = torch.zeros(1, 3, 8, 8), torch.zeros(1, 3, 8, 8)
    red[:, 0], blue[:, 2] = 1, 1
    query = blue.clone()
    query[:, :, :4, :4] = red[:, :, :4, :4]  # mostly blue, a red corner
    gallery = extract(Mean(), torch.cat([red, blue]))
    assert retrieve(Mean(), query, gallery, k=1).indices.item() == 1
    assert retrieve(Mean(), query, gallery, k=1, box=(0, 0, 0.5, 0.5)).indices.item() == 0


def test_a_crop_keeps_size_type_and_orientation():
    x = torch.arange(64, dtype=torch.uint8).reshape(1, 1, 8, 8).expand(2, 3, 8, 8)
    torch.testing.assert_close(crop(x, (0, 0, 1, 1)), x)
    part = crop(x, (0.5, 0.0, 0.5, 0.25))
    assert part.shape == x.shape
    assert part.dtype == torch.uint8
    assert part[0, 0, 0, 0] == x[0, 0, 4, 0]
    assert part[0, 0, -1, -1] == x[0, 0, 7, 1]
    for box in [(0, 0, 0, 1), (0.6, 0, 0.5, 1), (-0.1, 0, 1, 1)]:
        with pytest.raises(ValueError, match="fractions of the image"):
            crop(x, box)
