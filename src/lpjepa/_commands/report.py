"""`lpjepa report`: one HTML file about a run, or a comparison of several."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Arguments:
    """Write the report of a run, or the comparison of several, as one HTML file that opens offline."""

    runs: tuple[Path, ...]
    """Folders of the runs."""
    out: Path | None = None
    """File to write; by default report.html in the run's folder, or beside the runs. The figures of a
    comparison are also written as PNG and SVG to a folder beside it, report_figures for report.html."""


def run(arguments: list[str]) -> int:
    """Write the report and print its path."""
    import tyro

    from lpjepa.report import write_report

    chosen = tyro.cli(
        Arguments, prog="lpjepa report", args=arguments, config=(tyro.conf.PositionalRequiredArgs,)
    )
    print(write_report(chosen.runs, chosen.out, say=lambda note: print(f"lpjepa: {note}", file=sys.stderr)))
    return 0
