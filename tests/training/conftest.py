"""A training small enough for tests: 96 images of 8 pixels, a narrow encoder, a few slices."""

import numpy as np
import pytest

from lpjepa.training import load_config
from lpjepa.training.display import Silent


class Watcher(Silent):
    """Calls `act(step)` after every step."""

    def __init__(self, act):
        self.act, self.last = act, -1

    def advance(self, step, epoch, speed, latest):
        if step != self.last:
            self.last = step
            self.act(step)


@pytest.fixture(scope="session")
def array_file(tmp_path_factory):
    """96 + 32 images of four classes: a bright quarter on noise."""
    path = tmp_path_factory.mktemp("arrays") / "quarters.npz"
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 96), ("val", 32)):
        labels = np.arange(count) % 4
        images = rng.integers(0, 120, (count, 8, 8), dtype=np.uint8)
        for image, label in zip(images, labels):
            image[4 * (label // 2) : 4 * (label // 2) + 4, 4 * (label % 2) : 4 * (label % 2) + 4] += 120
        arrays |= {f"x_{split}": images, f"y_{split}": labels}
    np.savez(path, **arrays)
    return path


@pytest.fixture
def tiny(tmp_path, array_file):
    """tiny({...}, {...}): the config of a small training with these changes, in a folder of its own."""

    def build(*changes):
        base = {
            "data": {"source": "npz", "root": str(array_file), "workers": 0},
            "views": {"size": 8, "flip": 0.0, "blur": 0.0},
            "model": {"encoder": "narrow", "projector_hidden": 16, "projector_dim": 12},
            "loss": {"num_slices": 16},
            "optim": {"lr": 5e-3, "warmup_epochs": 0.5},
            "train": {"epochs": 2, "batch_size": 32, "out": str(tmp_path / "run")},
            "log": {"every": 2},
        }
        return load_config(None, base, *changes)

    return build


@pytest.fixture
def watch():
    return Watcher
