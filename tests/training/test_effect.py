"""Flags that change nothing are named, and no others."""

from typing import get_args, get_type_hints

import pytest
import torch
import yaml
from torch import nn

from lpjepa.cli import main
from lpjepa.training import Config, to_dict
from lpjepa.training.config import LossConfig, OptimConfig, target_is_rectified
from lpjepa.training.effect import without_effect
from lpjepa.training.layers import replace
from lpjepa.training.objectives import build_objective
from lpjepa.training.optimizers import build_optimizer

METHODS = get_args(get_type_hints(LossConfig)["method"])
OPTIMIZERS = get_args(get_type_hints(OptimConfig)["name"])


def loss(config):
    z = torch.randn(2, 32, 12, generator=torch.Generator().manual_seed(0)).relu()
    return float(build_objective(config)(*z))


@pytest.mark.parametrize("method", METHODS)
def test_a_key_is_named_where_it_changes_no_loss(method):
    config = replace(Config(), {"loss": {"method": method, "num_slices": 16, "axes_weight": 0.5}})
    before = loss(config)
    assert loss(config) == before
    rectified = target_is_rectified(config)
    changed = {
        "target": {"active": 0.05, "mu": 0.3, "p": 2.0, "scale": "rgn", "rectified": not rectified},
        "loss": {
            "invariance_weight": 3.0, "matching_weight": 3.0, "num_slices": 24, "directions": "orthogonal",
            "axes_weight": 1.0, "variance_weight": 3.0, "covariance_weight": 3.0, "temperature": 0.7,
            "sigreg_weight": 0.3,
        },
    }  # fmt: skip
    assert set(changed["loss"]) == set(get_type_hints(LossConfig)) - {"method"}
    for group, keys in changed.items():
        for key, value in keys.items():
            given = {group: {key: value}}
            named = without_effect(replace(config, given), given)
            assert bool(named) == (loss(replace(config, given)) == before), key
            assert all(
                sentence.startswith(f"{group}.{key} has no effect with loss.method") for sentence in named
            )


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_key_is_named_where_it_changes_no_step(optimizer):
    def weights(config):
        both = [nn.Parameter(torch.ones(2, 2)) for _ in range(2)]
        steps = build_optimizer(both, config.optim, torch.device("cpu"), 0.0, fsdp=False)
        for group in steps.param_groups:
            group["lr"].fill_(0.1)
        for _ in range(2):
            for w, gradient in zip(both, (1e-3, 1.0)):  # one of them is clipped
                w.grad = torch.full_like(w, gradient)
            steps.step()
        return [w.tolist() for w in both]

    config = replace(Config(), {"optim": {"name": optimizer}})
    for key, value in {"momentum": 0.5, "eta": 0.01, "clip_trust": False}.items():
        given = {"optim": {key: value}}
        named = without_effect(replace(config, given), given)
        assert bool(named) == (weights(replace(config, given)) == weights(config)), key


@pytest.mark.parametrize(
    ("config", "given", "named"),
    [
        ({}, {"target": {"there_at": 0.5}}, ["target.there_at has no effect without target.from_mu"]),
        ({}, {"target": {"leaves_at": 0.5}}, ["target.leaves_at has no effect without target.from_mu"]),
        ({"target": {"from_mu": 1.0}}, {"target": {"there_at": 0.5, "leaves_at": 0.1}}, []),
        (
            {"loss": {"method": "lejepa"}},
            {"target": {"there_at": 0.5}},
            [
                "target.there_at has no effect with loss.method lejepa, only with rectified_lpjepa, lpjepa",
            ],
        ),
    ],
)
def test_a_key_is_named_once_and_for_its_first_reason(config, given, named):
    assert without_effect(replace(replace(Config(), config), given), given) == named


def test_the_command_names_flags_without_effect_and_not_what_a_file_holds(tiny, tmp_path, capsys):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(to_dict(tiny({"loss": {"method": "lejepa"}, "train": {"epochs": 1}}))))
    assert main(["pretrain", str(path), "--target.active", "0.05", "--loss.num_slices", "8"]) == 0
    sentence = "target.active has no effect with loss.method lejepa, only with rectified_lpjepa, lpjepa"
    assert capsys.readouterr().err == f"lpjepa: {sentence}\n"
    assert main(["pretrain", str(tmp_path / "run" / "config.yaml"), "--loss.method", "lejepa"]) == 0
    assert capsys.readouterr().err == ""
