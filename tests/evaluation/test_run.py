"""Evaluating a run folder: sources, resumption over several of them, and runs that cannot be evaluated."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from lpjepa.data import DataError, load_source
from lpjepa.evaluation import EvaluationSettings, extract, protocol, results
from lpjepa.evaluation.progress import Silent
from lpjepa.evaluation.run import Source, evaluate_run, evaluation_transform, load_images, run_features
from lpjepa.report.observation import observe
from lpjepa.report.run import read_run
from lpjepa.training import CheckpointError, ConfigError, Run, checkpoint, load_config
from lpjepa.training.run import build_model

QUICK = EvaluationSettings(fractions=(0.1, 1.0), draws=2, epochs=3)


@pytest.fixture
def folder(tmp_path):
    """A run as `pretrain` leaves it, with the weights of an untrained model."""
    config = load_config(None, {"model": {"projector_dim": 16, "projector_hidden": 32}})
    torch.manual_seed(1)
    weights = {f"model.{name}": value for name, value in build_model(config).state_dict().items()}
    run = Run(tmp_path / "run", config)
    checkpoint.save(run.checkpoints, 12, {"trainee": weights})
    run.save_config()
    return run.folder


@pytest.fixture
def other(tmp_path):
    """A small set of another size and other classes, in a file of its own."""
    images = np.random.default_rng(0).integers(0, 256, (60, 12, 12, 3), dtype=np.uint8)
    labels = np.arange(60) % 4
    np.savez(
        tmp_path / "other.npz",
        x_train=images[:40],
        y_train=labels[:40],
        x_test=images[40:],
        y_test=labels[40:],
    )
    return f"npz={tmp_path / 'other.npz'}"


def evaluate(folder, on=None, settings=QUICK):
    return evaluate_run(folder, on, settings, device="cpu", progress=Silent())


def test_own_source_by_default(folder):
    (entry,) = evaluate(folder)
    assert entry["source"] == "digits"
    assert entry["checkpoint"]["step"] == 12
    assert (
        entry["checkpoint"]["sha256"] == (folder / "checkpoints/step-000000012.pt.sha256").read_text().strip()
    )
    assert entry["pieces"]["measures"]["samples"] == 359
    assert entry["pieces"]["measures"]["predicted"]["l0"] == pytest.approx(
        Run.open(folder).config.target.active
    )
    assert entry["pieces"]["knn"]["encoder"]["cosine"] > 0.5  # an untrained encoder keeps digits apart
    kept = torch.load(folder / "features/digits.pt", weights_only=True)
    assert kept["projector"].shape == (359, 16)
    assert kept["step"] == 12
    found = run_features(folder, device="cpu")
    torch.testing.assert_close(found.projector[kept["indices"]], kept["projector"])
    run = Run.open(folder)
    expected = extract(run.model(), load_source("digits", split="test"), transform=evaluation_transform(run))
    torch.testing.assert_close(found.encoder, expected.encoder)


def test_the_own_source_is_read_as_it_was_trained_on(folder, tmp_path):
    place = str(tmp_path / "bare.npz")
    np.savez(place, images=np.zeros((20, 8, 8), dtype=np.uint8))
    run = Run.open(folder)
    run.config.data = replace(run.config.data, source="npz", root=place, val_fraction=0.4)
    own = Source.of(run)
    assert own == Source.parse(f"npz={place}")
    assert own.label == "bare"
    assert len(load_images(run, own, "test")) == 8
    for same in (Source("npz"), Source("npz", os.path.relpath(place))):  # the training knows its place
        assert same.is_of(run)
        assert len(load_images(run, same, "test")) == 8
    run.config.data.root = "elsewhere.npz"
    assert len(load_images(run, own, "test")) == 2  # a source like any other: a tenth by default


def test_the_checkpoint_is_read_once(folder, monkeypatch):
    read, load = [], torch.load
    monkeypatch.setattr(torch, "load", lambda path, **options: read.append(path) or load(path, **options))
    evaluate(folder)
    assert [path.name for path in read] == ["step-000000012.pt"]


def test_several_sources_and_an_interruption_between_them(folder, other, monkeypatch):
    on = ["digits", other]
    original = protocol.knn_accuracies

    def stop_at_the_second(train, *rest):
        if len(train) == 40:
            raise KeyboardInterrupt
        return original(train, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(protocol, "knn_accuracies", stop_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            evaluate(folder, on)
    first = results.read(folder)
    assert [entry["finished"] is not None for entry in first] == [True, False]

    again = evaluate(folder, on)
    assert again[0] == first[0]  # not computed again
    assert again[1]["started"] == first[1]["started"]
    assert list(again[1]["pieces"]) == ["measures", "probe 0.1", "probe 1", "knn", "posthoc"]
    assert again[1]["source"] == "other"
    assert results.read(folder) == again

    third = evaluate(folder, on)
    stored = results.read(folder)
    assert stored[:2] == again
    assert stored[2:] == third
    assert [entry["pieces"] for entry in third] == [entry["pieces"] for entry in again]


def test_an_unlabelled_source_has_measures_only(folder, tmp_path):
    images = np.zeros((20, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "bare.npz", images=images)
    (entry,) = evaluate(folder, [f"npz={tmp_path / 'bare.npz'}"])
    assert list(entry["pieces"]) == ["measures"]
    json.dumps(entry, allow_nan=False)


def test_what_cannot_be_evaluated_says_why(folder, tmp_path):
    with pytest.raises(ConfigError, match="not a run"):
        evaluate(tmp_path)
    with pytest.raises(DataError, match="cifar10"):
        evaluate(folder, ["cifar1O"])
    with pytest.raises(ValueError, match="named once"):
        evaluate(folder, ["digits", "digits"])
    with pytest.raises(ValueError, match="epochs"):
        evaluate(folder, settings=EvaluationSettings(epochs=0))
    for text in ("", "=x", "npz="):
        with pytest.raises(ValueError, match="NAME=PATH"):
            Source.parse(text)
    assert not (folder / "evaluation.json").exists()


def test_a_damaged_checkpoint_is_not_the_one_that_is_named(folder):
    run = Run.open(folder)
    path = checkpoint.save(run.checkpoints, 13, {"trainee": {}})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(RuntimeWarning, match="damaged"):
        (entry,) = evaluate(folder)
    assert entry["checkpoint"]["step"] == 12


def test_a_diverged_model_and_a_run_without_checkpoint_are_errors(folder):
    run = Run.open(folder)
    weights = {f"model.{name}": value for name, value in run.model().state_dict().items()}
    name = next(name for name in weights if name.endswith("weight"))
    weights[name] = torch.full_like(weights[name], torch.nan)
    checkpoint.save(run.checkpoints, 13, {"trainee": weights})
    with pytest.raises(ValueError, match="not finite"):
        evaluate(folder)
    checkpoint.clear(run.checkpoints)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        evaluate(folder)


def test_folders_of_one_name_are_told_apart(folder, other, tmp_path):
    from pathlib import Path

    first = Path(other.removeprefix("npz="))
    second = tmp_path / "b" / "other.npz"
    second.parent.mkdir()
    with np.load(first) as arrays:
        np.savez(second, **{name: array[::-1] for name, array in arrays.items()})
    (one,) = evaluate(folder, [other])
    (two,) = evaluate(folder, [f"npz={second}"])
    assert (one["source"], two["source"]) == ("other", "b/other")
    (again,) = evaluate(folder, [other])
    assert again["source"] == "other"
    assert len(results.read(folder)) == 3
    assert sorted(path.name for path in (folder / "features").iterdir()) == ["b-other.pt", "other.pt"]


def test_the_own_source_is_known_however_it_is_named(tmp_path, other):
    root = other.removeprefix("npz=")
    config = load_config(None, {"data": {"source": "npz", "root": root}, "views": {"size": 12}})
    run = Run(tmp_path / "run", config)
    weights = {f"model.{name}": value for name, value in build_model(config).state_dict().items()}
    checkpoint.save(run.checkpoints, 1, {"trainee": weights})
    run.save_config()
    assert [evaluate(run.folder, on)[0]["source"] for on in (None, ["npz"], [other])] == ["other"] * 3


def test_rows_that_are_kept_name_the_images_they_are_of(tmp_path):
    from PIL import Image

    for name, level in (("a", 0), ("b", 120)):
        for split, count in (("train", 12), ("val", 6)):
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (8, 8), (level + 9 * i, 0, 0)).save(
                    tmp_path / "images" / split / name / f"{i}.png"
                )
    (tmp_path / "images" / "val" / "a" / "2.png").write_bytes(b"broken")
    data = {"source": "folder", "root": str(tmp_path / "images"), "max_memory": 100}
    config = load_config(None, {"data": data, "views": {"size": 8}, "model": {"encoder": "narrow"}})
    run = Run(tmp_path / "run", config)
    weights = {f"model.{name}": value for name, value in build_model(config).state_dict().items()}
    checkpoint.save(run.checkpoints, 1, {"trainee": weights})
    run.save_config()
    evaluate(run.folder)
    kept = torch.load(run.folder / "features" / "images.pt", weights_only=True)
    assert kept["indices"].tolist() == [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert kept["labels"].tolist() == [0] * 5 + [1] * 6
    assert len(kept["projector"]) == 11
    (run.folder / "features" / "images.pt").unlink()
    seen = observe(read_run(run.folder))
    assert seen.rows is not None
    assert seen.rows.indices_N.tolist() == kept["indices"].tolist()
    assert seen.rows.labels_N.tolist() == kept["labels"].tolist()
    torch.testing.assert_close(seen.rows.z_ND, kept["projector"], rtol=1e-4, atol=1e-5)
