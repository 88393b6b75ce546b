"""Pictures of a run's features beside its target: activity, marginals, projections, covariance."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from lpjepa.report.figures.style import new_figure, plain_log, series_colour, theme

Density = tuple[ArrayLike, ArrayLike]  # points and the density there


def active_fraction_histogram(fraction_D: ArrayLike, predicted: float | None = None, run: int = 0) -> Figure:
    """Histogram over the D features of the fraction of samples in which each is active.

    The dead (never active) and the always-on features are counted in the title: they hide in the end bins.
    """
    fraction = np.asarray(fraction_D, dtype=float)
    figure, axes = new_figure()
    top = min(1.0, max(0.05, 1.15 * float(fraction.max(initial=0.0)), 1.4 * (predicted or 0.0)))
    edges = np.linspace(0, top, 41).tolist()
    axes.hist(fraction, bins=edges, color=series_colour(run), alpha=0.5, label="features")
    if predicted is not None:
        axes.axvline(predicted, color=theme().target, linestyle=(0, (4, 2)), label=f"target {predicted:.3g}")
    mean, dead, always = fraction.mean(), int((fraction == 0).sum()), int((fraction == 1).sum())
    axes.axvline(mean, color=series_colour(run), linewidth=1.8, label=f"mean {mean:.3g}")
    axes.set_title(f"{dead} dead, {always} always on of {fraction.size}", loc="left")
    axes.set_xlabel("fraction of samples in which a feature is active")
    axes.set_ylabel("features")
    axes.set_xlim(0, top)
    axes.legend(loc="upper right")
    return figure


def feature_marginals(
    values: ArrayLike,
    density: Density | None = None,
    atom: float | None = None,
    rectified: bool = True,
    run: int = 0,
) -> Figure:
    """Pooled feature values as a density, against the target's, each with its atom at zero.

    For rectified features the bars integrate to the active fraction, as the target's density over x > 0 does;
    the probability of an exact zero stands as a stem at 0 on the right-hand axis.
    """
    x = np.asarray(values, dtype=float).ravel()
    positive = x[x > 0] if rectified else x
    figure, axes = new_figure()
    colour = series_colour(run)
    span = _span(positive, density)
    edges = np.linspace(span[0] if not rectified else 0.0, span[1], 61)
    counts, _ = np.histogram(positive, bins=edges)
    heights = counts / (max(x.size, 1) * np.diff(edges))
    axes.stairs(heights, edges, fill=True, color=colour, alpha=0.55)
    handles = [Line2D([], [], color=colour, linewidth=6, alpha=0.55, label="features")]
    if density is not None:
        points, target = (np.asarray(part, dtype=float) for part in density)
        axes.plot(points, target, color=theme().target, linewidth=1.6)
        handles.append(Line2D([], [], color=theme().target, label="target"))
        inside = points > edges[1]  # the cusp of a density with p < 1 must not set the scale
        ceiling = max(heights.max(initial=0.0), target[inside].max(initial=0.0) if inside.any() else 0.0)
        if ceiling > 0:
            axes.set_ylim(0, 1.12 * ceiling)
    axes.set_xlim(edges[0] - 0.04 * (edges[-1] - edges[0]), edges[-1])
    axes.set_xlabel("feature value")
    axes.set_ylabel("density")
    if rectified:
        zero = float((x <= 0).mean()) if x.size else 0.0
        right = axes.twinx()
        right.spines["right"].set_visible(True)
        right.grid(False)
        right.set_ylim(0, 1.12)
        right.set_ylabel("probability of exactly zero")
        right.vlines(0, 0, zero, color=colour, linewidth=3)
        right.plot([0], [zero], marker="o", markersize=7, color=colour, linestyle="none")
        handles.append(
            Line2D([], [], color=colour, marker="o", linestyle="none", label=f"features at zero {zero:.3f}")
        )
        if atom is not None:
            diamond: dict[str, Any] = {"marker": "D", "markerfacecolor": "none", "linestyle": "none"}
            right.plot([0], [atom], color=theme().target, markersize=9, markeredgewidth=1.4, **diamond)
            handles.append(
                Line2D([], [], color=theme().target, label=f"target at zero {atom:.3f}", **diamond)
            )
    axes.legend(handles=handles, loc="upper right")
    return figure


def _span(values: np.ndarray, density: Density | None) -> tuple[float, float]:
    """Where to draw: the central 99.8 % of the values, and the target's support where it has mass."""
    low, high = np.quantile(values, [0.001, 0.999]) if values.size else (0.0, 1.0)
    if density is not None:
        points, target = (np.asarray(part, dtype=float) for part in density)
        seen = points[target > 2e-3 * np.nanmedian(target[target > 0])] if (target > 0).any() else points
        if seen.size and not values.size:
            low, high = seen.min(), seen.max()
    if not high > low:
        high = low + 1.0
    return float(low), float(high)


def qq_plot(features_KQ: ArrayLike, target_KQ: ArrayLike, run: int = 0) -> Figure:
    """Quantiles of projected features against those of projected target samples, a line a direction.

    Both arrays hold the same Q probability levels along the same K directions; on the diagonal they agree.
    """
    features, target = np.atleast_2d(features_KQ).astype(float), np.atleast_2d(target_KQ).astype(float)
    if features.shape != target.shape:
        raise ValueError(
            f"features and target must hold quantiles of one shape, got {features.shape} and {target.shape}"
        )
    figure, axes = new_figure(4.4, 3.6)
    ends = [min(features.min(), target.min()), max(features.max(), target.max())]
    axes.plot(ends, ends, color=theme().target, linestyle=(0, (4, 2)), linewidth=1.1, label="agreement")
    for index, (of_features, of_target) in enumerate(zip(features, target)):
        axes.plot(
            of_target,
            of_features,
            color=series_colour(run),
            alpha=max(0.18, 0.8 / len(features) ** 0.5),
            linewidth=1.3,
            label=f"{len(features)} random directions" if index == 0 else "_direction",
        )
    axes.set_xlabel("quantiles of projected target samples")
    axes.set_ylabel("quantiles of projected features")
    for handle in axes.legend(loc="upper left").legend_handles:
        if handle is not None:
            handle.set_alpha(1.0)
    return figure


def covariance_spectrum(
    eigenvalues: ArrayLike, reference: ArrayLike | None = None, variance: float | None = None, run: int = 0
) -> Figure:
    """Eigenvalues of the features' covariance in falling order.

    ``reference`` holds those of equally many independent target samples, which are not flat either when N is
    not far above D; ``variance`` is the target's, the level an isotropic covariance would have everywhere.
    """
    figure, axes = new_figure()
    drawn: list[tuple[str, ArrayLike, str, Any]] = [("features", eigenvalues, series_colour(run), "-")]
    if reference is not None:
        drawn.append(("as many target samples", reference, theme().target, (0, (4, 2))))
    largest = variance or 0.0
    for label, values, colour, dash in drawn:
        falling = np.sort(np.asarray(values, dtype=float))[::-1]
        axes.plot(np.arange(1, falling.size + 1), falling, color=colour, linestyle=dash, label=label)
        largest = max(largest, float(falling.max(initial=0.0)))
    if variance is not None:
        level = f"target variance {variance:.3g}"
        axes.axhline(variance, color=theme().muted, linestyle=(0, (1, 1.5)), label=level)
    if largest > 0:
        # Dead features have eigenvalue zero or rounding error, which must not stretch the axis.
        seen = [v for _, values, _, _ in drawn for v in np.ravel(values) if v > 1e-6 * largest]
        axes.set_yscale("log")
        axes.set_ylim(0.5 * min(seen, default=largest), 2 * largest)
        plain_log(axes.yaxis)
    axes.set_xlabel("rank")
    axes.set_ylabel("eigenvalue of the covariance")
    axes.legend(loc="best")
    return figure
