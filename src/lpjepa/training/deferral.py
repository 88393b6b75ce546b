"""Copies that a captured step leaves to the end of its capture: made once, not at every replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# What waits for the end of a capture; None outside `tables_sent_after_capture`.
_after_capture: list[Callable[[], Any]] | None = None


@contextmanager
def tables_sent_after_capture() -> Iterator[None]:
    """Within it, a captured step leaves the tables of its kernels to be filled when it ends.

    Gradients made during capture stay at their addresses, so the table is the same at every replay: sent
    once, from here, and not by a copy in the graph, for which the GPU pauses some ten microseconds.
    """
    global _after_capture
    _after_capture = []
    try:
        yield
        for send in _after_capture:
            send()
    finally:
        _after_capture = None


def deferred(send: Callable[[], Any]) -> bool:
    """Leave `send` to the end of `tables_sent_after_capture`; whether we are within one."""
    if _after_capture is None:
        return False
    _after_capture.append(send)
    return True
