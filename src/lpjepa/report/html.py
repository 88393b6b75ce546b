"""The report: one HTML file that holds everything and asks for nothing."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from lpjepa._version import __version__
from lpjepa._whole import write_whole
from lpjepa.report import pictures, sections
from lpjepa.report.further import further
from lpjepa.report.interpretation import interpretation
from lpjepa.report.markup import template, text
from lpjepa.report.observation import Observation, observe
from lpjepa.report.results import environment_of, summarise
from lpjepa.report.run import Run, read_runs
from lpjepa.report.samples import samples

if TYPE_CHECKING:
    from lpjepa.data import ImageSet

SCRIPTS = ("rgg.js", "chart.js", "explorer.js", "tables.js")


def write_report(
    run_dirs: Sequence[str | Path], out: str | Path | None = None, say: Callable[[str], None] | None = None
) -> Path:
    """Write the report of one run, or the comparison of several, and return its path.

    By default ``RUN/report.html``, for several runs ``report.html`` in the folder that holds them all. The
    figures are also written as PNG and SVG: a run's own to ``RUN/figures``, those of a comparison to a folder
    beside the report that bears its name, ``report_figures`` for ``report.html``. What a run lacks is left
    out, with a line that says which command makes it; `say` hears of pictures that could not be made.
    """
    folders = list(dict.fromkeys(Path(folder) for folder in run_dirs))
    if not folders:
        raise ValueError("no run given; lpjepa report takes one or more run folders")
    runs = read_runs(folders)
    path = Path(out) if out is not None else _default_path(folders)
    if path.is_dir():
        path = path / "report.html"
    figures = folders[0] / "figures" if len(folders) == 1 else path.with_name(f"{path.stem}_figures")
    try:
        loaded: dict[str, ImageSet] = {}
        observations = [observe(run, loaded) for run in runs]
        page = build_page(runs, observations, figures)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, page)
    except OSError as error:
        raise ValueError(f"{error.filename or path} could not be written: {error.strerror}") from error
    for run, seen in zip(runs, observations):
        if say is not None:
            for lacking in seen.notes:
                say(f"{run.folder}: {lacking}")
    return path


def _default_path(folders: Sequence[Path]) -> Path:
    if len(folders) == 1:
        return folders[0] / "report.html"
    return Path(os.path.commonpath([folder.resolve().parent for folder in folders])) / "report.html"


def build_page(runs: Sequence[Run], observations: Sequence[Observation], figures: Path) -> str:
    """The page as a string; the figures of a comparison go to ``figures``."""
    results = [summarise(run, seen) for run, seen in zip(runs, observations)]
    parts = [
        ("summary", "Summary", sections.summary(runs, results)),
        ("trade-off", "Sparsity and accuracy", pictures.trade_off(runs, results, figures)),
        ("training", "Training", pictures.training(runs, figures)),
        ("features", "Features", pictures.features(runs, observations)),
        ("samples", "Samples", samples(runs, observations, figures)),
        ("interpretation", "Single features", interpretation(runs, observations)),
        ("explorer-section", "Target explorer", sections.explorer(runs, results)),
        ("further", "Further results", further(runs)),
        ("config", "Configuration", sections.configuration(runs)),
        ("environment", "Environment", sections.environment([(run, environment_of(run)) for run in runs])),
    ]
    parts = [part for part in parts if part[2]]
    script = "\n".join(template(name) for name in SCRIPTS)
    heading = text(runs[0].name) if len(runs) == 1 else f"Comparison of {len(runs)} runs"
    return Template(template("page.html")).substitute(
        title=f"{heading} · lpjepa report",
        heading=heading,
        lede=_lede(runs),
        contents="".join(f'<li><a href="#{anchor}">{text(name)}</a></li>' for anchor, name, _ in parts),
        body="\n".join(html for _, _, html in parts),
        style=template("report.css"),
        script=script,
        # The page may run this very script and no other, whatever a run's files hold.
        script_hash=_hash(f"\n{script}\n"),
        version=__version__,
        date=date.today().isoformat(),
    )


def _lede(runs: Sequence[Run]) -> str:
    def of(key: str) -> str:
        return ", ".join(
            dict.fromkeys(str(run.config[key]) for run in runs if run.config.get(key) is not None)
        )

    facts = [
        ", ".join(dict.fromkeys(sections.METHODS.get(run.method, run.method) for run in runs)),
        f"on {of('data.source')}" if of("data.source") else "",
        f"encoder {of('model.encoder')}" if of("model.encoder") else "",
        f"D = {of('model.projector_dim')}" if of("model.projector_dim") else "",
        f"{of('train.epochs')} epochs" if of("train.epochs") else "",
    ]
    return text(" · ".join(fact for fact in facts if fact))


def _hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
