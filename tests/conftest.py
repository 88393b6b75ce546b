"""Settings that hold for every test."""

import os

# Some CPUs report instructions that oneDNN's bf16 kernels then fail on (SIGILL); cap what it may use.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Kernels run in Triton's interpreter where there is no GPU; it must be chosen before triton is imported.
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

PARITY = Path(__file__).parent / "parity"


def pytest_configure(config):
    # One torch thread a worker: two workers on two cores slow each other down otherwise.
    if os.environ.get("PYTEST_XDIST_WORKER"):
        torch.set_num_threads(1)
    # A shell starts what it puts into the background with SIGINT ignored, and tests send it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def parity():
    """Reference numbers of the authors' code and LeJEPA's: (scalars by case, arrays by name, moments)."""
    reference = json.loads((PARITY / "reference.json").read_text())
    cases = {case["case"].split()[0]: case for case in reference["cases"]}
    with np.load(PARITY / "reference.npz") as arrays:
        return cases, {name: torch.from_numpy(arrays[name]) for name in arrays.files}, reference["moments"]


_GPU_THAT_DOES_NOT_RUN = """
import types
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

class Driver:  # compiles, and does not run
    launcher_cls = lambda self, src, metadata: lambda *arguments: print("launched")
    utils = types.SimpleNamespace(
        load_binary=lambda *arguments: (1, 1, 32, 0, 1024),
        get_device_properties=lambda device: {"max_shared_mem": 232448},
    )
    get_current_device = lambda self: 0
    get_current_stream = lambda self, device: 0
    get_current_target = lambda self: GPUTarget("cuda", 90, 32)

driver.set_active(Driver())
"""


@pytest.fixture
def printed_by_compiler(tmp_path, monkeypatch):
    """printed_by_compiler(code): what Python code prints where Triton compiles for a GPU that is not there.

    Kernels are kept in `tmp_path`.
    """
    pytest.importorskip("triton.knobs")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def run(code):
        command = [sys.executable, "-c", _GPU_THAT_DOES_NOT_RUN + code]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
