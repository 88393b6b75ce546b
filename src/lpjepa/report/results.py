"""Numbers for the tables, from `evaluation.json` where it has them, else from the end of the training."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lpjepa._version import __version__
from lpjepa.evaluation.transfer import latest
from lpjepa.report.observation import Observation, own_source
from lpjepa.report.run import Run


@dataclass(frozen=True)
class Summary:
    """One row of the paper's table. Accuracies are fractions; None where nothing measured them."""

    encoder: float | None = None
    projector: float | None = None
    l0: float | None = None
    l1: float | None = None
    variance: float | None = None
    entropy: float | None = None
    source: str = ""  # where the accuracies come from, in two or three words
    notes: tuple[str, ...] = ()


def summarise(run: Run, seen: Observation) -> Summary:
    """The newest finished evaluation on the run's own data, else the last numbers of its training."""
    entry = own_evaluation(run)
    variance = seen.portrait.variance if seen.portrait else None
    if entry is None:
        probe = {"frozen": "frozen linear probe", "online": "online linear probe"}
        return Summary(
            encoder=run.last("final/encoder_accuracy", "epoch/encoder_accuracy"),
            projector=run.last("final/projector_accuracy", "epoch/projector_accuracy"),
            l0=run.last("final/l0", "epoch/l0", "train/l0"),
            l1=run.last("final/l1", "epoch/l1", "train/l1"),
            variance=variance,
            source=probe.get(run.probe, "online linear probe"),
            notes=(f"the paper's protocol has not been run; lpjepa evaluate {run.folder} does.",),
        )
    measured = lookup(entry, "measures", "projector") or {}
    protocol = lookup(entry, "settings", "protocol", pieces=False)
    return Summary(
        encoder=lookup(entry, "probe 1", "encoder", "top1", "mean"),
        projector=lookup(entry, "probe 1", "projector", "top1", "mean"),
        l0=measured.get("l0"),
        l1=measured.get("l1"),
        variance=variance,
        entropy=measured.get("entropy"),
        source=f"linear probe ({protocol}) on {entry.get('source')}" if protocol else "linear probe",
    )


def own_evaluation(run: Run) -> Mapping[str, Any] | None:
    """The newest finished evaluation on the data the run was trained on; those on others are transfer."""
    return evaluations_of(run).get(own_source(run.config))


def evaluations_of(run: Run) -> dict[str, Mapping[str, Any]]:
    """The newest finished evaluation of each source."""
    return latest(run.evaluations)


def lookup(entry: Mapping[str, Any] | None, *path: str, pieces: bool = True) -> Any:
    """A value deep in an evaluation, None where any step of the way is missing."""
    value: Any = entry.get("pieces") if entry is not None and pieces else entry
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def sparsity_groups(runs: Sequence[Run], kind: str = "projector") -> list[tuple[str, np.ndarray, np.ndarray]]:
    """(label, correct, incorrect): per-sample ℓ1 of right and wrong predictions of the full-label probe.

    Evaluations keep evenly spaced quantiles, which stand for the samples here.
    """
    groups = []
    for run in runs:
        found = evaluations_of(run)
        for source, entry in found.items():
            split = lookup(entry, "probe 1", kind, "by_correctness")
            if split is None:
                continue
            label = run.name if len(found) == 1 else f"{run.name} {source}" if len(runs) > 1 else source
            groups.append((label, np.array(split["l1_correct"]), np.array(split["l1_incorrect"])))
    return groups


def environment_of(run: Run) -> dict[str, Any]:
    """What a run was evaluated with, where on it trained, and what wrote this report."""
    entry = own_evaluation(run)
    recorded: dict[str, Any] = {}
    for name, version in (lookup(entry, "versions", pieces=False) or {}).items():
        recorded[f"evaluated with {name}"] = version
    if entry is not None:
        recorded["evaluated on"] = str(entry.get("finished", ""))[:10]
        for name, value in (lookup(entry, "checkpoint", pieces=False) or {}).items():
            recorded[f"checkpoint {name}"] = value[:12] if name == "sha256" else value
    for key in ("train.device", "train.precision", "train.seed"):
        if key in run.config:
            recorded[key] = run.config[key]
    now = f"lpjepa {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    return recorded | {"report written with": f"{now}, {platform.system()} {platform.machine()}"}
