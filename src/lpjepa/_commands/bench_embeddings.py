"""`lpjepa bench embeddings`: what sparsity buys in storage and search, measured on runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADINGS = (
    "run",
    "active",
    "form",
    "bytes/image",
    "queries/s, one at a time",
    "queries/s, all at once",
    "recall",
    "probe accuracy",
)

PANELS = {
    "bytes_per_image": "Bytes per image",
    "single_per_second": "Queries/s, one at a time",
    "batch_per_second": "Queries/s, all at once",
}


@dataclass
class Arguments:
    """Bytes per image, queries per second, recall and probe accuracy of dense and sparse features."""

    runs: tuple[Path, ...]
    """Folders of runs, such as four trained for different active fractions."""
    on: str | None = None
    """Images to use instead of the runs' own: NAME or NAME=PATH."""
    k: int = 10
    """Neighbours."""
    queries: int = 1000
    """Held-out images that are searched for."""
    threads: int = 2
    """Threads of every form."""
    epochs: int = 30
    """Epochs of the linear probes."""
    device: str = "auto"
    """Where features are computed: auto, cpu or cuda. Search always runs on the CPU."""
    out: Path = Path("embeddings")
    """Folder for embeddings.json, embeddings.md and the figure."""


def run(arguments: list[str]) -> int:
    """what sparsity buys in storage and search: embeddings RUN [RUN ...] [--out FOLDER]"""
    import tyro

    from lpjepa.inference.benchmark import measure_runs
    from lpjepa.report.figures.style import save

    chosen = tyro.cli(
        Arguments,
        prog="lpjepa bench embeddings",
        args=arguments,
        config=(tyro.conf.PositionalRequiredArgs,),
    )
    for name in ("k", "queries", "threads", "epochs"):
        if getattr(chosen, name) < 1:
            raise ValueError(f"--{name} must be 1 or more, not {getattr(chosen, name)}.")
    result = measure_runs(
        chosen.runs, chosen.on, chosen.k, chosen.queries, chosen.threads, chosen.epochs, chosen.device
    )
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "embeddings.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    (chosen.out / "embeddings.md").write_text(markdown(result), encoding="utf-8")
    paths = save(lambda: figure(result["forms"]), chosen.out, "embeddings")
    print(markdown(result))
    print("\n".join(map(str, [chosen.out / "embeddings.json", *paths])))
    return 0


def markdown(result: Mapping[str, Any]) -> str:
    """The table, and what it was measured on."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|---|---|---" + "|---:" * 5 + "|"]
    for row in result["forms"]:
        accuracy = "" if row["accuracy"] is None else f"{100 * row['accuracy']:.2f} %"
        cells = (
            row["run"],
            f"{row['active']:.3f}",
            row["form"],
            f"{row['bytes_per_image']:.0f}",
            f"{row['single_per_second']:,.0f}",
            f"{row['batch_per_second']:,.0f}",
            f"{row['recall']:.4f}",
            accuracy,
        )
        lines.append(f"| {' | '.join(cells)} |")
    machine, settings, found = result["machine"], result["settings"], result["versions"]
    sizes, asked = (
        ", ".join(f"{size:,}" for size in sorted({row[key] for row in result["forms"]}))
        for key in ("documents", "queries")
    )
    faiss = f"faiss {found['faiss']}, " if "faiss" in found else ""
    lines += [
        "",
        f"{sizes} documents, {asked} queries, "
        f"k = {settings['k']}, {settings['threads']} threads on {machine['processor']} ({machine['cores']} "
        f"cores usable); probes of {settings['epochs']} epochs; torch {found['torch']}, "
        f"NumPy {found['numpy']}, SciPy {found['scipy']}, {faiss}"
        f"Python {found['python']}; one run of each, best of up to three timings.",
    ]
    return "\n".join(lines) + "\n"


def figure(
    forms: Sequence[Mapping[str, Any]], panels: Sequence[tuple[str, str]] = tuple(PANELS.items())
) -> Figure:
    """Bytes per image and queries per second against the active fraction, one line a form."""
    from matplotlib.figure import Figure

    from lpjepa.report.figures.style import MARKERS, plain_log, series_colour

    drawn = Figure(figsize=(max(4.8, 3.0 * len(panels)), 3.4), layout="constrained")
    axes = drawn.subplots(1, len(panels), squeeze=False)[0]
    names = list(dict.fromkeys(row["form"] for row in forms))
    for panel, (key, title) in zip(axes, panels):
        for number, name in enumerate(names):
            rows = sorted((row for row in forms if row["form"] == name), key=lambda row: row["active"])
            panel.plot(
                [row["active"] for row in rows],
                [row[key] for row in rows],
                color=series_colour(number),
                marker=MARKERS[number],
                label=name,
            )
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_title(title)
        panel.set_xlabel("active fraction, measured")
        for axis in (panel.xaxis, panel.yaxis):
            plain_log(axis)
    handles, labels = axes[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=len(names) if len(panels) > 1 else 2)
    return drawn
