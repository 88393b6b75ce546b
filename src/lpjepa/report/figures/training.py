"""Curves over training and the trade-off between runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lpjepa.report.figures.style import (
    TICKS,
    legend_of,
    new_figure,
    plain,
    plain_log,
    series_colour,
    series_dash,
    series_marker,
    theme,
)

LEVEL: dict[str, Any] = {"linestyle": (0, (2, 2)), "linewidth": 1.1}
MAX_LEGEND = 8  # beyond this many runs the page's coloured table is the legend


@dataclass(frozen=True)
class Curve:
    """One quantity of one run over training; ``prediction`` is what the target makes it (or None)."""

    label: str
    steps: Sequence[float]
    values: Sequence[float]
    prediction: float | None = None
    run: int = 0  # decides colour, marker and dash


def training_curve(curves: Sequence[Curve], ylabel: str, log: bool = False) -> Figure:
    """Each curve as a line; its prediction, where it has one, as a dashed level in the same colour."""
    figure, axes = new_figure()
    for curve in curves:
        colour = series_colour(curve.run)
        axes.plot(
            curve.steps,
            curve.values,
            color=colour,
            linestyle=series_dash(curve.run),
            marker=series_marker(curve.run),
            markersize=3.5,
            markevery=max(1, len(curve.steps) // 8),
            label=plain(curve.label),
        )
        if curve.prediction is not None:
            axes.axhline(curve.prediction, color=colour, label="_prediction", **LEVEL)
    if any(curve.prediction is not None for curve in curves):
        axes.plot([], [], color=theme().muted, label="predicted by the target", **LEVEL)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(TICKS, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    axes.set_ylabel(ylabel)
    axes.margins(x=0.02)
    if log:
        axes.set_yscale("log")
        plain_log(axes.yaxis)
    if 1 < len(axes.get_legend_handles_labels()[1]) <= MAX_LEGEND:
        legend_of(axes)
    return figure


def frontier(sparsity: Sequence[float], accuracy: Sequence[float]) -> np.ndarray:
    """Indices of the runs that no other beats in both sparsity and accuracy, from dense to sparse.

    A run stands on the frontier when every run at least as sparse is less accurate, or equal to it in both.
    """
    order = np.lexsort((-np.asarray(accuracy), np.asarray(sparsity)))  # sparsest first; best first among ties
    kept, best = [], -np.inf
    for index in order:
        if accuracy[index] > best:
            kept.append(index)
            best = accuracy[index]
    return np.array(kept[::-1], dtype=int)


def pareto_frontier(
    labels: Sequence[str],
    sparsity: Sequence[float | None],
    encoder: Sequence[float | None],
    projector: Sequence[float | None],
    xlabel: str = r"active fraction $\ell_0$, sparser to the right",
) -> Figure:
    """Accuracy (in [0, 1]) against ℓ0 or ℓ1 (lower is sparser), a point a run and probe, with each frontier.

    The axis is logarithmic and inverted, so that sparser is to the right as in the paper's figure, whose
    ``1 − ℓ0`` would crowd everything below ten per cent active into the last tenth of the axis.
    """
    figure, axes = new_figure()
    for probe, values, filled in (("projector", projector, True), ("encoder", encoder, False)):
        known, x, y = [], [], []
        for i, (x_i, y_i) in enumerate(zip(sparsity, values)):
            if x_i is not None and y_i is not None and x_i > 0:
                known.append(i)
                x.append(x_i)
                y.append(100 * y_i)
        if not known:
            continue
        on_it = frontier(x, y)
        axes.plot(
            [x[i] for i in on_it],
            [y[i] for i in on_it],
            color=theme().muted,
            linestyle="-" if filled else (0, (2, 2)),
            linewidth=1.1,
            label=f"{probe} frontier",
        )
        for i, x_i, y_i in zip(known, x, y):
            colour = series_colour(i)
            axes.plot(
                [x_i],
                [y_i],
                linestyle="none",
                marker=series_marker(i),
                markersize=7,
                color=colour,
                markerfacecolor=colour if filled else theme().background,
                markeredgewidth=1.5,
                label=plain(labels[i]) if filled and len(labels) <= MAX_LEGEND else "_run",
            )
    axes.set_xscale("log")
    axes.invert_xaxis()
    plain_log(axes.xaxis)
    axes.set_xlabel(xlabel)
    axes.set_ylabel("top-1 accuracy (%)")
    axes.margins(0.08)
    legend_of(axes)
    return figure
