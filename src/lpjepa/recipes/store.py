"""Results on the disk: one small JSON file a training, `results/SCALE/IDENTITY.json`.

{"format": 1, "scale": "small", "identity": "0123abcd", "config": {...}, "seed": 5, "date": "...",
 "hardware": {...}, "versions": {...}, "seconds": 134.2, "final": {...},
 "training": {"epoch": [...], "loss": [...], ...},
 "curves": {"epoch": [...], "l0": [...], ...}, "pieces": {"measures": {...}, "transfer": {...}},
 "goes_on": {"from": "4567cdef", "epoch": 90}}   (where it went on from a checkpoint of another training)

`seconds` are null where a session of the training was killed: what that took is not known.

A result belongs to a training when their configs agree in every key that changes what is computed. Keys that
did not exist when it was made count as left at their defaults, so results outlive new options.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

from lpjepa._whole import write_whole
from lpjepa.evaluation.results import plain, versions
from lpjepa.training import Config, ConfigError, Run
from lpjepa.training._typed import merge, to_dict
from lpjepa.training.config import FREE_KEYS, identity

FORMAT = 1
CURVE_POINTS = 60
TRAINING_POINTS = 100
CURVES = (
    "l0", "l1", "encoder_accuracy", "projector_accuracy", "variance_loss", "covariance_loss",
    "effective_rank", "dead_fraction", "held_out_discrepancy",
)  # fmt: skip
TRAINING = (
    "loss", "invariance", "matching", "l0", "l1", "encoder_train_accuracy", "projector_train_accuracy",
    "grad_norm",
)  # fmt: skip

Result = dict[str, Any]


class Store:
    """The results of one scale, by the identity of their training."""

    def __init__(self, folder: Path, scale: str):
        self.folder = folder / scale
        self.scale = scale
        self._found: dict[str, Result] = {}
        self._paths: dict[str, Path] = {}
        for path in sorted(self.folder.glob("*.json")):
            result = _read(path)
            key = _identity_of(result)
            if key is not None and (key not in self._found or path.stem == key):
                self._found[key] = {**result, "identity": key}  # a new option may have given it another
                self._paths[key] = path

    def get(self, config: Config) -> Result | None:
        return self._found.get(identity(config))

    def put(self, config: Config, result: Mapping[str, Any]) -> Path:
        """Write a result whole or not at all."""
        content = {"format": FORMAT, "scale": self.scale, "identity": identity(config), **plain(result)}
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{content['identity']}.json"
        write_whole(path, _compact(content))
        self._found[content["identity"]] = content
        if (before := self._paths.get(content["identity"], path)) != path:
            before.unlink(missing_ok=True)  # it had the name of an earlier identity
        self._paths[content["identity"]] = path
        return path

    def items(self) -> list[tuple[Config, Result]]:
        """All results, with the config of each."""
        return [(merge(Config(), result["config"]), result) for result in self._found.values()]

    def epochs(self) -> list[int]:
        """The lengths of the trainings that there are, longest first."""
        return sorted({result["config"]["train"]["epochs"] for result in self._found.values()}, reverse=True)

    def __len__(self) -> int:
        return len(self._found)


def result_of(run: Run, wanted: Config, hardware: Mapping[str, Any], seconds: float | None) -> Result:
    """What is kept of a finished training; `wanted` is its config as the recipe states it."""
    return {
        "config": _kept(wanted),
        "seed": wanted.train.seed,
        "date": datetime.now(timezone.utc).date().isoformat(),
        "hardware": dict(hardware),
        "versions": versions(),
        "seconds": None if seconds is None else round(seconds, 2),
        "final": {key: value for key, value in run.final.items() if key not in ("kind", "step", "epoch")},
        "images_per_second": _usual_speed(run),
        "training": thinned(run.metrics("train"), TRAINING, TRAINING_POINTS),
        "curves": thinned(run.metrics("epoch")),
        "pieces": {},
    }


def thinned(
    entries: list[dict[str, Any]], names: Sequence[str] = CURVES, points: int = CURVE_POINTS
) -> dict[str, list[Any]]:
    """At most `points` of the epochs, evenly, with the last; four digits are enough for a curve."""
    if not entries:
        return {}
    count = min(points, len(entries))
    places = sorted({round(i * (len(entries) - 1) / max(1, count - 1)) for i in range(count)})
    chosen = [entries[place] for place in places]
    curves: dict[str, list[Any]] = {"epoch": [entry["epoch"] for entry in chosen]}
    for name in names:
        if any(entry.get(name) is not None for entry in chosen):
            curves[name] = [
                None if entry.get(name) is None else float(f"{entry[name]:.4g}") for entry in chosen
            ]
    return curves


def _usual_speed(run: Run) -> float | None:
    """The median over the epochs, compilation and measurements left out."""
    speeds = [entry["images_per_second"] for entry in run.metrics("train") if entry.get("images_per_second")]
    return round(median(speeds), 1) if speeds else None


def hardware(device: Any) -> dict[str, Any]:
    """The device by its name, as a reader of the numbers wants to know it."""
    import torch

    if torch.device(device).type == "cuda":
        return {"device": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    return {"device": f"CPU ({platform.machine()})", "threads": torch.get_num_threads()}


def _kept(config: Config) -> dict[str, Any]:
    """The config without the keys that do not change what is computed."""
    content = to_dict(config)
    for key in FREE_KEYS:
        group, _, name = key.partition(".")
        content[group].pop(name, None)
    return content


def _identity_of(result: Result) -> str | None:
    try:
        return identity(merge(Config(), result["config"]))
    except (ConfigError, KeyError):
        return None  # made with an option that no longer exists: no training of today


def _read(path: Path) -> Result:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} is not readable as JSON ({error}); remove it and run its recipe again"
        ) from None
    found = content.get("format") if isinstance(content, dict) else None
    if isinstance(found, int) and found > FORMAT:
        raise ValueError(f"{path} is a result of format {found}, of a newer lpjepa; update this one")
    if found != FORMAT:
        raise ValueError(f"{path} is not a result of format {FORMAT}; remove it and run its recipe again")
    return content


def _compact(content: Mapping[str, Any]) -> str:
    """JSON with one line a top-level key, and one a curve or piece: small, and readable as a difference."""
    lines = []
    for key, value in content.items():
        if key in ("training", "curves", "pieces") and value:
            inner = ",\n".join(f"  {json.dumps(k)}: {json.dumps(_rounded(v))}" for k, v in value.items())
            lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _rounded(value: Any) -> Any:
    """Six digits: more are noise, and would double the files."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value
