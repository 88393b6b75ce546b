"""One process of a job that `lpjepa.bench.processes` starts: FOLDER ROW ROUNDS WORLD RANK."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lpjepa.bench.loss import VIEWS, Row, parse_row, step, target
from lpjepa.bench.reference import target_samples
from lpjepa.losses import RDMReg, rdmreg

# Collectives by the names they have in this and in older versions of torch, and which of their arguments
# is the whole payload (the gathered result, the reduced tensor, what enters the reduce-scatter).
_COLLECTIVES = {
    "all_gather_single": ("all_gather", 0),
    "all_gather_into_tensor": ("all_gather", 0),
    "all_reduce": ("all_reduce", 0),
    "reduce_scatter_single": ("reduce_scatter", 1),
    "reduce_scatter_tensor": ("reduce_scatter", 1),
}


class Count:
    """Bytes by collective and slices worked on, from when it is installed."""

    def __init__(self) -> None:
        self.payloads: Counter[str] = Counter()
        self.slices = 0

    def install(self) -> None:
        for name, (kind, position) in _COLLECTIVES.items():
            if hasattr(dist, name):
                setattr(dist, name, self._counted(getattr(dist, name), kind, position))
        matching = rdmreg.planned_discrepancy  # type: ignore[attr-defined]

        def counted(z: Tensor, y: Tensor, plan: Any, seed: Tensor, lo: int, hi: int, *rest: Any) -> Tensor:
            self.slices += hi - lo
            return matching(z, y, plan, seed, lo, hi, *rest)

        rdmreg.planned_discrepancy = counted  # type: ignore[assignment, attr-defined]

    def _counted(self, collective: Any, kind: str, position: int) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            payload: Tensor = arguments[position]
            size = payload.numel() * payload.element_size()
            # Host messages are integers; the loss's parts are a handful of numbers.
            self.payloads["sizes" if payload.dtype == torch.int64 else kind] += size
            if kind == "all_reduce" and payload.numel() < 16:
                self.payloads["loss"] += size
            return collective(*arguments, **options)

        return call


def measure(row: Row, rounds: int, world: int, rank: int) -> dict[str, Any]:
    """Loss, CPU and wall milliseconds of every round, payloads and slices of one call."""
    features = target_samples(VIEWS, row.samples, row.dim, device=torch.device("cpu"))
    part = row.samples // world
    z = features[:, rank * part : (rank + 1) * part].clone().requires_grad_()
    loss = RDMReg(target(), num_slices=row.slices, seed=0)
    value = float(loss(z.detach()))
    call = step(loss, z)
    call()
    cpu, wall = [], []
    for _ in range(rounds):
        start, began = time.process_time(), time.perf_counter()
        call()
        cpu.append((time.process_time() - start) * 1e3)
        wall.append((time.perf_counter() - began) * 1e3)
    count = Count()
    count.install()
    call()
    return {
        "loss": value,
        "cpu_ms": cpu,
        "wall_ms": wall,
        "payloads": count.payloads,
        "slices": count.slices,
    }


def main(folder: str, row: str, rounds: str, world: str, rank: str) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if int(world) > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/group",
            rank=int(rank),
            world_size=int(world),
            timeout=timedelta(seconds=300),
        )
    found = measure(parse_row(row), int(rounds), int(world), int(rank))
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    if int(world) > 1:
        dist.barrier()
        # gloo's threads may still run when the interpreter takes its group apart, and then abort the process;
        # everything is written, so leave without that.
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
