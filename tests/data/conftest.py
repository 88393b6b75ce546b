"""Tiny image files."""

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def write_image():
    """write_image(path, seed, size): an image whose pixels follow from the seed; returns them (H, W, 3)."""

    def write(path, seed=0, size=(12, 12)):
        pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        return pixels

    return write


@pytest.fixture
def image_folder(tmp_path, write_image):
    """30 PNG images in three classes: (root, pixels by class and number)."""
    root = tmp_path / "images"
    pixels = {
        (label, i): write_image(root / label / f"{i:02d}.png", 10 * number + i)
        for number, label in enumerate(("ant", "bee", "cow"))
        for i in range(10)
    }
    return root, pixels
