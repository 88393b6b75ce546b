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

    Where SIGINT is ignored, as in the workers of a sweep, it stays so: whoever started us tells us to stop.
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
            again = b" (Ctrl-C again stops at once, without saving)" if number == signal.SIGINT else b""
            # Not print: the handler may run in the middle of one.
            os.write(2, b"\nstopping after this step" + again + b"\n")

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        numbers.remove(signal.SIGINT)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
