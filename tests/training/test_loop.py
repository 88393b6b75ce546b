"""What a training does: methods, precisions, sources without labels, divergence, logs."""

import copy
import json
import math
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from PIL import Image

from lpjepa.evaluation import extract
from lpjepa.evaluation.run import evaluation_transform
from lpjepa.training import CheckpointError, Diverged, Run, checkpoint, load_config, pretrain
from lpjepa.training.assembly import assemble, load_images
from lpjepa.training.config import LossConfig
from lpjepa.training.display import Lines
from lpjepa.training.loop import Trainer
from lpjepa.training.run import table

CPU = torch.device("cpu")


@pytest.mark.parametrize("method", get_args(get_type_hints(LossConfig)["method"]))
def test_every_method_trains(tiny, watch, method):
    config = tiny(
        {"loss": {"method": method}, "train": {"epochs": 6}, "log": {"every": 9, "monitor_every": 6}}
    )
    run = pretrain(config, watch(lambda step: None))
    losses = [entry["loss"] for entry in run.metrics("train")]
    assert sum(losses[-2:]) < sum(losses[:2])
    z = run.model()(torch.randn(4, 3, 8, 8))[1]
    assert bool((z >= 0).all()) == (method in ("rectified_lpjepa", "nvicreg", "ncl"))
    assert ("l0_predicted" in run.final) == (method == "rectified_lpjepa")
    assert run.final["probe"] == "frozen"


def test_the_end_tells_the_sparsity_of_training_images_apart(tiny, watch):
    config = tiny({"train": {"epochs": 1}})
    run = pretrain(config, watch(lambda step: None))
    train, val = load_images(config)
    active = [
        (extract(run.model(), images, transform=evaluation_transform(run)).projector > 0).float().mean()
        for images in (train, val)
    ]
    assert active[0] != active[1]
    assert run.final["l0_train"] == pytest.approx(float(active[0]), abs=1e-5)
    assert run.final["l0"] == pytest.approx(float(active[1]), abs=1e-5)


@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize("activation", ["none", "relu", "rep_relu"])
def test_features_and_target_are_rectified_by_two_flags(tiny, rectified, activation):
    config = tiny({"model": {"activation": activation}, "target": {"rectified": rectified}})
    parts = assemble(config, CPU, 0, 1)
    assert type(parts.target).__name__.startswith("Rectified") == rectified
    z = parts.step.trainee.model(torch.randn(16, 3, 8, 8))[1]
    assert bool((z < 0).any()) == (activation == "none")
    parts.run_step(*next(parts.batches(0, 0)), parts.seeds(0))


@pytest.mark.parametrize("method", ["rectified_lpjepa", "nvicreg", "ncl"])
@pytest.mark.parametrize("activation", ["relu", "rep_relu"])
def test_rep_relu_carries_gradient_to_what_is_cut_off(tiny, method, activation):
    """Were the loss to rectify again, it would take back the gradient of negative features."""
    parts = assemble(tiny({"loss": {"method": method}, "model": {"activation": activation}}), CPU, 0, 1)
    kept = []

    def keep(module, inputs, output):
        output.retain_grad()
        kept.append(output)

    parts.step.trainee.model.projector[6].register_forward_hook(keep)
    parts.run_step(*next(parts.batches(0, 0)), parts.seeds(0))
    gradient = kept[0].grad[kept[0] < 0]
    assert bool((gradient != 0).any()) == (activation == "rep_relu")


@pytest.mark.parametrize("optimizer", ["lars", "adamw", "sgd"])
def test_every_optimizer_moves_and_decays_only_matrices(tiny, optimizer):
    """With zero gradients, decay alone moves matrices (not with LARS); biases and norms stay."""
    config = tiny({"optim": {"name": optimizer, "weight_decay": 0.1}})
    parts = assemble(config, CPU, 0, 1)
    model = parts.step.trainee.model
    before = copy.deepcopy(model.state_dict())
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    for group in parts.step.optimizers[0].param_groups:
        group["lr"].fill_(0.5)
    parts.step.optimizers[0].step()
    for name, p in model.named_parameters():
        moved = not torch.equal(p.detach(), before[name])
        assert moved == (p.ndim > 1 and optimizer != "lars")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_rates_follow_batch_and_schedule(tiny, watch, accumulate):
    config = tiny(
        {"optim": {"name": "sgd", "lr": 0.4, "accumulate": accumulate, "warmup_epochs": 0, "final_lr": 0.01}}
    )
    parts = assemble(config, CPU, 0, 1)
    assert parts.rates[0] == pytest.approx(0.4 * 32 * accumulate / 256)
    assert parts.steps_per_epoch == 3 // accumulate
    unscaled = assemble(tiny({"optim": {"lr": 0.4, "scale_lr_by_batch": False}}), CPU, 0, 1)
    assert unscaled.rates[0] == 0.4
    run = pretrain(config, watch(lambda step: None))
    rates = [entry["lr"] for entry in run.metrics("train")]
    total = 2 * parts.steps_per_epoch
    # The rate of the last step, by the cosine written out.
    expected = 0.01 + (parts.rates[0] - 0.01) * 0.5 * (1 + math.cos(math.pi * (total - 1) / total))
    assert rates[-1] == pytest.approx(expected, rel=1e-5)


def _one_step(config, batches, seeds):
    """Weights before and after one step on given inputs."""
    parts = assemble(config, CPU, 0, 1)
    before = [p.detach().clone() for p in parts.step.trainee.model.parameters()]
    for optimizer in parts.step.optimizers:
        for group in optimizer.param_groups:
            group["lr"].fill_(0.1)
    parts.run_step(*batches, seeds)
    return before, list(parts.step.trainee.model.parameters()), parts


def test_accumulated_step_is_the_mean_of_its_batches(tiny):
    plain = {"optim": {"name": "sgd", "momentum": 0.0, "weight_decay": 0.0}, "loss": {"method": "vicreg"}}
    parts = assemble(tiny(plain, {"optim": {"accumulate": 2}}), CPU, 0, 1)
    both, seeds = next(parts.batches(0, 0)), parts.seeds(0)
    before, after, _ = _one_step(tiny(plain, {"optim": {"accumulate": 2}}), both, seeds)
    halves = []
    for k in range(2):
        inputs = [None if t is None else t[k : k + 1] for t in both]
        _, moved, _ = _one_step(tiny(plain), inputs, seeds[k : k + 1])
        halves.append([m.detach() - b for m, b in zip(moved, before)])
    for a, b, one, two in zip(after, before, *halves):
        torch.testing.assert_close(a.detach() - b, (one + two) / 2, rtol=1e-4, atol=1e-6)


def test_clipped_step_has_the_length_of_torchs(tiny):
    plain = {"optim": {"name": "sgd", "momentum": 0.0, "weight_decay": 0.0}}
    parts = assemble(tiny(plain), CPU, 0, 1)
    inputs, seeds = next(parts.batches(0, 0)), parts.seeds(0)
    before, free, parts = _one_step(tiny(plain), inputs, seeds)
    gradients = [p.grad.clone() for p in parts.step.trainee.model.parameters()]
    for p, g in zip(free, gradients):
        p.grad = g
    norm = torch.nn.utils.clip_grad_norm_(free, 0.5)
    assert norm > 0.5
    _, clipped, clipped_parts = _one_step(tiny(plain, {"optim": {"grad_clip": 0.5}}), inputs, seeds)
    for c, b, p in zip(clipped, before, free):
        torch.testing.assert_close(c.detach(), b - 0.1 * p.grad, rtol=1e-4, atol=1e-6)
    values = dict(zip(clipped_parts.step.metric_names, clipped_parts.step.metric_sums.tolist()))
    assert values["grad_norm"] == pytest.approx(float(norm), rel=1e-4)  # logged before clipping


def test_moving_average_is_what_is_evaluated_and_kept(tiny, watch):
    config = tiny({"optim": {"ema": 0.75}, "train": {"epochs": 1}})
    parts = assemble(config, CPU, 0, 1)
    expected = [p.detach().clone() for p in parts.step.trainee.model.parameters()]
    for step, batch in enumerate(parts.batches(0, 0)):
        for optimizer in parts.step.optimizers:
            for group in optimizer.param_groups:
                group["lr"].fill_(0.01)
        parts.run_step(*batch, parts.seeds(step))
        expected = [
            0.75 * e + 0.25 * p.detach() for e, p in zip(expected, parts.step.trainee.model.parameters())
        ]
    for mine, theirs in zip(parts.step.ema[0].parameters(), expected):
        torch.testing.assert_close(mine, theirs)
    assert parts.evaluated is parts.step.ema[0]
    run = pretrain(config, watch(lambda step: None))
    state = checkpoint.load_newest(run.checkpoints)
    assert torch.equal(run.model().projector[0].weight, state["ema"]["projector.0.weight"])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_sixteen_bits_train_close_to_float32(tiny, tmp_path, watch, precision):
    losses = {}
    for name in ("fp32", precision):
        run = pretrain(
            tiny({"train": {"precision": name, "out": str(tmp_path / name), "epochs": 1}}),
            watch(lambda step: None),
        )
        losses[name] = run.metrics("train")[-1]["loss"]
    assert losses[precision] == pytest.approx(losses["fp32"], rel=0.1)
    assert losses[precision] != losses["fp32"]


@pytest.mark.parametrize("labelled", [False, True])
def test_a_folder_of_images(tiny, tmp_path, watch, labelled):
    rng = np.random.default_rng(0)
    for i in range(24):
        folder = tmp_path / "images" / (f"class{i % 2}" if labelled else "")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (12, 10, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    source = {"source": "folder", "root": str(tmp_path / "images"), "val_fraction": 0.25 if labelled else 0.0}
    run = pretrain(tiny({"data": source, "train": {"batch_size": 8, "epochs": 1}}), watch(lambda step: None))
    assert ("encoder_accuracy" in run.final) == labelled
    assert 0 < run.final["l0"] < 1


@pytest.mark.parametrize("max_memory", [None, "1kB"])
def test_broken_images_are_counted_in_the_journal(tiny, tmp_path, watch, max_memory):
    from PIL import Image

    for i in range(60):
        Image.new("RGB", (8, 8), (i, 99, 200 - i)).save(tmp_path / f"{i}.png")
    for i in range(3):
        (tmp_path / f"{i}.png").write_bytes(b"no image")
    data = {"source": "folder", "root": str(tmp_path), "val_fraction": 0.0, "max_memory": max_memory}
    heard, said = watch(lambda step: None), []
    heard.say = said.append
    run = pretrain(tiny({"data": data, "train": {"batch_size": 28, "out": str(tmp_path / "out")}}), heard)
    assert run.final["broken_images"] == 3
    assert said[-1] == "3 broken images were skipped"


@pytest.mark.parametrize(
    ("optim", "part", "late"),
    [
        ({"lr": 1e30}, "features", {}),
        ({"lr": 1e-3}, "gradient of model.projector", {}),
        # In the last step before another step takes over, which has seen none of it.
        (
            {"lr": 1e-3},
            "gradient of model.projector",
            {"train": {"rectify_from": 0.34}, "log": {"every": 50}},
        ),
    ],
)
def test_divergence_stops_with_step_part_and_state(tiny, watch, monkeypatch, optim, part, late):
    config = tiny(
        {"optim": {**optim, "warmup_epochs": 0}, "log": {"every": 1}, "train": {"checkpoint_every": 0.34}},
        late,
    )
    first = 1 if late else 2
    if part.startswith("gradient"):
        from lpjepa.training import loop

        build = loop.assemble

        def with_bad_gradient(*arguments, **options):
            parts = build(*arguments, **options)
            weight = parts.step.trainee.model.projector[0].weight
            weight.register_hook(lambda g: g * (math.nan if parts.step.health.step >= first else 1.0))
            return parts

        monkeypatch.setattr(loop, "assemble", with_bad_gradient)
    with pytest.raises(Diverged, match=part) as caught:
        pretrain(config, watch(lambda step: None))
    assert "\n" not in str(caught.value)
    folder = Run.open(config.train.out).checkpoints
    failure = checkpoint.load(folder / "failure.pt")["failure"]
    assert f"step {failure['step']}," in str(caught.value)
    if part.startswith("gradient"):
        assert failure["step"] == first
        intact = [checkpoint.step_of(path) for path in checkpoint.list_checkpoints(folder)]
        assert intact == ([1] if late else [1, 2])


def test_journal_holds_the_monitors(tiny, watch):
    run = pretrain(tiny(), watch(lambda step: None))
    epochs = run.metrics("epoch")
    assert [entry["epoch"] for entry in epochs] == [1.0, 2.0]
    wanted = {
        "l0", "l1", "l0_predicted", "l1_predicted", "variance_loss", "covariance_loss", "effective_rank",
        "dead_fraction", "held_out_discrepancy", "encoder_accuracy", "projector_accuracy",
    }  # fmt: skip
    assert wanted <= epochs[0].keys()
    assert epochs[0]["l0_predicted"] == pytest.approx(0.2, abs=1e-6)
    steps = [entry["step"] for entry in run.metrics("train")]
    assert steps == [2, 3, 4, 6]  # every second step, and at the end of each epoch
    assert {"loss", "invariance", "matching", "grad_norm", "lr", "images_per_second"} <= run.metrics("train")[
        0
    ].keys()


def test_a_slow_epoch_ends_with_one_line(tiny, capsys, monkeypatch):
    """Where epochs are long a line comes once a minute, and at their end that of the measurement alone."""
    monkeypatch.setattr("lpjepa.training.display.QUIET_SECONDS", 0.0)
    pretrain(tiny({"train": {"epochs": 4}, "log": {"every": 2, "monitor_every": 2}}), Lines())
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    # Three steps an epoch: a line every two of them, and at every epoch's end.
    expected = ["0.67", "1", "1.33", "2", "2.67", "3", "3.33", "4"]
    assert [line[0] for line in lines] == [f"epoch {at}" for at in expected]
    assert all("images/s" in line[-2] for line in lines)


def test_tensorboard(tiny, watch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = pretrain(tiny({"log": {"tensorboard": True}, "train": {"epochs": 1}}), watch(lambda step: None))
    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    assert events.Scalars("train/loss")[0].value == pytest.approx(run.metrics("train")[0]["loss"])
    assert "epoch/l0" in events.Tags()["scalars"]


def test_wandb_that_is_missing_is_one_sentence(tiny, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(ValueError, match="pip install wandb"):
        pretrain(tiny({"log": {"wandb": "project"}}))


def test_wandb_gets_the_numbers(tiny, watch, monkeypatch):
    import types

    logged = []
    run = types.SimpleNamespace(log=lambda values, step: logged.append((step, values)), finish=lambda: None)
    monkeypatch.setitem(__import__("sys").modules, "wandb", types.SimpleNamespace(init=lambda **options: run))
    pretrain(tiny({"log": {"wandb": "project"}, "train": {"epochs": 1}}), watch(lambda step: None))
    assert any("epoch/l0" in values for _, values in logged)


def test_unwritable_folder_and_run_without_checkpoint(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot be written .*--train\.out"):
        pretrain(tiny({"train": {"out": str(tmp_path / "file" / "run")}}))
    run = Run(tmp_path, tiny())
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        run.model()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"loss": {"method": "ncl"}, "model": {"activation": "none"}}, "model.activation"),
        ({"views": {"num_views": 1}}, "views.num_views"),
        ({"optim": {"accumulate": 9}}, "optim.accumulate"),
        ({"train": {"fsdp": True}, "optim": {"ema": 0.9}}, "optim.ema"),
        ({"train": {"capture": True}}, "train.capture"),
        ({"train": {"device": "gpu"}}, "device: 'gpu'"),
        ({"train": {"batch_size": 1000}}, "batch_size"),
        ({"target": {"p": 0.005}}, r"^target.p: 0.005 is not possible: pass a finite number above 0.009 "),
        (
            {"target": {"scale": 1e39}},
            r"^target.active: 0.2, target.p: 1.0, target.scale: 1e\+39: these do not",
        ),
        (
            {"target": {"from_mu": 1e39}},
            r"^target.from_mu: 1e\+39, .*: these do not go .*; choose less extreme ones$",
        ),
        ({"target": {"mu": 1e39}}, r"^target.mu: 1e\+39, .*: these do not go .*; choose less extreme ones$"),
    ],
)
def test_what_cannot_go_together(tiny, changes, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        pretrain(tiny(changes))
    assert "\n" not in str(caught.value)


def test_what_is_said_of_a_target_is_said_before_images_are_loaded(tiny):
    with pytest.raises(ValueError, match=r"^target\.p: 0\.005"):
        pretrain(tiny({"target": {"p": 0.005}, "data": {"root": "nowhere.npz"}}))


@pytest.mark.parametrize("late", [{"rectify_from": 1.0}, {"calibrate_from": 1.0}, {"rectify_from": 0.5}])
@pytest.mark.parametrize("probe", ["frozen", "online"])
def test_online_probes_that_never_saw_the_features_are_named_in_the_closing_table(
    tiny, watch, monkeypatch, late, probe
):
    if probe == "online":
        monkeypatch.setattr("lpjepa.training.assembly.LARGEST_FROZEN_PROBE", 0)
    run = pretrain(tiny({"model": {"activation": "top"}, "train": late}), watch(lambda step: None))
    assert run.final["probe"] == probe
    assert ("projector_accuracy_online" in run.final) == (probe == "frozen")
    said = "Projector accuracies: online probes, which learned before" in table([run])
    assert said == (probe == "online" and 1.0 in late.values())


@pytest.mark.parametrize(
    ("method", "activation"), [("rectified_lpjepa", "auto"), ("ncl", "auto"), ("ncl", "rep_relu")]
)
def test_features_that_fall_silent_are_said_once(tiny, capsys, monkeypatch, method, activation):
    """The last layer's bias, moved where nothing is positive from the third step on."""
    step = Trainer._step

    def silenced(self, batch):
        step(self, batch)
        if self.step_now >= 3:
            projector = self.parts.step.trainee.model.projector
            [*_, last] = [part for part in projector if isinstance(part, torch.nn.Linear)]
            torch.nn.init.constant_(last.bias, -1e6)

    monkeypatch.setattr(Trainer, "_step", silenced)
    changes = {"loss": {"method": method}, "model": {"activation": activation}, "train": {"epochs": 4}}
    run = pretrain(tiny(changes), Lines())
    lines = [line for line in capsys.readouterr().out.splitlines() if "no feature is active" in line]
    assert run.final["l0"] == 0
    assert len(lines) == 1
    assert ("a denser target" in lines[0]) == (method == "rectified_lpjepa")
    assert ("get no gradient" in lines[0]) == (activation != "rep_relu")


def test_three_views_and_compiled_calls(tiny, watch, monkeypatch):
    compiled = []
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda self, *a, **k: compiled.append(type(self).__name__)
    )
    run = pretrain(
        tiny({"views": {"num_views": 3}, "train": {"compile": True, "epochs": 1}}), watch(lambda step: None)
    )
    assert compiled == ["Learner"]
    assert math.isfinite(run.metrics("train")[-1]["loss"])


def test_digits_become_sparse_and_separable(tmp_path, watch):
    """Three epochs of the default: far from done, but the features already tell digits apart and thin out."""
    config = load_config(None, {"train": {"epochs": 3, "out": str(tmp_path / "run")}})
    run = pretrain(config, watch(lambda step: None))
    assert run.final["encoder_accuracy"] > 0.93
    assert run.final["l0"] < run.metrics("epoch")[0]["l0"]
    assert json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])["kind"] == "final"
