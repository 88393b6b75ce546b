"""Kernels compiled ahead: those that a step launches, and never at the price of the training."""

import sys
import threading
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")
from triton.runtime.jit import KernelInterface

from lpjepa.models.fused import batch_norm, kernels, resnet
from lpjepa.slicing import _backend
from lpjepa.training import _lars_kernels, startup
from lpjepa.training.assembly import assemble
from lpjepa.training.lars import LARS
from lpjepa.training.optimizers import set_rate

CPU = torch.device("cpu")
without_gpu = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels take CPU tensors when interpreted"
)


@pytest.fixture
def kernels_on_cpu(monkeypatch):
    """Encoder, loss and optimizer as on a GPU, by Triton's interpreter."""

    def table(self, group, params):
        key = tuple(map(id, params))
        return self._tables.setdefault(key, _lars_kernels.build_table(params, group["exclude_1d"]))

    def dtype(encoder, x):
        return torch.bfloat16 if encoder.training and torch.is_autocast_enabled("cpu") else None

    monkeypatch.setattr(LARS, "_table", table)
    monkeypatch.setattr(resnet, "_dtype_of_training", dtype)
    monkeypatch.setattr(_backend, "_kernels", lambda z_VND: _backend._import_kernels())


def launched_by(run, monkeypatch):
    """The variants of the kernels that are really launched."""
    found, launching = set(), KernelInterface.__getitem__

    def launch(kernel, grid):
        def call(*arguments, **options):
            with startup.launches_noted() as noted:
                kernel[grid](*arguments, **options)
            found.update(one.variant() for one in noted)
            if kernel.fn.__module__ != _lars_kernels.__name__:  # millions of weights, which nobody looks at
                launching(kernel, grid)(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(KernelInterface, "__getitem__", launch)
        run()
    return found


@without_gpu
def test_rehearsed_kernels_are_those_of_a_step(tiny, kernels_on_cpu, monkeypatch):
    changes = {
        "model": {"encoder": "resnet18"},
        # Clipping scales the gradients of the model and not those of the probes: two variants.
        "optim": {"name": "lars", "grad_clip": 1.0},
        "train": {"precision": "bf16", "batch_size": 3},
    }
    parts = assemble(tiny(changes), CPU, 0, 1)
    before = {name: value.clone() for name, value in parts.step.trainee.state_dict().items()}
    rehearsed = {one.variant() for one in startup.rehearse(parts.step, (2, 3, 3, 8, 8))}
    assert all(torch.equal(before[n], value) for n, value in parts.step.trainee.state_dict().items())
    for optimizer in parts.step.optimizers:
        set_rate(optimizer, 0.1)
    batch = next(iter(parts.batches(0, 0)))
    launched = launched_by(lambda: parts.step(*batch, parts.seeds(0)), monkeypatch)
    assert rehearsed == launched
    assert len(launched) > 20


def test_an_encoder_of_large_images_is_rehearsed_in_16_bits():
    """Its first convolution is torch's own, and what it gives decides the types of all that follow."""
    from lpjepa.models import build_encoder

    encoder = build_encoder("resnet18", image_size=224)
    with startup.launches_noted() as noted:
        startup._rehearse_encoder(encoder, (2, 2, 3, 224, 224), torch.bfloat16)
    maps = [one.arguments[0].dtype for one in noted if "statistics" in one.kernel.fn.__name__]
    assert len(maps) == 20
    assert set(maps) == {torch.bfloat16}
    assert next(encoder.parameters()).dtype == torch.float32


@without_gpu
def test_kernels_that_are_noted_do_not_run_and_those_of_other_threads_do():
    x, stats, found = torch.full((1, 16, 1, 1), 3.0), torch.ones(4, 16), []  # scale and offset: 1
    with startup.launches_noted() as noted:
        batch_norm.normalise(x, stats)
        thread = threading.Thread(target=lambda: found.append(batch_norm.normalise(x, stats)))
        thread.start()
        thread.join()
    assert len(noted) == 1
    assert found[0].sum() == batch_norm.normalise(x, stats).sum() == 64


def test_launches_of_one_compiled_kernel_are_one_variant():
    def noted(rows, stride=2, address=0, factor=1.0):
        pointer = startup.Pointer(torch.float32, address)
        return startup.Launch(kernels.normalise_kernel, (pointer, rows, factor), {"STRIDE": stride}).variant()

    assert noted(32) == noted(64, factor=2.0)
    others = [noted(33), noted(1), noted(2**40), noted(32, stride=1), noted(32, address=4), noted(32)]
    assert len(set(others)) == len(others)


class Kernel:
    """Stands in for a kernel: compiles, or fails to."""

    def __init__(self, failure=None):
        self.failure, self.compiled = failure, 0

    def warmup(self, *arguments, grid, **options):
        if self.failure is not None:
            raise self.failure
        self.compiled += 1


def test_kernels_that_do_not_compile_are_left_out(monkeypatch):
    import triton

    monkeypatch.setattr(
        triton.runtime.driver, "_active", SimpleNamespace(get_current_target=str), raising=False
    )
    monkeypatch.setattr(torch.cuda, "device", lambda device: threading.Lock())
    good = [Kernel() for _ in range(3)]
    bad = [Kernel(RuntimeError("ptxas")), Kernel(AssertionError())]
    every = [good[0], bad[0], good[1], bad[1], good[2]]
    startup.compile_launches([startup.Launch(one, (), {}) for one in every], CPU)
    assert [one.compiled for one in good] == [1, 1, 1]


def test_nothing_that_goes_wrong_reaches_the_training(monkeypatch):
    def fails(*arguments):
        raise RuntimeError("no driver")

    step = SimpleNamespace(device=torch.device("cuda"))
    monkeypatch.setattr(startup, "rehearse", fails)
    assert startup.precompile(step, (2, 3, 3, 8, 8)) is None
    monkeypatch.setattr(startup, "rehearse", lambda *arguments: [startup.Launch(Kernel(), (), {})])
    monkeypatch.setattr(startup, "ThreadPoolExecutor", fails)
    startup.precompile(step, (2, 3, 3, 8, 8)).join()


def test_a_part_that_cannot_be_rehearsed_leaves_the_others(tiny, monkeypatch):
    parts = assemble(tiny({"optim": {"name": "lars"}}), CPU, 0, 1)
    monkeypatch.setattr(parts.step, "criterion", None)
    names = {one.kernel.fn.__name__ for one in startup.rehearse(parts.step, (2, 4, 3, 8, 8))}
    assert names == {"_squares_kernel", "_norms_kernel", "_move_kernel"}


def test_a_cpu_needs_no_kernels():
    assert startup.precompile(SimpleNamespace(device=CPU), (2, 3, 3, 8, 8)) is None


_COMPILED = """
import contextlib
import torch
from triton import knobs
from lpjepa.models.fused import batch_norm
from lpjepa.training import startup

torch.cuda.device = lambda device: contextlib.nullcontext()
knobs.runtime.jit_cache_hook = lambda **what: print("compiled")
x, stats = torch.ones(2, 16, 2, 2), torch.ones(4, 16)
with startup.launches_noted() as noted:
    batch_norm.normalise(x, stats)
startup.compile_launches(noted, torch.device("cuda"))
print("then")
batch_norm.normalise(x, stats)
"""


def test_a_call_finds_what_was_compiled_ahead(printed_by_compiler, tmp_path):
    """By the compiler itself, for a GPU that need not be there."""
    assert printed_by_compiler(_COMPILED).split() == ["compiled", "then", "launched"]
    assert list(tmp_path.rglob("normalise_kernel.cubin"))


@pytest.mark.gpu
def test_a_step_compiles_nothing_but_what_views_need(tiny, monkeypatch):
    """On a GPU: after `precompile`, encoder, loss and optimizers find every kernel compiled."""
    from triton import knobs

    changes = {
        "model": {"encoder": "resnet18"},
        "optim": {"name": "lars"},
        "loss": {"num_slices": 512},
        "train": {"precision": "fp16", "batch_size": 32},
    }
    started = []
    monkeypatch.setattr(
        "lpjepa.training.assembly.precompile", lambda *given: started.append(startup.precompile(*given))
    )
    parts = assemble(tiny(changes), torch.device("cuda"), 0, 1)
    started[0].join()
    compiled = []
    monkeypatch.setattr(
        knobs.runtime, "jit_cache_hook", lambda **what: compiled.append(what["fn"].name), raising=False
    )
    parts.step(*next(iter(parts.batches(0, 0))), parts.seeds(0))
    torch.cuda.synchronize()
    of_views = {"_uniform_kernel", "_normal_kernel", "columns_kernel", "rows_kernel", "blur_kernel"}
    assert {name.rsplit(".")[-1] for name in compiled} <= of_views


def test_the_compiler_is_woken_where_there_is_one_to_wake(monkeypatch):
    woken = []
    there = SimpleNamespace(maybe_warm_pool=lambda: woken.append(True))
    monkeypatch.setitem(sys.modules, "torch._inductor.async_compile", there)
    startup.wake_compiler()
    assert woken == [True]
    monkeypatch.setitem(sys.modules, "torch._inductor.async_compile", None)
    startup.wake_compiler()
