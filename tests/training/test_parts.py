"""The smaller parts: loss scale, health, probes, monitors, journal, display, table."""

import math

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from lpjepa.distributions import RectifiedGeneralizedGaussian
from lpjepa.training.assembly import Assembly
from lpjepa.training.config import OptimConfig
from lpjepa.training.display import Lines, summary
from lpjepa.training.health import Health
from lpjepa.training.journal import Journal, read_journal
from lpjepa.training.layers import load_config
from lpjepa.training.monitors import Features, measure
from lpjepa.training.optimizers import build_optimizer, set_rate
from lpjepa.training.precision import LossScale
from lpjepa.training.probes import DECAYS, OnlineProbes, frozen_probe, frozen_probe_accuracy
from lpjepa.training.run import Run, table

CPU = torch.device("cpu")


def test_loss_scale_follows_torchs_grad_scaler():
    """The same scales and the same gradients over steps some of which overflow."""
    theirs = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
    ours = LossScale(CPU, start=8.0, interval=3)
    a, b = (torch.nn.Parameter(torch.ones(4)) for _ in range(2))
    sgd = torch.optim.SGD([a], lr=0.1)
    for factor in (1.0, 2.0, math.inf, 1.0, 1.0, 1.0, 1.0, math.inf, 3.0):
        sgd.zero_grad()
        theirs.scale((a * factor).sum()).backward()
        theirs.step(sgd)
        theirs.update()
        b.grad = None
        ours((b * factor).sum()).backward()
        norms, found_inf = ours.unscale(b.grad.norm().reshape(1))
        if not bool(found_inf):
            assert norms.item() == pytest.approx(2 * factor)  # of four entries `factor`, without the scale
            with torch.no_grad():
                b.sub_(0.1 * b.grad / ours.scale)
        ours.update(found_inf)
        assert ours.scale.item() == theirs.get_scale()
        torch.testing.assert_close(a, b)


def test_health_keeps_the_first_bad_step_and_its_first_part():
    health = Health(CPU)
    health.expect(["features", "loss", "gradient of a"])
    for step in range(5):
        health.step.fill_(10 + step)
        bad = math.nan if step >= 2 else 0.0
        health.close_step(torch.tensor([math.inf if step == 3 else 0.0, bad, bad]))
        assert (health.verdict() is None) == (step < 2)
    assert health.verdict() == (12, "loss")


def test_health_of_a_step_that_stopped_midway():
    health = Health(CPU)
    health.step.fill_(7)
    fine, bad = torch.ones(2), torch.tensor([1.0, math.nan])
    health.stop_midway({"views": fine, "encoder features": fine})
    assert health.verdict() is None
    health.stop_midway({"views": fine, "encoder features": bad})
    assert health.verdict() == (7, "encoder features")
    health.step.fill_(8)
    health.stop_midway({"views": bad, "encoder features": bad})
    assert health.verdict() == (7, "encoder features")


def test_frozen_probe_agrees_with_scikit_learn():
    torch.manual_seed(0)
    centres = torch.randn(5, 12)
    labels = torch.arange(600) % 5
    x = (centres[labels] + 1.2 * torch.randn(600, 12)) * 50 + 1000  # scale and offset must not matter
    ours = frozen_probe_accuracy(x[:400], labels[:400], x[400:], labels[400:], l2=1e-3)
    standard = (x - x[:400].mean(0)) / x[:400].std(0)
    theirs = LogisticRegression(C=1 / (1e-3 * 400), max_iter=2000).fit(standard[:400], labels[:400])
    assert ours == pytest.approx(theirs.score(standard[400:], labels[400:]), abs=0.011)
    assert ours > 0.7


def test_frozen_probe_chooses_the_decay_that_its_features_want():
    torch.manual_seed(1)
    centres = torch.randn(4, 150) * 0.2
    labels = torch.arange(2400) % 4
    x = centres[labels] + torch.randn(2400, 150)
    few, plenty, val = slice(0, 400), slice(0, 1600), slice(1600, None)

    def by_sklearn(train: slice, l2: float) -> float:
        n = len(labels[train])
        standard = (x - x[train].mean(0)) / x[train].std(0)
        fitted = LogisticRegression(C=1 / (l2 * n), max_iter=5000).fit(standard[train], labels[train])
        return fitted.score(standard[val], labels[val])

    for train, gain in ((few, 0.02), (plenty, 0.0)):
        found = frozen_probe(x[train], labels[train], x[val], labels[val])
        assert found.accuracy_weak == pytest.approx(by_sklearn(train, 1e-4), abs=0.02)
        assert found.accuracy == pytest.approx(by_sklearn(train, found.l2), abs=0.01)
        assert found.accuracy > found.accuracy_weak + gain
        best = max(by_sklearn(train, l2) for l2 in DECAYS)
        assert found.accuracy > best - 0.025


def test_frozen_probe_keeps_the_weak_decay_where_features_are_easy_or_few():
    torch.manual_seed(0)
    labels = torch.arange(300) % 3
    x = torch.eye(3)[labels] * 20 + torch.randn(300, 3)
    found = frozen_probe(x[:200], labels[:200], x[200:], labels[200:])
    assert (found.accuracy, found.l2, found.accuracy_weak) == (1.0, DECAYS[0], 1.0)
    assert frozen_probe(x[:9], labels[:9], x[200:], labels[200:]).l2 == DECAYS[0]  # a tenth of nine is none


def test_online_probes_stop_the_gradient():
    probes = OnlineProbes(6, 4, 3)
    h, z = torch.randn(5, 6, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    sum(logits.sum() for logits in probes(h, z).values()).backward()
    assert h.grad is None
    assert z.grad is None
    assert probes.encoder.weight.grad is not None


def test_monitors_recognise_features_that_follow_the_target():
    target = RectifiedGeneralizedGaussian.from_active_fraction(0.2, p=1.0)
    other = RectifiedGeneralizedGaussian.from_active_fraction(0.5, p=2.0)
    z = target.sample((3000, 256))
    labels = torch.arange(3000) % 2
    h = torch.nn.functional.one_hot(labels, 4).float()
    probes = OnlineProbes(4, 256, 2)
    with torch.no_grad():
        probes.encoder.weight.copy_(torch.eye(2, 4))
        probes.encoder.bias.zero_()
    found = measure(Features(h, z, labels), probes, target)
    assert found["l0"] == pytest.approx(found["l0_predicted"], abs=0.01)
    assert found["l1"] == pytest.approx(found["l1_predicted"], rel=0.05)  # a limit for many features
    assert found["encoder_accuracy"] == 1.0
    assert found["projector_accuracy"] == pytest.approx(0.5, abs=0.1)
    assert found["dead_fraction"] == 0.0
    assert found["effective_rank"] > 200
    wrong = measure(Features(h, z, None), None, other)
    assert wrong["held_out_discrepancy"] > 20 * found["held_out_discrepancy"]
    assert wrong["variance_loss"] > 5 * found["variance_loss"]
    assert "encoder_accuracy" not in wrong


def test_monitors_of_sorted_classes_see_all_of_them():
    """As ImageNet's validation images come: the last class alone must not go unseen."""
    z = torch.zeros(8192, 4)
    z[-1024:] = torch.randn(1024, 4).relu()
    assert measure(Features(z, z, None), None, None)["effective_rank"] > 2


def test_monitors_without_target_and_with_one_sample():
    z = torch.rand(1, 4)
    found = measure(Features(z, z, None), None, None)
    assert found["l0"] == 1.0
    assert "variance_loss" not in found


def test_journal_drops_what_a_kill_cut_short(tmp_path):
    journal = Journal(tmp_path / "metrics.jsonl", [])
    for step in (5, 10, 15):
        journal.write("train", step, step / 5, {"loss": step / 3, "bad": math.nan})
    journal.write("final", 15, 3.0, {})
    with journal.path.open("a") as file:
        file.write('{"kind": "train", "st')
    journal.keep_until(10)
    entries = read_journal(journal.path)
    assert [entry["step"] for entry in entries] == [5, 10]
    assert entries[0]["bad"] is None
    assert entries[0]["loss"] == pytest.approx(5 / 3, rel=1e-6)


def test_lines_show_sparsity_beside_its_prediction(capsys):
    display = Lines()
    display.start(0, 100)
    latest = {"loss": 1.5, "l0": 0.21, "l0_predicted": 0.2, "encoder_accuracy": 0.987}
    display.advance(50, 1.0, None, latest)
    display.epoch(1.0, 1234.0, latest)
    line = capsys.readouterr().out
    assert "l0 0.210 (target 0.200)" in line
    assert "encoder 98.7 %" in line
    assert "1,234 images/s" in line
    assert "s left" in line
    assert summary({}) == ""
    assert summary({"l0": 0.9, "l0_predicted": 0.03, "on_its_way": True}) == "l0 0.900 (later 0.030)"


def test_bar_shows_the_same(monkeypatch):
    import io

    from rich.console import Console

    from lpjepa.training.display import Bar

    bar = Bar()
    out = io.StringIO()
    bar.progress.live.console = Console(file=out, force_terminal=True, width=160)
    bar.start(0, 10)
    bar.advance(4, 0.4, 999.0, {"l0": 0.3, "l0_predicted": 0.2})
    bar.epoch(1.0, 1234.0, {"l0": 0.25, "l0_predicted": 0.2, "projector_accuracy": 0.5})
    bar.say("a sentence")
    bar.close()
    text = out.getvalue()
    assert "l0 0.250 (target 0.200)" in text
    assert "1,234 images/s" in text
    assert "a sentence" in text


def test_table_has_the_papers_columns(tmp_path):
    journal = Journal(tmp_path / "metrics.jsonl", [])
    run = Run(tmp_path, None)
    values = {
        "encoder_accuracy": 0.9876,
        "projector_accuracy": 0.5,
        "l1": 0.1,
        "l0": 0.2,
        "l0_predicted": 0.21,
        "l1_predicted": 0.11,
    }
    journal.write("final", 1, 1.0, values)
    head, rule, row, predicted = table([run], ["name"]).splitlines()
    assert head.split() == ["encoder", "acc", "projector", "acc", "l1", "l0"]
    assert set(rule) == {"-"}
    assert row.split() == ["name", "98.76", "%", "50.00", "%", "0.100", "0.200"]
    assert predicted.split() == ["target", "predicts", "0.110", "0.210"]


def test_lines_break_a_long_silence(capsys, monkeypatch):
    from lpjepa.training import display

    now = [0.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    lines = Lines()
    lines.start(0, 1000)
    for step, second in ((1, 30.0), (2, 61.0), (3, 62.0), (4, 130.0)):
        now[0] = second
        lines.advance(step, step / 100, 12.0, {"loss": 1.0})
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in shown] == ["0.02", "0.04"]
    assert shown[0].endswith("8 h 27 min left")  # 61 s for 2 of 1000 steps


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0 s"), (200, "3 min 20 s"), (36_000, "10 h 0 min")])
def test_durations_are_for_reading(seconds, text):
    from lpjepa.training.display import duration

    assert duration(seconds) == text


def test_bar_fits_eighty_columns():
    import io

    from rich.console import Console

    from lpjepa.training.display import Bar

    bar, out = Bar(), io.StringIO()
    bar.progress.live.console = Console(file=out, force_terminal=True, width=80)
    latest = {
        "loss": 12.34,
        "l0": 0.3,
        "l0_predicted": 0.2,
        "encoder_accuracy": 1.0,
        "projector_accuracy": 1.0,
    }
    bar.start(0, 100_000)
    bar.advance(40_000, 12.5, 12_345.0, latest)
    bar.close()
    text = out.getvalue()
    assert "40000/100000" in text
    assert "12,345 images/s" in text
    assert "encoder 100.0 %  projector 100.0 %" in text


def test_a_device_that_is_not_here_is_one_sentence(monkeypatch):
    from lpjepa.training.processes import pick_device

    for name in ("gpu", "3", "vulkan:5"):
        with pytest.raises(ValueError, match="is not a device here"):
            pick_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ValueError, match="cuda:2 was asked for, and this machine has 2 GPUs"):
        pick_device("cuda:2")


def test_advice_is_for_gpus_whose_step_is_not_captured():
    def advice(device, world=1, **train):
        config = load_config("presets:digits", {"train": train})
        # None of the other parts is looked at.
        return Assembly(config, torch.device(device), *[None] * 7).advice(world)

    assert "--train.capture true --train.compile true" in advice("cuda")
    assert advice("cuda", capture=True) is not None
    assert advice("cuda", capture=True, compile=True) is None
    assert advice("cuda", world=2) is None
    assert advice("cpu") is None


def test_a_first_step_that_is_skipped_leaves_no_rubbish_in_sgd():
    def moved(skipped):
        weight = torch.nn.Parameter(torch.zeros(64, 64))
        optimizer = build_optimizer([weight], OptimConfig(name="sgd", momentum=0.9), CPU, 0.0, False)
        set_rate(optimizer, 0.1)
        for found_inf in [1.0] * skipped + [0.0, 0.0]:
            torch.full((64, 64), 1e30).sum()  # freed memory is full of this
            optimizer.found_inf, weight.grad = torch.tensor(found_inf), torch.ones(64, 64)
            optimizer.step()
        return weight.detach()

    # 0.1 · 1, then 0.1 · (0.9 + 1)
    torch.testing.assert_close(moved(0), torch.full((64, 64), -0.29))
    torch.testing.assert_close(moved(1), moved(0), rtol=0, atol=0)
