"""Loading a run, and embedding images in every form."""

import dataclasses
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import lpjepa
from lpjepa.evaluation import run_features
from lpjepa.inference import load
from lpjepa.inference.export.card import card
from lpjepa.inference.images import to_frame
from lpjepa.inference.model import Model
from lpjepa.models import SoftTopReLU
from lpjepa.training import CheckpointError, Run, checkpoint


def test_a_run_gives_the_features_that_evaluation_sees(run_folder, digits):
    model = lpjepa.load(run_folder, device="cpu")
    expected = run_features(run_folder, device="cpu")
    torch.testing.assert_close(model.embed(digits.images), expected.projector, rtol=0, atol=0)
    torch.testing.assert_close(model.embed(digits.images, "encoder"), expected.encoder, rtol=0, atol=0)
    assert model.width() == 48
    assert model.width("encoder") == expected.encoder.shape[1]


def test_every_form_of_an_image_gives_the_same_features(model, digits, tmp_path):
    pixels = digits.images[:6]
    hwc = pixels.permute(0, 2, 3, 1).numpy()
    Image.fromarray(hwc[0]).save(tmp_path / "0.png")
    mixture = [
        str(tmp_path / "0.png"),
        Image.fromarray(hwc[1]),
        hwc[2],
        pixels[3],
        pixels[4].float() / 255,
        hwc[5, :, :, 0].astype(np.float64) / 255,  # grey
    ]
    expected = model.embed(pixels)
    for other in ((tmp_path / "0.png").read_bytes(), pixels[0].bfloat16() / 255, pixels[0].half() / 255):
        torch.testing.assert_close(model.embed(other), model.embed(pixels[0]), rtol=0, atol=0)
    torch.testing.assert_close(model.embed(mixture), expected, rtol=0, atol=0)
    torch.testing.assert_close(model.embed(iter(mixture), batch_size=4), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.embed([hwc, tmp_path / "0.png"])[[0, 6]], expected[[0, 0]])
    assert model.embed(mixture[1]).shape == (1, 48)
    assert model.embed([]).shape == (0, 48)


def test_other_sizes_are_resized_and_cut_as_the_preset_says(model):
    rng = np.random.default_rng(0)
    wide = rng.integers(0, 256, (40, 100, 3), dtype=np.uint8)
    # The shorter side to 8 pixels, bilinear as the digits preset says, and the centre of the result.
    square = Image.fromarray(wide).resize((20, 8), Image.Resampling.BILINEAR).crop((6, 0, 14, 8))
    np.testing.assert_array_equal(to_frame(wide, 8, "bilinear"), np.asarray(square).transpose(2, 0, 1))
    torch.testing.assert_close(model.embed(wide), model.embed(square), rtol=0, atol=0)
    tall = np.ascontiguousarray(wide.transpose(1, 0, 2))
    turned = np.asarray(square).transpose(1, 0, 2)
    torch.testing.assert_close(model.embed(tall), model.embed(turned), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("mode", ["L", "1", "P", "CMYK", "RGBA", "LA", "I;16"])
def test_other_modes_are_converted(model, mode, tmp_path):
    grey = Image.fromarray(np.tile(np.arange(0, 256, 32, dtype=np.uint8), (8, 1)))
    if mode == "I;16":
        image = Image.fromarray(np.asarray(grey).astype(np.uint16) * 256)
    else:
        image = grey.convert(mode)
    assert image.mode == mode
    assert model.embed(image).shape == (1, 48)
    if mode in ("L", "RGBA", "LA", "I;16"):  # the others round or dither
        torch.testing.assert_close(model.embed(image), model.embed(grey.convert("RGB")), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("nowhere.png", "nowhere.png cannot be used as an image"),
        (np.zeros((5, 6, 2), np.uint8), "1, 3 or 4 channels"),
        (np.full((4, 4), 3.0), r"\[0, 1\]"),
        (np.zeros((4, 4), np.int64), "int64"),
        (np.zeros((0, 4), np.uint8), "no pixels"),
    ],
)
def test_what_is_no_image_is_named(model, image, said):
    with pytest.raises(ValueError, match=said):
        model.embed([image])


def test_wrong_requests_are_named(model, tmp_path):
    with pytest.raises(TypeError, match="int"):
        model.embed(3)
    with pytest.raises(ValueError, match="'logits'"):
        model.embed([], features="logits")
    with pytest.raises(ValueError, match="batch_size"):
        model.embed([], batch_size=0)
    with pytest.raises(ValueError, match="is a folder"):
        model.embed(tmp_path)
    alone = Model(model.description, model.encoder, None)
    with pytest.raises(ValueError, match=r"features='encoder' \(--features encoder\)"):
        alone.embed([])


def test_an_image_beyond_the_limit_is_said_to_be_large(model, tmp_path, monkeypatch):
    Image.new("RGB", (1500, 1400)).save(tmp_path / "huge.png")
    model.embed(tmp_path / "huge.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10**6)
    with pytest.raises(ValueError, match=r"huge\.png cannot be used as an image: larger than 2 megapixels"):
        model.embed(tmp_path / "huge.png")


def test_a_checkpoint_by_itself_and_what_is_no_model(run_folder, model, tmp_path, monkeypatch):
    checkpoints = checkpoint.list_checkpoints(Run.open(run_folder).checkpoints)
    newest, before = load(checkpoints[-1], "cpu"), load(checkpoints[0], "cpu")
    assert newest.fingerprint() == model.fingerprint()
    assert before.fingerprint() != model.fingerprint()
    with pytest.raises(ValueError, match="neither a run"):
        load(tmp_path)
    with pytest.raises(ValueError, match="no such run"):
        load(tmp_path / "a" / "b")
    misspelt = f"{run_folder.parent.name}/{run_folder.name}s"  # which could be a repository's name
    monkeypatch.chdir(run_folder.parent.parent)
    with pytest.raises(ValueError, match=rf"did you mean .*{run_folder.name}\?"):
        load(misspelt)
    stray = tmp_path / "w.pt"
    shutil.copy(checkpoints[-1], stray)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"^w\.pt is not a checkpoint of a run.*RUN/checkpoints"):
        load("w.pt")
    monkeypatch.chdir(checkpoints[-1].parent)
    assert load(checkpoints[-1].name, "cpu").fingerprint() == model.fingerprint()
    (tmp_path / "notes.md").write_text("x")
    with pytest.raises(ValueError, match="is not a model"):
        load(tmp_path / "notes.md")
    (tmp_path / "config.yaml").write_text((run_folder / "config.yaml").read_text())
    with pytest.raises(CheckpointError, match="no checkpoint"):
        load(tmp_path)


def test_load_is_imported_when_it_is_asked_for():
    assert lpjepa.load is load
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        lpjepa.nothing_of_this_name  # noqa: B018


def test_a_larger_crop_is_taken_from_the_resized_image():
    """At 224 pixels the shorter side becomes 256 and the centre is kept (the paper's transfer protocol)."""
    from lpjepa.inference.description import Description, Preprocessing
    from lpjepa.inference.model import Model

    given = Preprocessing(96, 110, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    description = Description("narrow", {"hidden": 8, "dim": 6, "layers": 2, "activation": "relu"}, given)
    model = Model(description, *description.build())
    pixels = np.random.default_rng(0).integers(0, 256, (110, 110, 3), dtype=np.uint8)
    seen = []
    handle = model.encoder.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    model.embed(pixels)
    handle.remove()
    centre = torch.from_numpy(pixels[7:103, 7:103]).permute(2, 0, 1).float() / 255
    torch.testing.assert_close(seen[0][0], (centre - 0.5) / 0.5, rtol=1e-4, atol=1e-4)


def test_devices_are_chosen(model, digits):
    before = model.embed(digits.images[:2])
    assert model.to("cpu").device == torch.device("cpu")
    torch.testing.assert_close(model.embed(digits.images[:2]), before)


def test_a_damaged_evaluation_does_not_keep_a_model_from_being_used(run_folder, model, tmp_path):
    copy = shutil.copytree(run_folder, tmp_path / "run")
    (copy / "evaluation.json").write_text("{")
    assert load(copy, "cpu").fingerprint() == model.fingerprint()


def test_an_image_without_a_path_is_named_by_its_place(model, digits):
    good, bad = digits.images[0], np.full((4, 4), 3.0)
    with pytest.raises(ValueError, match=r"^image 3, given as ndarray, cannot be used"):
        model.embed([good, good, good, bad, good], batch_size=2)
    with pytest.raises(ValueError, match=r"^gone\.png cannot be used as an image: there is no such file"):
        model.embed([good, "gone.png"])


def test_one_training_gives_every_sparsity(model, digits):
    """Sorting by numpy is the oracle for which features stay; those that stay keep their values."""
    dense = model.embed(digits.images[:50]).numpy()
    exact = model.with_active(0.125)
    z = exact.embed(digits.images[:50]).numpy()
    assert (z > 0).sum(axis=1).tolist() == [6] * 50, "an eighth of 48"
    largest = np.argsort(-dense, axis=1)[:, :6]
    for place in np.flatnonzero((dense > 0).sum(axis=1) > 6):
        assert set(np.flatnonzero(z[place])) == set(largest[place])
        np.testing.assert_array_equal(z[place][largest[place]], dense[place][largest[place]])
    assert (dense > 0).sum(axis=1).max() > 6
    torch.testing.assert_close(
        exact.embed(digits.images[:4], "encoder"), model.embed(digits.images[:4], "encoder"), rtol=0, atol=0
    )
    assert exact.fingerprint() != model.fingerprint()
    assert exact.fingerprint("encoder") == model.fingerprint("encoder")
    again = exact.with_active(0.5).with_active(0.125)
    assert again.fingerprint() == exact.fingerprint()
    assert (model.embed(digits.images[:50]).numpy() == dense).all(), "it stays as it is"


def test_a_model_of_thresholds_for_images_keeps_them(model, digits):
    layers = nn.Sequential(*list(model.projector)[:-1], SoftTopReLU(0.5))
    of = {**model.description.projector, "activation": "soft_top"}
    soft = Model(dataclasses.replace(model.description, projector=of), model.encoder, layers).with_active(
        0.125
    )
    assert soft.description.projector["activation"] == "soft_top"
    z, kept = (m.embed(digits.images[:50]) for m in (soft, model.with_active(0.125)))
    assert torch.equal(z > 0, kept > 0)
    plenty = (model.embed(digits.images[:50]) > 0).sum(1) > 6
    for less, row in zip(z[plenty], kept[plenty]):
        taken = row[row > 0] - less[less > 0]
        torch.testing.assert_close(taken, taken[:1].expand(6))
        assert taken[0] > 0
    assert "of every image the 6 largest, less the next largest" in card(soft, None, "safetensors")


def test_what_was_measured_of_another_projector_is_not_said(model):
    facts, before = model.with_active(0.1).description.run, model.description.run
    assert facts["final"]["encoder_accuracy"] == before["final"]["encoder_accuracy"]
    assert {"projector_accuracy", "l0", "l0_predicted"} <= before["final"].keys() - facts["final"].keys()
    entry = {"source": "digits", "protocol": "adam", "epochs": 100, "encoder_accuracy": 0.5}
    evaluated = {**before, "evaluations": [{**entry, "projector_accuracy": 0.25, "l0": 0.5, "l1": 0.125}]}
    other = Model(dataclasses.replace(model.description, run=evaluated), model.encoder, model.projector)
    assert other.with_active(0.1).description.run["evaluations"] == [entry]


@pytest.mark.parametrize("active", [0, 1, -0.5, float("nan")])
def test_a_share_that_is_none_is_refused(model, active):
    with pytest.raises(ValueError, match=rf"active {active}: expected a share above 0 and below 1"):
        model.with_active(active)
