"""Figures on plain arrays. Each function returns a matplotlib ``Figure``; :func:`save` writes PNG and SVG."""

from lpjepa.report.figures.features import (
    active_fraction_histogram,
    covariance_spectrum,
    feature_marginals,
    qq_plot,
)
from lpjepa.report.figures.samples import (
    NeighbourRow,
    attribution_overlay,
    neighbour_grid,
    sparsity_violins,
    violin_panels,
)
from lpjepa.report.figures.style import DARK, LIGHT, render, save, using
from lpjepa.report.figures.training import Curve, pareto_frontier, training_curve

__all__ = [
    "DARK",
    "LIGHT",
    "Curve",
    "NeighbourRow",
    "active_fraction_histogram",
    "attribution_overlay",
    "covariance_spectrum",
    "feature_marginals",
    "neighbour_grid",
    "pareto_frontier",
    "qq_plot",
    "render",
    "save",
    "sparsity_violins",
    "training_curve",
    "using",
    "violin_panels",
]
