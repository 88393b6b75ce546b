"""``digits``: the 1,797 handwritten digits of 8 by 8 pixels that scikit-learn carries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from lpjepa.data.errors import DataError
from lpjepa.data.image_set import ImageSet, Storage
from lpjepa.data.order import holdout
from lpjepa.data.sources._common import array_set

# Fixed: everyone who says "digits" means the same 1,438 training and 359 validation images.
VAL_FRACTION, SPLIT_SEED = 0.2, 0


def load_digits(root: Path, split: str, storage: Storage) -> ImageSet:
    """Grey values 0..16 become 0..255 in three equal channels; one fifth, stratified, is validation."""
    try:
        from sklearn import datasets
    except ImportError:
        raise DataError(
            "digits come with scikit-learn, which is not installed: pip install scikit-learn."
        ) from None
    data = datasets.load_digits()
    images = np.round(data.images * (255 / 16)).astype(np.uint8)
    labels = torch.as_tensor(data.target)
    train, val = holdout(len(images), labels, VAL_FRACTION, SPLIT_SEED)
    chosen = train if split == "train" else val
    classes = [str(digit) for digit in range(10)]
    return array_set(images[chosen.numpy()], labels[chosen], classes, "digits", storage)
