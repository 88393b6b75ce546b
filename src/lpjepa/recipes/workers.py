"""Workers of a sweep: each takes the next training until none is left, time is over, or it is told to stop.

A worker trains (or goes on with a training), writes its result, adds the pieces that any recipe wants of it,
and takes the next. At the time limit, and when told to stop, it saves a checkpoint first.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from lpjepa.recipes.pace import Pace
from lpjepa.recipes.places import Places
from lpjepa.recipes.store import Store
from lpjepa.training import Config
from lpjepa.training.config import identity
from lpjepa.training.fork import plain_until
from lpjepa.training.interruption import say_stopping

GRACE = 20.0  # seconds
Limit = tuple[float | None, bool]  # the deadline, and whether only trainings that end by then are begun


@dataclass
class Job:
    """One training with all that any recipe wants of it; its label ends with its identity, its `rows` are
    what tables call it."""

    config: Config
    label: str
    rows: set[str] = field(default_factory=set)
    pieces: tuple[str, ...] = ()
    alone: bool = False
    keep_at: tuple[float, ...] = ()  # where other trainings go on from this one
    for_others: bool = False  # trained for these alone: its own result is there, or wanted by no one


class Stopped(BaseException):
    """The time limit or a signal, met outside of a training."""

    def __init__(self, signal_number: int):
        super().__init__(signal_number)
        self.signal_number = signal_number


def outcomes(
    chains: Sequence[Sequence[Job]],
    places: Places,
    workers: int,
    limit: Limit,
    device: str,
    signals: list[int],
) -> Iterator[tuple[str, str, str]]:
    """("done" | "stopped" | "failed" | "missing" | "lost", label, text) of each job that was taken up.

    Those of a chain go on from its first one, whose checkpoints may not outlive this sweep: one worker does
    them in turn. `missing`: the images to train on are not there; `lost`, of no label: a worker was killed.
    Signals that stop the work before its time are noted in `signals`.
    """
    if workers == 1:
        from itertools import count

        numbers = count()
        yield from _work(chains, lambda: next(numbers), places, limit, device, 1, signals)
        return
    context = multiprocessing.get_context("spawn")  # a CUDA context does not survive a fork
    counter = context.Value("i", 0)
    found: Any = context.SimpleQueue()
    arguments = (list(chains), counter, found, places, limit, device, workers)
    processes = [context.Process(target=_worker, args=arguments) for _ in range(workers)]
    with _told_by_us(processes, signals):
        while any(process.is_alive() for process in processes) or not found.empty():
            while not found.empty():
                yield found.get()
            time.sleep(0.1)
        for process in processes if not signals else ():
            process.join()
            if process.exitcode:
                how = f"signal {-process.exitcode}" if process.exitcode < 0 else f"status {process.exitcode}"
                yield "lost", "", f"a worker ended by {how}, perhaps for want of memory; its training is left"


@contextmanager
def _told_by_us(processes: Sequence[Any], signals: list[int]) -> Iterator[None]:
    """Start `processes`; a Ctrl-C or SIGTERM is noted in `signals` and passed on to them.

    A terminal's Ctrl-C goes to all processes at once. Workers ignore it, from their first moment on, so that
    each saves and reports; a second one kills them.
    """
    main = threading.current_thread() is threading.main_thread()

    def tell(number: int, frame: FrameType | None) -> None:
        if signals and number == signal.SIGINT:
            for process in processes:
                process.kill()
            raise KeyboardInterrupt
        signals.append(number)
        say_stopping("every training after its step", number)
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
        yield
    finally:
        for process in processes:
            if process.is_alive():  # an error here: let each save
                process.terminate()
            process.join()
        for number, handler in before.items():
            signal.signal(number, handler)


def _worker(
    chains: Sequence[Sequence[Job]],
    counter: Any,
    found: Any,
    places: Places,
    limit: Limit,
    device: str,
    workers: int,
) -> None:
    import torch

    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))

    def take() -> int:
        with counter.get_lock():
            counter.value += 1
            return counter.value - 1

    for outcome in _work(chains, take, places, limit, device, workers, signals=[]):
        found.put(outcome)


def _end_with_parent() -> None:
    """Stop, and save, when the sweep's process has been killed: others may take its place."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _work(
    chains: Sequence[Sequence[Job]],
    take: Callable[[], int],
    places: Places,
    limit: Limit,
    device: str,
    workers: int,
    signals: list[int],
) -> Iterator[tuple[str, str, str]]:
    from lpjepa.data import MissingData
    from lpjepa.recipes.one_run import epochs_ahead, finish_job
    from lpjepa.training import Interrupted

    deadline, whole = limit
    pace = Pace(places, device) if whole else Pace()
    store = lambda: Store(places.results, places.scale)
    lost: set[str] = set()  # failed without a result, and what would go on from these
    while (number := take()) < len(chains):
        first = chains[number][0]
        for job in chains[number]:
            began = time.time()
            own, before = identity(job.config), identity(plain_until(job.config)[0])
            if before in lost:
                lost.add(own)
                continue
            if deadline is not None and began >= deadline:
                return
            try:
                epochs = epochs_ahead(job.config, places)
                if whole and deadline is not None and began + pace.needed(job.config, epochs) > deadline:
                    if job is first:
                        break
                    continue
                with _until(deadline):
                    finish_job(job, places, device, workers)
            except (Interrupted, Stopped) as stop:
                if deadline is None or time.time() < deadline:
                    signals.append(stop.signal_number)
                yield "stopped", job.label, ""
                return
            except MissingData as error:
                if store().get(job.config) is not None and not job.for_others:  # a set to transfer to
                    yield "failed", job.label, f": {error}"
                else:
                    hint = "If it lies elsewhere, name that folder with --data-root."
                    yield "missing", job.label, f": {error} {hint}"
                    break
            except Exception as error:  # one that diverges or runs out of memory must not end the others
                yield "failed", job.label, f": {error} ({_noted(places.run_folder(job.config))})"
                if job.for_others or store().get(job.config) is None:
                    lost.add(own)
            else:
                took = time.time() - began
                pace.note(job.config, epochs, took)
                yield "done", job.label, f" in {took:.0f} s"


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
    next time; then, at a SIGTERM from elsewhere and at a Ctrl-C (which workers ignore) `Stopped` is raised.
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
        if number == signal.SIGINT or deadline is None or time.time() < deadline or len(timers) > 1:
            raise Stopped(number)
        alarm(GRACE)

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        numbers.append(signal.SIGINT)
    before = {number: signal.signal(number, stop) for number in numbers}
    if deadline is not None:
        alarm(deadline - time.time())
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
