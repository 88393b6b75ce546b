"""Work beside the model's: the gradients of one joint backward pass, and no race between the streams."""

import copy
from collections import defaultdict
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lpjepa.training.assembly import assemble
from lpjepa.training.branch import Branch
from lpjepa.training.precision import autocast

CPU = torch.device("cpu")
MAIN, SIDE = "main", "side"


class Streams(TorchDispatchMode):
    """Two imagined streams on the CPU, and what would go wrong between them if they were real.

    Every operation counts up its stream's clock. A stream knows how far it has waited for the other; what
    the other one did after that is not ordered. Memory returns, as in torch's allocator, to the stream on
    which it was made, whose next allocation may take it.
    """

    def __init__(self):
        super().__init__()
        self.now = MAIN
        self.clock = {stream: {MAIN: 0, SIDE: 0} for stream in (MAIN, SIDE)}  # what each has waited for
        self.home = {}  # storage -> the stream on which it was made
        self.uses = defaultdict(list)  # storage -> (stream, its time, written)
        self.alive = {}
        self.freed = []
        self.hazards, self.written = [], defaultdict(set)

    def wait(self, stream, other):
        for each, time in self.clock[other].items():
            self.clock[stream][each] = max(self.clock[stream][each], time)

    def _ordered(self, use, stream):
        return self.clock[stream][use[0]] >= use[1]

    def _use(self, tensor, written, what):
        storage = tensor.untyped_storage()._cdata
        if storage not in self.alive:
            self.alive[storage] = StorageWeakRef(tensor.untyped_storage())
            self.home.setdefault(storage, self.now)
        for use in self.uses[storage]:
            if (written or use[2]) and not self._ordered(use, self.now):
                self.hazards.append(f"{what} on {self.now} does not wait for {use[0]}")
        self.uses[storage].append((self.now, self.clock[self.now][self.now], written))
        if written:
            self.written[storage].add(self.now)

    def _allocate(self, what):
        for storage in [storage for storage, alive in self.alive.items() if alive.expired()]:
            del self.alive[storage]
            self.freed.append((self.home.pop(storage), self.uses.pop(storage)))
        mine = [uses for home, uses in self.freed if home == self.now]
        self.freed = [(home, uses) for home, uses in self.freed if home != self.now]
        if any(not self._ordered(use, self.now) for uses in mine for use in uses):
            self.hazards.append(f"{what} on {self.now} may take memory that is still read")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self._allocate(func)
        found = func(*args, **kwargs)
        self.clock[self.now][self.now] += 1
        if func.is_view:
            return found
        given = {a.name: value for a, value in zip(func._schema.arguments, args)} | kwargs
        for argument in func._schema.arguments:
            written = argument.alias_info is not None and argument.alias_info.is_write
            for tensor in tree_leaves(given.get(argument.name)):
                if isinstance(tensor, torch.Tensor):
                    self._use(tensor, written, func)
        for tensor in tree_leaves(found):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self.alive:
                self._use(tensor, True, func)
        return found


class Imagined(Branch):
    """A branch on the second of the imagined streams; without `missing`, which is forgotten."""

    def __init__(self, streams, missing=None):
        super().__init__(CPU, apart=True)
        self.streams, self.missing = streams, missing

    @contextmanager
    def fork(self):
        if self.missing != "fork":
            self.streams.wait(SIDE, MAIN)
        with self.go_on():
            yield

    @contextmanager
    def go_on(self):
        self.streams.now = SIDE
        yield
        self.streams.now = MAIN

    def join(self):
        if self.missing != "join":
            self.streams.wait(MAIN, SIDE)


def _steps(parts, missing=None, steps=3):
    """The imagined streams after some steps, with what the loop does in between."""
    step, streams = parts.step, Streams()
    step.branch = Imagined(streams, missing)
    with streams:
        for number, batch in zip(range(steps), parts.batches(0, 0)):
            step.control(number, [0.05, 0.1])
            parts.run_step(*batch, parts.seeds(number))
            step.metric_sums.zero_()
    return streams


@pytest.mark.parametrize("optim", [{"name": "lars"}, {"name": "adamw", "grad_clip": 0.5}, {"ema": 0.9}])
@pytest.mark.parametrize(("precision", "accumulate"), [("bf16", 1), ("fp16", 2), ("fp32", 3)])
def test_streams_wait_for_each_other_where_they_must(tiny, optim, precision, accumulate):
    changes = {"optim": {**optim, "accumulate": accumulate}, "train": {"precision": precision}}
    parts = assemble(tiny(changes, {"train": {"batch_size": 8}}), CPU, 0, 1)
    streams = _steps(parts)
    assert streams.hazards == []

    def written_on(parameters):
        return {stream for p in parameters for stream in streams.written[p.untyped_storage()._cdata]}

    assert written_on(parts.step.trainee.probes.parameters()) == {SIDE}
    assert written_on(parts.step.trainee.model.parameters()) == {MAIN}


@pytest.mark.parametrize("missing", ["fork", "join"])
def test_a_missing_wait_would_be_found(tiny, missing):
    parts = assemble(tiny({"optim": {"grad_clip": 0.5}}), CPU, 0, 1)
    assert _steps(parts, missing).hazards


def test_a_branch_is_a_stream_of_one_gpu(monkeypatch):
    did = []

    class Stream:
        def __init__(self, device, name=SIDE):
            self.device, self.name = device, name

        def wait_stream(self, other):
            did.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def entered(stream):
        did.append(f"on {stream.name}")
        yield
        did.append("back")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(device, MAIN))
    gpu = torch.device("cuda", 0)
    branch = Branch(gpu, apart=True)
    with branch.fork():
        did.append("work")
    with branch.go_on():
        did.append("more")
    branch.join()
    assert did == [
        *("side waits for main", "on side", "work", "back"),
        *("on side", "more", "back", "main waits for side"),
    ]
    did.clear()
    for branch in (Branch(gpu, apart=False), Branch(CPU, apart=True)):
        with branch.fork(), branch.go_on():
            branch.join()
    assert did == []


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_are_those_of_one_joint_backward_pass(tiny, precision, accumulate):
    changes = {"optim": {"accumulate": accumulate}, "train": {"precision": precision, "batch_size": 16}}
    parts = assemble(tiny(changes), CPU, 0, 1)
    step = parts.step
    images, labels, sizes = next(parts.batches(0, 0))
    labels[:, 3:5] = -1
    trainee, criterion = copy.deepcopy(step.trainee), copy.deepcopy(step.criterion)
    scale = 1.0 if step.loss_scale is None else 2.0**8
    if step.loss_scale is not None:
        step.loss_scale.scale.fill_(scale)
    total = 0.0
    for k, x_VNCHW in enumerate(step.make_views(images, sizes, parts.seeds(0))):
        with autocast(CPU, precision):
            h, z = trainee.model(x_VNCHW.flatten(0, 1))
            logits = trainee.probes(h, z)
        total = total + criterion(z.unflatten(0, (2, 16)))
        for found in logits.values():
            total = total + F.cross_entropy(found.float(), labels[k].repeat(2), ignore_index=-1)
    (total / accumulate * scale).backward()
    step.control(0, [0.0, 0.0])
    step(images, labels, sizes, parts.seeds(0))
    for ours, expected in zip(step.trainee.parameters(), trainee.parameters()):
        # Other optimizers than LARS take gradients without the scale, which is divided out in place.
        torch.testing.assert_close(ours.grad, expected.grad / scale, rtol=1e-5, atol=1e-7)
