"""Kinds of panels by name. `AXES` draw into one panel of a figure; `WHOLE` make a figure of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lpjepa.recipes.collected import Collected
from lpjepa.recipes.plots.comparisons import bars, sources
from lpjepa.recipes.plots.lines import curves, marginals, xy
from lpjepa.recipes.plots.mathematics import draw_function
from lpjepa.recipes.plots.pictures import attribution, neighbours, violins
from lpjepa.recipes.plots.tradeoff import tradeoff

Panel = Mapping[str, Any]
AXES: dict[str, Callable[[Axes, Panel, Collected], None]] = {
    "xy": xy,
    "curves": curves,
    "marginals": marginals,
    "bars": bars,
    "sources": sources,
    "tradeoff": tradeoff,
    "mathematics": draw_function,
}
WHOLE: dict[str, Callable[[Panel, Collected, Any], Figure]] = {
    "violins": violins,
    "neighbours": neighbours,
    "attribution": attribution,
}
# What a panel shows without a training; the others leave a panel empty until there are results.
NEEDS_NOTHING = ("mathematics",)
BELOW = 0.8  # inches of a legend below its panel
LINE = 0.3  # of one in a line below all panels


def draw(collected: Collected, places: Any) -> Figure:
    """The figure of a recipe: its panels in rows of `across`, or the one figure it is made of."""
    panels = collected.recipe.panels
    if panels[0]["plot"] in WHOLE:
        return WHOLE[panels[0]["plot"]](panels[0], collected, places)
    # A panel whose trainings are not part of the scale is left out; one that waits for them says so.
    panels = tuple(p for p in panels if p["plot"] in NEEDS_NOTHING or collected.where(p.get("where")))
    across = min(collected.recipe.across, len(panels))
    down = -(-len(panels) // across)
    figure = Figure(figsize=(4.3 * across, 3.3 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    for axes, panel in zip(grid.ravel(), panels):
        AXES[panel["plot"]](axes, panel, collected)
        if panel.get("title"):
            axes.set_title(panel["title"], loc="left")
        if not axes.has_data():
            axes.text(0.5, 0.5, "no results yet", transform=axes.transAxes, ha="center", va="center")
    for axes in grid.ravel()[len(panels) :]:
        axes.set_visible(False)
    if any(_below(axes) for axes in grid.ravel()):
        figure.set_figheight((3.3 + BELOW) * down)
    elif figure.legends:
        figure.set_figheight(3.3 * down + LINE)
    return figure


def _below(axes: Axes) -> bool:
    """Whether the legend stands below the panel, and so takes from its height."""
    legend = axes.get_legend()
    return legend is not None and legend.get_bbox_to_anchor().y0 < axes.bbox.y0


__all__ = ["AXES", "NEEDS_NOTHING", "WHOLE", "draw"]
