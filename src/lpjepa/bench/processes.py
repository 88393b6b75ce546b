"""`lpjepa bench loss --processes 1 2 4`: what one rank does, as their number grows.

Each number of processes is a job of its own over gloo on this machine's CPU, one thread a process, on the
same global batch. A rank's time is the CPU time of its process: waiting for the others is not counted, so
that it can be read off a machine with fewer cores than processes. Payloads are counted where
`torch.distributed` is called, and slices where the matching is.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lpjepa.bench.cost import Setting, messages
from lpjepa.bench.loss import VIEWS, Row
from lpjepa.bench.table import Column, number, spread, text

SECONDS = 600  # a job that takes longer is stuck
TOLERANCE = 1e-5  # between the losses of jobs: sums in another order

COLUMNS: tuple[Column, ...] = (
    number("processes", "world", "d"),
    number("samples a rank", "samples", "d"),
    number("slices a rank", "slices", "g"),
    number("CPU ms a rank", "cpu_ms", ".4g"),
    spread("quartiles", "low", "high", ".4g"),
    number("of one process", "fraction", ".3f"),
    number("1/W", "ideal", ".3f"),
    number("gathered bytes", "gathered", ",d"),
    number("scattered bytes", "scattered", ",d"),
    number("reduced bytes", "reduced", ",d"),
    text("as the cost model", "as_modelled"),
)


def measure_processes(row: Row, worlds: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """A line a number of processes; the jobs must agree on the loss before anything is reported."""
    for world in worlds:
        if world < 1 or row.samples % world:
            raise ValueError(
                f"--processes {world}: the {row.samples} samples cannot be divided equally among that many; "
                "choose divisors, or other --rows."
            )
    jobs = {world: run_job(row, world, rounds) for world in dict.fromkeys(worlds)}
    values = [rank["loss"] for ranks in jobs.values() for rank in ranks]
    if max(values) - min(values) > TOLERANCE * abs(values[0]):
        raise ValueError(
            f"the loss differs between {min(values)!r} and {max(values)!r} with the number of processes; "
            "nothing is reported."
        )
    lines = [_line(row, world, ranks) for world, ranks in jobs.items()]
    alone = next((line["cpu_ms"] for line in lines if line["world"] == 1), None)
    for line in lines:
        line["fraction"] = None if alone is None else line["cpu_ms"] / alone
    return lines


def _line(row: Row, world: int, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    # The slowest rank is what the others wait for.
    slowest = max(ranks, key=lambda rank: statistics.median(rank["cpu_ms"]))
    times = slowest["cpu_ms"]
    low, _, high = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    counted = ranks[0]["payloads"]
    expected = messages(Setting(row.samples, "global", VIEWS, row.dim, row.slices, feature_bytes=4), world)
    # gloo has no reduce-scatter everywhere: gradients go by an all-reduce of the same payload.
    found = {
        "gathered": counted.get("all_gather", 0),
        "scattered": counted.get("all_reduce", 0) - counted.get("loss", 0),
        "reduced": counted.get("loss", 0),
        "sizes": counted.get("sizes", 0),
    }
    same = all(value == getattr(expected, name) for name, value in found.items())
    return {
        "world": world,
        "samples": row.samples // world,
        "slices": max(rank["slices"] for rank in ranks),
        "cpu_ms": statistics.median(times),
        "low": low,
        "high": high,
        "wall_ms": statistics.median(slowest["wall_ms"]),
        "ideal": 1 / world,
        **found,
        "as_modelled": "yes" if same else "NO",
        "loss": ranks[0]["loss"],
    }


def run_job(row: Row, world: int, rounds: int) -> list[dict[str, Any]]:
    """Start `world` processes of `lpjepa.bench.rank` and collect what each measured."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lpjepa.bench.rank", folder, str(row), str(rounds), str(world)]
        ranks = [
            subprocess.Popen(
                [*command, str(rank)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(world)
        ]
        outputs = []
        try:
            outputs = [rank.communicate(timeout=SECONDS)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        if any(rank.returncode for rank in ranks):
            raise RuntimeError(f"a job of {world} processes failed:\n" + "\n".join(outputs))
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(world)]
