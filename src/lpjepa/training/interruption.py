"""Ctrl-C and SIGTERM ask a run to stop; it saves at the next step and says how to go on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from lpjepa.training.processes import is_first


class Interrupted(RuntimeError):
    """A run that was asked to stop and has saved its state; the message holds the command that resumes."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.signal_number = signal_number


class StopRequest:
    """The signal that arrived, or None."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __bool__(self) -> bool:
        return self.signal_number is not None


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Note SIGINT and SIGTERM instead of dying of them; a second Ctrl-C interrupts at once.

    One that nothing met, as it came after the last step, is handed on when the work is done: whatever was to
    follow is not begun. Where SIGINT is ignored, as in the workers of a sweep, it stays so: whoever started
    us tells us to stop.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may handle signals
        return

    def note(number: int, frame: FrameType | None) -> None:
        if request.signal_number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal_number = number
        if is_first():
            say_stopping("after this step", number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        numbers.remove(signal.SIGINT)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if request.signal_number is not None:
        signal.raise_signal(request.signal_number)


def say_stopping(when: str, number: int) -> None:
    """What a signal's handler says; not by print, in the middle of which it may run."""
    again = " (Ctrl-C again stops at once, without saving)" if number == signal.SIGINT else ""
    os.write(2, f"\nstopping {when}{again}\n".encode())
