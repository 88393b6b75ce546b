"""A second stream for work that nothing on the main one waits for, such as the probes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Branch:
    """A stream beside the current one, where there is a GPU; elsewhere everything runs in turn.

    A captured step becomes a graph with two arms. The rules are those of streams, captured or not:

    - What was made on the main stream and is read here must be kept until `join`: memory that Python lets go
      of is given out again to the stream that it came from, which does not wait for this one.
    - What was made here and is read on the main stream must be kept until the next `fork`, which waits for
      that: until then, its memory would be given out again here.
    - A backward pass runs on the stream of its forward pass; it must be started from there, too.

    Args:
        device: of the stream.
        apart: False lets the work run in turn on this device, too.
    """

    def __init__(self, device: torch.device, apart: bool):
        self.stream = torch.cuda.Stream(device) if apart and device.type == "cuda" else None

    @contextmanager
    def fork(self) -> Iterator[None]:
        """What follows runs beside the main stream, after everything that is on it by now."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with self.go_on():
            yield

    @contextmanager
    def go_on(self) -> Iterator[None]:
        """What follows runs after what was last sent here; the main stream is not waited for again."""
        if self.stream is None:
            yield
        else:
            with torch.cuda.stream(self.stream):
                yield

    def join(self) -> None:
        """The main stream waits for all that was sent here."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)
