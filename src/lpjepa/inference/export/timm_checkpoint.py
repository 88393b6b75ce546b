"""`--format timm`: the encoder alone, as `timm.create_model(name, checkpoint_path=...)` loads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lpjepa._torchvision_shim import declare_missing_ops
from lpjepa.inference.description import Description
from lpjepa.inference.export.card import write_card
from lpjepa.inference.export.comparison import difference, random_frames
from lpjepa.inference.export.saving import save_weights
from lpjepa.inference.loading import CONFIG, METADATA, WEIGHTS
from lpjepa.inference.model import Model
from lpjepa.models.encoders import ALIASES, SMALL_IMAGE


def write(model: Model, folder: Path, licence: str | None) -> float:
    name, arguments = timm_name(model)
    alone = Description(
        model.description.encoder,
        None,
        model.description.preprocessing,
        model.description.run,
        model.fingerprint("encoder"),
    )
    weights = {
        k.removeprefix("encoder."): v for k, v in model.state_dict().items() if k.startswith("encoder.")
    }
    save_weights(weights, folder / WEIGHTS, alone.as_dict())
    given = model.description.preprocessing
    content = {
        "architecture": name,
        "num_classes": 0,
        "num_features": model.width("encoder"),
        "pretrained_cfg": {
            "input_size": [3, given.size, given.size],
            "mean": list(given.mean),
            "std": list(given.std),
            "interpolation": given.interpolation,
            "crop_pct": given.size / given.resize,
            "num_classes": 0,
        },
        "model_args": arguments,
        METADATA: alone.as_dict(),
    }
    (folder / CONFIG).write_text(json.dumps(content, indent=1), encoding="utf-8")
    write_card(Model(alone, model.encoder, None), folder, licence, "timm", how_to_load(name, arguments))
    frames = random_frames(model)
    reloaded = create(name, arguments, str(folder / WEIGHTS))
    with torch.no_grad():
        return difference(
            "timm", model.embed_frames(frames, "encoder"), reloaded(model.transform(frames)).float()
        )


def create(name: str, arguments: dict[str, Any], checkpoint: str = "") -> nn.Module:
    """The encoder as a user of timm creates it."""
    declare_missing_ops()
    import timm

    if name.startswith("lpjepa_"):
        from lpjepa.inference.timm_models import register_small

        register_small(name.removeprefix("lpjepa_"))
    return timm.create_model(name, num_classes=0, checkpoint_path=checkpoint, **arguments).eval()


def timm_name(model: Model) -> tuple[str, dict[str, Any]]:
    """The name and arguments with which timm builds this encoder: its own where it gives the same features.

    Encoders with a stem for small images, and the narrow one, are registered by `timm_models`.
    """
    own = model.description.encoder
    if own == "narrow":
        return "lpjepa_narrow", {}
    name, size = ALIASES.get(own, own), model.description.preprocessing.size
    arguments: dict[str, Any] = {}
    if "vit_" in name:
        arguments["img_size"] = size
        if size <= SMALL_IMAGE:
            arguments["patch_size"] = max(1, size // 8)
    plain = create(name, arguments)
    try:
        plain.load_state_dict(model.encoder.state_dict())
    except RuntimeError:
        return f"lpjepa_{own}", {}
    frames = random_frames(model, 2)
    return (name, arguments) if _same(plain, model, frames) else (f"lpjepa_{own}", {})


@torch.no_grad()
def _same(plain: nn.Module, model: Model, frames: Tensor) -> bool:
    return torch.equal(plain(model.transform(frames)).float(), model.embed_frames(frames, "encoder"))


def how_to_load(name: str, arguments: dict[str, Any]) -> str:
    """Python for the model card."""
    given = "".join(f", {key}={value!r}" for key, value in arguments.items())
    lines = []
    if name.startswith("lpjepa_"):
        lines.append("import lpjepa.inference.timm_models  # registers encoders with stems for small images")
    lines.append("import timm\n")
    lines.append(f'encoder = timm.create_model("{name}", num_classes=0{given}, checkpoint_path="{WEIGHTS}")')
    return "\n".join(lines)
