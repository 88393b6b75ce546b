"""A function of one tensor, recorded as CUDA graphs: one call of the host instead of hundreds of launches."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from lpjepa._recording import CudaRecorder

Call = Callable[[], None]
Kind = tuple[torch.Size, torch.dtype, torch.device]

MOST = 4  # recordings: each keeps the memory of a call


class Recorder(Protocol):
    """What makes a replay of a call."""

    def warm(self, call: Call) -> None:
        """Runs `call` where a recording will be made, so that state made at a first call exists by then."""

    def record(self, call: Call) -> Call:
        """What `call` does, to be done any number of times; nothing is done yet."""


def recorder_for(device: torch.device) -> Recorder | None:
    """The recorder of a GPU; None on other devices, where a function runs as it is."""
    return CudaRecorder(device) if device.type == "cuda" else None


class Replayed:
    """`function(x)`, which keeps or changes something and returns nothing.

    For each shape and type of x the first call runs as it is, the second is recorded, and it and the later
    ones are replays on a copy of x. Nothing is computed twice: recording does not execute. Beyond a few of
    them, and from then on after one warning where recording fails, the function runs as it is.
    """

    def __init__(self, function: Callable[[Tensor], None], recorder: Recorder | None):
        self.function = function
        self.recorder = recorder
        self._seen: set[Kind] = set()
        self._replays: dict[Kind, tuple[Tensor, Call]] = {}

    def __call__(self, x: Tensor) -> None:
        kind = x.shape, x.dtype, x.device
        if self.recorder is None:
            self.function(x)
        elif kind in self._replays:
            mine, replay = self._replays[kind]
            mine.copy_(x)
            replay()
        elif kind not in self._seen or len(self._replays) == MOST:
            self._seen.add(kind)
            self.recorder.warm(lambda: self.function(x))
        else:
            mine = x.clone()
            try:
                replay = self.recorder.record(lambda: self.function(mine))
            except RuntimeError as error:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                warnings.warn(
                    f"The steps could not be recorded as a CUDA graph and run one by one: {reason}",
                    stacklevel=2,
                )
                self.recorder = None
                self._replays.clear()
                self.function(x)
                return
            self._replays[kind] = mine, replay
            replay()
