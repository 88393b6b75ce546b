"""Launches: Triton looks at the first call, later ones hand the same arguments to what it compiled."""

import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton")

from lpjepa.slicing._triton import launch
from lpjepa.slicing._triton.buffers import Buffer, Space
from lpjepa.slicing._triton.launch import Launch, current_stream


class Compiled:
    """Stands in for a compiled kernel."""

    function, packed_metadata = "function", "metadata"

    def __init__(self, failure=None):
        self.runs, self.through_triton, self.failure = [], [], failure

    def run(self, *arguments):
        if self.failure is not None:
            raise self.failure
        self.runs.append(arguments)

    def __getitem__(self, grid):
        return lambda *arguments: self.through_triton.append((grid, arguments))


class Kernel:
    """Stands in for a kernel, which returns `compiled` when launched."""

    def __init__(self, compiled):
        self.compiled, self.calls = compiled, []

    def __getitem__(self, grid):
        def call(*arguments, **options):
            self.calls.append((grid, arguments, options))
            return self.compiled

        return call


GRID = (3, 2, 1)


def launched(compiled):
    kernel = Kernel(compiled)
    return kernel, Launch(kernel, GRID, (5, 0.5), {"BLOCK": 16}, num_warps=1)


@pytest.fixture(autouse=True)
def _as_known(monkeypatch):
    monkeypatch.setattr(launch, "_direct", True)


def test_only_the_first_call_goes_through_triton():
    compiled = Compiled()
    kernel, run = launched(compiled)
    first, second = torch.zeros(4), torch.zeros(8)
    run(7, first, second)
    assert kernel.calls == [(GRID, (first, second, 5, 0.5), {"BLOCK": 16, "num_warps": 1})]
    run(7, second, first)
    addresses = (second.data_ptr(), first.data_ptr())
    assert compiled.runs == [(*GRID, 7, "function", "metadata", None, None, None, *addresses, 5, 0.5, 16)]
    run(None, first, second)  # where a profiler listens
    assert compiled.through_triton == [(GRID, (first.data_ptr(), second.data_ptr(), 5, 0.5, 16))]
    assert len(kernel.calls) == 1


def test_another_calling_convention_is_found_out():
    kernel, run = launched(Compiled(TypeError("takes 9 arguments")))
    for _ in range(3):
        run(7, torch.zeros(4))
    assert len(kernel.calls) == 3


def test_what_is_only_noted_is_not_taken_for_compiled():
    kernel, run = launched(None)
    run(7, torch.zeros(4))
    run(7, torch.zeros(4))
    assert len(kernel.calls) == 2


def test_the_interpreter_has_no_stream():
    assert current_stream(torch.device("cpu")) is None


def test_buffers_lie_beside_each_other_and_are_tensors_on_demand():
    space = Space()
    parts = [
        space.add(count, dtype) for count, dtype in ((3, torch.float16), (0, torch.int32), (5, torch.float32))
    ]
    whole = space.allocate(torch.device("cpu")).zero_()
    halves, _, floats = (Buffer(whole, *part) for part in parts)
    halves.tensor()[:3] = 1
    floats.after(2).tensor()[:3] = 2
    assert floats.after(2).data_ptr() == floats.after(2).tensor().data_ptr() == floats.data_ptr() + 8
    assert floats.tensor()[:5].tolist() == [0, 0, 2, 2, 2]
    assert halves.tensor()[:4].tolist() == [1, 1, 1, 0]
    assert (floats.data_ptr() - halves.data_ptr()) % 16 == 0


_WITH_TRITON = """
import types
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

made = []

class Driver:  # a GPU that compiles and does not run
    launcher_cls = lambda self, src, metadata: lambda *arguments: made.append(arguments)
    utils = types.SimpleNamespace(
        load_binary=lambda *arguments: (1, "function", 32, 0, 1024),
        get_device_properties=lambda device: {"max_shared_mem": 232448},
    )
    get_current_device = lambda self: 0
    get_current_stream = lambda self, device: 11
    get_current_target = lambda self: GPUTarget("cuda", 90, 32)

driver.set_active(Driver())
from lpjepa.slicing._triton import launch, random

stream = launch.current_stream(torch.device("cuda"))
random.current_stream = lambda device: launch.current_stream(torch.device("cuda"))
seed = torch.tensor(5)
numbers = (0.25, 0.5, 1.0, True, (4, 300), 1 << 40, torch.bfloat16)
outs = [random.generalized_gaussian(seed, *numbers) for _ in range(2)]
heard = []
knobs.runtime.launch_enter_hook.add(heard.append)
outs.append(random.generalized_gaussian(seed, *numbers))
assert stream == 11 and launch.current_stream(torch.device("cuda")) is None

address = lambda x: x.data_ptr() if isinstance(x, torch.Tensor) else x
head = [[*call[:6]] for call in made]
tail = [[*map(address, call[9:])] for call in made]
assert len(made) == 3 and head[0] == head[1] == head[2], head
rest = [*numbers[:3], 1200, 1 << 40, False, True, 256]
assert tail == [[seed.data_ptr(), out.data_ptr(), *rest] for out in outs], tail
print("the same")
"""


def test_triton_and_the_direct_launch_pass_the_same_arguments(tmp_path, monkeypatch):
    """By the compiler itself, for a GPU that need not be there."""
    pytest.importorskip("triton.knobs")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", _WITH_TRITON], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["the", "same"], done.stderr
