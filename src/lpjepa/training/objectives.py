"""The objective and the target that a config names."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributions import Distribution

from lpjepa.distributions import GeneralizedGaussian, RectifiedGeneralizedGaussian
from lpjepa.losses import (
    LeJEPA,
    LpJEPA,
    NonNegativeContrastive,
    NonNegativeVICReg,
    RectifiedLpJEPA,
    SimCLR,
    VICReg,
)
from lpjepa.training.config import MATCHING, Config, target_is_rectified


def build_target(
    config: Config, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> Distribution:
    """RGN_p(mu, sigma), or GN_p(mu, sigma) with the same parameters where the target is not rectified."""
    wanted, rgn = config.target, RectifiedGeneralizedGaussian
    if wanted.active is not None:
        target = rgn.from_active_fraction(wanted.active, wanted.p, wanted.scale, dtype, device)
    else:
        assert wanted.mu is not None  # checked with the config
        target = rgn.from_location(wanted.mu, wanted.p, wanted.scale, dtype, device)
    if target_is_rectified(config):
        return target
    return GeneralizedGaussian(target.loc, target.scale, target.p)


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
