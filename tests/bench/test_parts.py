"""Step, data and evaluation: their checks can fail, their numbers hang together."""

import subprocess

import numpy as np
import pytest
import torch
from torch import nn

from lpjepa.bench import data, evaluation, startup, step
from lpjepa.data import ViewConfig, Views, _fused_views
from lpjepa.training import load_config

CPU = torch.device("cpu")
TINY = {
    "train": {"batch_size": 8, "precision": "fp32"},
    "model": {"encoder": "narrow", "projector_hidden": 16, "projector_dim": 16},
    "loss": {"num_slices": 32},
    "optim": {"accumulate": 2},
}


@pytest.fixture
def config():
    return load_config("presets:digits", TINY)


def test_the_step_of_a_preset_on_random_images(config):
    rows, check = step.measure_step(config, CPU, rounds=2)
    (timed, bare) = rows
    assert (timed["what"], bare["what"]) == ("step", "bare encoder")
    assert timed["images_per_second"] == pytest.approx(16 / timed["ms"] * 1e3)  # two batches of eight
    assert timed["ratio"] == pytest.approx(timed["ms"] / bare["ms"])
    assert timed["assemble_s"] > 0
    assert timed["first_step_s"] > 0
    assert check["losses"]["eager"] == check["losses"]["again"]
    assert len(set(check["losses"]["eager"])) == step.CHECKED_STEPS  # a step that did nothing would repeat


def test_start_up_is_timed_in_processes_that_keep_their_caches(config):
    rows = startup.measure_startup(config, CPU)
    assert [row["caches"] for row in rows] == ["empty", "filled"]
    for row in rows:
        parts = [row[key] for key in ("import_s", "assemble_s", "first_step_s", "further_steps_s")]
        assert min(parts) > 0
        assert row["startup_s"] > sum(parts)  # the interpreter itself comes on top


@pytest.mark.parametrize(
    ("said", "why"), [("Traceback ...\nValueError: no narrow_\n", "no narrow_"), ("", "it said nothing")]
)
def test_a_start_up_that_fails_says_why(config, monkeypatch, said, why):
    done = subprocess.CompletedProcess([], 1, stderr=said)
    monkeypatch.setattr(startup.subprocess, "run", lambda *words, **options: done)
    with pytest.raises(RuntimeError, match=f"failed: .*{why}$"):
        startup.measure_startup(config, CPU)


def test_random_images_have_the_size_of_the_views(config, tmp_path):
    changed = step.on_random_images(config, tmp_path, 4)
    with np.load(changed.data.root) as stored:
        assert stored["x_train"].shape == (4 * 16, config.views.size, config.views.size, 3)
    assert changed.train == config.train


def test_the_bare_encoder_leaves_the_steps_gradients_alone(config, tmp_path):
    candidate = step.build(step.on_random_images(config, tmp_path, 3), CPU, "eager")
    encoder = candidate.assembly.step.trainee.model.encoder
    calls = []
    encoder.register_forward_hook(lambda module, inputs, output: calls.append(inputs[0].shape))
    before = [p.grad.clone() for p in encoder.parameters()]
    step.bare_encoder(candidate.assembly, "eager")()
    assert calls == [(16, 3, config.views.size, config.views.size)] * 2  # two views of eight, accumulated
    for p, grad in zip(encoder.parameters(), before):
        assert torch.equal(p.grad, grad)


@pytest.mark.parametrize("other", [1.1, float("nan")])
def test_steps_with_other_losses_are_refused(other):
    losses = {"eager": [2.0, 1.0], "captured": [2.0, other]}
    with pytest.raises(ValueError, match="captured step is not the eager one: at step 1"):
        step.compare(losses, "fp16")
    assert step.compare({"eager": [2.0], "captured": [2.001]}, "fp16")["largest_difference"] == pytest.approx(
        5e-4
    )


@pytest.mark.parametrize("kernels", [False, True])
def test_views_are_torchvisions_by_torch_and_by_kernels(kernels, monkeypatch):
    pytest.importorskip("torchvision.transforms.v2.functional")
    if kernels:
        pytest.importorskip("triton")
        monkeypatch.setattr(_fused_views, "applies", lambda images: True)
    device = "cuda" if kernels and torch.cuda.is_available() else "cpu"
    images = torch.randint(0, 256, (6, 3, 12, 12), dtype=torch.uint8, device=device)
    assert data.check_views(images, Views(ViewConfig(size=12, solarize=0.0, blur=0.0))) < 1e-5


def test_other_views_than_torchvisions_are_not_timed(monkeypatch):
    pytest.importorskip("torchvision.transforms.v2.functional")

    class Wrong(Views):
        def forward(self, *given):
            return super().forward(*given) + 1e-3

    monkeypatch.setattr(data, "Views", Wrong)
    monkeypatch.setattr(data, "interleaved", lambda *given: pytest.fail("wrong views were timed"))
    with pytest.raises(ValueError, match="nothing was timed"):
        data.measure_data(8, 6, 0, (), CPU, rounds=1)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [32, 224])
def test_views_of_a_gpu_are_checked_there(size):
    pytest.importorskip("torchvision.transforms.v2.functional")
    seen = []
    views = Views(ViewConfig(size=size, solarize=0.0, blur=0.0))
    views.register_forward_hook(lambda module, given, made: seen.append(made.device.type))
    images = torch.randint(0, 256, (32, 3, size, size), dtype=torch.uint8, device="cuda")
    assert data.check_views(images, views) < data.LARGEST_DIFFERENCE
    assert seen == ["cuda"]


def test_views_and_decoding_in_images_a_second():
    rows, _ = data.measure_data(8, 6, 32, (0, 1), CPU, rounds=1)
    by_stage = {}
    for row in rows:
        by_stage.setdefault(row["stage"], []).append(row)
    (views, decoding) = by_stage.values()
    assert views[0]["how"] == "ours, batched"
    assert [row["how"] for row in decoding] == ["in this process", "1 worker"]
    assert views[0]["images_per_second"] == pytest.approx(12 / views[0]["ms"] * 1e3)  # two views of six
    assert decoding[1]["images_per_second"] == pytest.approx(32 / decoding[1]["ms"] * 1e3)
    assert views[0]["ratio"] == decoding[0]["ratio"] == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"size": 0}, "--size"),
        ({"images": 0}, "--images"),
        ({"files": 3}, "--files"),
        ({"workers": (-1,)}, "--workers"),
    ],
)
def test_wrong_numbers_are_named(changes, sentence):
    asked = {"size": 8, "images": 4, "files": 32, "workers": (0,)} | changes
    with pytest.raises(ValueError, match=sentence):
        data.measure_data(**asked, device=CPU, rounds=1)


def test_extraction_against_the_bare_encoder(config):
    rows, check = evaluation.measure_features(config, 20, CPU, rounds=1)
    extraction, bare = rows
    assert bare["ratio"] == 1
    assert extraction["images_per_second"] == pytest.approx(16 / extraction["ms"] * 1e3)  # whole batches
    assert check["largest_difference"] < 1e-5
    with pytest.raises(ValueError, match="--images"):
        evaluation.measure_features(config, 4, CPU, rounds=1)


def test_features_of_another_encoder_are_refused():
    encoder, x = nn.Linear(3, 3), torch.randn(4, 3)
    with torch.no_grad():
        right = encoder(x)
    assert evaluation.compare_features(right, encoder, [x[:2], x[2:]])["largest_difference"] < 1e-6
    with pytest.raises(ValueError, match="nothing was timed"):
        evaluation.compare_features(right * 1.01, encoder, [x])


def test_a_probe_must_have_learned():
    row = evaluation.measure_probe(1500, 8, 10, CPU)
    assert row["accuracy"] > 0.1
    assert row["images_per_second"] == pytest.approx(15_000 / row["seconds"])
    with pytest.raises(ValueError, match="learned nothing"):
        evaluation.measure_probe(20, 8, 1, CPU)
    with pytest.raises(ValueError, match="positive"):
        evaluation.measure_probe(0, 8, 1, CPU)
