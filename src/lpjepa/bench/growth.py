"""`lpjepa bench loss --growth`: time and memory over samples, dimensions and slices, one varied at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from lpjepa.bench.loss import VIEWS, Row, step, target
from lpjepa.bench.reference import target_samples
from lpjepa.bench.table import Column, number, spread, text
from lpjepa.bench.timing import captured, interleaved, peak_megabytes
from lpjepa.losses import RDMReg

BASES = {"cuda": Row(512, 2048, 8192), "cpu": Row(128, 256, 1024)}
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
AXES = ("samples", "dim", "slices")

COLUMNS: tuple[Column, ...] = (
    text("varied", "axis"),
    text("samples x dim x slices", "row"),
    number("ms", "ms", ".4g"),
    spread("quartiles", "low", "high", ".4g"),
    number("peak MB", "peak_MB", ".1f"),
    number("exponent of time", "time_exponent", ".2f"),
    number("in the last doubling", "last_exponent", ".2f"),
    number("exponent of memory", "memory_exponent", ".2f"),
)


def measure_growth(base: Row, device: torch.device, rounds: int) -> list[dict[str, Any]]:
    """Time (replayed from a graph on a GPU) and memory of RDMReg around `base`, drawing included.

    The fitted exponents stand on the last row of each axis.
    """
    lines = []
    for axis in AXES:
        sizes = [max(2, round(getattr(base, axis) * factor)) for factor in FACTORS]
        rows = [base._replace(**{axis: size}) for size in dict.fromkeys(sizes)]
        calls, peaks = {}, {}
        for row in rows:
            z = target_samples(VIEWS, row.samples, row.dim, device=device).requires_grad_()
            call = step(RDMReg(target(), num_slices=row.slices), z)
            peaks[str(row)] = peak_megabytes(call, device)
            calls[str(row)] = captured(call, device) if device.type == "cuda" else call
        times = interleaved(calls, device, rounds, peaks)
        found: list[dict[str, Any]] = [
            {"axis": axis, "size": getattr(row, axis), "row": str(row), **times[str(row)].as_dict()}
            for row in rows
        ]
        found[-1] |= exponents(found)
        lines += found
    return lines


def exponents(lines: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """The exponents of time and memory over the sizes, and that of time between the last two sizes."""
    sizes = [line["size"] for line in lines]
    peaks = [line["peak_MB"] for line in lines]
    known = all(peak is not None and peak > 0 for peak in peaks)
    return {
        "time_exponent": fitted_exponent(sizes, [line["ms"] for line in lines]),
        "last_exponent": fitted_exponent(sizes[-2:], [line["ms"] for line in lines[-2:]]),
        "memory_exponent": fitted_exponent(sizes, peaks) if known else None,
    }


def fitted_exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The b of the least-squares line log(value) = a + b log(size)."""
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread_x = sum((a - mean_x) ** 2 for a in x)
    if spread_x == 0:
        raise ValueError("an exponent needs at least two different sizes.")
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / spread_x
