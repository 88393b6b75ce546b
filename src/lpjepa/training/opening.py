"""What lies in a run's folder decides whether it is begun, gone on with, or finished."""

from __future__ import annotations

from lpjepa.training import checkpoint, circumstances
from lpjepa.training._typed import ConfigError
from lpjepa.training.config import differing_keys
from lpjepa.training.run import Run


def prepare(run: Run, keep: bool) -> str:
    """ "fresh", "resume" or "finished"; the folder is there and may be written."""
    checkpoint.check_writable(run.folder)
    remedy = "choose another folder with --train.out, or replace it with --train.no-resume"
    saved, known = checkpoint.list_checkpoints(run.checkpoints), (run.folder / "config.yaml").is_file()
    if not keep:
        if saved or known:
            checkpoint.clear(run.checkpoints)
            for name in ("metrics.jsonl", "evaluation.json", "report.html"):
                (run.folder / name).unlink(missing_ok=True)
    elif saved and not known:
        raise ConfigError(f"{run.folder} holds checkpoints, but no config.yaml that says of what; {remedy}")
    elif known:
        try:
            before = Run.open(run.folder)
        except ConfigError as error:
            raise ConfigError(f"{error}; {remedy}") from None
        if saved or run.metrics():
            if keys := ", ".join(differing_keys(run.config, before.config)):
                raise ConfigError(
                    f"{run.folder} holds a run of another config, which differs in {keys}; {remedy}"
                )
            if before.finished:
                circumstances.check_place(run.folder, before.config, run.config)
                return "finished"
            if saved:
                return "resume"
    return "fresh"
