"""What a user sees while a model trains: a progress bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol

QUIET_SECONDS = 60.0  # longest silence of the plain lines while steps are made


class Display(Protocol):
    def start(self, step: int, total: int) -> None: ...

    def advance(self, step: int, epoch: float, speed: float | None, latest: dict[str, Any]) -> None: ...

    def epoch(self, epoch: float, speed: float | None, latest: dict[str, Any]) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


def build_display(plain: bool, quiet: bool) -> Display:
    """Rich in a terminal, lines without one, nothing on all processes but the first."""
    if quiet:
        return Silent()
    return Lines() if plain or not sys.stdout.isatty() else Bar()


def summary(latest: dict[str, Any]) -> str:
    """The numbers worth a line, those that are there: loss, l0 beside its prediction, accuracies.

    `on_its_way`: the prediction is that of where the target is going.
    """
    words = []
    if latest.get("loss") is not None:
        words.append(f"loss {latest['loss']:.4g}")
    if latest.get("l0") is not None:
        words.append(f"l0 {latest['l0']:.3f}")
        if (predicted := latest.get("l0_predicted")) is not None:
            later = latest.get("on_its_way")
            words[-1] += f" (later {predicted:.3f})" if later else f" (target {predicted:.3f})"
    for name in ("encoder", "projector"):
        if latest.get(f"{name}_accuracy") is not None:
            words.append(f"{name} {100 * latest[f'{name}_accuracy']:.1f} %")
    return "  ".join(words)


class Silent:
    def start(self, step: int, total: int) -> None: ...

    def advance(self, step: int, epoch: float, speed: float | None, latest: dict[str, Any]) -> None: ...

    def epoch(self, epoch: float, speed: float | None, latest: dict[str, Any]) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


def duration(seconds: float) -> str:
    """For reading: 42 s, 3 min 20 s, 5 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class Lines(Silent):
    """One line for each measurement, with the time that is left; one a minute where epochs are long."""

    def start(self, step: int, total: int) -> None:
        self.began, self.first, self.total = time.monotonic(), step, total
        self.spoke = self.began
        self.step = step

    def advance(self, step: int, epoch: float, speed: float | None, latest: dict[str, Any]) -> None:
        self.step = step
        if speed and time.monotonic() - self.spoke > QUIET_SECONDS:
            self.epoch(epoch, speed, latest)

    def epoch(self, epoch: float, speed: float | None, latest: dict[str, Any]) -> None:
        self.spoke = time.monotonic()
        done = max(1, self.step - self.first)
        left = (self.spoke - self.began) / done * (self.total - self.step)
        rate = f"  {speed:,.0f} images/s" if speed else ""
        passed = f"{epoch:.2f}".rstrip("0").rstrip(".")
        print(f"epoch {passed}  {summary(latest)}{rate}  {duration(left)} left", flush=True)

    def say(self, text: str) -> None:
        print(text, flush=True)


class Bar:
    """A bar with steps, time left and images/s, and beneath it l0 beside its prediction and probe accuracies.

    Two lines, because one would not fit a terminal of 80 columns.
    """

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.text import Text

        class TwoLines(Progress):
            def get_renderables(self) -> Iterator[Any]:
                yield self.make_tasks_table(self.tasks)
                yield from (Text(task.fields["numbers"], overflow="ellipsis") for task in self.tasks)

        self.progress = TwoLines(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[speed]}"),
            refresh_per_second=4,
        )
        self.task: Any = None

    def start(self, step: int, total: int) -> None:
        fields = {"epoch": "0", "speed": "", "numbers": ""}
        self.task = self.progress.add_task("train", total=total, completed=step, **fields)  # type: ignore[arg-type]
        self.progress.start()

    def advance(self, step: int, epoch: float, speed: float | None, latest: dict[str, Any]) -> None:
        numbers, rate = summary(latest), _rate(speed)
        self.progress.update(self.task, completed=step, epoch=f"{epoch:.1f}", numbers=numbers, **rate)

    def epoch(self, epoch: float, speed: float | None, latest: dict[str, Any]) -> None:
        self.progress.update(self.task, epoch=f"{epoch:g}", numbers=summary(latest), **_rate(speed))

    def say(self, text: str) -> None:
        self.progress.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        self.progress.stop()


def _rate(speed: float | None) -> dict[str, Any]:
    return {"speed": f"{speed:,.0f} images/s"} if speed else {}
