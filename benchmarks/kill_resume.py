"""Kill a training at random moments and compare its final weights with those of an uninterrupted one.

    python benchmarks/kill_resume.py [--kills 20] [--seed 0]

A training on the handwritten digits is started as a process of its own, killed with SIGKILL after a random
time, started again, and so on; the last start runs to the end. Weights, optimizer state and the journal
(without its clock times) must be those of a training that nobody killed, bit for bit. Takes a few
minutes on two CPU cores: most of it is starting Python.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from lpjepa.training import checkpoint

FLAGS = [
    "--train.epochs", "15", "--train.batch-size", "64", "--train.checkpoint-every", "0.2",
    "--train.device", "cpu", "--model.projector-hidden", "64", "--model.projector-dim", "32",
    "--loss.num-slices", "64", "--log.every", "5",
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    choose = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        whole, killed = Path(scratch, "whole"), Path(scratch, "killed")
        began = time.monotonic()
        assert _start(whole).wait() == 0
        seconds = time.monotonic() - began
        print(f"uninterrupted: {seconds:.1f} s")
        for number in range(1, options.kills + 1):
            process = _start(killed)
            before = _progress(killed)
            # Most kills a while after a sign of life (a new line or checkpoint), some while Python starts.
            if choose.random() < 0.8:
                while process.poll() is None and _progress(killed) == before:
                    time.sleep(0.002)
            time.sleep(choose.uniform(0, 1.2 * seconds / options.kills))
            process.send_signal(signal.SIGKILL)
            code = process.wait()
            print(f"kill {number}: step {_progress(killed)[1]}, exit status {code}", flush=True)
        assert _start(killed).wait() == 0
        same = _same(_state(whole), _state(killed)) and _journal(whole) == _journal(killed)
    print(f"{options.kills} kills: {'bit for bit the same' if same else 'DIFFERENT'}")
    return 0 if same else 1


def _start(out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "lpjepa", "pretrain", *FLAGS, "--train.out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def _progress(run: Path) -> tuple[int, int]:
    """(bytes of journal, newest checkpoint's step)."""
    journal = run / "metrics.jsonl"
    paths = checkpoint.list_checkpoints(run / "checkpoints")
    return journal.stat().st_size if journal.exists() else 0, checkpoint.step_of(paths[-1]) if paths else 0


def _state(run: Path) -> object:
    state = checkpoint.load_newest(run / "checkpoints")
    assert state is not None
    return [state["trainee"], state["optimizers"], state["criterion"], state["progress"]]


def _journal(run: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "images_per_second"} for line in lines]


def _same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b))
    return a == b


if __name__ == "__main__":
    sys.exit(main())
