"""Training what recipes need: planned once, several at a time, resumable, within a time limit.

Every worker takes the next training, trains it (or goes on with it), writes its result, adds the pieces that
any recipe wants of it, and takes the next. At the time limit each saves a checkpoint and stops.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from lpjepa.recipes.cases import config_of
from lpjepa.recipes.catalog import Recipe, catalog
from lpjepa.recipes.places import Places
from lpjepa.recipes.store import Store
from lpjepa.training import Config
from lpjepa.training.checkpoint import list_checkpoints
from lpjepa.training.config import identity


@dataclass
class Job:
    """One training with all that any recipe wants of it."""

    config: Config
    label: str
    pieces: tuple[str, ...] = ()
    alone: bool = False


@dataclass
class Summary:
    """How a sweep went; `messages` are those of trainings that failed."""

    done: int = 0
    stopped: int = 0
    left: int = 0
    messages: list[str] = field(default_factory=list)

    def text(self) -> str:
        parts = [f"{self.done} training{'s' * (self.done != 1)} finished"]
        if self.stopped:
            parts.append(f"{self.stopped} stopped and saved")
        if self.left:
            parts.append(f"{self.left} left; the same command goes on")
        if self.messages:
            parts.append(f"{len(self.messages)} failed")
        return ", ".join(parts)


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
        for seed in recipe.seeds_at(scale):
            for case in recipe.cases(scale):
                config = config_of(case, scale, seed, epochs, changes)
                label = f"{case.label} seed {seed} ({recipe.name})"
                job = jobs.setdefault(identity(config), Job(config, label))
                job.alone |= recipe.alone
    for recipe in catalog().values():
        if recipe.pieces:
            seed = recipe.seeds_at(scale)[0]
            for case in recipe.cases(scale):
                key = identity(config_of(case, scale, seed, epochs, changes))
                if key in jobs:
                    jobs[key].pieces = tuple(dict.fromkeys([*jobs[key].pieces, *recipe.pieces]))
    return list(jobs.values())


def outstanding(jobs: Sequence[Job], places: Places, store: Store | None = None) -> list[Job]:
    """The jobs that are not done, those with a checkpoint first."""
    from lpjepa.recipes.pieces import missing_pieces

    store = store or Store(places.results, places.scale)
    open_jobs = []
    for job in jobs:
        result = store.get(job.config)
        if result is None or missing_pieces(result, job.pieces, places):
            open_jobs.append(job)
    return sorted(
        open_jobs, key=lambda job: not list_checkpoints(places.run_folder(job.config) / "checkpoints")
    )


def sweep(
    jobs: Sequence[Job],
    places: Places,
    workers: int = 1,
    minutes: float | None = None,
    device: str = "auto",
    say: Callable[[str], None] = print,
) -> Summary:
    """Runs what is outstanding of `jobs`; returns after `minutes`, give or take a checkpoint."""
    places.prepare()
    deadline = None if minutes is None else time.time() + 60 * minutes
    todo = outstanding(jobs, places)
    summary = Summary()
    together = [job for job in todo if not job.alone]
    alone = [job for job in todo if job.alone]
    for part, count in ((together, min(workers, len(together))), (alone, 1)):
        if not part or summary.stopped:
            continue
        for kind, text in _outcomes(part, places, count, deadline, device):
            say(f"{kind}: {text}")
            summary.done += kind == "done"
            summary.stopped += kind == "stopped"
            if kind == "failed":
                summary.messages.append(text)
    summary.left = len(todo) - summary.done - len(summary.messages) - summary.stopped
    return summary


def _outcomes(
    jobs: Sequence[Job], places: Places, workers: int, deadline: float | None, device: str
) -> Iterator[tuple[str, str]]:
    """("done" | "stopped" | "failed", text) of each job that was taken up."""
    if workers == 1:
        from itertools import count

        numbers = count()
        yield from _work(jobs, lambda: next(numbers), places, deadline, device, 1)
        return
    context = multiprocessing.get_context("spawn")  # a CUDA context does not survive a fork
    counter = context.Value("i", 0)
    outcomes: Any = context.SimpleQueue()
    arguments = (list(jobs), counter, outcomes, places, deadline, device, workers)
    processes = [context.Process(target=_worker, args=arguments) for _ in range(workers)]
    for process in processes:
        process.start()
    try:
        while any(process.is_alive() for process in processes) or not outcomes.empty():
            while not outcomes.empty():
                yield outcomes.get()
            time.sleep(0.1)
    finally:
        for process in processes:
            if process.is_alive():  # we were interrupted: let each save
                process.terminate()
            process.join()


def _worker(
    jobs: Sequence[Job],
    counter: Any,
    outcomes: Any,
    places: Places,
    deadline: float | None,
    device: str,
    workers: int,
) -> None:
    import torch

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))

    def take() -> int:
        with counter.get_lock():
            counter.value += 1
            return counter.value - 1

    for outcome in _work(jobs, take, places, deadline, device, workers):
        outcomes.put(outcome)


def _work(
    jobs: Sequence[Job],
    take: Callable[[], int],
    places: Places,
    deadline: float | None,
    device: str,
    workers: int,
) -> Iterator[tuple[str, str]]:
    from lpjepa.recipes.one_run import finish_job
    from lpjepa.training import Interrupted

    while (number := take()) < len(jobs) and (deadline is None or time.time() < deadline):
        job, began = jobs[number], time.time()
        try:
            with _until(deadline):
                finish_job(job, places, device, workers)
        except (Interrupted, Stopped):
            yield "stopped", job.label
            return
        except Exception as error:  # one that diverges or runs out of memory must not end the others
            yield "failed", f"{job.label}: {error}"
        else:
            yield "done", f"{job.label} in {time.time() - began:.0f} s"


@contextmanager
def _until(deadline: float | None) -> Iterator[None]:
    """SIGTERM at the deadline; outside of a training (which saves by itself) it raises `Stopped`."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped

    before = signal.signal(signal.SIGTERM, stop)
    timer = None
    if deadline is not None:
        timer = threading.Timer(max(0.0, deadline - time.time()), os.kill, (os.getpid(), signal.SIGTERM))
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
        signal.signal(signal.SIGTERM, before)
