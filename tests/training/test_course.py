"""A target whose location moves: where it is, and that the loss finds it there."""

import pytest
import torch

import lpjepa
from lpjepa.distributions import RectifiedGeneralizedGaussian
from lpjepa.losses import RectifiedLpJEPA
from lpjepa.training import ConfigError, load_config, pretrain
from lpjepa.training.config import identity
from lpjepa.training.layers import replace
from lpjepa.training.objectives import Course


def course(**target):
    return Course(load_config(None, {"target": {"active": None, "mu": -2.0, "from_mu": 1.0, **target}}))


def test_the_location_moves_evenly_and_stays() -> None:
    moving = course(there_at=0.5)
    assert [moving.at(share)[0] for share in (0, 0.125, 0.25, 0.5, 0.7, 1)] == [1, 0.25, -0.5, -2, -2, -2]
    assert [moving.at(share)[1] for share in (0, 0.3, 1)] == pytest.approx([2**-0.5] * 3, rel=1e-12)


def test_the_location_stays_before_it_moves() -> None:
    moving = course(leaves_at=0.25, there_at=0.75)
    assert [moving.at(share)[0] for share in (0, 0.25, 0.5, 0.75, 1)] == [1, 1, -0.5, -2, -2]
    at_the_end = course(leaves_at=1.0, there_at=1.0)
    assert [at_the_end.at(share)[0] for share in (0, 0.5, 0.999, 1)] == [1, 1, 1, -2]
    at_once = course(leaves_at=0.5, there_at=0.5)
    assert [at_once.at(share)[0] for share in (0.49, 0.5)] == [1, -2]


def test_unit_variance_after_rectification_holds_on_the_way() -> None:
    moving = course(scale="rgn")
    for share in (0.0, 0.4, 0.8):
        target = RectifiedGeneralizedGaussian(*torch.tensor(moving.at(share), dtype=torch.float64), 1.0)
        assert float(target.variance) == pytest.approx(1, rel=1e-4)
    assert course(scale=0.3).at(0.2)[1] == pytest.approx(0.3)


@pytest.mark.parametrize("method", ["rectified_lpjepa", "lpjepa"])
def test_every_step_finds_the_target_where_it_is(tiny, monkeypatch, method) -> None:
    found = []
    components = RectifiedLpJEPA.components

    def note(self, *views, **randomness):
        found.append(float(self.regularizer.target.loc))
        return components(self, *views, **randomness)

    monkeypatch.setattr(RectifiedLpJEPA, "components", note)
    target = {"active": 0.03, "from_mu": 1.0, "there_at": 0.5}
    pretrain(tiny({"target": target, "loss": {"method": method}, "train": {"epochs": 4}}))
    end = float(RectifiedGeneralizedGaussian.from_active_fraction(0.03).loc)
    assert found == pytest.approx([1 + min(1, step / 6) * (end - 1) for step in range(12)], abs=1e-6)


def test_an_epoch_says_that_the_target_is_on_its_way(tiny, capsys) -> None:
    target = {"active": 0.03, "from_mu": 1.0, "there_at": 0.75}
    pretrain(tiny({"target": target, "train": {"epochs": 4}, "log": {"plain": True}}))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")]
    assert [("(later 0.030)" in line, "(target 0.030)" in line) for line in lines] == (
        [(True, False)] * 3 + [(False, True)]
    )


def test_features_follow_it(tiny) -> None:
    """Features that hardly learn are far from a target that is far up at first, until it comes down."""
    loss = {"num_slices": 256, "axes_weight": 0.0}
    slow = {"optim": {"lr": 0.0001, "warmup_start": 0.0}, "log": {"every": 1}, "loss": loss}
    fixed, moving = (
        pretrain(tiny(slow, {"target": {"active": None, "mu": -3.0, **own}, "train": {"out": str(out)}}))
        for own, out in (({}, tiny().train.out + "-a"), ({"from_mu": 3.0}, tiny().train.out + "-b"))
    )
    losses = [[entry["matching"] for entry in run.metrics("train")] for run in (fixed, moving)]
    assert losses[1][0] > 3 * losses[0][0], "of features far below 3"
    assert losses[1][-1] == pytest.approx(losses[0][-1], rel=0.1), "arrived"


def test_a_location_that_stays_to_the_end_is_a_training_at_its_start(tiny, capsys) -> None:
    """Only what is set when the training is over differs: the weights are the same to the last bit."""
    share = {"model": {"activation": "top"}, "train": {"calibrate_from": 1.0, "out": tiny().train.out + "-b"}}
    to = {"from_mu": 1.0, "leaves_at": 1.0, "there_at": 1.0}
    there = pretrain(tiny({"target": {"active": None, "mu": 1.0}}))
    stays = pretrain(tiny({"target": {"active": None, "mu": -3.0, **to}}, share))
    weights = [lpjepa.load(run.folder).encoder.state_dict() for run in (there, stays)]
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)
    assert stays.final["l0"] < 0.2 < there.final["l0"]
    assert "target mu -3 when it is over (mu 1 until then), p " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (
            {"there_at": 0.0},
            "target.there_at: expected a share of the training, above 0 and up to 1, got 0.0",
        ),
        (
            {"leaves_at": 1.5},
            "target.leaves_at: expected a share from 0 to 1, got 1.5",
        ),
        (
            {"from_mu": 1.0, "leaves_at": 0.9},
            "target.leaves_at: 0.9 is after target.there_at 0.8, .*; choose a smaller share",
        ),
        ({"from_mu": float("inf")}, "target.from_mu: expected a finite number, got inf"),
    ],
)
def test_a_way_that_is_none_is_refused(tiny, target, words) -> None:
    with pytest.raises(ConfigError, match=words):
        pretrain(tiny({"target": target}))


def test_a_location_that_moves_is_another_training(tiny) -> None:
    """That trainings from before keep theirs is seen by the results that recipes want."""
    config = tiny()
    moving = replace(config, {"target": {"from_mu": 1.0}})
    later = replace(moving, {"target": {"leaves_at": 0.5}})
    assert len({identity(config), identity(moving), identity(later)}) == 3
