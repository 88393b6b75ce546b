"""The objective and the target that a config names."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributions import Distribution

from lpjepa.distributions import GeneralizedGaussian, RectifiedGeneralizedGaussian, sigma_rgn
from lpjepa.losses import (
    LeJEPA,
    LpJEPA,
    NonNegativeContrastive,
    NonNegativeVICReg,
    RectifiedLpJEPA,
    SimCLR,
    VICReg,
)
from lpjepa.training._typed import ConfigError
from lpjepa.training.config import MATCHING, Config, target_is_rectified


def build_target(
    config: Config,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    start: bool = False,
) -> Distribution:
    """RGN_p(mu, sigma), or GN_p(mu, sigma) with the same parameters where the target is not rectified.

    start: where the location moves, the one that it starts from.
    """
    wanted, rgn = config.target, RectifiedGeneralizedGaussian
    place = "from_mu" if start else "mu"
    try:
        if wanted.active is not None and not start:
            target = rgn.from_active_fraction(wanted.active, wanted.p, wanted.scale, dtype, device)
        else:
            loc = getattr(wanted, place)
            assert loc is not None  # checked with the config
            target = rgn.from_location(loc, wanted.p, wanted.scale, dtype, device)
    except ValueError as error:
        names = {"fraction": "active", "loc": place, "p": "p", "scale": "scale"}
        if start:
            del names["fraction"]
        given = {name: (f"target.{key}:", getattr(wanted, key)) for name, key in names.items()}
        raise ConfigError(in_words_of(given, error)) from None
    if target_is_rectified(config):
        return target
    # p as it was given: what lies on a GPU is not read, and quantiles would be searched for at every step.
    return GeneralizedGaussian(target.loc, target.scale, wanted.p)


def in_words_of(given: dict[str, tuple[str, Any]], error: ValueError) -> str:
    """Why there is no such target, in the words of who asked for it.

    given: by the names that the distributions use, the asker's own word and the value, None where it was not
    given. The error is about one of these if it names that value; else about what follows from all of them.
    """
    said, given = str(error).removesuffix("."), {k: v for k, v in given.items() if v[1] is not None}
    for name, (word, value) in given.items():
        if said.startswith(f"{name} = {value} "):
            return said.replace(f"{name} =", word, 1)
    asked = ", ".join(f"{word} {value}" for word, value in given.values())
    return f"{asked}: these do not go together ({said}); choose less extreme ones"


_PLACES = 1025  # of a scale on its way


class Course:
    """The way of the target's location from `target.from_mu` to its place."""

    def __init__(self, config: Config):
        assert config.target.from_mu is not None
        self.wanted, self.start = config.target, config.target.from_mu
        end: Any = build_target(config, dtype=torch.float64)
        self.end = float(end.loc), float(end.scale)
        self.now: tuple[float, float] | None = None
        # Scales that depend on the location take a search each: at places so close that lines join them.
        self.scales: list[float] = []
        if self.wanted.scale == "rgn":
            way = torch.linspace(0, 1, _PLACES, dtype=torch.float64)
            loc = (1 - way) * self.start + way * self.end[0]
            self.scales = sigma_rgn(torch.full_like(loc, self.wanted.p), loc).tolist()

    def at(self, progress: float) -> tuple[float, float]:
        """Location and scale at a share of the training."""
        way, (loc, scale) = self._way(progress), self.end
        loc = (1 - way) * self.start + way * loc
        if way < 1 and self.scales:
            place, part = divmod(way * (_PLACES - 1), 1)
            below, above = self.scales[int(place)], self.scales[int(place) + 1]
            scale = (1 - part) * below + part * above
        return loc, scale

    def _way(self, progress: float) -> float:
        leaves, there = self.wanted.leaves_at, self.wanted.there_at
        if progress >= there:
            return 1.0
        return 0.0 if progress <= leaves else (progress - leaves) / (there - leaves)

    def move(self, objective: Any, progress: float) -> None:
        """Set the target that the objective reads, in its place: nothing waits, and captured steps see it."""
        target, here = objective.regularizer.target, self.at(progress)
        for parameter, value in zip((target.loc, target.scale), here) if here != self.now else ():
            parameter.fill_(value)
        self.now = here


def target_of(config: Config) -> Distribution | None:
    """The target that the features follow; None where the method has none."""
    return build_target(config) if config.loss.method in MATCHING else None


def build_objective(config: Config, device: torch.device | str = "cpu") -> nn.Module:
    """The loss by name. Features arrive as the projector leaves them, so no loss rectifies them again.

    The target's parameters live on `device`: copying them there at every step would wait for it.
    """
    loss = config.loss
    if loss.method in MATCHING:
        kind = RectifiedLpJEPA if target_is_rectified(config) else LpJEPA
        return kind(
            build_target(config, device),
            invariance_weight=loss.invariance_weight,
            matching_weight=loss.matching_weight,
            num_slices=loss.num_slices,
            directions=loss.directions,
            axes_weight=loss.axes_weight,
            seed=config.train.seed,
        )
    if loss.method == "lejepa":
        return LeJEPA(num_slices=loss.num_slices, matching_weight=loss.sigreg_weight, seed=config.train.seed)
    if loss.method == "vicreg":
        return VICReg(loss.invariance_weight, loss.variance_weight, loss.covariance_weight)
    if loss.method == "nvicreg":
        return NonNegativeVICReg(
            loss.invariance_weight, loss.variance_weight, loss.covariance_weight, activation="identity"
        )
    if loss.method == "simclr":
        return SimCLR(temperature=loss.temperature)
    return NonNegativeContrastive(temperature=loss.temperature, activation="identity")
