"""Keys that only some trainings read: a flag without effect is better named before hours of training."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from lpjepa.training._typed import flat
from lpjepa.training.config import MATCHING, Config, TargetConfig

# key -> the key that decides whether it is read, and the values with which it is.
_READ_WITH: dict[str, tuple[str, tuple[str, ...]]] = {
    **{f"target.{field.name}": ("loss.method", MATCHING) for field in fields(TargetConfig)},
    "loss.invariance_weight": ("loss.method", (*MATCHING, "vicreg", "nvicreg")),
    "loss.matching_weight": ("loss.method", MATCHING),
    "loss.num_slices": ("loss.method", (*MATCHING, "lejepa")),
    "loss.directions": ("loss.method", MATCHING),
    "loss.axes_weight": ("loss.method", MATCHING),
    "loss.variance_weight": ("loss.method", ("vicreg", "nvicreg")),
    "loss.covariance_weight": ("loss.method", ("vicreg", "nvicreg")),
    "loss.temperature": ("loss.method", ("simclr", "ncl")),
    "loss.sigreg_weight": ("loss.method", ("lejepa",)),
    "optim.momentum": ("optim.name", ("lars", "sgd")),
    "optim.eta": ("optim.name", ("lars",)),
    "optim.clip_trust": ("optim.name", ("lars",)),
}


def without_effect(config: Config, given: dict[str, Any]) -> list[str]:
    """A sentence for each of the nested `given` keys that `config`, of which they are part, does not read."""
    values, sentences = flat(config), []
    if "there_at" in given.get("target", {}) and config.target.from_mu is None:
        sentences.append("target.there_at has no effect without target.from_mu")
    for key in (f"{group}.{name}" for group, own in given.items() for name in own):
        if key not in _READ_WITH:
            continue
        decides, read_with = _READ_WITH[key]
        if values[decides] not in read_with:
            only = ", ".join(read_with)
            sentences.append(f"{key} has no effect with {decides} {values[decides]}, only with {only}")
    return sentences
