"""Methods beside each other: bars of one or two quantities, and a quantity over the downstream sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes

from lpjepa.recipes.cases import scale_of
from lpjepa.recipes.collected import Collected
from lpjepa.recipes.values import heading
from lpjepa.report.figures.style import plain_log, series_colour, series_dash, series_marker

Panel = Mapping[str, Any]


def bars(axes: Axes, panel: Panel, collected: Collected) -> None:
    """A row of bars for each training, one bar a quantity of `y`; rows without results stay empty."""
    names = panel["y"]
    labels = [entry.case.label for entry in collected.entries]
    height = 0.8 / len(names)
    for index, name in enumerate(names):
        for position, entry in enumerate(collected.entries):
            value = entry.mean(name)
            if value is None:
                continue
            at = position + (index - (len(names) - 1) / 2) * height
            axes.barh(
                at,
                value,
                height=0.92 * height,
                color=series_colour(index),
                label=heading(name) if position == 0 else "_",
            )
            axes.annotate(f" {value:.3g}", (value, at), va="center", fontsize=6.5)
    axes.set_yticks(range(len(labels)), labels, fontsize=7.5)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.12)
    axes.set_xlabel(heading(names[0]) if len(names) == 1 else "")
    if len(names) > 1 and axes.has_data():
        # Beneath: among the bars it would hide the numbers of some.
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.06), fontsize=7)


def sources(axes: Axes, panel: Panel, collected: Collected) -> None:
    """A quantity (`l0` or `l1`) of projector features over the downstream sets, a line a training.

    Markers are hollow and smaller from line to line, so that lines on each other are all seen.
    """
    wanted = list(scale_of(collected.scale)["transfer"])
    for index, entry in enumerate(collected.entries):
        values = [(i, entry.mean(f"sparsity/{name}/{panel['y']}")) for i, name in enumerate(wanted)]
        known = [(i, value) for i, value in values if value is not None]
        if not known:
            continue
        x, y = zip(*known)
        axes.plot(
            x, y, color=series_colour(index), marker=series_marker(index), linestyle=series_dash(index),
            markersize=8.5 - 0.5 * index, markerfacecolor="none", markeredgewidth=1.3,
            label=entry.case.label,
        )  # fmt: skip
    axes.set_xticks(range(len(wanted)), wanted)
    axes.set_ylabel(heading(panel["y"]))
    if axes.has_data():
        axes.set_yscale("log")
        plain_log(axes.yaxis)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), fontsize=6.5, ncols=3)
