"""What is being done and how far it is: a bar in a terminal with `rich`, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO


class Task(Protocol):
    """Hears how many units are done, of how many."""

    def __call__(self, done: int, total: int) -> None: ...


class Progress:
    """`with progress.task("cifar100: probes") as task: task(3, 100)`."""

    def __init__(self, stream: TextIO | None = None, plain: bool = False):
        self._stream = stream or sys.stderr
        self._rich: Any = None
        if not plain and self._stream.isatty():
            try:
                from rich.console import Console
                from rich.progress import Progress as Bars

                self._rich = Bars(console=Console(file=self._stream), transient=True)
            except ImportError:
                pass

    @contextmanager
    def task(self, name: str) -> Iterator[Task]:
        started = time.monotonic()
        if self._rich is None:
            self.say(f"{name} ...")
            yield lambda done, total: None
        else:
            with self._rich as bars:
                bar = bars.add_task(name, total=None)
                try:
                    yield lambda done, total: bars.update(bar, completed=done, total=total)
                finally:
                    bars.remove_task(bar)
        self.say(f"{name}: done in {time.monotonic() - started:.1f} s")

    def say(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class Silent(Progress):
    """Says nothing."""

    def __init__(self) -> None:
        super().__init__(plain=True)

    def say(self, line: str) -> None:
        pass
