"""`lpjepa export`: a model for other tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass
class Arguments:
    """Write a model in another form; every export is reloaded and compared before it gets its name."""

    run: Annotated[str, tyro.conf.arg(metavar="RUN")]
    """A run, an export, a file of weights, or a Hugging Face repository."""
    format: Literal["timm", "safetensors", "onnx", "torch-export"] = "safetensors"
    """timm: the encoder for timm.create_model; safetensors: for lpjepa.load; onnx; torch-export."""
    out: Path | None = None
    """Folder to make; by default NAME-FORMAT in the working directory."""
    active: float | None = None
    """Keep this share of every image's projector features, the largest: another sparsity than the run's."""
    license: str | None = None
    """Licence for the model card, an SPDX name such as mit or cc-by-4.0."""
    push: str | None = None
    """Also upload it to this Hugging Face repository, user/name."""
    private: bool = False
    """Make the repository private."""


def run(arguments: list[str]) -> int:
    """a model for other tools: RUN --format timm|safetensors|onnx|torch-export [--push user/name]"""
    from lpjepa.inference import load
    from lpjepa.inference.export import export_model
    from lpjepa.inference.export.hub import check_repository, push

    chosen = tyro.cli(
        Arguments, prog="lpjepa export", args=arguments, config=(tyro.conf.PositionalRequiredArgs,)
    )
    if chosen.push is not None:
        check_repository(chosen.push)
    name = Path(chosen.run).resolve().name if Path(chosen.run).exists() else chosen.run.split("/")[-1]
    out = chosen.out or Path(f"{name.removesuffix('.safetensors').removesuffix('.pt')}-{chosen.format}")
    model = load(chosen.run, "cpu")
    if chosen.active is not None:
        if chosen.format == "timm":
            raise ValueError("--active: --format timm holds no projector; choose another format.")
        model = model.with_active(chosen.active)
    done = export_model(model, chosen.format, out, chosen.license)
    print(f"{done.folder}: reloaded and compared, largest difference {done.difference:.2g}")
    if chosen.push is not None:
        print(f"pushed to {push(done.folder, chosen.push, chosen.private)}")
    return 0
