"""Writing weights as safetensors, with what they are of inside the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from lpjepa.inference._optional import need
from lpjepa.inference.loading import METADATA


def save_weights(weights: dict[str, Tensor], path: Path, described: dict[str, Any]) -> None:
    """The file describes itself, so that it can travel alone (`lpjepa.load("model.safetensors")`)."""
    metadata = {"format": "pt", METADATA: json.dumps(described)}
    need("safetensors.torch").save_file(weights, path, metadata)
    path.chmod(0o644)  # it is written for its owner alone otherwise
