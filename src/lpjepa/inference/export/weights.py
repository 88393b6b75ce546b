"""`--format safetensors`: weights of both parts, `config.json`, model card; what `lpjepa.load` reads."""

from __future__ import annotations

import json
from pathlib import Path

from lpjepa.inference.export.card import write_card
from lpjepa.inference.export.comparison import difference, random_frames
from lpjepa.inference.export.saving import save_weights
from lpjepa.inference.loading import CONFIG, METADATA, WEIGHTS, load
from lpjepa.inference.model import Model


def write(model: Model, folder: Path, licence: str | None) -> float:
    described = model.description.as_dict()
    save_weights(model.state_dict(), folder / WEIGHTS, described)
    (folder / CONFIG).write_text(
        json.dumps({"library_name": "lpjepa", METADATA: described}, indent=1), encoding="utf-8"
    )
    write_card(model, folder, licence, "safetensors")
    frames = random_frames(model)
    kind = "encoder" if model.projector is None else "projector"
    expected = model.embed_frames(frames, kind)
    return max(
        difference("safetensors", expected, load(path, "cpu").embed_frames(frames, kind))
        for path in (folder, folder / WEIGHTS)
    )
