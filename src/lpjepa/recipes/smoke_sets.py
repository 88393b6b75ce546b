"""The sets of images of the smoke scale: a part of the digits, and two others made of them to transfer to."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lpjepa._whole import whole

TRAIN, TEST = 400, 160


def write_smoke_sets(folder: Path) -> None:
    """`digits.npz`, `rotated.npz` (a quarter turn) and `inverted.npz` (dark on light) in `folder`."""
    from lpjepa.data import load_source

    made = {
        "digits": lambda x: x,
        "rotated": lambda x: np.rot90(x, axes=(-2, -1)),
        "inverted": lambda x: 255 - x,
    }
    if all((folder / f"{name}.npz").is_file() for name in made):
        return
    folder.mkdir(parents=True, exist_ok=True)
    parts = {}
    for split, name, count in (("train", "train", TRAIN), ("val", "test", TEST)):
        images = load_source("digits", split=split)
        assert images.images is not None
        assert images.labels is not None
        parts[name] = (images.images[:count].numpy(), images.labels[:count].numpy())
    for name, change in made.items():
        arrays = {f"x_{part}": np.ascontiguousarray(change(x)) for part, (x, _) in parts.items()}
        arrays |= {f"y_{part}": y for part, (_, y) in parts.items()}
        with whole(folder / f"{name}.npz") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
