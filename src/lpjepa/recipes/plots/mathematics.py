"""Figures of the paper that need no training: densities, variances, scales, sparsity.

Each function draws into one panel from `lpjepa.distributions`; the empirical ones sample with a fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from lpjepa.distributions import (
    GeneralizedGaussian,
    RectifiedGeneralizedGaussian,
    TruncatedGeneralizedGaussian,
    sigma_gn,
    sigma_rgn,
)
from lpjepa.recipes.collected import Collected
from lpjepa.recipes.plots import geometry
from lpjepa.report.figures.style import plain_log, series_colour, series_dash, series_marker, theme

Panel = Mapping[str, Any]
MU = torch.linspace(-3, 1, 9, dtype=torch.float64)
P = torch.tensor([0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0], dtype=torch.float64)
SAMPLES, DIMENSIONS = 100_000, 32  # the paper's, for its empirical variances


def draw_function(axes: Axes, panel: Panel, collected: Collected) -> None:
    """The panel's `function`, by name."""
    FUNCTIONS[panel["function"]](axes, panel)


def _scale(sigma: str, p: Tensor, mu: Tensor) -> Tensor:
    return sigma_gn(p).expand_as(mu + p) if sigma == "gn" else sigma_rgn(p, mu)


def densities(axes: Axes, panel: Panel) -> None:
    """GN, TGN on (0, ∞) and RGN with mu = -0.5 and sigma = 1; RGN's atom is a stem."""
    p, mu = float(panel["p"]), torch.tensor(-0.5, dtype=torch.float64)
    one = torch.ones_like(mu)
    x = torch.linspace(-4, 4, 1601, dtype=torch.float64)
    right = x[x > 0]
    rgn = RectifiedGeneralizedGaussian(mu, one, p)
    axes.plot(x, GeneralizedGaussian(mu, one, p).log_prob(x).exp(), color=series_colour(0), label="GN")
    axes.plot(
        right, TruncatedGeneralizedGaussian(mu, one, p).log_prob(right).exp(),
        color=series_colour(1), linestyle=(0, (5, 1.5)), label="TGN",
    )  # fmt: skip
    axes.plot(right, rgn.log_prob(right).exp(), color=series_colour(2), label="RGN, x > 0")
    atom = 1 - float(rgn.active_probability)
    axes.vlines(0, 0, atom, color=series_colour(2), linewidth=2)
    axes.plot(
        [0], [atom], marker="o", color=series_colour(2), linestyle="none", label=f"RGN at 0: {atom:.3f}"
    )
    axes.set_ylim(0, 1.25)
    axes.set_xlabel("x")
    axes.set_ylabel("density")
    axes.legend(fontsize=7)


def variance_map(axes: Axes, panel: Panel) -> None:
    mu, p = MU.view(-1, 1), P.view(1, -1)
    values = variances(mu, p, panel["sigma"], panel["rectified"], panel["empirical"])
    _lines_over_mu(axes, values, "variance")


def variances(mu: Tensor, p: Tensor, sigma: str, rectified: bool, empirical: bool) -> Tensor:
    """Variance of GN_p(mu, sigma) or RGN_p(mu, sigma), in closed form or of samples; shapes broadcast."""
    mu, p = torch.broadcast_tensors(mu, p)
    kind = RectifiedGeneralizedGaussian if rectified else GeneralizedGaussian
    if not empirical:
        return kind(mu, _scale(sigma, p, mu), p).variance
    found, scales = torch.empty_like(mu), _scale(sigma, p, mu)
    # Samples of a location and scale are those of the standard one, shifted: one draw a p serves every mu.
    for column, exponent in enumerate(p[0].tolist()):
        generator = torch.Generator().manual_seed(column)
        standard = GeneralizedGaussian(torch.tensor(0.0), torch.tensor(1.0), exponent)
        draws = standard.sample((SAMPLES, DIMENSIONS), generator=generator)
        for row in range(len(mu)):
            x = draws * float(scales[row, column]) + float(mu[row, column])
            found[row, column] = (x.clamp(min=0) if rectified else x).var(0).mean()
    return found


def sigma_map(axes: Axes, panel: Panel) -> None:
    mu, p = torch.broadcast_tensors(MU.view(-1, 1), P.view(1, -1))
    _lines_over_mu(axes, _scale(panel["sigma"], p, mu), "σ", log=False)
    axes.set_ylim(bottom=0)  # room for the legend below constant lines


def _lines_over_mu(axes: Axes, values: Tensor, ylabel: str, log: bool = True) -> None:
    for index, p in enumerate(P.tolist()):
        axes.plot(
            MU, values[:, index], color=series_colour(index), marker=series_marker(index), markersize=3,
            label=f"p = {p:g}",
        )  # fmt: skip
    spread = float(values.max() / values.min())
    if log and spread > 3:
        axes.set_yscale("log")
        plain_log(axes.yaxis)
    elif spread < 1.2:
        axes.set_ylim(0.8, 1.2)
    axes.set_xlabel("mean shift μ")
    axes.set_ylabel(ylabel)
    axes.legend(fontsize=6.5, ncols=2)


def bisection_errors(p: float, mu: float, iterations: int = 45) -> list[float]:
    """|Var RGN_p(mu, sigma) - 1| at the middle of the bracket in the paper's algorithm, an iteration each.

    The bracket starts as sigma_GN (whose variance after rectification is at most 1) and is doubled until it
    holds the root, as the algorithm asks for bounds with a change of sign.
    """
    where, exponent = torch.tensor(mu, dtype=torch.float64), torch.tensor(p, dtype=torch.float64)
    excess = lambda sigma: float(
        RectifiedGeneralizedGaussian(where, torch.tensor(sigma, dtype=torch.float64), exponent).variance - 1
    )
    low, high = float(sigma_gn(exponent)), 2 * float(sigma_gn(exponent))
    while excess(high) < 0:
        high *= 2
    errors = []
    for _ in range(iterations):
        middle = 0.5 * (low + high)
        error = excess(middle)
        errors.append(abs(error))
        low, high = (low, middle) if error > 0 else (middle, high)
    return errors


def bisection(axes: Axes, panel: Panel) -> None:
    for index, (p, mu) in enumerate(
        [(0.5, -3.0), (0.5, 0.0), (1.0, -1.0), (1.0, 1.0), (2.0, -3.0), (2.0, 0.0)]
    ):
        errors = np.maximum(bisection_errors(p, mu), 1e-16)
        axes.plot(
            range(1, len(errors) + 1), errors, color=series_colour(index), linestyle=series_dash(index),
            marker=series_marker(index), markersize=3, markevery=5,
            label=f"p = {p:g}, μ = {mu:g}".replace("-", "−"),
        )  # fmt: skip
    axes.axhline(1e-10, color=theme().muted, linestyle=(0, (1, 1.5)), label="1e-10")
    axes.set_yscale("log")
    axes.set_xlabel("iteration")
    axes.set_ylabel("|Var − 1|")
    axes.legend(fontsize=7)


def l0_theory(axes: Axes, panel: Panel) -> None:
    """Expected l0 over mu under both scales."""
    fine = torch.linspace(-3, 1, 81, dtype=torch.float64)
    for index, p in enumerate((0.5, 1.0, 2.0)):
        exponent = torch.full_like(fine, p)
        for sigma, dash in (("gn", "-"), ("rgn", (0, (5, 1.5)))):
            target = RectifiedGeneralizedGaussian(fine, _scale(sigma, exponent, fine), exponent)
            label = f"p = {p:g}, σ_{sigma.upper()}"
            axes.plot(
                fine, target.active_probability, color=series_colour(index), linestyle=dash, label=label
            )
    axes.set_xlabel("mean shift μ")
    axes.set_ylabel("ℓ0 of the target")
    axes.legend(fontsize=6.5)


FUNCTIONS: dict[str, Callable[[Axes, Panel], None]] = {
    "densities": densities,
    "variance_map": variance_map,
    "sigma_map": sigma_map,
    "bisection": bisection,
    "l0_theory": l0_theory,
    "cloud_gaussian": geometry.cloud_gaussian,
    "cloud_rectified": geometry.cloud_rectified,
    "projections": geometry.projections,
    "radial_parts": geometry.radial_parts,
    "angular_parts": geometry.angular_parts,
    "active_counts": geometry.active_counts,
}
