"""Monitors where the features are: batches for a GPU, and the same numbers from either device."""

import pytest
import torch
from torch import nn

from lpjepa.data import EvalTransform, ImageSet
from lpjepa.distributions import RectifiedGeneralizedGaussian
from lpjepa.models import SparseModel
from lpjepa.training import monitors
from lpjepa.training.monitors import Features, extract, measure, suited_batch
from lpjepa.training.probes import OnlineProbes


def test_batches_suit_the_device_and_the_size_of_images():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert [suited_batch(side, gpu) for side in (8, 32, 64, 224, 4096)] == [1024, 1024, 256, 20, 1]
    assert suited_batch(32, cpu) == 1  # the batch that was asked for


def case(samples=3000, dim=64):
    target = RectifiedGeneralizedGaussian.from_active_fraction(0.3, p=1.0)
    generator = torch.Generator().manual_seed(1)
    z = target.sample((samples, dim), generator=generator)
    h = torch.randn(samples, 16, generator=generator)
    probes = OnlineProbes(16, dim, 4)
    labels = probes(h, z)["encoder"].argmax(1)
    labels[: samples // 4] = (labels[: samples // 4] + 1) % 4
    return Features(h, z, labels), probes, target


def test_accuracy_is_the_share_of_agreeing_labels():
    features, probes, target = case()
    found = measure(features, probes, target)
    assert found["encoder_accuracy"] == pytest.approx(0.75)
    assert found["l0"] == pytest.approx(float((features.z_ND != 0).double().mean()), rel=1e-5)
    assert all(type(value) is float for value in found.values())


def test_one_image_has_sparsity_and_accuracy_but_no_distribution():
    features, probes, target = case(samples=1)
    found = measure(features, probes, target)
    assert {"l0", "l1", "l0_predicted", "encoder_accuracy"} <= set(found)
    assert "held_out_discrepancy" not in found


@pytest.mark.gpu
def test_the_device_does_not_change_the_monitors():
    features, probes, target = case()
    expected = measure(features, probes, target)
    found = measure(Features(*(part.cuda() for part in features)), probes.cuda(), target)
    # Directions and target samples are other draws on a GPU.
    assert found.pop("held_out_discrepancy") == pytest.approx(expected.pop("held_out_discrepancy"), rel=0.5)
    assert found == pytest.approx(expected, rel=1e-3)


def small_model():
    return SparseModel(nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 8)), nn.Linear(8, 5), 8, 5)


def small_images(count=70):
    return ImageSet(torch.randint(0, 256, (count, 3, 4, 4), dtype=torch.uint8), torch.arange(count) % 3)


@pytest.mark.parametrize("batch_size", [1, 32, 100])
def test_features_are_those_of_all_images_in_order(batch_size):
    model, images, preprocess = small_model(), small_images(), EvalTransform(4)
    found = extract(model, images, preprocess, torch.device("cpu"), "fp32", batch_size)
    with torch.no_grad():
        h_NE, z_ND = model(preprocess(images.images))
    torch.testing.assert_close(found.h_NE, h_NE)
    torch.testing.assert_close(found.z_ND, z_ND)
    assert found.labels_N.tolist() == [i % 3 for i in range(70)]
    assert model.training


@pytest.mark.gpu
def test_features_stay_on_the_device_unless_they_are_many(monkeypatch):
    model = small_model().cuda()
    arguments = (small_images(), EvalTransform(4), torch.device("cuda"), "fp32", 32)
    near = extract(model, *arguments)
    assert all(part.is_cuda for part in near)
    monkeypatch.setattr(monitors, "HELD", 10)
    far = extract(model, *arguments)
    for a, b in zip(near, far):
        assert not b.is_cuda
        torch.testing.assert_close(a.cpu(), b)
