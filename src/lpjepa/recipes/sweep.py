"""Training what recipes need: several at a time, resumable, within a time limit.

What has a result is never trained again unless it is asked for; `planning` says what there is to do and in
which order, `workers` does it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, field

from lpjepa.recipes.lock import alone_in
from lpjepa.recipes.places import Places
from lpjepa.recipes.planning import chains, outstanding, with_beginnings
from lpjepa.recipes.workers import Job, outcomes
from lpjepa.training import Config
from lpjepa.training.checkpoint import check_writable, list_checkpoints
from lpjepa.training.config import identity
from lpjepa.training.fork import plain_until
from lpjepa.training.processes import pick_device


@dataclass
class Summary:
    """How a sweep went; `messages` are those of trainings that failed.

    `absent` of those `left` have no images to train on; `signal` is what stopped the sweep before its time.
    """

    done: int = 0
    stopped: int = 0
    left: int = 0
    left_epochs: int = 0
    incomplete: int = 0
    absent: int = 0
    signal: int | None = None
    messages: list[str] = field(default_factory=list)

    def text(self) -> str:
        parts = [f"{self.done} training{'s' * (self.done != 1)} finished"]
        if self.stopped:
            parts.append(f"{self.stopped} stopped and saved")
        if self.messages:
            parts.append(f"{len(self.messages)} failed")
        if self.incomplete:
            parts.append(
                f"{self.incomplete} lack pieces and have no checkpoint any more: --again trains them anew"
            )
        if self.left:
            parts.append(f"{self.left} left ({self.left_epochs} epochs)")
        wait = self.stopped + self.left > self.absent
        return ", ".join(parts) + "; the same command goes on" * wait


def sweep(
    jobs: Sequence[Job],
    places: Places,
    workers: int = 1,
    minutes: float | None = None,
    device: str = "auto",
    say: Callable[[str], None] = print,
    whole: bool = False,
    again: bool = False,
) -> Summary:
    """Runs what is outstanding of `jobs`; returns after `minutes`, give or take a checkpoint.

    With `whole`, no training is begun that will not end by then, as far as others of its kind tell.
    """
    if jobs:
        pick_device(device)  # one that is not there is said once, and not by every training
    places.prepare()
    deadline = None if minutes is None else time.time() + 60 * minutes
    fresh, incomplete = outstanding(jobs, places, again)
    todo = with_beginnings(fresh, places)
    summary = Summary(incomplete=len(incomplete))
    if todo:
        check_writable(places.work, "--work", create=False)
        check_writable(places.results / places.scale, "--results", create=False)
    left = {job.label: job.config for job in todo}
    sources = {job.label: job.config.data.source for job in todo}
    missing: set[str] = set()  # sources without images: said once, and their other trainings left
    signals: list[int] = []
    with alone_in(places.work / places.scale) if todo else nullcontext():
        for alone in (False, True):
            part = [job for job in todo if job.alone == alone and job.config.data.source not in missing]
            if not part or summary.stopped or signals:
                continue
            together = chains(part, places)
            count = 1 if alone else min(workers, len(together))
            for kind, label, text in outcomes(together, places, count, (deadline, whole), device, signals):
                if kind == "lost":
                    say(text)
                    summary.messages.append(text)
                    continue
                if kind == "missing":
                    if sources[label] in missing:  # it has been said
                        continue
                    missing.add(sources[label])
                    kind = "failed"
                say(f"{kind}: {label}{text}")
                summary.done += kind == "done"
                summary.stopped += kind == "stopped"
                if kind == "failed":
                    summary.messages.append(f"{label}{text}")
                left.pop(label)
    summary.left = len(left)
    ahead = {identity(config) for config in left.values()}
    summary.left_epochs = round(sum(_epochs_left(config, places, ahead) for config in left.values()))
    summary.signal = signals[0] if signals else None
    summary.absent = sum(sources[label] in missing for label in left)
    return summary


def _epochs_left(config: Config, places: Places, ahead: Set[str]) -> float:
    """Those of a training that is to be done after others `ahead`, from one of which it may go on."""
    from lpjepa.recipes.one_run import epochs_ahead

    plain, share = plain_until(config)
    if share and identity(plain) in ahead and not list_checkpoints(places.checkpoints(config)):
        return config.train.epochs * (1.0 - share)
    try:
        return epochs_ahead(config, places)
    except (ValueError, OSError):  # a folder that cannot be read, which the training says when it is its turn
        return config.train.epochs
