"""What a step reads off its features, by itself, compiled, and with norms that LARS measures."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss

from lpjepa.losses import VICReg
from lpjepa.training import lars
from lpjepa.training.assembly import assemble
from lpjepa.training.capture import encoded, hand_over
from lpjepa.training.reading import (
    INPUTS,
    in_order,
    metrics_of,
    parts_of,
    read_objective,
    read_probes,
    through_compiler,
)

CPU = torch.device("cpu")


def _inputs(views=3, count=10, classes=4):
    torch.manual_seed(0)
    x = torch.randn(views, count, 3, 4, 4)
    h, z = torch.randn(views * count, 7), torch.randn(views * count, 6).relu().requires_grad_()
    logits = {
        name: torch.randn(views * count, classes, requires_grad=True) for name in ("encoder", "projector")
    }
    labels = torch.randint(classes, (count,))
    labels[2:5] = -1
    return x, h, z, logits, labels


def _read(criterion, x, h, z, logits, labels):
    """Both readings, and all values by name."""
    objective, probes = read_objective(criterion, z, len(x)), read_probes(x, h, z.detach(), logits, labels)
    values = in_order(objective.values, probes.values)
    names = [*INPUTS, *metrics_of(objective, probes)]
    assert len(values) == len(set(names)) == len(parts_of(objective, probes))
    return objective, probes, dict(zip(names, values.tolist()))


def test_values_are_those_of_other_libraries():
    x, h, z, logits, labels = _inputs()
    objective, probes, found = _read(VICReg(), x, h, z, logits, labels)
    for name, tensor in zip(INPUTS, (x, h, z)):
        assert found[name] == pytest.approx(np.float64(tensor.detach().numpy()).sum(), rel=1e-4)
    assert found["loss"] == objective.loss.item()
    y = labels.repeat(3).numpy()
    known = y >= 0
    expected = 0.0
    for name, logits_BC in logits.items():
        p = logits_BC.detach().softmax(1).double().numpy()
        nll = log_loss(y[known], p[known] / p[known].sum(1, keepdims=True), labels=range(4))
        assert found[f"{name}_probe_loss"] == pytest.approx(nll, rel=1e-5)
        # An image without a label counts as missed.
        assert found[f"{name}_train_accuracy"] == pytest.approx(accuracy_score(y, p.argmax(1)))
        expected += nll
    assert probes.loss.item() == pytest.approx(expected, rel=1e-5)
    a = z.detach().double().numpy()
    assert found["l0"] == pytest.approx((a > 0).mean())
    assert found["l1"] == pytest.approx((a.sum(1) ** 2 / (a**2).sum(1)).mean() / 6, rel=1e-5)


def test_gradients_are_those_of_objective_and_cross_entropies():
    x, h, z, logits, labels = _inputs()
    objective, probes, _ = _read(VICReg(), x, h, z, logits, labels)
    probes.loss.backward()
    assert z.grad is None
    objective.loss.backward()
    (expected,) = torch.autograd.grad(VICReg()(z.unflatten(0, (3, 10))), z)
    torch.testing.assert_close(z.grad, expected)
    y = labels.repeat(3)
    for logits_BC in logits.values():
        # (softmax − one-hot) / number of labelled samples, and nothing for the others
        gradient = logits_BC.detach().softmax(1)
        gradient[torch.arange(30), y.clamp(min=0)] -= 1
        torch.testing.assert_close(logits_BC.grad, gradient * (y >= 0).unsqueeze(1) / (y >= 0).sum())


@pytest.mark.parametrize("with_logits", [False, True])
def test_without_labels_there_is_only_the_objective(with_logits):
    x, h, z, logits, _ = _inputs()
    criterion = VICReg()
    objective, probes, found = _read(criterion, x, h, z, logits if with_logits else {}, None)
    assert objective.loss.item() == pytest.approx(criterion(z.unflatten(0, (3, 10))).item())
    assert probes.loss is None
    assert not any("probe" in name for name in found)


def test_what_is_not_finite_shows_in_its_own_value_first():
    for part in INPUTS:
        x, h, z, logits, labels = _inputs()
        tensors = dict(zip(INPUTS, (x, h, z.detach())))
        tensors[part].view(-1)[5] = torch.inf
        criterion = VICReg()
        criterion.components = lambda z_VND: VICReg().components(z_VND.nan_to_num(0, 1, 1))  # refuses it else
        objective, probes, found = _read(criterion, *tensors.values(), logits, labels)
        bad = [i for i, value in enumerate(found.values()) if not np.isfinite(value)]
        assert parts_of(objective, probes)[bad[0]] == part


def _train(parts, steps=3):
    for step, batch in enumerate([*parts.batches(0, 0), *parts.batches(1, 0)][:steps]):
        for optimizer in parts.step.optimizers:
            for group in optimizer.param_groups:
                group["lr"].fill_(0.05)
        if parts.step.loss_scale is not None:  # the second step overflows
            parts.step.loss_scale.scale.fill_(2.0**60 if step == 1 else 2.0**6)
        parts.run_step(*batch, parts.seeds(step))
    if parts.step.loss_scale is not None:
        assert parts.step.loss_scale.good_steps == 1  # since the overflow
    return parts.step


def _assert_same(one, other, rtol):
    assert one.metric_names == other.metric_names
    torch.testing.assert_close(one.metric_sums, other.metric_sums, rtol=rtol, atol=1e-5)
    assert one.health.verdict() is other.health.verdict() is None
    assert one.health.parts == other.health.parts
    assert one.health.step == other.health.step
    for a, b in zip(one.trainee.parameters(), other.trainee.parameters()):
        torch.testing.assert_close(a, b, rtol=rtol, atol=1e-4)


_EVERYTHING = {"optim": {"name": "lars", "grad_clip": 0.5, "accumulate": 2}, "train": {"batch_size": 16}}


@pytest.mark.parametrize(("precision", "backend"), [("fp32", "inductor"), ("fp16", "aot_eager")])
def test_compiled_it_is_the_same_step_as_three_graphs(tiny, precision, backend):
    """In 16 bits without inductor, whose rounding can turn off a feature that is nearly zero."""
    from torch._dynamo.testing import CompileCounterWithBackend

    config = tiny(_EVERYTHING, {"train": {"precision": precision}})
    plain, compiled = (assemble(config, CPU, 0, 1) for _ in range(2))
    torch.compiler.reset()
    backend, step = CompileCounterWithBackend(backend), compiled.step
    for name in ("_read_objective", "_observe", "_judge"):
        setattr(step, name, through_compiler(getattr(step, name), fullgraph=True, backend=backend))
    _assert_same(_train(plain), _train(compiled), rtol=1e-4)
    assert backend.frame_count == 3  # nothing changes from step to step that would compile it anew
    # Nor does capture, which moves what the host sets into memory of its own and cannot wait for a compiler.
    hand_over(step, encoded(7, [0.0, 0.0]))
    _train(compiled)
    assert step.health.step == 7 + 3
    assert backend.frame_count == 3


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_norms_that_lars_measures_on_its_way_give_the_same_step(tiny, monkeypatch, precision):
    """The kernels in Triton's interpreter, taken by the whole step, against torch's norms."""
    kernels = pytest.importorskip("lpjepa.training._lars_kernels")
    if torch.cuda.is_available():
        pytest.skip("kernels run on the CPU in the interpreter only")
    config = tiny(_EVERYTHING, {"train": {"precision": precision}})
    plain = _train(assemble(config, CPU, 0, 1))
    launched = []

    def table(self, group, params):
        key = tuple(map(id, params))
        if key not in self._tables:
            launched.append(len(params))
            self._tables[key] = kernels.build_table(params, group["exclude_1d"])
        return self._tables[key]

    monkeypatch.setattr(lars.LARS, "_table", table)
    measured = _train(assemble(config, CPU, 0, 1))
    assert launched == [len(list(m.parameters())) for m in (measured.trainee.probes, measured.trainee.model)]
    _assert_same(plain, measured, rtol=1e-4)
