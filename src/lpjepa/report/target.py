"""What a target looks like, before anything is trained: its numbers, a table and a figure."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lpjepa.distributions import GeneralizedGaussian, RectifiedGeneralizedGaussian

_ROWS = {
    "mu": "location μ",
    "sigma": "scale σ",
    "p": "exponent p",
    "active_fraction": "active fraction P(x > 0)",
    "mean": "mean E[x]",
    "variance": "variance",
    "l1_metric": "ℓ1 metric E[x]²/E[x²]",
    "entropy": "entropy (nats)",
    "information_dimension": "information dimension",
}
_COLOURS = ("#2a6f97", "#c8553d", "#5b8e55", "#7d5ba6", "#b8860b", "#3d3d3d")


def target_summary(dist: RectifiedGeneralizedGaussian) -> dict[str, float]:
    """The numbers of one target as plain floats, computed in float64.

    Keys: mu, sigma, p, active_fraction, mean, variance, l1_metric, entropy, information_dimension.
    """
    d = _wide(dist)
    values = {
        "mu": d.loc,
        "sigma": d.scale,
        "p": d.p,
        "active_fraction": d.active_probability,
        "mean": d.mean,
        "variance": d.variance,
        "l1_metric": d.expected_l1_metric,
        "entropy": d.entropy(),
        "information_dimension": d.information_dimension,
    }
    return {name: float(value.detach()) for name, value in values.items()}


def print_targets(dists: Sequence[RectifiedGeneralizedGaussian], console: Any = None) -> None:
    """A table on the terminal: one row a quantity, one column a target."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    summaries = [target_summary(d) for d in dists]
    table = Table(title="Rectified Generalized Gaussian target" + ("s" if len(summaries) > 1 else ""))
    table.add_column("quantity")
    for summary in summaries:
        table.add_column(f"p = {summary['p']:g}", justify="right")
    for name, label in _ROWS.items():
        table.add_row(escape(label), *(f"{summary[name]:.6g}" for summary in summaries))
    (console or Console()).print(table)


def draw_targets(dists: Sequence[RectifiedGeneralizedGaussian], path: str | Path) -> Path:
    """Density and atom of each target, side by side on the same axes, written to `path`.

    The curve is the density on (0, ∞); dashed, its continuation below zero, which rectification moves into
    the atom; the stem at zero is the atom, on the probability axis at the right.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    wide = [_wide(d) for d in dists]
    if not wide:
        raise ValueError("dists is empty: pass at least one target to draw.")
    columns = len(wide)
    high = max(_upper_end(d) for d in wide)
    peaks = [_positive_peak(d) for d in wide]
    # A cusp (p < 1) may leave the frame, rather than flatten the other panels; where the location is so low
    # that no density is left, any frame will do.
    top = 1.12 * min(max(peaks), 3 * min(peaks)) or 1.0
    limits = _Limits(left=-0.4 * high, right=high, top=top)

    width, height = max(4.4, 2.9 * columns + 1.0), 2.9
    figure = Figure(figsize=(width, height), dpi=200)
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, sharex=True, sharey=True, squeeze=False)[0]
    for i, (axis, d) in enumerate(zip(axes, wide)):
        _draw_one(axis, d, limits, _COLOURS[i % len(_COLOURS)], last=i == columns - 1)
        axis.set_xlabel("feature value x", fontsize=9)
    axes[0].set_ylabel("density", fontsize=9)
    figure.subplots_adjust(
        left=0.62 / width, right=1 - 0.62 / width, bottom=0.5 / height, top=1 - 0.52 / height, wspace=0.1
    )
    path = Path(path)
    figure.savefig(path)
    return path


class _Limits(NamedTuple):
    left: float
    right: float
    top: float


def _draw_one(axis: Any, d: RectifiedGeneralizedGaussian, limits: _Limits, colour: str, last: bool) -> None:
    summary = target_summary(d)
    before = GeneralizedGaussian(d.loc, d.scale, d.p)
    positive = torch.linspace(0, 1, 600, dtype=torch.float64).square() * limits.right  # finer near zero
    positive = torch.cat([positive, d.loc.clamp(0, limits.right).reshape(1)]).sort().values  # with the cusp
    negative = torch.linspace(limits.left, 0, 300, dtype=torch.float64)
    density, moved = before.log_prob(positive).exp(), before.log_prob(negative).exp()
    axis.plot(negative, moved, color=colour, lw=0.9, ls=(0, (3, 2)), alpha=0.5)
    axis.fill_between(positive, density, color=colour, alpha=0.16, lw=0)
    axis.plot(positive, density, color=colour, lw=1.7)

    atom = 1 - summary["active_fraction"]
    probability = axis.twinx()
    probability.plot([0.0, 0.0], [0.0, atom], color=colour, lw=3.2, solid_capstyle="butt")
    probability.plot([0.0], [atom], "o", color=colour, ms=6, mec="white", mew=0.8)
    probability.set_ylim(0, 1.12)
    probability.set_yticks([0, 0.25, 0.5, 0.75, 1.0] if last else [])
    if last:
        probability.set_ylabel("probability of the atom", fontsize=9)
    label = f"P(x = 0) = {_percent(atom)}\nP(x > 0) = {_percent(summary['active_fraction'])}"
    axis.text(0.97, 0.96, label, transform=axis.transAxes, ha="right", va="top", fontsize=8, color=colour)
    axis.set_title(f"p = {summary['p']:g}", fontsize=10, pad=17)
    axis.text(
        0.5,
        1.03,
        f"μ = {summary['mu']:.3g},  σ = {summary['sigma']:.3g}".replace("-", "\u2212"),
        transform=axis.transAxes,
        ha="center",
        fontsize=8,
        color="0.35",
    )
    axis.set_xlim(limits.left, limits.right)
    axis.set_ylim(0, limits.top)
    for which in (axis, probability):
        which.tick_params(labelsize=8, length=2.5)
        which.spines["top"].set_visible(False)
        which.spines["right"].set_visible(which is probability and last)


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def _upper_end(d: RectifiedGeneralizedGaussian) -> float:
    """Where all but 2 % of the positive part has been drawn, and not less than one scale."""
    return max(float(d.positive_part.icdf(torch.tensor(0.98, dtype=torch.float64))), float(d.scale))


def _positive_peak(d: RectifiedGeneralizedGaussian) -> float:
    """The largest value of the density on (0, ∞)."""
    return float(GeneralizedGaussian(d.loc, d.scale, d.p).log_prob(d.loc.clamp(min=0)).exp())


def _wide(dist: RectifiedGeneralizedGaussian) -> RectifiedGeneralizedGaussian:
    if dist.batch_shape.numel() != 1:
        raise ValueError(f"dist has batch shape {tuple(dist.batch_shape)}: pass targets one by one.")
    loc, scale, p = (v.detach().cpu().double().reshape(()) for v in (dist.loc, dist.scale, dist.p))
    return RectifiedGeneralizedGaussian(loc, scale, p)
