"""What a measurement depends on: hardware, versions, threads, date and command."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import torch

from lpjepa import __version__

_BESIDE_TORCH = ("triton", "torchvision", "kornia", "timm", "Pillow", "numpy", "scipy", "faiss-cpu")


def stamp(device: torch.device, command: Sequence[str]) -> dict[str, object]:
    """The facts that belong beside every number, in plain values."""
    found: dict[str, object] = {
        "command": shlex.join(["lpjepa", "bench", *command]),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "processor": processor(),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "python": platform.python_version(),
        "lpjepa": __version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }
    return found | installed(_BESIDE_TORCH)


def installed(packages: Sequence[str]) -> dict[str, str]:
    """The versions of those that are installed."""
    found = {}
    for package in packages:
        try:
            found[package.lower()] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def sentence(facts: dict[str, object]) -> str:
    """The stamp as one line of text."""
    cpu = f"{facts['processor']}, {facts['cores']} cores usable, torch threads: {facts['threads']}"
    where = cpu if facts["device"] == "cpu" else f"{facts['device']}, CUDA {facts['cuda']} ({cpu})"
    versions = f"torch {facts['torch']}, Python {facts['python']}, lpjepa {facts['lpjepa']}"
    return f"{where}; {versions}; {facts['date']}"


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
