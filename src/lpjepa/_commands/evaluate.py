"""`lpjepa evaluate`: the paper's protocols on a trained run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from lpjepa.evaluation import EvaluationSettings


@dataclass
class Arguments:
    """Probe a run's frozen features, on its own images and on any others."""

    run: Annotated[Path, tyro.conf.arg(metavar="RUN")]
    """Folder of the run."""
    on: tuple[str, ...] = ()
    """Data sets, NAME or NAME=PATH, such as cifar10 or folder=images/pets; by default the run's own."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:1."""
    batch_size: int | None = None
    """Images encoded at a time; by default as many as suit the device and their size."""
    settings: EvaluationSettings = field(default_factory=EvaluationSettings)


def run(arguments: list[str]) -> int:
    """Evaluate, then print the tables of what was found."""
    from lpjepa.evaluation import evaluate_run, same_labels, summary_table, tables

    chosen = tyro.cli(
        Arguments,
        prog="lpjepa evaluate",
        args=arguments,
        config=(tyro.conf.PositionalRequiredArgs, tyro.conf.OmitArgPrefixes),
    )
    entries = evaluate_run(
        chosen.run, list(chosen.on) or None, chosen.settings, chosen.device, chosen.batch_size
    )
    for table in (summary_table(entries), *tables({chosen.run.name: entries})):
        print(f"\n{table.text()}")
    for sentence in same_labels(entries):
        print(f"\n{sentence}")
    print(f"\n{chosen.run / 'evaluation.json'}")
    return 0
