"""The captured step is the step."""

import gc
import json
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from lpjepa.training import pretrain
from lpjepa.training.assembly import assemble
from lpjepa.training.capture import WARMUP_STEPS, CapturedStep, encoded
from lpjepa.training.layers import load_config
from lpjepa.training.packing import packed

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def compiler_without_a_past():
    """Variants of a step beyond the eighth of a process are left uncompiled, without a warning."""
    torch._dynamo.reset()


def logged(folder, name):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return torch.tensor([line[name] for line in lines if line["kind"] == "train"])


def curves(tmp_path, epochs, changes, compiled=False, name="loss"):
    """The losses (or what else is logged) step by step of the plain training and of the captured one."""
    found = []
    for capture in (False, True):
        folder = tmp_path / f"capture-{capture}"
        train = {"epochs": epochs, "device": "cuda", "capture": capture, "compile": compiled and capture}
        shared = {"optim": {"warmup_epochs": 1}, "log": {"every": 1, "plain": True}}
        pretrain(load_config(None, {**shared, "train": {**train, "out": str(folder)}}, changes))
        found.append(logged(folder, name))
    return found


@pytest.mark.gpu
def test_captured_steps_give_the_same_loss_curve(tmp_path):
    found = curves(tmp_path, 4, {})
    # Atomic additions in some backward kernels reorder sums; the curves separate slowly.
    torch.testing.assert_close(found[0], found[1], rtol=2e-2, atol=0)
    torch.testing.assert_close(found[0][:6], found[1][:6], rtol=1e-3, atol=0)
    assert found[0][-1] < 0.7 * found[0][0]


@pytest.mark.gpu
@pytest.mark.parametrize("optim", [{"name": "lars", "lr": 0.02}, {"grad_clip": 10.0}])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_probes_learn_beside_as_they_do_in_turn(tmp_path, optim, accumulate):
    changes = {"optim": {**optim, "accumulate": accumulate}}
    rates = curves(tmp_path, 2, changes, compiled=True, name="lr")
    assert torch.equal(*rates)
    assert len(set(rates[0].tolist())) > 5
    for name in ("encoder_probe_loss", "projector_probe_loss", "grad_norm", "l0"):
        found = [logged(tmp_path / f"capture-{capture}", name)[:8] for capture in (False, True)]
        torch.testing.assert_close(*found, rtol=2e-2, atol=1e-3)  # of four replays


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("activation", "start"), [("calibrated", 0.0), ("calibrated", 0.5), ("top", 0.5), ("soft_top", 0.5)]
)
def test_a_share_is_set_in_replays_as_it_is_in_turn(tmp_path, activation, start):
    changes = {"model": {"activation": activation}, "target": {"active": 0.05}}
    changes["train"] = {"calibrate_from": start}
    found = curves(tmp_path, 4, changes, compiled=True, name="l0")
    torch.testing.assert_close(*found, rtol=5e-2, atol=3e-3)
    first = int(start * len(found[0]))
    for shares in found:  # a plain rectifier before; the first batch of it has the share that is asked for
        assert not first or shares[first - 1] > 0.1
        assert shares[first] == pytest.approx(0.05, abs=0.005)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_replays_find_the_target_where_it_has_moved(tmp_path, compiled):
    moving = {"target": {"active": 0.05, "from_mu": 3.0, "there_at": 1.0}, "optim": {"lr": 1e-5}}
    found = curves(tmp_path, 4, moving, compiled, name="matching")
    torch.testing.assert_close(*found, rtol=2e-2, atol=1e-3)
    for losses in found:  # of features that hardly change: the target comes near them
        assert losses[-1] < 0.5 * losses[0]


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_features_rectified_late_are_captured_anew(tmp_path, compiled):
    late = {"train": {"rectify_from": 0.5}, "target": {"active": 0.3}}
    found = curves(tmp_path, 4, late, compiled, name="l0")
    losses = [logged(tmp_path / f"capture-{capture}", "loss") for capture in (False, True)]
    torch.testing.assert_close(*found, rtol=5e-2, atol=3e-3)
    torch.testing.assert_close(*losses, rtol=5e-2, atol=0)
    for shares, values in zip(found, losses):
        half = len(shares) // 2
        assert shares[half - 1] == 1
        assert shares[half] < 0.5
        assert values[-1] < 0.9 * values[half], "weights learn after the turn"


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["lpjepa", "lejepa", "vicreg", "nvicreg", "simclr", "ncl"])
def test_every_method_is_captured(tmp_path, method):
    found = curves(tmp_path, 1, {"loss": {"method": method}})
    torch.testing.assert_close(found[0], found[1], rtol=2e-2, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("directions", ["eigen", "orthogonal", "hadamard", {"random": 192, "axes": 64}])
def test_every_kind_of_direction_is_captured(tmp_path, directions):
    found = curves(tmp_path, 1, {"loss": {"directions": directions, "num_slices": 256}})
    torch.testing.assert_close(found[0], found[1], rtol=5e-2, atol=0)


@pytest.mark.gpu
def test_compiled_and_captured_with_every_optimizer_option(tmp_path):
    changes = {
        "optim": {"name": "lars", "lr": 0.1, "grad_clip": 10.0, "ema": 0.9},
        "train": {"precision": "fp16"},
    }
    found = curves(tmp_path, 1, changes, compiled=True)
    torch.testing.assert_close(found[0][:4], found[1][:4], rtol=2e-2, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "loss",
    [
        {"method": "lejepa"},
        {"method": "vicreg"},
        {"method": "ncl"},
        {"axes_weight": 0.5},
        *({"directions": kind, "num_slices": 256} for kind in ("eigen", "orthogonal", "hadamard")),
    ],
)
def test_every_objective_is_compiled_and_captured(tmp_path, monkeypatch, loss):
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: None)  # the network, which others test
    found = curves(tmp_path, 1, {"loss": loss}, compiled=True)
    torch.testing.assert_close(found[0], found[1], rtol=5e-2, atol=1e-4)


def test_a_cpu_cannot_capture(tmp_path):
    changes = {"train": {"epochs": 1, "device": "cpu", "capture": True, "out": str(tmp_path / "run")}}
    with pytest.raises(ValueError, match=r"train\.capture"):
        pretrain(load_config(None, changes))


class Stream(SimpleNamespace):
    """Stands in for a stream or an event: on the CPU nobody has to wait."""

    def __init__(self, *arguments, **options):
        super().__init__(wait_stream=id, wait_event=id, record=id)


class Graph:
    """Stands in for a CUDA graph: views and learning within it are noted, and done by each replay."""

    recording = None

    def __init__(self):
        self.noted = []

    def replay(self):
        for work in self.noted:
            work()

    @staticmethod
    @contextmanager
    def record(graph, stream, capture_error_mode):
        assert capture_error_mode == "thread_local"  # a loader's thread goes on pinning memory
        assert not gc.isenabled()
        Graph.recording = graph
        yield
        Graph.recording = None


def without_gpu(step, monkeypatch):
    """A `CapturedStep` of a step on the CPU, with everything that is a GPU's replaced."""
    for name, value in {
        "Stream": Stream,
        "Event": Stream,
        "stream": lambda stream: nullcontext(),
        # Of the step's device, which need not be the current one.
        "current_stream": lambda device: Stream(),
        "synchronize": lambda device: None,
        "CUDAGraph": Graph,
        "graph": Graph.record,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    make_views, learn = step.make_views, step.learn

    def views_noted(*inputs):
        views = list(make_views(*inputs))

        def again():
            for x, new in zip(views, make_views(*inputs)):
                x.copy_(new)

        if Graph.recording is not None:
            Graph.recording.noted.append(again)
            for x in views:
                x.fill_(torch.nan)  # recording computes nothing
        return views

    def learning_noted(*inputs):
        if Graph.recording is None:
            return learn(*inputs)
        return Graph.recording.noted.append(lambda: learn(*inputs))

    step.make_views, step.learn, step.device = views_noted, learning_noted, SimpleNamespace(type="cuda")
    found = CapturedStep(step)
    step.device = CPU
    return found


@pytest.mark.parametrize("optim", [{"name": "lars"}, {"name": "adamw", "accumulate": 2}])
def test_replays_take_inputs_rates_and_number_of_their_own_step(tiny, monkeypatch, optim):
    config = tiny({"optim": optim, "train": {"batch_size": 16}})
    found = []
    for captured in (False, True):
        parts = assemble(config, CPU, 0, 1)
        run = without_gpu(parts.step, monkeypatch) if captured else parts.step
        batches = [batch for epoch in range(3) for batch in parts.batches(epoch, 0)][: WARMUP_STEPS + 4]
        assert len(batches) == WARMUP_STEPS + 4
        for number, batch in enumerate(batches):
            run.control(number + 20, [0.01 * (number + 1), 0.1 / (number + 1)])
            run(*batch, parts.seeds(number))
        found.append(parts.step)
        assert gc.isenabled()
        assert parts.step.health.step == 20 + len(batches)
        rates = [float(o.param_groups[-1]["lr"]) for o in parts.step.optimizers]
        assert rates == pytest.approx([0.01 * len(batches), 0.1 / len(batches)])
    plain, captured = found
    assert torch.equal(plain.metric_sums, captured.metric_sums)
    for a, b in zip(plain.trainee.parameters(), captured.trainee.parameters()):
        assert torch.equal(a, b)


def test_packed_tensors_are_copied_in_one_go():
    like = [encoded(2**40 + 1, [0.3, 1e-8]), torch.arange(5), torch.rand(3, 2)]
    (given, mine), (taken, learned) = (packed(like, CPU) for _ in range(2))
    for tensor, value in zip(mine, like):
        tensor.copy_(value)
    taken.copy_(given)
    for tensor, value in zip(learned, like):
        assert torch.equal(tensor, value)
        assert tensor.data_ptr() % 16 == taken.data_ptr() % 16
    assert learned[0][0, 0] == 2**40 + 1
    assert learned[0][1:].view(torch.float32)[:, 0].tolist() == torch.tensor([0.3, 1e-8]).tolist()
