"""How an export is compared with the model it was made of."""

from __future__ import annotations

import torch
from torch import Tensor

from lpjepa.inference.model import Model


class ExportMismatch(ValueError):
    """An export that does not give the features of its model; nothing was written."""


def random_frames(model: Model, count: int = 5, cropped: bool = False) -> Tensor:
    """uint8 images of noise, smooth in parts, of the model's frame (or cropped to its input size)."""
    side = model.description.preprocessing.size if cropped else model.frame_side
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randint(0, 256, (count, 3, 4, 4), generator=generator, dtype=torch.uint8)
    smooth = torch.nn.functional.interpolate(coarse.float(), size=(side, side), mode="bilinear")
    noise = torch.rand(count, 3, side, side, generator=generator) * 64
    return (smooth * 0.75 + noise).to(torch.uint8)


def difference(name: str, expected: Tensor, found: Tensor, tolerance: float = 0.0) -> float:
    """The largest difference relative to the largest feature; an error beyond `tolerance`."""
    if expected.shape != found.shape:
        raise ExportMismatch(
            f"the {name} export gives features of shape {tuple(found.shape)} instead of "
            f"{tuple(expected.shape)}; it was not written."
        )
    scale = float(expected.abs().max()) or 1.0
    largest = float((expected - found).abs().max()) / scale
    if not largest <= tolerance:
        raise ExportMismatch(
            f"the {name} export differs from the model by {largest:.2g} of the largest feature, "
            f"more than {tolerance:g}; it was not written."
        )
    return largest
