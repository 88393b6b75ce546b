"""Training what recipes need: planned once, several at a time, resumable, within a time limit.

Every worker takes the next training, trains it (or goes on with it), writes its result, adds the pieces that
any recipe wants of it, and takes the next. At the time limit each saves a checkpoint and stops; what has a
result is never trained again unless it is asked for.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from lpjepa.recipes.cases import config_of
from lpjepa.recipes.catalog import Recipe, catalog
from lpjepa.recipes.places import Places
from lpjepa.recipes.store import Store
from lpjepa.training import Config
from lpjepa.training.checkpoint import list_checkpoints
from lpjepa.training.config import identity

GRACE = 20.0  # seconds
Limit = tuple[float | None, bool]  # the deadline, and whether only trainings that end by then are begun


@dataclass
class Job:
    """One training with all that any recipe wants of it; its label ends with its identity."""

    config: Config
    label: str
    pieces: tuple[str, ...] = ()
    alone: bool = False


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


class Stopped(BaseException):
    """The time limit, met outside of a training."""


def plan(
    recipes: Iterable[Recipe], scale: str, epochs: int | None = None, changes: Mapping[str, Any] | None = None
) -> list[Job]:
    """The trainings of `recipes`, each once: a recipe's first seed before its second.

    The pieces of a training are those that any recipe wants, also one that is not run now: its checkpoint may
    be gone by then.
    """
    jobs: dict[str, Job] = {}
    for recipe in recipes:
        length = recipe.epochs_at(scale) if epochs is None else epochs
        names = [case.label for case in recipe.cases(scale)]
        for seed in recipe.seeds_at(scale):
            for case in recipe.cases(scale):
                config = config_of(case, scale, seed, length, changes)
                about = f"{recipe.name}, {config.train.epochs} epochs, {identity(config)}"
                group = f", {case.group}," if names.count(case.label) > 1 and case.group else ""
                label = f"{case.label}{group} seed {seed} ({about})"
                job = jobs.setdefault(identity(config), Job(config, label))
                job.alone |= recipe.alone
    for recipe in catalog().values():
        if recipe.pieces:
            seed = recipe.seeds_at(scale)[0]
            length = recipe.epochs_at(scale) if epochs is None else epochs
            for case in recipe.cases(scale):
                key = identity(config_of(case, scale, seed, length, changes))
                if key in jobs:
                    jobs[key].pieces = tuple(dict.fromkeys([*jobs[key].pieces, *recipe.pieces]))
    return list(jobs.values())


def outstanding(jobs: Sequence[Job], places: Places, again: bool = False) -> tuple[list[Job], list[Job]]:
    """The jobs that are not done, those with a checkpoint first, and those that could not be completed.

    The latter have a result that lacks pieces, and no checkpoint to take them from: they count as done unless
    they are to be trained `again`.
    """
    from lpjepa.recipes.pieces import missing_pieces

    store = Store(places.results, places.scale)
    started, fresh, incomplete = [], [], []
    for job in jobs:
        result = store.get(job.config)
        if result is not None and not missing_pieces(result, job.pieces, places):
            continue
        if list_checkpoints(places.run_folder(job.config) / "checkpoints"):
            started.append(job)
        elif result is None or again:
            fresh.append(job)
        else:
            incomplete.append(job)
    return started + fresh, incomplete


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

    With `whole`, no training is begun that will not end by then, as far as those before it tell.
    """
    places.prepare()
    deadline = None if minutes is None else time.time() + 60 * minutes
    todo, incomplete = outstanding(jobs, places, again)
    summary = Summary(incomplete=len(incomplete))
    left = {job.label: job.config.train.epochs for job in todo}
    sources = {job.label: job.config.data.source for job in todo}
    missing: set[str] = set()  # sources without images: said once, and their other trainings left
    for alone in (False, True):
        part = [job for job in todo if job.alone == alone and job.config.data.source not in missing]
        if not part or summary.stopped or summary.signal:
            continue
        count = 1 if alone else min(workers, len(part))
        for kind, label, text in _outcomes(part, places, count, (deadline, whole), device):
            if kind == "missing":
                if sources[label] in missing:  # another worker has said so
                    continue
                missing.add(sources[label])
                kind = "failed"
            if kind in ("interrupted", "told"):
                summary.signal, kind, text = int(text), "stopped", ""
            if not label:
                continue
            say(f"{kind}: {label}{text}")
            summary.done += kind == "done"
            summary.stopped += kind == "stopped"
            if kind == "failed":
                summary.messages.append(f"{label}{text}")
            left.pop(label)
    summary.left, summary.left_epochs = len(left), sum(left.values())
    summary.absent = sum(sources[label] in missing for label in left)
    return summary


def _outcomes(
    jobs: Sequence[Job], places: Places, workers: int, limit: Limit, device: str
) -> Iterator[tuple[str, str, str]]:
    """("done" | "stopped" | "interrupted" | "failed" | "missing", label, text) of each job that was taken up.

    `stopped`: at the time limit; `interrupted`: by the signal that `text` names; `missing`: the images to
    train on are not there. Last, where several workers were told to stop, ("told", "", the signal).
    """
    if workers == 1:
        from itertools import count

        numbers = count()
        yield from _work(jobs, lambda: next(numbers), places, limit, device, 1)
        return
    context = multiprocessing.get_context("spawn")  # a CUDA context does not survive a fork
    counter = context.Value("i", 0)
    outcomes: Any = context.SimpleQueue()
    arguments = (list(jobs), counter, outcomes, places, limit, device, workers)
    processes = [context.Process(target=_worker, args=arguments) for _ in range(workers)]
    with _told_by_us(processes) as told:
        while any(process.is_alive() for process in processes) or not outcomes.empty():
            while not outcomes.empty():
                yield outcomes.get()
            time.sleep(0.1)
        if told:
            yield "told", "", str(told[0])


@contextmanager
def _told_by_us(processes: Sequence[Any]) -> Iterator[list[int]]:
    """Start `processes`; a Ctrl-C or SIGTERM is passed on to them, and noted in the list that this gives.

    A terminal's Ctrl-C goes to all processes at once. Workers ignore it, from their first moment on, so that
    each saves and reports; a second one kills them.
    """
    told: list[int] = []
    main = threading.current_thread() is threading.main_thread()

    def tell(number: int, frame: FrameType | None) -> None:
        if told and number == signal.SIGINT:
            for process in processes:
                process.kill()
            raise KeyboardInterrupt
        told.append(number)
        again = b" (Ctrl-C again stops at once, without saving)" if number == signal.SIGINT else b""
        os.write(2, b"\nstopping every training after its step" + again + b"\n")
        for process in processes:
            process.terminate()

    numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
    before = {number: signal.getsignal(number) for number in numbers}
    if main:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a new process inherits
    try:
        for process in processes:
            process.start()
        for number in numbers:
            signal.signal(number, tell)
        yield told
    finally:
        for process in processes:
            if process.is_alive():  # an error here: let each save
                process.terminate()
            process.join()
        for number, handler in before.items():
            signal.signal(number, handler)


def _worker(
    jobs: Sequence[Job],
    counter: Any,
    outcomes: Any,
    places: Places,
    limit: Limit,
    device: str,
    workers: int,
) -> None:
    import torch

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))

    def take() -> int:
        with counter.get_lock():
            counter.value += 1
            return counter.value - 1

    for outcome in _work(jobs, take, places, limit, device, workers):
        outcomes.put(outcome)


def _work(
    jobs: Sequence[Job],
    take: Callable[[], int],
    places: Places,
    limit: Limit,
    device: str,
    workers: int,
) -> Iterator[tuple[str, str, str]]:
    from lpjepa.data import MissingData
    from lpjepa.recipes.one_run import finish_job
    from lpjepa.training import Interrupted

    deadline, whole = limit
    missing: set[str] = set()  # sources without images, which are not tried again
    pace: dict[str, float] = {}  # seconds an epoch of the last training of each encoder
    while (number := take()) < len(jobs) and (deadline is None or time.time() < deadline):
        job, began = jobs[number], time.time()
        kind, epochs = job.config.model.encoder, job.config.train.epochs
        if whole and deadline is not None and began + epochs * pace.get(kind, 0.0) > deadline:
            continue
        if job.config.data.source in missing:
            continue
        try:
            with _until(deadline):
                finish_job(job, places, device, workers)
        except (Interrupted, Stopped) as stop:
            number = getattr(stop, "signal_number", signal.SIGTERM)
            in_time = deadline is None or time.time() < deadline
            yield "interrupted" if in_time else "stopped", job.label, str(int(number)) if in_time else ""
            return
        except MissingData as error:
            trained = Store(places.results, places.scale).get(job.config) is not None
            if not trained:  # else it is a set to transfer to, and others can still be trained
                missing.add(job.config.data.source)
            hint = "" if trained else " If it lies elsewhere, name that folder with --data-root."
            yield "failed" if trained else "missing", job.label, f": {error}{hint}"
        except Exception as error:  # one that diverges or runs out of memory must not end the others
            yield "failed", job.label, f": {error} ({_noted(places.run_folder(job.config))})"
        else:
            pace[kind] = (time.time() - began) / epochs
            yield "done", job.label, f" in {time.time() - began:.0f} s"


def _noted(folder: Path) -> str:
    """Keep the traceback of the exception in hand beside the training; where it is."""
    path = folder / "failure.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(traceback.format_exc())
    except OSError as error:  # such as a full disk, which may be what has failed
        return f"no traceback: {error.strerror}"
    return str(path)


@contextmanager
def _until(deadline: float | None) -> Iterator[None]:
    """SIGTERM at the deadline; a training then saves by itself and stops.

    The pieces of a finished training may take `GRACE` seconds longer, as its checkpoint may not be there the
    next time; then, and at a SIGTERM from elsewhere, `Stopped` is raised.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return

    timers: list[threading.Timer] = []

    def alarm(seconds: float) -> None:
        timers.append(threading.Timer(max(0.0, seconds), os.kill, (os.getpid(), signal.SIGTERM)))
        timers[-1].daemon = True
        timers[-1].start()

    def stop(number: int, frame: FrameType | None) -> None:
        if deadline is None or time.time() < deadline or len(timers) > 1:
            raise Stopped
        alarm(GRACE)

    before = signal.signal(signal.SIGTERM, stop)
    if deadline is not None:
        alarm(deadline - time.time())
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        signal.signal(signal.SIGTERM, before)
