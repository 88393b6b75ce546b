"""A run of a few training steps on handwritten digits, made once, and images of it on the disk."""

import pytest
import torch
from PIL import Image

from lpjepa.data import load_source
from lpjepa.inference import load
from lpjepa.training import load_config, pretrain
from lpjepa.training.display import Silent


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    config = load_config(
        None,
        {
            "model": {"projector_hidden": 32, "projector_dim": 48},
            "loss": {"num_slices": 32},
            "train": {"epochs": 2, "batch_size": 256, "out": str(folder), "device": "cpu"},
        },
    )
    torch.manual_seed(0)
    pretrain(config, Silent())
    return folder


@pytest.fixture(scope="session")
def model(run_folder):
    return load(run_folder, device="cpu")


@pytest.fixture(scope="session")
def digits():
    return load_source("digits", split="test")


@pytest.fixture(scope="session")
def photos(tmp_path_factory, digits):
    """40 digits as PNG in folders by class, one of them also as a file that is no image."""
    folder = tmp_path_factory.mktemp("photos")
    for place in range(40):
        path = folder / f"digit {int(digits.labels[place])}" / f"{place:03}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(digits.images[place].permute(1, 2, 0).numpy()).save(path)
    (folder / "digit 0" / "broken.jpg").write_bytes(b"not an image")
    return folder
