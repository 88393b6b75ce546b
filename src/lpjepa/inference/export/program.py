"""`--format torch-export`: a `torch.export` program with a free batch size."""

from __future__ import annotations

from pathlib import Path

import torch

from lpjepa.inference.export.card import write_card
from lpjepa.inference.export.comparison import difference, random_frames
from lpjepa.inference.export.deployable import BATCH, INPUT, Deployable, output_names, write_description
from lpjepa.inference.model import Model

FILE = "model.pt2"
TOLERANCE = 1e-5


def export_program(module: Deployable, example: torch.Tensor) -> torch.export.ExportedProgram:
    with torch.no_grad():
        return torch.export.export(
            module, (example,), dynamic_shapes={INPUT: {0: torch.export.Dim(BATCH, max=2**16)}}
        )


def write(model: Model, folder: Path, licence: str | None) -> float:
    module = Deployable(model).eval()
    program = export_program(module, random_frames(model, 2, cropped=True))
    torch.export.save(program, folder / FILE)
    write_description(model, folder, FILE)
    loaded = torch.export.load(folder / FILE).module()
    names = output_names(model)
    how = f'import torch\n\nmodel = torch.export.load("{FILE}").module()\n'
    how += f"{', '.join(names)}, *_ = model(images_uint8)"
    write_card(model, folder, licence, "torch-export", how)
    worst = 0.0
    for count in (1, 2, 5):
        frames = random_frames(model, count, cropped=True)
        with torch.no_grad():
            pairs = zip(module(frames), loaded(frames))
        for expected, found in pairs:
            worst = max(worst, difference("torch-export", expected, found, TOLERANCE))
    return worst
