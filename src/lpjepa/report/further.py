"""The tables beyond the summary: label regimes and transfer, neighbours, measures, post-hoc rectification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lpjepa.evaluation.transfer import sparsity_deviation
from lpjepa.report.markup import Cell, number, percent, section, table, text
from lpjepa.report.results import evaluations_of, lookup
from lpjepa.report.run import Run
from lpjepa.report.sections import run_label

Evaluations = Sequence[Mapping[str, Mapping[str, Any]]]  # for each run, its newest entry by source


def further(runs: Sequence[Run]) -> str:
    """All further tables of runs that were evaluated; nothing for others (the summary says so already)."""
    found: Evaluations = [evaluations_of(run) for run in runs]
    sources = list(dict.fromkeys(source for of_run in found for source in of_run))
    if not sources:
        return ""
    parts = [_probes(runs, found, sources, kind) for kind in ("encoder", "projector")]
    parts += [_knn(runs, found, sources), _measures(runs, found, sources), _posthoc(runs, found, sources)]
    if len(sources) > 1:
        parts.append(_deviation(runs, found))
    return section("further", "Further results", *(part for part in parts if part))


def _rows(runs: Sequence[Run], cells: Sequence[Sequence[Cell]]) -> list[tuple[str, Sequence[Cell]]]:
    return [(run_label(run, index), row) for index, (run, row) in enumerate(zip(runs, cells)) if _any(row)]


def _any(cells: Sequence[Cell]) -> bool:
    return any(cell.shown for cell in cells)


def _titled(title: str, headers: Sequence[str], rows: Sequence[Any], caption: str) -> str:
    return f"<h3>{text(title)}</h3>" + table(headers, rows, caption, sortable=True) if rows else ""


def _probes(runs: Sequence[Run], found: Evaluations, sources: Sequence[str], kind: str) -> str:
    """Every source in every label regime; over several sources also their mean, as in the paper."""
    regimes = sorted(
        {
            float(piece["fraction"])
            for of_run in found
            for entry in of_run.values()
            for name, piece in entry["pieces"].items()
            if name.startswith("probe ") and "fraction" in piece
        }
    )
    headers, rows = ["Run"], [[] for _ in runs]  # type: ignore[var-annotated]
    for regime in regimes:
        for source in sources:
            headers.append(f"{text(source)}, {100 * regime:g} %")
            for row, of_run in zip(rows, found):
                top1 = lookup(of_run.get(source), f"probe {regime:g}", kind, "top1") or {}
                spread = top1.get("std") if len(top1.get("values", ())) > 1 else None
                row.append(percent(top1.get("mean"), spread=spread))
        if len(sources) > 1:
            headers.append(f"avg., {100 * regime:g} %")
            for row in rows:
                values = [cell.value for cell in row[-len(sources) :] if cell.value is not None]
                row.append(number(sum(values) / len(values) if len(values) == len(sources) else None, 2))
    caption = "Top-1 accuracy in per cent by share of the labels; ± is the deviation over draws of labels"
    return _titled(f"Linear probes on {kind} features", headers, _rows(runs, rows), caption)


def _knn(runs: Sequence[Run], found: Evaluations, sources: Sequence[str]) -> str:
    headers, rows = ["Run"], [[] for _ in runs]  # type: ignore[var-annotated]
    for source in sources:
        for kind in ("encoder", "projector"):
            for metric in ("cosine", "euclidean"):
                headers.append(f"{text(source)}, {kind}, {metric}")
                for row, of_run in zip(rows, found):
                    row.append(percent(lookup(of_run.get(source), "knn", kind, metric)))
    caption = "Accuracy in per cent of weighted nearest-neighbour classification"
    return _titled("Nearest neighbours as classifiers", headers, _rows(runs, rows), caption)


_MEASURES = (
    ("l0", "ℓ<sub>0</sub>", 4), ("l1", "ℓ<sub>1</sub>", 4),
    ("dead", "dead", 3), ("always_on", "always on", 3),
    ("effective_rank", "effective rank", 1), ("entropy", "entropy", 3), ("nhsic", "nHSIC", 4),
    ("variance_loss", "variance loss", 4), ("covariance_loss", "covariance loss", 4),
)  # fmt: skip


def _measures(runs: Sequence[Run], found: Evaluations, sources: Sequence[str]) -> str:
    rows = []
    for index, (run, of_run) in enumerate(zip(runs, found)):
        for source in sources:
            measured = lookup(of_run.get(source), "measures", "projector")
            if measured is None:
                continue
            cells = [number(measured.get(key), digits) for key, _, digits in _MEASURES]
            predicted = run.target.predicted.get("entropy") if run.target else None
            label = run_label(run, index) + (f" · {text(source)}" if len(sources) > 1 else "")
            rows.append((label, [*cells, number(predicted, 3, "prediction")]))
    headers = ["Run", *(name for _, name, _ in _MEASURES), "entropy predicted"]
    return _titled(
        "Measures on projector features", headers, rows, "On validation images; entropy in nats a feature"
    )


def _posthoc(runs: Sequence[Run], found: Evaluations, sources: Sequence[str]) -> str:
    """Sparsity and accuracy before and after ReLU at evaluation time, where it changes anything."""
    rows = []
    for index, (run, of_run) in enumerate(zip(runs, found)):
        for source in sources:
            for kind in ("encoder", "projector"):
                piece = lookup(of_run.get(source), "posthoc", kind)
                if piece is None or piece.get("unchanged"):
                    continue
                label = f"{run_label(run, index)} · {kind}" + (
                    f" · {text(source)}" if len(sources) > 1 else ""
                )
                cells = [percent(lookup(piece, when, "top1", pieces=False)) for when in ("before", "after")]
                for key in ("l0", "l1"):
                    cells += [
                        number(lookup(piece, when, key, pieces=False), 4) for when in ("before", "after")
                    ]
                rows.append((label, cells))
    names = ("accuracy %", "ℓ<sub>0</sub>", "ℓ<sub>1</sub>")
    headers = ["Features", *(f"{name} {when}" for name in names for when in ("before", "after"))]
    caption = "Dense features as they are and after ReLU at evaluation time"
    return _titled("Rectification after training", headers, rows, caption)


def _deviation(runs: Sequence[Run], found: Evaluations) -> str:
    rows = []
    for index, (run, of_run) in enumerate(zip(runs, found)):
        measured = [entry for entry in of_run.values() if lookup(entry, "measures", "projector")]
        if len(measured) > 1:
            deviation = sparsity_deviation(measured)
            rows.append((run_label(run, index), [number(deviation[name], 4) for name in ("l0", "l1")]))
    caption = (
        "Relative mean absolute deviation from the median over data sets: how far sparsity adapts to the data"
    )
    return _titled("Sparsity across data sets", ["Run", "ℓ<sub>0</sub>", "ℓ<sub>1</sub>"], rows, caption)
