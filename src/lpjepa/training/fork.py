"""A run that begins where another one stood, where both are the same training up to there.

A share of active features that is set late (`train.calibrate_from`; 1: when it is over) is left alone until
then: a plain rectifier's training, to the last bit. A target whose location stays where it begins
(`target.leaves_at`) is the target there until then. Features that are rectified late (`train.rectify_from`)
are those of LpJEPA until then. With the other run's checkpoint at that place (its `train.keep_at`), both cost
one training and the rest of another, and differ in nothing else.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from lpjepa.training import checkpoint
from lpjepa.training._typed import ConfigError, to_dict
from lpjepa.training.config import MATCHING, SET_SHARE, Config, TargetConfig, differing_keys
from lpjepa.training.journal import Journal
from lpjepa.training.layers import replace
from lpjepa.training.run import Run, with_rectifier

# The rectifier that the method asks for, whose share is left alone.
_PLAIN = {"model": {"activation": "auto"}, "train": {"calibrate_from": 0.0, "calibrate_on": "views"}}

# What an epoch says about features beside the target of the end.
_BESIDE_TARGET = ("l0_predicted", "l1_predicted", "variance_loss", "held_out_discrepancy")


def plain_until(config: Config) -> tuple[Config, float]:
    """The training that `config` is up to a share of its length, and that share; 0 where it is its own.

    Of the last turn that the training takes, or of all that it takes there.
    """
    calibrated = config.train.calibrate_from if config.model.activation in SET_SHARE else 0.0
    left, rectified = _leaves_at(config), config.train.rectify_from
    share = max(calibrated, left, rectified)
    before = config
    if share == calibrated:
        before = replace(before, _PLAIN)
    if share == left > 0:
        before = _standing(before)
    if share == rectified:
        before = dense(before)
    return (before, share) if share > 0 else (config, 0.0)


def _leaves_at(config: Config) -> float:
    moves = config.target.from_mu is not None and config.loss.method in MATCHING
    return config.target.leaves_at if moves else 0.0


def _standing(config: Config) -> Config:
    """The training that `config` is until the location of its target leaves the place where it begins."""
    plain, target = TargetConfig(), config.target
    keys = ("from_mu", "leaves_at", "there_at")
    return replace(config, {"target": {"mu": target.from_mu} | {key: getattr(plain, key) for key in keys}})


def dense(config: Config) -> Config:
    """The training of LpJEPA that `config` is until its features are rectified."""
    if config.train.rectify_from <= 0:
        return config
    changes = {"loss": {"method": "lpjepa"}, "target": {"rectified": None}, "train": {"rectify_from": 0.0}}
    return replace(replace(config, _PLAIN), changes)


def rectified_state(state: dict[str, Any], config: Config) -> dict[str, Any]:
    """`state` with what the rectifier of `config` keeps, where there was none or another one until now."""
    batches = state["progress"]["step"] * config.optim.accumulate
    state = {**state, "trainee": with_rectifier(state["trainee"], config, "model.", batches)}
    return state | {"ema": with_rectifier(state["ema"], config, batches=batches)} if "ema" in state else state


def fork(path: Path, config: Config) -> Run:
    """Begin the run of `config`, in its `train.out`, with the checkpoint of another run."""
    assert config.train.out is not None
    run = Run(Path(config.train.out), config)
    state = checkpoint.load(path)
    before = plain_until(config)[0]
    if keys := differing_keys(before, Run.open(path.parent.parent).config):
        raise ConfigError(f"{path} is of another training, which differs in {', '.join(keys)}")
    step, state = state["progress"]["step"], rectified_state(state, config)
    state["config"] = to_dict(config)
    checkpoint.check_writable(run.folder)
    journal = run.folder / "metrics.jsonl"
    shutil.copyfile(path.parent.parent / "metrics.jsonl", journal)
    leaves = before.target.from_mu != config.target.from_mu
    Journal(journal, []).keep_until(step, without=_BESIDE_TARGET if leaves else ())
    run.save_config()
    checkpoint.save(run.checkpoints, step, state)  # last: with it, the run is one that goes on
    return run
