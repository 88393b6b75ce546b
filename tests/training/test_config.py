"""Configs: layers, types, the sentences for mistakes, and the paper's numbers in the presets."""

import dataclasses

import pytest
import yaml

from lpjepa.training import Config, ConfigError, load_config, preset, preset_names
from lpjepa.training._typed import coerce, flat, to_dict
from lpjepa.training.config import activation_of, differing_keys, identity, target_is_rectified
from lpjepa.training.layers import parse_flags, replace


def test_layers_override_in_order(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("train: {epochs: 7, batch_size: 64}\noptim: {lr: 1e-4}\n")
    config = load_config(file, {"train": {"epochs": 9}}, parse_flags(["--train.seed", "3"]))
    assert (config.train.epochs, config.train.batch_size, config.train.seed) == (9, 64, 3)
    assert config.optim.lr == 1e-4  # YAML reads 1e-4 as text
    assert config.data.source == "digits"


@pytest.mark.parametrize(
    ("source", "encoder"), [("cifar10", "resnet18"), ("imagenet", "resnet50"), ("folder", "resnet18")]
)
def test_the_source_decides_what_flags_start_from(source, encoder):
    assert load_config(None, parse_flags(["--data.source", source])).model.encoder == encoder


def test_asking_for_mu_takes_active_back_and_the_other_way_round():
    config = load_config("presets:cifar100", {"target": {"active": 0.05}})
    assert (config.target.active, config.target.mu) == (0.05, None)
    config = load_config("presets:digits", parse_flags(["--target.mu", "-1"]))
    assert (config.target.active, config.target.mu) == (None, -1.0)
    with pytest.raises(ConfigError, match="not both"):
        load_config(None, {"target": {"mu": 0.0, "active": 0.1}})


def test_flags():
    parsed = parse_flags(
        ["--train.epochs=5", "--train.no-resume", "--train.compile", "--views.crop-scale", "0.4", "1.0",
         "--loss.directions", "{random: 100, eigen: 8}", "--train.out", "runs/x", "--target.mu", "-2"]
    )  # fmt: skip
    assert parsed == {
        "train": {"epochs": 5, "resume": False, "compile": True, "out": "runs/x"},
        "views": {"crop_scale": [0.4, 1.0]},
        "loss": {"directions": {"random": 100, "eigen": 8}},
        "target": {"mu": -2},
    }
    config = load_config(None, parsed)
    assert config.views.crop_scale == (0.4, 1.0)
    assert config.loss.directions == {"random": 100, "eigen": 8}


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--train.epoch", "3"], "train.epochs"),
        (["--epochs", "3"], "train.epochs"),
        (["--target.sparsity", "3"], "target"),
        (["--train.epochs", "many"], "train.epochs: expected a whole number, got 'many'"),
        (["--train.epochs", "1.5"], "expected a whole number"),
        (["--train.compile", "maybe"], "train.compile: expected true or false"),
        (["--optim.name", "lion"], "optim.name: expected one of lars, adamw, sgd"),
        (["--views.crop-scale", "0.5"], "views.crop_scale: expected 2 numbers, got 0.5"),
        (["--train.epochs"], "train.epochs: the flag needs a value"),
        (["epochs"], "expected a flag"),
        (["--train.epochs", "0"], "train.epochs: expected a positive number, got 0"),
        (["--train.batch-size", "1"], "train.batch_size: expected 2 or more, got 1"),
        (["--target.active", "1.5"], "between 0 and 1"),
        (["--target.p", "0"], "target.p"),
        (["--target.mu", "nan"], "target.mu: expected a finite number, got nan"),
        (["--optim.ema", "1"], "optim.ema"),
        (["--train", "5"], "train"),
        (["--optim.grad-clip", "-1"], "optim.grad_clip: expected a positive number, got -1.0"),
        (["--optim.lr", "nan"], "optim.lr: expected a positive number"),
        (["--data.workers", "-1"], "data.workers: expected zero or a positive number"),
        (["--target.scale", "-2"], "target.scale: expected a positive number"),
        (["--train.epochs", "{a"], "train.epochs: expected a whole number, got '{a'"),
        (["--data.options", "{a"], "data.options: expected a mapping, got '{a'"),
        (["--loss.directions.random", "8"], "loss.directions.random: there is no such key"),
    ],
)
def test_mistakes_in_flags(flags, sentence):
    with pytest.raises(ConfigError) as caught:
        load_config(None, parse_flags(flags))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("optim: {learning_rate: 1}", "optim.learning_rate: there is no such key"),
        ("trian: {epochs: 1}", "trian: there is no such key, the nearest is train"),
        ("train: 5", "train: expected a group of keys"),
        ("[1, 2]", "expected groups of keys"),
        ("train: {epochs: [}", "not valid YAML"),
    ],
)
def test_mistakes_in_files(tmp_path, text, sentence):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_preset():
    with pytest.raises(ConfigError, match="presets:NAME"):
        load_config("nowhere.yaml")
    with pytest.raises(ConfigError, match="did you mean cifar100"):
        load_config("presets:cifar10")
    with pytest.raises(ConfigError, match="did you mean presets:cifar100"):
        load_config("cifar100")


def test_yaml_round_trip(tmp_path):
    for name in preset_names():
        config = preset(name)
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(to_dict(config)))
        assert load_config(file) == config


def test_types():
    assert coerce("gn", float | str, "k") == "gn"
    assert coerce("none", float | None, "k") is None
    with pytest.raises(ConfigError, match="k: expected a number or none"):
        coerce("x", float | None, "k")
    with pytest.raises(ConfigError):
        coerce(True, float, "k")


def test_every_field_is_described_and_flat_keys_are_unique():
    keys = flat(Config())
    assert "views.size" in keys
    assert keys["train.epochs"] == Config().train.epochs
    for group in dataclasses.fields(Config):
        assert type(getattr(Config(), group.name)).__doc__


def test_a_later_key_counts_only_where_it_is_used():
    """Or folders and results of earlier versions would no longer be found."""
    config = preset("cifar100")
    assert identity(config) == "c3e12aa1"
    assert identity(replace(config, {"train": {"calibrate_from": 0.5}})) != identity(config)


def test_identity_ignores_where_and_how_fast():
    config = load_config(None)
    same = load_config(
        None, {"train": {"out": "x", "device": "cpu"}, "data": {"workers": 9}, "log": {"every": 1}}
    )
    other = load_config(None, {"train": {"seed": 1}, "optim": {"lr": 1.0}})
    assert identity(config) == identity(same) != identity(other)
    assert differing_keys(config, same) == []
    assert sorted(differing_keys(config, other)) == ["optim.lr", "train.seed"]


def test_method_decides_rectification_unless_told():
    for method, activation, rectified in (
        ("rectified_lpjepa", "relu", True), ("lpjepa", "none", False), ("lejepa", "none", True),
        ("simclr", "none", True), ("ncl", "relu", True), ("nvicreg", "relu", True), ("vicreg", "none", True),
    ):  # fmt: skip
        config = load_config(None, {"loss": {"method": method}})
        assert activation_of(config) == activation
        assert target_is_rectified(config) is rectified
    config = load_config(None, {"model": {"activation": "none"}, "target": {"rectified": False}})
    assert activation_of(config) == "none"
    assert target_is_rectified(config) is False


def test_presets_carry_the_papers_numbers():
    cifar, imagenet = preset("cifar100"), preset("imagenet100")
    assert (cifar.model.encoder, cifar.model.projector_dim, cifar.train.batch_size) == ("resnet18", 512, 256)
    assert (cifar.loss.invariance_weight, cifar.loss.matching_weight, cifar.loss.num_slices) == (
        25,
        250,
        8192,
    )
    assert (imagenet.loss.invariance_weight, imagenet.loss.matching_weight) == (25, 125)
    # "learning rate 0.0825 for the encoder, 0.0275 for the linear classifier", batch size 128
    scale = imagenet.train.batch_size / 256
    assert imagenet.optim.lr * scale == pytest.approx(0.0825)
    assert imagenet.optim.probe_lr * scale == pytest.approx(0.0275)
    assert (imagenet.views.blur, imagenet.views.solarize, imagenet.views.size) == (0.5, 0.1, 224)
    assert (imagenet.model.projector_hidden, imagenet.model.projector_dim) == (2048, 2048)
    vit = preset("imagenet100-vit")
    assert (vit.model.encoder, vit.optim.name, vit.optim.lr, vit.optim.weight_decay) == (
        "vit_small",
        "adamw",
        5e-4,
        1e-4,
    )
    assert (preset("imagenet1k").train.epochs, preset("imagenet1k").loss.directions) == (100, "bottom_eigen")
    for name in ("cifar100", "imagenet100", "imagenet1k"):
        target = preset(name).target
        assert (target.mu, target.active, target.p, target.scale) == (0.0, None, 1.0, "gn")


def test_text_stays_text_and_whole_numbers_may_be_written_short():
    config = load_config(
        None,
        parse_flags(
            ["--data.root", "2024", "--train.out", "{x", "--log.wandb=none", "--loss.num-slices", "1e3"]
        ),
    )
    assert (config.data.root, config.train.out, config.log.wandb) == ("2024", "{x", None)
    assert config.loss.num_slices == 1000


@pytest.mark.parametrize(
    "flags", [["--data.options.classes", "c.txt"], ["--data.options", "{classes: c.txt}"]]
)
def test_an_option_is_added_to_those_of_the_preset(flags):
    config = load_config("presets:imagenet100", parse_flags(flags))
    assert config.data.options == {"keep": "whole", "classes": "c.txt"}
    # A file is complete in itself: what a run has saved must come back as it was.
    assert load_config("presets:imagenet100", {"data": {"options": {}}}).data.options == {}


def test_crops_of_the_imagenet_presets_come_from_whole_images():
    for name, least in (("imagenet100", 320), ("imagenet100-vit", 320), ("imagenet1k", 320)):
        data = preset(name).data
        assert data.options["keep"] == "whole"
        assert data.store_size >= least  # the authors preload with the longer side at 320


def test_a_path_that_is_no_file_is_told_what_it_is(tmp_path):
    with pytest.raises(ConfigError, match="this is a folder; images are given as `--data"):
        load_config(tmp_path)
    (tmp_path / "config.yaml").write_text("{}")
    with pytest.raises(ConfigError, match=r"this is a run; `lpjepa pretrain .*config.yaml` goes on with it"):
        load_config(tmp_path)
    with pytest.raises(ConfigError, match="there is no such file; did you mean presets:digits"):
        load_config("digits")


def test_a_list_may_have_one_value() -> None:
    for flags, kept in ((["0.9"], (0.9,)), (["0.5", "1"], (0.5, 1.0)), (["[0.9]"], (0.9,))):
        assert load_config(None, parse_flags(["--train.keep_at", *flags])).train.keep_at == kept


def test_activations_are_the_same_everywhere() -> None:
    from typing import get_args, get_type_hints

    from lpjepa.models import ModelConfig
    from lpjepa.models.projector import ACTIVATIONS
    from lpjepa.training.config import SET_SHARE

    assert set(get_args(get_type_hints(ModelConfig)["activation"])) == {"auto", *ACTIVATIONS}
    assert set(SET_SHARE) < set(ACTIVATIONS)
