"""Exports of a model: written beside their final place, reloaded, compared, and only then put there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lpjepa.inference.export import onnx_graph, program, timm_checkpoint, weights
from lpjepa.inference.model import Model

# Each writes a folder, reloads it, and gives the largest difference of features it found.
FORMATS: dict[str, Callable[[Model, Path, str | None], float]] = {
    "timm": timm_checkpoint.write,
    "safetensors": weights.write,
    "onnx": onnx_graph.write,
    "torch-export": program.write,
}


@dataclass(frozen=True)
class Exported:
    """A finished export: its folder, and how far its features were from the model's on random images."""

    folder: Path
    difference: float


def export_model(model: Model, format: str, folder: str | Path, licence: str | None = None) -> Exported:
    """Export `model` as a new folder in one of `FORMATS`.

    Every format is read back and compared with the model on random images before the folder gets its name;
    a difference beyond rounding is an error. `licence` is an SPDX name for the model card.
    """
    if format not in FORMATS:
        raise ValueError(f"--format {format}: there are {', '.join(FORMATS)}.")
    folder = Path(folder)
    if folder.exists():
        raise ValueError(f"{folder} exists already; remove it or choose another --out.")
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise ValueError(
            f"--out {folder}: the folder cannot be written ({error.strerror}); choose another."
        ) from None
    device = model.device
    try:
        difference = FORMATS[format](model.to("cpu"), partial, licence)
        os.replace(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        model.to(device)
    return Exported(folder, difference)
