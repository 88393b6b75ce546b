"""Exports give the features of their model, in the hands of those they are for."""

import copy
import importlib
import json
import shutil
import sys
import types

import pytest
import torch

from lpjepa._commands import export as command
from lpjepa.cli import main
from lpjepa.inference import load
from lpjepa.inference.description import Description, Preprocessing
from lpjepa.inference.export import comparison, export_model, program
from lpjepa.inference.export.card import card
from lpjepa.inference.export.comparison import ExportMismatch
from lpjepa.inference.model import Model
from lpjepa.training import Run, pretrain
from lpjepa.training.display import Silent
from lpjepa.training.layers import replace


def untrained(encoder, size=32):
    """A model with random weights; batch statistics away from their start, so that they matter."""
    given = Preprocessing(size, size if size <= 64 else size * 8 // 7, (0.4, 0.5, 0.6), (0.2, 0.3, 0.25))
    description = Description(encoder, {"hidden": 8, "dim": 6, "layers": 2, "activation": "relu"}, given)
    encoder, projector = description.build()
    for name, buffer in encoder.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(std=0.1)
    return Model(description, encoder, projector)


def test_safetensors_round_trip(run_folder, model, digits, tmp_path):
    done = export_model(model, "safetensors", tmp_path / "export", "mit")
    assert done.difference == 0
    expected = model.embed(digits.images)
    for source in (tmp_path / "export", tmp_path / "export" / "model.safetensors"):
        again = load(source, "cpu")
        torch.testing.assert_close(again.embed(digits.images), expected, rtol=0, atol=0)
        assert again.fingerprint() == model.fingerprint()
        assert again.description == model.description
    export_model(again, "safetensors", tmp_path / "second")  # an export can be exported
    assert load(tmp_path / "second", "cpu").fingerprint() == model.fingerprint()


def test_the_card_says_what_the_run_says(run_folder, model, tmp_path):
    from lpjepa.training import Run

    final = Run.open(run_folder).final
    export_model(model, "safetensors", tmp_path / "export", "cc-by-4.0")
    text = (tmp_path / "export" / "README.md").read_text()
    assert "license: cc-by-4.0" in text
    assert f"{100 * final['encoder_accuracy']:.2f} %" in text
    assert f"{final['l0']:.4f}" in text
    assert f"l0 {final['l0_predicted']:.4f}" in text
    assert "| target.active | 0.2 |" in text
    assert "| data.source | digits |" in text
    assert str(run_folder) not in text
    config = json.loads((tmp_path / "export" / "config.json").read_text())
    assert config["lpjepa"]["run"]["recipe"]["loss"]["method"] == "rectified_lpjepa"


def test_evaluations_reach_the_card(run_folder, tmp_path):
    from lpjepa.evaluation import EvaluationSettings, evaluate_run
    from lpjepa.evaluation.progress import Silent

    copy = shutil.copytree(run_folder, tmp_path / "run")
    settings = EvaluationSettings(fractions=(1.0,), epochs=2, posthoc=False)
    (entry,) = evaluate_run(copy, None, settings, "cpu", progress=Silent())
    export_model(load(copy, "cpu"), "safetensors", tmp_path / "export")
    text = (tmp_path / "export" / "README.md").read_text()
    assert "protocol adam, 2 epochs" in text
    assert f"{100 * entry['pieces']['probe 1']['encoder']['top1']['mean']:.2f} %" in text
    assert "Not stated" in text


@pytest.mark.parametrize(
    ("encoder", "size", "name"),
    [
        ("narrow", 32, "lpjepa_narrow"),
        ("resnet18", 32, "lpjepa_resnet18"),  # small images: a stem that timm does not have
        ("resnet18", 70, "resnet18"),
        ("vit_tiny", 32, "vit_tiny_patch16_224"),
    ],
)
def test_timm_loads_the_encoder(encoder, size, name, tmp_path):
    importlib.import_module(
        "lpjepa.inference.timm_models"
    )  # before timm: it makes its import work everywhere
    timm = importlib.import_module("timm")

    model = untrained(encoder, size)
    assert export_model(model, "timm", tmp_path / "export").difference == 0
    config = json.loads((tmp_path / "export" / "config.json").read_text())
    assert config["architecture"] == name
    images = comparison.random_frames(model, 3)
    expected = model.embed_frames(images, "encoder")
    weights = str(tmp_path / "export" / "model.safetensors")
    by_name = timm.create_model(name, num_classes=0, checkpoint_path=weights, **config["model_args"]).eval()
    with torch.no_grad():
        torch.testing.assert_close(by_name(model.transform(images)), expected, rtol=0, atol=0)
    from_folder = timm.create_model(f"local-dir:{tmp_path / 'export'}", pretrained=True, num_classes=0).eval()
    with torch.no_grad():
        torch.testing.assert_close(from_folder(model.transform(images)), expected, rtol=0, atol=0)
    # The same file is a model without projector for us.
    alone = load(tmp_path / "export", "cpu")
    torch.testing.assert_close(alone.embed_frames(images, "encoder"), expected, rtol=0, atol=0)
    assert alone.fingerprint("encoder") == model.fingerprint("encoder")
    with pytest.raises(ValueError, match="without projector"):
        alone.embed(images)


def test_torch_export_takes_any_batch(model, digits, tmp_path):
    done = export_model(model, "torch-export", tmp_path / "export")
    assert done.difference < 1e-5
    loaded = torch.export.load(tmp_path / "export" / "model.pt2").module()
    for count in (1, 7):
        encoder, projector = loaded(digits.images[:count])
        torch.testing.assert_close(
            encoder, model.embed(digits.images[:count], "encoder"), rtol=1e-4, atol=1e-5
        )
        torch.testing.assert_close(projector, model.embed(digits.images[:count]), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="holds a graph"):
        load(tmp_path / "export")


def test_onnx_takes_any_batch(model, digits, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    assert export_model(model, "onnx", tmp_path / "export").difference < 1e-4
    session = runtime.InferenceSession(str(tmp_path / "export" / "model.onnx"))
    for count in (1, 7):
        encoder, projector = session.run(["encoder", "projector"], {"images": digits.images[:count].numpy()})
        expected = model.embed(digits.images[:count])
        torch.testing.assert_close(torch.from_numpy(projector), expected, rtol=1e-3, atol=1e-4)
        assert encoder.shape == (count, model.width("encoder"))


@pytest.mark.parametrize("activation", ["top", "soft_top", "calibrated"])
def test_graphs_of_a_set_share_need_no_operator_of_ours(run_folder, digits, tmp_path, activation):
    """Exports are run where this package is not."""
    config = Run.open(run_folder).config
    changes = {"model": {"activation": activation}, "train": {"out": str(tmp_path / "run"), "epochs": 1}}
    pretrain(replace(config, changes), Silent())
    model = load(tmp_path / "run", "cpu")
    export_model(model, "torch-export", tmp_path / "export")
    program = torch.export.load(tmp_path / "export" / "model.pt2")
    assert "lpjepa" not in str(program.graph)
    expected = model.embed(digits.images[:7])
    torch.testing.assert_close(program.module()(digits.images[:7])[1], expected, rtol=1e-4, atol=1e-5)
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    export_model(model, "onnx", tmp_path / "onnx")
    session = runtime.InferenceSession(str(tmp_path / "onnx" / "model.onnx"))
    found = session.run(["projector"], {"images": digits.images[:7].numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["safetensors", "torch-export"])
def test_another_sparsity_is_exported(run_folder, digits, tmp_path, capsys, name):
    out = tmp_path / "export"
    assert main(["export", str(run_folder), "--format", name, "--active", "0.125", "--out", str(out)]) == 0
    if name == "safetensors":
        z = load(out, "cpu").embed(digits.images[:9])
        assert load(run_folder, "cpu").with_active(0.125).fingerprint() == load(out, "cpu").fingerprint()
        assert "projector (48 features, of every image the 6 largest)" in (out / "README.md").read_text()
    else:
        z = torch.export.load(out / "model.pt2").module()(digits.images[:9])[1]
    assert (z > 0).sum(dim=1).tolist() == [6] * 9


def test_another_sparsity_of_what_has_none_is_refused(run_folder, tmp_path, capsys):
    config = Run.open(run_folder).config
    own = {"out": str(tmp_path / "run"), "epochs": 1}
    pretrain(replace(config, {"model": {"activation": "calibrated"}, "train": own}), Silent())
    export_model(load(run_folder, "cpu"), "timm", tmp_path / "timm")
    for words, said in (
        ([run_folder, "--format", "timm", "--active", "0.1"], "--format timm holds no projector"),
        ([tmp_path / "run", "--active", "0.1"], "compared with thresholds of their own"),
        (
            [tmp_path / "timm", "--active", "0.1"],
            "active 0.1: this is an encoder alone",
        ),
        ([run_folder, "--active", "5"], "active 5.0: expected a share above 0 and below 1"),
    ):
        assert main(["export", *map(str, words), "--out", str(tmp_path / "export")]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "export").exists()


def test_onnx_without_its_packages_is_one_sentence(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"needs onnx, .*pip install .lpjepa\[export\]"):
        export_model(model, "onnx", tmp_path / "export")
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_differs_is_not_written(model, tmp_path, monkeypatch):
    original = program.export_program

    def wrong(module, example):
        other = copy.deepcopy(module)
        other.scale.mul_(1.01)
        return original(other, example)

    monkeypatch.setattr(program, "export_program", wrong)
    with pytest.raises(ExportMismatch, match="was not written"):
        export_model(model, "torch-export", tmp_path / "export")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["cut", "flip", "config", "missing", "other"])
def test_a_damaged_export_is_one_sentence(model, tmp_path, damage):
    folder = tmp_path / "export"
    export_model(model, "safetensors", folder)
    weights, config = folder / "model.safetensors", folder / "config.json"
    content = bytearray(weights.read_bytes())
    if damage == "cut":
        weights.write_bytes(content[:-100])
    elif damage == "flip":
        content[-2] ^= 0x40
        weights.write_bytes(content)
    elif damage == "config":
        config.write_text('{"lpjepa": {"format": 1, "encoder": "narrow"}}')
    elif damage == "missing":
        weights.unlink()
    else:
        config.write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match=r"again|does not describe"):
        load(folder)


class FakeHub(types.ModuleType):
    """Keeps what is uploaded, and gives it back."""

    def __init__(self, fails=False):
        super().__init__("huggingface_hub")
        self.calls, self.fails = [], fails
        hub = self

        class HfApi:
            def create_repo(self, repository, **options):
                if hub.fails:
                    raise RuntimeError("401 Unauthorized\nand more")
                hub.calls.append(("create", repository, options))

            def upload_folder(self, **options):
                hub.calls.append(("upload", options["repo_id"], options))
                return types.SimpleNamespace(commit_url="https://hub.example/commit/1")

        self.HfApi = HfApi

    def snapshot_download(self, repository, **options):
        if self.fails:
            raise RuntimeError("404 Not Found")
        return next(
            options["folder_path"]
            for kind, name, options in self.calls
            if (kind, name) == ("upload", repository)
        )


def test_push_and_load_from_the_hub(run_folder, model, digits, tmp_path, monkeypatch, capsys):
    hub = FakeHub()
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.chdir(tmp_path)
    assert command.run([str(run_folder), "--format", "safetensors", "--push", "me/digits", "--private"]) == 0
    assert (tmp_path / "digits-safetensors" / "model.safetensors").is_file()
    assert [call[:2] for call in hub.calls] == [("create", "me/digits"), ("upload", "me/digits")]
    assert hub.calls[0][2]["private"] is True
    assert "https://hub.example/commit/1" in capsys.readouterr().out
    again = load("me/digits", "cpu")
    torch.testing.assert_close(again.embed(digits.images[:3]), model.embed(digits.images[:3]), rtol=0, atol=0)


def test_a_hub_that_refuses_is_one_sentence(run_folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", FakeHub(fails=True))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"did not take it \(401 Unauthorized\)"):
        command.run([str(run_folder), "--push", "me/digits"])
    with pytest.raises(ValueError, match="user/name"):
        command.run([str(run_folder), "--push", "digits", "--out", "second"])
    with pytest.raises(ValueError, match="404"):
        load("me/digits")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"pip install .lpjepa\[export\]"):
        command.run([str(run_folder), "--push", "me/digits", "--out", "third"])
    with pytest.raises(ValueError, match=r"pip install .lpjepa\[export\]"):
        load("me/digits")
    assert not (tmp_path / "second").exists()


def test_an_existing_folder_is_left_alone(model, tmp_path):
    (tmp_path / "export").mkdir()
    with pytest.raises(ValueError, match="exists already"):
        export_model(model, "timm", tmp_path / "export")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ValueError, match=r"^--out .*file/x: the folder cannot be written \(Not a dir"):
        export_model(model, "timm", tmp_path / "file" / "x")
    with pytest.raises(ValueError, match="keras"):
        export_model(model, "keras", tmp_path / "other")


@pytest.mark.parametrize(
    ("source", "named"),
    [("hf:user/cats", "- user/cats"), ("digits", None), ("folder", None), ("wds:/data/{0..9}.tar", None)],
)
def test_the_card_names_data_as_the_hub_does(source, named):
    """The hub makes links of a card's list of datasets, and refuses what cannot be the name of one."""
    model = untrained("narrow")
    model.description.run["recipe"] = {"data": {"source": source}}
    head = card(model, "mit", "safetensors").split("---")[1].splitlines()
    assert ("datasets:" in head) == (named is not None)
    assert named is None or head[head.index("datasets:") + 1] == named


def test_the_card_calls_a_folder_by_its_name_and_says_no_more_of_where_it_was(run_folder, tmp_path):
    config = Run.open(run_folder).config
    copied = Run(tmp_path / "run", replace(config, {"data": {"source": "folder", "root": "/home/me/pets"}}))
    copied.folder.mkdir()
    copied.save_config()
    shutil.copy(run_folder / "metrics.jsonl", copied.folder)
    shutil.copytree(run_folder / "checkpoints", copied.checkpoints)
    text = card(load(copied.folder, "cpu"), "mit", "safetensors")
    title = next(line for line in text.splitlines() if line.startswith("# "))
    assert title == "# narrow, rectified_lpjepa, pets"
    assert "trained without labels on pets by" in text
    assert "| pets | at the end of training" in text
    assert "/home/me" not in text


@pytest.mark.parametrize("format", ["safetensors", "timm", "onnx", "torch-export"])
def test_the_card_leaves_normalisation_to_whoever_does_it(format):
    """A graph normalises inside: a reader who is told mean and deviation would do it twice."""
    text = card(untrained("narrow"), None, format)
    assert ("(0.4, 0.5, 0.6)" in text) == (format in ("safetensors", "timm"))
    assert ("uint8" in text) == (format in ("onnx", "torch-export"))
