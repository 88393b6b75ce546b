"""What the modes of `lpjepa bench` share: their common flags, and how a result is shown and kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from lpjepa.bench.table import Column


@dataclass
class Output:
    """Flags of every mode."""

    json: Path | None = None
    """File for all numbers, with hardware, versions, threads, date and command."""
    figure: Path | None = None
    """PNG, SVG or PDF file for a picture of the result."""


@dataclass
class Measurement(Output):
    """Flags of every mode that measures."""

    rounds: int = 9
    """Times that everything is timed in turn; the table gives medians and quartiles."""
    device: str = "auto"
    """auto, cpu or cuda."""


def prepare(chosen: Output) -> torch.device:
    """The device, after the mistakes that would otherwise show only when all is measured."""
    from lpjepa.training.processes import pick_device

    if chosen.figure is not None and chosen.figure.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--figure {chosen.figure}: the picture's name must end in .png, .svg or .pdf.")
    for flag, path in (("--json", chosen.json), ("--figure", chosen.figure)):
        if path is not None:
            make_folder(path.parent, f"{flag} {path}")
    if isinstance(chosen, Measurement):
        if chosen.rounds < 1:
            raise ValueError(f"--rounds must be 1 or more, not {chosen.rounds}.")
        return pick_device(chosen.device)
    return pick_device("cpu")


def make_folder(folder: Path, asked: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{asked}: its folder cannot be made ({error.strerror}).") from None


def publish(
    chosen: Output,
    command: Sequence[str],
    device: torch.device,
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Any]],
    picture: str,
    **more: Any,
) -> str:
    """Print the table and what it was measured on; write JSON and picture where they are asked for.

    `picture` is a function of `lpjepa.bench.figures`, which is imported where a picture is wanted. Returns
    the table and the line beneath it.
    """
    from lpjepa.bench.stamp import sentence, stamp
    from lpjepa.bench.table import markdown

    facts = stamp(device, command)
    text = f"{markdown(columns, rows)}\n\n{sentence(facts)}"
    print(text)
    if chosen.json is not None:
        content = {"mode": command[0], "stamp": facts, **more, "rows": list(rows)}
        chosen.json.write_text(json.dumps(content, indent=1), encoding="utf-8")
        print(chosen.json)
    if chosen.figure is not None:
        from lpjepa.bench import figures
        from lpjepa.report.figures.style import LIGHT, render

        kind = chosen.figure.suffix[1:].lower()
        chosen.figure.write_bytes(render(lambda: getattr(figures, picture)(rows), LIGHT, kind))
        print(chosen.figure)
    return text
