"""The module that graphs are exported of: pixels in, both features out, normalisation inside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lpjepa.inference.model import Model

INPUT, BATCH = "images", "batch"


class Deployable(nn.Module):
    """uint8 images (N, 3, S, S) to encoder features (N, E) and, where there is a projector, (N, D).

    S is the model's input size: resizing and cropping are left to the caller, normalisation is done here.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, model: Model):
        super().__init__()
        self.encoder, self.projector = model.encoder, model.projector
        self.register_buffer("scale", model.transform.scale.clone())
        self.register_buffer("shift", model.transform.shift.clone())

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        pixels = images.to(torch.float32) * (1 / 255)
        h_NE = self.encoder(torch.addcmul(self.shift, pixels, self.scale))
        return (h_NE,) if self.projector is None else (h_NE, self.projector(h_NE))


def output_names(model: Model) -> list[str]:
    return ["encoder"] if model.projector is None else ["encoder", "projector"]


def write_description(model: Model, folder: Path, file: str) -> None:
    """`config.json` for a graph: what goes in, what comes out, and the preprocessing before it."""
    given = model.description.preprocessing
    content: dict[str, Any] = {
        "file": file,
        "input": {"name": INPUT, "dtype": "uint8", "shape": [BATCH, 3, given.size, given.size]},
        "outputs": {name: [BATCH, model.width(name)] for name in output_names(model)},
        "before": f"resize the shorter side to {given.resize} ({given.interpolation}), crop the central "
        f"{given.size} x {given.size} pixels, RGB; normalisation is inside",
        "description": model.description.as_dict(),
    }
    (folder / "config.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
