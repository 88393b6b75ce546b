"""Feature extraction: the model's own output, once, in order, whatever the batches."""

import pytest
import torch
from torch import nn

from lpjepa.data import EvalTransform, ImageSet
from lpjepa.evaluation import Features, extract, stream


class Toy(nn.Module):
    """BatchNorm and dropout give another result in training mode, which extraction must not use."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1d(5), nn.Dropout(0.5))
        self.projector = nn.Sequential(nn.Linear(5, 7), nn.ReLU())

    def forward(self, x):
        h = self.encoder(x)
        return h, self.projector(h)


@pytest.fixture
def model():
    return Toy().train()


@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_equals_the_model_in_evaluation_mode(model, batch_size):
    x, labels = torch.randn(10, 3, 2, 2), torch.arange(10)
    found = extract(model, x, batch_size, labels=labels)
    assert model.training
    model.eval()
    h, z = model(x)
    torch.testing.assert_close(found.encoder, h)
    torch.testing.assert_close(found.projector, z)
    assert found.labels.tolist() == list(range(10))
    assert not found.encoder.is_inference()


def test_image_sets_batches_and_transforms(model):
    images, labels = torch.randint(0, 256, (9, 3, 2, 2), dtype=torch.uint8), torch.arange(9)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    transform = EvalTransform(2, mean=mean, std=std)
    found = extract(model, ImageSet(images, labels), 4, transform=transform)
    x = (images / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    expected = extract(model, x)
    torch.testing.assert_close(found.projector, expected.projector, rtol=1e-4, atol=1e-5)
    assert found.labels.tolist() == list(range(9))
    pairs = extract(model, [(x[:5], labels[:5]), (x[5:], labels[5:])])
    torch.testing.assert_close(pairs.encoder, expected.encoder)
    assert pairs.labels.tolist() == list(range(9))
    assert [len(h) for h, _, _ in stream(model, x, batch_size=4)] == [4, 4, 1]


def test_progress_hears_of_every_image(model):
    seen = []
    extract(model, torch.randn(10, 3, 2, 2), 4, progress=seen.append)
    assert seen == [4, 4, 2]


def test_empty_splits_and_broken_features_are_errors(model):
    with pytest.raises(ValueError, match="split is empty"):
        extract(model, torch.randn(0, 3, 2, 2))
    x = torch.randn(6, 3, 2, 2)
    x[2] = torch.nan
    with pytest.raises(ValueError, match=r"encoder features of 1 of 6 samples are not finite.*sample 2"):
        extract(model, x)
    with pytest.raises(TypeError, match="not of int"):
        extract(model, 3)
    assert model.training  # also after an error


def test_features_by_name():
    features = Features(torch.zeros(2, 3), torch.zeros(2, 4))
    assert features.kind("projector").shape == (2, 4)
    assert len(features) == 2
    with pytest.raises(ValueError, match="no 'backbone' features"):
        features.kind("backbone")
    with pytest.raises(ValueError, match="no labels"):
        features.require_labels()
