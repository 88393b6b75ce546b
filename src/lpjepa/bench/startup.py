"""`lpjepa bench step --startup`: how long until a training runs, in fresh processes.

Each process imports, assembles and makes the first steps of a preset on random images, compilation and
capture included. The first finds the caches of Triton, of torch's compiler and of the driver empty, the
second finds what the first left there, as the next run of a user does.

As a module it is that process: FOLDER KIND DEVICE.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpjepa.bench.table import Column, number, text

if TYPE_CHECKING:
    import torch

    from lpjepa.training.config import Config

COLUMNS: tuple[Column, ...] = (
    text("step", "kind"),
    text("caches", "caches"),
    number("import s", "import_s", ".1f"),
    number("assembled s", "assemble_s", ".1f"),
    number("first step s", "first_step_s", ".1f"),
    number("further steps s", "further_steps_s", ".1f"),
    number("start-up s", "startup_s", ".1f"),
)
# Where compiled kernels are kept: Triton's, those of torch's compiler, and the driver's.
_CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUDA_CACHE_PATH")


def measure_startup(config: Config, device: torch.device) -> list[dict[str, Any]]:
    """One row with empty caches and one with filled ones, for the fastest kind of step on `device`."""
    from lpjepa.bench.step import BATCHES, KINDS, on_random_images

    kind = list(KINDS)[-1 if device.type == "cuda" else 0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        content = asdict(on_random_images(config, folder, BATCHES[device.type]))
        (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
        environment = os.environ | {variable: str(folder / variable) for variable in _CACHES}
        rows = []
        for caches in ("empty", "filled"):
            began = time.time()
            command = [sys.executable, "-m", "lpjepa.bench.startup", name, kind, str(device)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
                raise RuntimeError(f"a training that was started to time its start-up failed: {last}")
            times = json.loads((folder / "times.json").read_text(encoding="utf-8"))
            ended = times.pop("ended")
            rows.append({"kind": kind, "caches": caches, **times, "startup_s": ended - began})
    return rows


def main(folder: str, kind: str, device: str) -> None:
    start = time.perf_counter()
    import torch

    import lpjepa.training.loop  # noqa: F401  (what a training imports)
    from lpjepa.bench.step import build
    from lpjepa.training.layers import load_config

    imported = time.perf_counter()
    content = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
    found = build(load_config(None, content), torch.device(device), kind)
    times = {
        "import_s": imported - start,
        "assemble_s": found.assemble_s,
        "first_step_s": found.first_step_s,
        "further_steps_s": found.first_steps_s - found.first_step_s,
        "ended": time.time(),
    }
    Path(folder, "times.json").write_text(json.dumps(times), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
