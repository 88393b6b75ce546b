"""The paper's tables from finished evaluations: a row a run, a column a data set, and their mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lpjepa.evaluation.features import KINDS
from lpjepa.metrics import relative_mad

NAMES = {0.01: "1 %", 0.1: "10 %", 1.0: "100 %"}


@dataclass(frozen=True)
class Table:
    """Cells are numbers, or None where nothing was measured."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float | None, ...]], ...]

    def text(self, digits: int = 2) -> str:
        """The table as aligned lines of plain text."""
        cell = lambda value: "-" if value is None else f"{value:.{digits}f}"
        lines = [["", *self.columns], *([name, *map(cell, values)] for name, values in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        formatted = [
            "  ".join(
                text.ljust(w) if column == 0 else text.rjust(w)
                for column, (text, w) in enumerate(zip(line, widths))
            )
            for line in lines
        ]
        return "\n".join([self.title, *(line.rstrip() for line in formatted)])


def latest(evaluations: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The newest finished evaluation of each source, in the order in which sources first appear."""
    found: dict[str, Mapping[str, Any]] = {}
    for entry in evaluations:
        if entry["finished"] is not None:
            found[entry["source"]] = entry
    return found


def transfer_table(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], kind: str = "encoder", fraction: float = 1.0
) -> Table:
    """Linear-probe accuracy in percent of every run (name -> its evaluations) on every source.

    `avg.` is the mean over the columns, and missing where one of them is.
    """
    entries = {name: latest(evaluations) for name, evaluations in runs.items()}
    sources = list(dict.fromkeys(source for of_run in entries.values() for source in of_run))
    rows = []
    for name, of_run in entries.items():
        values = [_accuracy(of_run.get(source), kind, fraction) for source in sources]
        known = [value for value in values if value is not None]
        mean = sum(known) / len(known) if known and len(known) == len(values) else None
        rows.append((name, (*values, mean)))
    title = f"Linear probe accuracy (%) on {kind} features, {_regime(fraction)} of the labels"
    return Table(title, (*sources, "avg."), tuple(rows))


def tables(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Table]:
    """The transfer tables of every label regime that was measured, for both kinds of features."""
    entries = [entry for evaluations in runs.values() for entry in latest(evaluations).values()]
    names = {name for entry in entries for name in entry["pieces"] if name.startswith("probe ")}
    fractions = sorted(float(name.removeprefix("probe ")) for name in names)
    return [transfer_table(runs, kind, fraction) for fraction in fractions for kind in KINDS]


def same_labels(evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each source whose classes are so small that two label regimes are the same images."""
    sentences = []
    for source, entry in latest(evaluations).items():
        by_size: dict[int, list[float]] = {}
        for name, piece in entry["pieces"].items():
            if name.startswith("probe "):
                by_size.setdefault(piece["samples"], []).append(piece["fraction"])
        for size, fractions in by_size.items():
            if len(fractions) > 1:
                regimes = " and ".join(_regime(fraction) for fraction in sorted(fractions))
                sentences.append(
                    f"{source}: {regimes} of the labels are the same {size} images, since every class gives "
                    "at least one and its share to the nearest image."
                )
    return sentences


def _regime(fraction: float) -> str:
    return NAMES.get(fraction, f"{100 * fraction:g} %")


def _accuracy(entry: Mapping[str, Any] | None, kind: str, fraction: float) -> float | None:
    piece = None if entry is None else entry["pieces"].get(f"probe {fraction:g}")
    return None if piece is None else 100 * piece[kind]["top1"]["mean"]


def summary_table(evaluations: Sequence[Mapping[str, Any]]) -> Table:
    """One run as the paper reports it: a row a source, accuracies in percent and the projector's sparsity."""
    columns = ("encoder", "projector", "l1", "l0", "l1 predicted", "l0 predicted")
    rows = []
    for source, entry in latest(evaluations).items():
        measured = entry["pieces"]["measures"]
        predicted = measured.get("predicted", {})
        values = (
            _accuracy(entry, "encoder", 1.0),
            _accuracy(entry, "projector", 1.0),
            measured["projector"]["l1"],
            measured["projector"]["l0"],
            predicted.get("l1"),
            predicted.get("l0"),
        )
        rows.append((source, values))
    return Table(
        "Linear probe accuracy (%) with all labels, and sparsity of the projector features",
        columns,
        tuple(rows),
    )


def sparsity_deviation(evaluations: Sequence[Mapping[str, Any]], kind: str = "projector") -> dict[str, float]:
    """Relative mean absolute deviation over sources of l0 and l1 ("Dataset-Adaptive Sparsity")."""
    measured = [entry["pieces"]["measures"][kind] for entry in latest(evaluations).values()]
    return {name: relative_mad([m[name] for m in measured]) for name in ("l0", "l1")}
