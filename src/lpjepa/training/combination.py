"""Which keys of a config do not go together: said before anything is loaded."""

from __future__ import annotations

from lpjepa.training._typed import ConfigError
from lpjepa.training.config import (
    MATCHING,
    SET_SHARE,
    Config,
    activation_of,
    settled_from,
    target_is_rectified,
)
from lpjepa.training.objectives import build_target


def check_combination(config: Config, world: int) -> None:
    """Refuse a training in `world` processes whose keys contradict each other."""
    if config.train.capture and world > 1:
        raise ConfigError("train.capture: a captured step runs in one process; leave it out under torchrun")
    if config.train.fsdp and config.optim.ema is not None:
        raise ConfigError("optim.ema: the moving average is not kept under train.fsdp; leave one of them out")
    if config.loss.method in ("nvicreg", "ncl") and activation_of(config) == "none":
        raise ConfigError(
            f"model.activation: {config.loss.method} compares rectified features; use relu or rep_relu"
        )
    if config.loss.method in MATCHING:  # which refuses a target that cannot be
        build_target(config)
        if config.target.from_mu is not None:
            build_target(config, start=True)
            leaves, there = config.target.leaves_at, config.target.there_at
            if leaves > there:
                raise ConfigError(
                    f"target.leaves_at: {leaves} is after target.there_at {there}, where the location is to "
                    "have arrived; choose a smaller share"
                )
    _check_late(config, activation_of(config))
    _check_share(config, activation_of(config))
    if config.views.num_views < 2:
        raise ConfigError(f"views.num_views: at least two views are compared, got {config.views.num_views}")


def _check_late(config: Config, activation: str) -> None:
    """Whether there is anything that can be rectified late."""
    start = config.train.rectify_from
    if start > 0 and not (config.loss.method == "rectified_lpjepa" and target_is_rectified(config)):
        raise ConfigError(
            f"train.rectify_from: {start} is of no use where the target is not rectified; use it with "
            "loss.method rectified_lpjepa"
        )
    if start > 0 and activation == "none":
        raise ConfigError(
            f"train.rectify_from: {start} is of no use with model.activation none, which never rectifies "
            "features; use relu, rep_relu, calibrated, top or soft_top"
        )


def _check_share(config: Config, activation: str) -> None:
    """Whether the share of active features can be set as the config says."""
    start, by_images = config.train.calibrate_from, config.train.calibrate_on == "images"
    there, turn = config.target.there_at, config.train.rectify_from
    if activation not in SET_SHARE:
        if start > 0:
            raise ConfigError(
                f"train.calibrate_from: {start} is of no use with model.activation {activation}, which sets "
                "no share of active features; use calibrated, top or soft_top"
            )
    elif not (config.loss.method == "rectified_lpjepa" and target_is_rectified(config)):
        raise ConfigError(
            f"model.activation: {activation} takes its share of active features from a rectified target; use "
            "it with loss.method rectified_lpjepa"
        )
    elif config.target.from_mu is not None and settled_from(config) < there:
        remedy = f"{there} or more, or to 1" if there < 1 else "1"
        raise ConfigError(
            f"train.calibrate_from: {start} is before target.there_at {there}, until which the target "
            f"moves; set it to {remedy}"
        )
    elif 0 < start < turn:
        raise ConfigError(
            f"train.calibrate_from: {start} is before train.rectify_from {turn}, until which features are "
            f"not rectified; leave it out, or set it to {turn} or more"
        )
    if by_images and activation != "calibrated":
        raise ConfigError(
            f"train.calibrate_on: images is of no use with model.activation {activation}, which has no "
            "thresholds; use calibrated"
        )
    if activation == "calibrated" and settled_from(config) == 1 and not by_images:
        key = "calibrate_from" if start == 1 else "rectify_from"
        raise ConfigError(
            f"train.{key}: at 1 the training is over and thresholds follow no views any more; set "
            "train.calibrate_on images, too"
        )
