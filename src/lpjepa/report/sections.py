"""The sections of the page that are text and tables: summary, further results, configuration, environment."""

from __future__ import annotations

from collections.abc import Sequence
from string import Template
from typing import Any

from lpjepa.report.comparable import data_names
from lpjepa.report.markup import (
    Cell,
    note,
    number,
    percent,
    script_data,
    section,
    swatch,
    table,
    template,
    text,
)
from lpjepa.report.results import Summary
from lpjepa.report.run import Run

METHODS = {
    "rectified_lpjepa": "Rectified LpJEPA",
    "lpjepa": "LpJEPA",
    "lejepa": "LeJEPA",
    "vicreg": "VICReg",
    "nvicreg": "Non-negative VICReg",
    "simclr": "SimCLR",
    "ncl": "Non-negative contrastive",
}
DIFFERENT_DATA = (
    "These runs were trained on different data: compare accuracies only between runs on the same data, whose "
    "best is marked."
)


def run_label(run: Run, index: int) -> str:
    """HTML: the run's marker and name."""
    return swatch(index) + text(run.name)


def summary(runs: Sequence[Run], results: Sequence[Summary]) -> str:
    """The paper's table: encoder and projector accuracy, ℓ1 and ℓ0, beside what each target predicts."""
    parts = []
    if len(runs) == 1:
        parts.append(_tiles(results[0], runs[0]))
    data = data_names(runs)
    several_data = len(set(data)) > 1
    several_methods = len({run.method for run in runs}) > 1  # one method stands under the title
    rows = []
    for index, (run, result) in enumerate(zip(runs, results)):
        predicted = run.target.predicted if run.target else {}
        rivals = [other for other, name in zip(results, data) if name == data[index]]
        accuracies = [
            percent(getattr(result, name), _best(getattr(result, name), [getattr(r, name) for r in rivals]))
            for name in ("encoder", "projector")
        ]
        rows.append(
            (
                run_label(run, index),
                [
                    *([Cell(data[index], kind="text")] if several_data else []),
                    *([Cell(METHODS.get(run.method, run.method), kind="text")] if several_methods else []),
                    Cell(run.target.symbol if run.target else "", kind="text"),
                    *accuracies,
                    number(result.l1, 4),
                    number(predicted.get("l1"), 4, "prediction"),
                    number(result.l0, 4),
                    number(predicted.get("active"), 4, "prediction"),
                ],
            )
        )
    headers = [
        "Run", *(["Data"] if several_data else []), *(["Method"] if several_methods else []), "Target",
        "Encoder %", "Projector %", "ℓ<sub>1</sub>", "predicted", "ℓ<sub>0</sub>", "predicted",
    ]  # fmt: skip
    if several_data:
        parts.append(note(DIFFERENT_DATA))
    origins = ", ".join(dict.fromkeys(result.source for result in results if result.source))
    caption = f"Accuracy: {origins}. Sparsity: of the projector's features, lower is sparser."
    parts.append(table(headers, rows, caption, sortable=len(runs) > 1))
    parts += [
        note(f"{run.name}: {message}")
        for run, result in zip(runs, results)
        for message in (*run.problems, *result.notes)
    ]
    about = (
        '<p class="about">Linear probes on frozen features, as in the paper. ℓ<sub>0</sub> is the fraction '
        "of active features, ℓ<sub>1</sub> the scale-free metric ‖z‖₁² / (D ‖z‖₂²), both averaged over "
        "samples; the predicted values are those of features that follow the target exactly.</p>"
    )
    return section("summary", "Summary", about, *parts)


def _best(value: float | None, rivals: Sequence[float | None]) -> str:
    """The kind of the cell: its value among those of all runs that were trained on the same data."""
    known = [rival for rival in rivals if rival is not None]
    return "best" if len(rivals) > 1 and value is not None and value == max(known) else ""


def _tiles(result: Summary, run: Run) -> str:
    predicted = run.target.predicted if run.target else {}

    def tile(name: str, cell: Cell, unit: str, below: str) -> str:
        shown = f"{cell.shown}{unit}" if cell.shown else "–"
        return (
            f'<div class="tile"><dt>{name}</dt><dd><span class="big">{shown}</span>'
            f'<br><span class="small">{text(below)}</span></dd></div>'
        )

    def against(key: str) -> str:
        return f"predicted {predicted[key]:.4f}" if key in predicted else "no prediction for this method"

    return (
        '<dl class="tiles">'
        + tile("Encoder accuracy", percent(result.encoder), " %", result.source)
        + tile("Projector accuracy", percent(result.projector), " %", result.source)
        + tile("Active ℓ<sub>0</sub>", number(result.l0, 4), "", against("active"))
        + tile("ℓ<sub>1</sub> metric", number(result.l1, 4), "", against("l1"))
        + "</dl>"
    )


def explorer(runs: Sequence[Run], results: Sequence[Summary]) -> str:
    """The interactive target explorer; runs with a rectified target appear as points on its curves."""
    data: list[dict[str, Any]] = []
    chips = []
    for index, (run, result) in enumerate(zip(runs, results)):
        if run.target is None or not run.target.rectified:
            continue
        chips.append(
            f'<button type="button" class="chip" data-run="{len(data)}" aria-pressed="false">'
            f"{run_label(run, index)}</button>"
        )
        data.append(
            {
                "name": run.name,
                "colour": index % 8,
                "shape": index,
                "mu": run.target.mu,
                "sigma": run.target.sigma,
                "p": run.target.p,
                "rule": run.target.rule,
                "predicted": run.target.predicted,
                "measured": {
                    "active": result.l0,
                    "l1": result.l1,
                    "variance": result.variance,
                    "entropy": result.entropy,
                },
            }
        )
    shown = (
        f'<div class="chips"><p id="chips-label">Go to the target of</p>{"".join(chips)}</div>'
        if chips
        else ""
    )
    legend = (
        '<p class="about">A filled mark is what a run measured, an outlined one what its target predicts. '
        "Runs whose p or σ differ from the present setting are faint: the curve drawn is not theirs.</p>"
        if chips
        else ""
    )
    body = Template(template("explorer.html")).substitute(chips=shown, legend=legend, data=script_data(data))
    about = (
        '<p class="about">Move the target RGN<sub>p</sub>(μ, σ) = ReLU(GN<sub>p</sub>(μ, σ)) and see its '
        "density, the mass at zero, and what follows for sparsity, variance and entropy. Whichever of μ and "
        "the active fraction was set last stays while p and σ move.</p>"
    )
    return section("explorer-section", "Target explorer", about, body)


def configuration(runs: Sequence[Run]) -> str:
    """All keys of all runs, the differing ones marked; for several runs only those at first."""
    keys = list(dict.fromkeys(key for run in runs for key in run.config))
    if not keys:
        return section("config", "Configuration", note("config.yaml is missing; lpjepa pretrain writes it."))
    rows, differing = [], 0
    for key in keys:
        values = [_shown(run.config, key) for run in runs]
        changed = len(set(values)) > 1
        differing += changed
        cells = "".join(f"<td>{text(value)}</td>" for value in values)
        rows.append(f'<tr{" class=changed" if changed else ""}><th scope="row">{text(key)}</th>{cells}</tr>')
    heads = "".join(f'<th scope="col" class="text">{run_label(run, i)}</th>' for i, run in enumerate(runs))
    grid = (
        '<div class="scroll" tabindex="0" role="region" aria-label="Configuration">'
        f'<table id="config-table" class="config"><thead><tr><th scope="col">Key</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
    if len(runs) == 1:
        return section(
            "config", "Configuration", f"<details><summary>{len(keys)} keys</summary>{grid}</details>"
        )
    box = (
        '<p><label><input type="checkbox" id="only-differences" checked> '
        f"Only the {differing} of {len(keys)} keys that differ</label></p>"
    )
    return section("config", "Configuration", box, grid)


def _shown(config: dict[str, Any], key: str) -> str:
    if key not in config:
        return "–"
    value = config[key]
    return "none" if value is None else str(value)


def environment(entries: Sequence[tuple[Run, dict[str, Any]]]) -> str:
    """Versions and machine, as each run recorded them."""
    if not any(recorded for _, recorded in entries):
        return ""
    keys = list(dict.fromkeys(key for _, recorded in entries for key in recorded))
    rows = [
        (text(key), [Cell(_shown(recorded, key), kind="text") for _, recorded in entries]) for key in keys
    ]
    headers = ["", *(run_label(run, index) for index, (run, _) in enumerate(entries))]
    return section("environment", "Environment", table(headers, rows, "What the results were made with"))
