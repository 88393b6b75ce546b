"""Time and memory of several calls, compared within one run.

All calls are timed in turn, round after round, so that a machine that slows down slows all of them; the
numbers are medians over the rounds with their quartiles.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lpjepa._recording import CudaRecorder

Call = Callable[[], object]

# A round repeats a short call until it has lasted about this long, so that clocks and events are exact
# enough and the host can run ahead of a GPU.
ROUND_SECONDS = {"cpu": 0.05, "cuda": 0.2}
REPEATS = {"cpu": (1, 50), "cuda": (4, 50)}  # the least and the most
WARM_CALLS = 3  # before a call is captured


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call over the rounds, and the memory it needs at its peak (None: unknown)."""

    rounds: tuple[float, ...]
    peak_MB: float | None = None

    @property
    def ms(self) -> float:
        """The median."""
        return statistics.median(self.rounds)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.rounds) < 2:
            return self.ms, self.ms
        low, _, high = statistics.quantiles(self.rounds, n=4, method="inclusive")
        return low, high

    def as_dict(self) -> dict[str, Any]:
        low, high = self.quartiles
        return {"ms": self.ms, "low": low, "high": high, "rounds": len(self.rounds), "peak_MB": self.peak_MB}


def interleaved(
    calls: Mapping[str, Call],
    device: torch.device,
    rounds: int,
    peaks: Mapping[str, float | None] | None = None,
) -> dict[str, Timing]:
    """Every call timed in every round, the order turned round each time; `peaks` is kept beside the times."""
    if rounds < 1:
        raise ValueError(f"--rounds must be 1 or more, not {rounds}.")
    repeats = {name: _repeats(call, device) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        for name in calls if number % 2 == 0 else reversed(list(calls)):
            if repeats[name] > 1:
                # The call before has filled the caches with its own data; and a step makes its views while
                # the one before it learns.
                calls[name]()
            times[name].append(milliseconds(calls[name], device, repeats[name]))
    found = peaks or {}
    return {name: Timing(tuple(values), found.get(name)) for name, values in times.items()}


def milliseconds(call: Call, device: torch.device, repeats: int = 1) -> float:
    """Mean over `repeats` calls in a row: by CUDA events on a GPU, by the clock elsewhere."""
    if device.type == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / repeats
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats * 1e3


def _repeats(call: Call, device: torch.device) -> int:
    call()
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    seconds = max(time.perf_counter() - start, 1e-9)
    least, most = REPEATS[device.type]
    return max(least, min(most, round(ROUND_SECONDS[device.type] / seconds)))


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def captured(call: Call, device: torch.device) -> Callable[[], None]:
    """`call` as a CUDA graph: what it returns replays the kernels of one call, without the host's work.

    `call` must read and write the same tensors each time. It runs a few times first, so that lazily made
    state exists by then.
    """
    recorder = CudaRecorder(device)

    def warm() -> None:
        for _ in range(WARM_CALLS):
            call()

    recorder.warm(warm)
    replay = recorder.record(call)

    def again(_: Call = call) -> None:  # keeps what the graph reads
        replay()

    return again


def peak_megabytes(call: Call, device: torch.device) -> float | None:
    """How far memory rises during one call above what was there before.

    On a GPU the allocator counts it; on Linux it is the rise of the process's resident memory, freed heap
    handed back first; None elsewhere. The call runs twice, so that what is made once is not counted.
    """
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        return (torch.cuda.max_memory_allocated(device) - before) / 1e6
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = _resident("VmRSS")
        call()
        return (_resident("VmHWM") - before) / 1e6
    except (OSError, AttributeError, TypeError):
        return None


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"{field} is not stated")
