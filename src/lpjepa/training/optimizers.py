"""Optimizers by name, their parameter groups, and learning rates that live on the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from lpjepa.training.config import OptimConfig
from lpjepa.training.lars import LARS


def build_optimizer(
    parameters: Iterable[nn.Parameter],
    config: OptimConfig,
    device: torch.device,
    weight_decay: float,
    fsdp: bool,
) -> torch.optim.Optimizer:
    """LARS, AdamW or SGD; one-dimensional parameters (biases, normalisation) are not decayed."""
    parameters = [p for p in parameters if p.requires_grad]
    # torch's own optimizers do not take a plain tensor as rate beside parameters divided by FSDP.
    rate: Any = 0.0 if fsdp and config.name != "lars" else torch.zeros((), device=device)
    if config.name == "lars":
        return LARS(parameters, rate, config.momentum, weight_decay, config.eta, config.clip_trust)
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    # Fused: one kernel for all parameters, obeys found_inf, takes the rate from the device.
    fused = None if fsdp else device.type in ("cpu", "cuda")
    if config.name == "adamw":
        capturable = device.type == "cuda" and not fsdp
        return torch.optim.AdamW(groups, rate, fused=fused, capturable=capturable)
    sgd = torch.optim.SGD(groups, rate, momentum=config.momentum, fused=fused)
    if config.momentum != 0.0:
        # torch makes velocities at the first step and leaves them unwritten where found_inf skips it.
        for p in parameters:
            sgd.state[p]["momentum_buffer"] = torch.zeros_like(p)
    return sgd


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate without waiting for the device."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
