"""`lpjepa bench loss --quality`: how good structured directions are, at equal count.

The loss is the mean over directions drawn at random. With features and target samples fixed, its variance
over draws of the directions is what the choice of their kind changes. The mean would be the same for all
if each direction by itself were uniform on the sphere, as random and orthogonal ones are; entries of Hadamard
directions take few values in low dimensions, and the table shows how little that moves the mean.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lpjepa.bench.reference import target_samples
from lpjepa.bench.table import Column, number, text
from lpjepa.slicing import parse_directions, planned_discrepancy

KINDS = ("random", "orthogonal", "hadamard")

COLUMNS: tuple[Column, ...] = (
    text("features", "features"),
    number("slices", "slices", "d"),
    text("directions", "directions"),
    number("mean", "mean", ".5f"),
    number("standard error", "standard_error", ".5f"),
    number("variance / independent", "variance_ratio", ".3f"),
    number("uncertainty", "uncertainty", ".0%"),
)


def measure_quality(
    device: torch.device, samples: int = 128, dim: int = 64, draws: int = 400
) -> list[dict[str, Any]]:
    """Variance of the loss by kind of directions: features far from the target, and drawn from it.

    `uncertainty` is the relative standard error of a ratio of two variances of `draws` values, √(4/draws).
    """
    torch.manual_seed(0)
    scales = torch.linspace(0.3, 1.7, dim, device=device)
    y = target_samples(1, samples, dim, device=device)
    cases = {
        "far from the target": torch.randn(1, samples, dim, device=device) * scales,
        "drawn from it": target_samples(1, samples, dim, device=device),
    }
    found = []
    for where, z in cases.items():
        for slices in (dim, 4 * dim):
            values = {kind: _estimates(z, y, kind, slices, draws) for kind in KINDS}
            independent = float(values["random"].var())
            for kind, estimates in values.items():
                found.append(
                    {
                        "features": where,
                        "slices": slices,
                        "directions": kind,
                        "mean": float(estimates.mean()),
                        "standard_error": float((estimates.var() / draws).sqrt()),
                        "variance_ratio": float(estimates.var()) / independent,
                        "uncertainty": 0.0 if kind == "random" else math.sqrt(4 / draws),
                    }
                )
    return found


def _estimates(z: Tensor, y: Tensor, kind: str, slices: int, draws: int) -> Tensor:
    plan = parse_directions(kind, slices)
    with torch.no_grad():
        seeds = torch.arange(draws, device=z.device)
        return torch.stack([planned_discrepancy(z, y, plan, seed) for seed in seeds]).double()
