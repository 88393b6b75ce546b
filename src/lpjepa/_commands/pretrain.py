"""`lpjepa pretrain`: from images to a sparse encoder."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def run(arguments: list[str]) -> int:
    """Train; then the paper's table of what came out, and the report."""
    from lpjepa.training import layers, loop, processes
    from lpjepa.training.effect import without_effect
    from lpjepa.training.run import table

    words = [word for word in arguments if word not in ("-h", "--help")]
    source = words.pop(0) if words and not words[0].startswith("-") else None
    if len(words) + (source is not None) < len(arguments):
        return _help(source)
    flags = layers.parse_flags(words)
    config = layers.load_config(source, flags)
    for sentence in without_effect(config, flags) if processes.is_first() else ():
        print(f"lpjepa: {sentence}", file=sys.stderr)
    trained = loop.pretrain(config)
    if processes.is_first():
        try:
            print(f"\n{table([trained])}\n")
            print(f"run     {trained.folder}")
            print(f"report  {_report(trained.folder)}")
        except KeyboardInterrupt:
            again = f"lpjepa report {shlex.quote(str(trained.folder))}"
            print(f"\n{trained.folder} is finished and saved; for its report: {again}", file=sys.stderr)
            raise
    return 0


def _report(run: Path) -> Path:
    from lpjepa.report import write_report

    report = run / "report.html"
    return report if _is_current(report) else write_report([run])


def _is_current(report: Path) -> bool:
    """Whether nothing that a run's report shows was written after it: the run had finished before."""
    if not report.is_file():
        return False
    names = ("config.yaml", "metrics.jsonl", "evaluation.json", "features/*.pt")
    shown = [path for name in names for path in report.parent.glob(name)]
    # A clock may be coarse: what seems to be of the same moment may be newer.
    return all(path.stat().st_mtime_ns < report.stat().st_mtime_ns for path in shown)


def _help(source: str | None) -> int:
    """Every key with its type, default and description, as tyro draws them from the dataclasses."""
    import tyro

    from lpjepa.training import Config, load_config, preset_names
    from lpjepa.training.layers import preset_summary

    shown = source or "presets:digits"
    print("usage: lpjepa pretrain [CONFIG.yaml | presets:NAME] [--GROUP.KEY VALUE ...]\n")
    for name in preset_names():
        print(f"  presets:{name:<18} {preset_summary(name)}")
    print("\nWithout a preset the source decides which one flags start from; a folder takes presets:images.")
    print(f"The defaults below are those of {shown}.\n")
    # tyro shows a mapping only where it has entries.
    config = load_config(shown)
    config.data.options = config.data.options or {"OPTION": "VALUE"}
    tyro.cli(Config, prog="lpjepa pretrain", default=config, args=["--help"])
    return 0
