"""Keys that only some trainings read: a flag without effect is better named before hours of training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from lpjepa.training._typed import flat
from lpjepa.training.config import MATCHING, Config, TargetConfig

# What keeps a key from being read, by the values of all keys; None where nothing does.
Obstacle = Callable[[dict[str, Any]], str | None]


def _only_with(decides: str, *read_with: str) -> Obstacle:
    """The key is read where the key `decides` has one of these values."""

    def obstacle(values: dict[str, Any]) -> str | None:
        if values[decides] in read_with:
            return None
        return f"with {decides} {values[decides]}, only with {', '.join(read_with)}"

    return obstacle


def _without(decides: str) -> Obstacle:
    """The key is read where the key `decides` is given."""
    return lambda values: f"without {decides}" if values[decides] is None else None


_MATCHING = _only_with("loss.method", *MATCHING)

# Of several obstacles the first is named.
_READ: dict[str, tuple[Obstacle, ...]] = {
    **{f"target.{field.name}": (_MATCHING,) for field in fields(TargetConfig)},
    "target.leaves_at": (_MATCHING, _without("target.from_mu")),
    "target.there_at": (_MATCHING, _without("target.from_mu")),
    "loss.invariance_weight": (_only_with("loss.method", *MATCHING, "vicreg", "nvicreg"),),
    "loss.matching_weight": (_MATCHING,),
    "loss.num_slices": (_only_with("loss.method", *MATCHING, "lejepa"),),
    "loss.directions": (_MATCHING,),
    "loss.axes_weight": (_MATCHING,),
    "loss.variance_weight": (_only_with("loss.method", "vicreg", "nvicreg"),),
    "loss.covariance_weight": (_only_with("loss.method", "vicreg", "nvicreg"),),
    "loss.temperature": (_only_with("loss.method", "simclr", "ncl"),),
    "loss.sigreg_weight": (_only_with("loss.method", "lejepa"),),
    "optim.momentum": (_only_with("optim.name", "lars", "sgd"),),
    "optim.eta": (_only_with("optim.name", "lars"),),
    "optim.clip_trust": (_only_with("optim.name", "lars"),),
}


def without_effect(config: Config, given: dict[str, Any]) -> list[str]:
    """A sentence for each of the nested `given` keys that `config`, of which they are part, does not read."""
    values, sentences = flat(config), []
    for key in (f"{group}.{name}" for group, own in given.items() for name in own):
        found = next(filter(None, (obstacle(values) for obstacle in _READ.get(key, ()))), None)
        if found is not None:
            sentences.append(f"{key} has no effect {found}")
    return sentences
