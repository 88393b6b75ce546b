"""Which runs of a comparison stand beside each other: those that were trained on the same data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from lpjepa.report.observation import own_source
from lpjepa.report.run import Run


def data_names(runs: Sequence[Run]) -> list[str]:
    """The name of each run's data, the same for runs whose accuracies can be compared.

    Options are part of it, since they may decide the classes; where images lie is only where two folders or
    files of images have one name.
    """
    kept = [(_name(run.config), _place(run.config)) for run in runs]
    places = {name: {place for other, place in kept if other == name} for name, _ in kept}
    return [name if len(places[name]) == 1 else f"{name} ({place})" for name, place in kept]


def _name(config: dict[str, Any]) -> str:
    if "data.source" not in config:
        return "unknown data"
    options = [
        f"{key.removeprefix('data.options.')} {value}"
        for key, value in sorted(config.items())
        if key.startswith("data.options.") and key != "data.options.keep"  # which is about storing images
    ]
    return ", ".join([own_source(config), *options])


def _place(config: dict[str, Any]) -> str:
    own = config.get("data.source") in ("folder", "npz") and config.get("data.root")
    return os.path.realpath(own) if own else ""
