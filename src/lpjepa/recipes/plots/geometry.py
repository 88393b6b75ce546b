"""Figures of the paper that need no training: clouds and their projections, radius and direction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from lpjepa.distributions import RectifiedGeneralizedGaussian, TruncatedGeneralizedGaussian
from lpjepa.report.figures.style import series_colour, theme

Panel = Mapping[str, Any]


def _plane(rectified: bool) -> Tensor:
    draws = torch.randn(3000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return draws.clamp(min=0) if rectified else draws


DIRECTION = torch.tensor([0.8, -0.6], dtype=torch.float64)


def cloud_gaussian(axes: Axes, panel: Panel) -> None:
    _cloud(axes, _plane(rectified=False), 0)


def cloud_rectified(axes: Axes, panel: Panel) -> None:
    _cloud(axes, _plane(rectified=True), 1)


def _cloud(axes: Axes, x: Tensor, index: int) -> None:
    axes.scatter(x[:, 0], x[:, 1], s=3, color=series_colour(index), alpha=0.4, linewidths=0)
    c = 3 * DIRECTION
    tip = (float(c[0]), float(c[1]))
    axes.annotate("", xy=tip, xytext=(0, 0), arrowprops={"arrowstyle": "->", "color": theme().ink})
    axes.text(tip[0] + 0.1, tip[1], "c", fontweight="bold")
    axes.set(xlim=(-3.6, 3.6), ylim=(-3.6, 3.6), aspect="equal", xlabel="x₁", ylabel="x₂")


def projections(axes: Axes, panel: Panel) -> None:
    """Densities of both clouds along c; that of the rectified one has a negative part and an atom at zero."""
    for index, rectified in enumerate((False, True)):
        draws = torch.randn(200_000, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        values = ((draws.clamp(min=0) if rectified else draws) @ DIRECTION).numpy()
        name = "ReLU(N(0, I))" if rectified else "N(0, I)"
        axes.hist(
            values, bins=np.linspace(-3, 3, 121).tolist(), density=True, histtype="step", linewidth=1.4,
            color=series_colour(index), label=f"cᵀx, x ~ {name}",
        )  # fmt: skip
    axes.set_ylim(0, 1.2)
    axes.set_xlabel("cᵀx")
    axes.set_ylabel("density")
    axes.legend(fontsize=7)


def _truncated(p: float, dimension: int) -> Tensor:
    zero, one = torch.tensor(0.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    generator = torch.Generator().manual_seed(int(10 * p))
    return TruncatedGeneralizedGaussian(zero, one, p).sample((20_000, dimension), generator=generator)


def radial_parts(axes: Axes, panel: Panel) -> None:
    """Histogram of ||x||_p^p beside Gamma(d/p, scale p), d = 3."""
    for index, p in enumerate((1.0, 2.0)):
        radius = _truncated(p, 3).pow(p).sum(1)
        grid = torch.linspace(0.02, 16, 200, dtype=torch.float64)
        axes.hist(
            radius.numpy(), bins=80, range=(0, 16), density=True, color=series_colour(index), alpha=0.35,
            label=f"p = {p:g}, samples",
        )  # fmt: skip
        gamma = torch.distributions.Gamma(torch.tensor(3 / p).double(), torch.tensor(1 / p).double())
        axes.plot(
            grid, gamma.log_prob(grid).exp(), color=series_colour(index), label=f"Gamma({3 / p:g}, {p:g})"
        )
    axes.set_xlabel("‖x‖ₚᵖ")
    axes.set_ylabel("density")
    axes.legend(fontsize=7)


def angular_parts(axes: Axes, panel: Panel) -> None:
    """First coordinate of x/||x||_p for d = 3: Beta(1, 2) on the simplex, uniform on the sphere."""
    for index, p in enumerate((1.0, 2.0)):
        x = _truncated(p, 3)
        first = (x / x.pow(p).sum(1, keepdim=True).pow(1 / p))[:, 0]
        axes.hist(
            first.numpy(), bins=50, range=(0, 1), density=True, color=series_colour(index), alpha=0.35,
            label=f"p = {p:g}, samples",
        )  # fmt: skip
        grid = torch.linspace(0, 1, 100)
        law = 2 * (1 - grid) if p == 1 else torch.ones_like(grid)
        axes.plot(grid, law, color=series_colour(index), label="Beta(1, 2)" if p == 1 else "uniform")
    axes.set_xlabel("first coordinate of the direction")
    axes.set_ylabel("density")
    axes.legend(fontsize=7)


def active_counts(axes: Axes, panel: Panel) -> None:
    """Number of active coordinates of a rectified sample in 8 dimensions: binomial with P(x > 0)."""
    counts = torch.arange(9, dtype=torch.float64)
    for index, mu in enumerate((0.0, -1.0)):
        target = RectifiedGeneralizedGaussian.from_location(mu, 1.0, dtype=torch.float64)
        draws = target.sample((20_000, 8), generator=torch.Generator().manual_seed(3))
        share = torch.bincount((draws > 0).sum(1), minlength=9).double() / len(draws)
        places = (counts + 0.36 * (index - 0.5)).tolist()
        name = f"μ = {mu:g}".replace("-", "−")
        axes.bar(
            places,
            share.tolist(),
            width=0.34,
            color=series_colour(index),
            alpha=0.5,
            label=f"{name}, samples",
        )
        law = torch.distributions.Binomial(8, target.active_probability)
        axes.plot(
            counts,
            law.log_prob(counts).exp(),
            color=series_colour(index),
            marker="o",
            markersize=3,
            label=f"{name}, binomial",
        )
    axes.set_xlabel("active coordinates")
    axes.set_ylabel("probability")
    axes.legend(fontsize=7)
