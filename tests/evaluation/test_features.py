"""Feature extraction: the model's own output, once, in order, whatever the batches."""

import pytest
import torch
from torch import nn

from lpjepa.data import EvalTransform, ImageSet
from lpjepa.evaluation import Features, extract, stream
from lpjepa.evaluation import features as features_module
from lpjepa.models import ModelConfig, build


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


def test_features_that_leave_the_device_in_pieces_are_the_same(model, monkeypatch):
    x, labels = torch.randn(10, 3, 2, 2), torch.arange(10)
    whole = extract(model, x, 3, labels=labels)
    monkeypatch.setattr(features_module, "HELD", 5 * 12)  # five images
    pieces = extract(model, x, 3, labels=labels)
    assert torch.equal(pieces.encoder, whole.encoder)
    assert torch.equal(pieces.projector, whole.projector)
    assert pieces.labels.tolist() == list(range(10))


def test_labels_are_a_copy_of_the_sets(model):
    images = ImageSet(torch.randint(0, 256, (9, 3, 2, 2), dtype=torch.uint8), torch.arange(9))
    found = extract(model, images, transform=EvalTransform(2))
    found.labels.zero_()
    assert images.labels.tolist() == list(range(9))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_extraction_on_a_gpu_does_not_wait_and_gives_the_features_of_the_cpu(model):
    images = ImageSet(torch.randint(0, 256, (3000, 3, 2, 2), dtype=torch.uint8), torch.arange(3000))
    transform = EvalTransform(2)
    expected = extract(model, images, transform=transform)
    model.cuda()
    near = images.to("cuda")
    assert [len(h) for h, _, _ in stream(model, near, transform=transform)] == [1024, 1024, 952]
    torch.cuda.set_sync_debug_mode("error")
    try:
        parts = list(stream(model, near, 256, transform=transform))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found = torch.cat([z for _, z, _ in parts]).cpu()
    torch.testing.assert_close(found, expected.projector, rtol=1e-3, atol=1e-3)
    whole = extract(model, images, transform=transform)
    assert not whole.encoder.is_cuda
    torch.testing.assert_close(whole.encoder, expected.encoder, rtol=1e-3, atol=1e-3)
    assert whole.labels.tolist() == list(range(3000))


@pytest.fixture
def pair():
    torch.manual_seed(0)
    return build(ModelConfig(projector_hidden=16, projector_dim=8, projector_layers=2), image_size=8).train()


def test_our_networks_are_replayed_where_there_is_a_recorder(pair, tape, monkeypatch):
    x = torch.randn(11, 3, 8, 8)
    expected = extract(pair, x, 3)
    monkeypatch.setattr(features_module, "recorder_for", lambda device: tape)
    found = list(stream(pair, x, 3))
    assert tape.events == ["warm", "record", "replay", "replay", "warm"]  # the last batch is smaller
    torch.testing.assert_close(torch.cat([h for h, _, _ in found]), expected.encoder)
    torch.testing.assert_close(torch.cat([z for _, z, _ in found]), expected.projector)
    assert pair.training


def test_hooks_hear_of_every_batch(pair, monkeypatch):
    heard = []
    monkeypatch.setattr(features_module, "recorder_for", lambda device: pytest.fail("a replay calls no hook"))
    pair.projector.register_forward_hook(lambda *given: heard.append(len(given[2])))
    extract(pair, torch.randn(11, 3, 8, 8), 3)
    assert heard == [3, 3, 3, 2]


@pytest.mark.gpu
def test_replays_on_a_gpu_give_the_features_of_the_cpu(pair):
    x = torch.randn(1100, 3, 8, 8)
    expected = extract(pair, x)
    found = extract(pair, x, 256, device="cuda")
    torch.testing.assert_close(found.encoder, expected.encoder, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.projector, expected.projector, rtol=1e-3, atol=1e-3)


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
