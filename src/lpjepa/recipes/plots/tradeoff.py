"""Accuracy against the active fraction: what sparsity costs, every point named where it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from lpjepa.recipes.collected import Collected, Entry
from lpjepa.recipes.setting import described
from lpjepa.recipes.values import measured
from lpjepa.report.figures.style import series_colour, series_marker, theme

Panel = Mapping[str, Any]
SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # ticks; sparser is further to the right
POINTS = 3  # as many make a line worth showing


def tradeoff(axes: Axes, panel: Panel, collected: Collected) -> None:
    """`y` against l0 (a logarithmic axis, dense on the left): a line a group of `lines`, a point a baseline.

    Bars are standard deviations over seeds, where a training has several. The first line has its mu.
    """
    name = panel["y"]
    for index, group in enumerate(panel["lines"]):
        rows = sorted(_measured(collected.where({"group": group}), name), key=lambda row: row[1])
        if not rows:
            continue
        entries, x, y, spread = zip(*rows)
        axes.errorbar(
            x, y, yerr=_bars(spread), color=series_colour(index), marker=series_marker(index),
            markersize=5.5, elinewidth=1.0, capsize=2, label=group, zorder=3,
        )  # fmt: skip
        if index == 0:
            for entry, at, value in zip(entries, x, y):
                _name(axes, f"μ = {entry.case['mu']:g}".replace("-", "−"), at, value)
    baselines = [entry for entry in collected.entries if entry.case.group not in panel["lines"]]
    for entry, at, value, deviation in _measured(baselines, name):
        index = len(panel["lines"]) + baselines.index(entry)  # its colour, whichever others wait
        axes.errorbar(
            [at], [value], yerr=_bars([deviation]), linestyle="none", color=series_colour(index), capsize=2,
            marker=series_marker(index), markersize=6.5, elinewidth=1.0, label=entry.case.label, zorder=2,
            markerfacecolor="none", markeredgewidth=1.5,  # of those at one place all are seen
        )  # fmt: skip
    if not axes.has_data():
        return
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    low = 0.7 * low
    ticks = [share for share in SHARES if low <= share <= high]  # others would widen the axis
    axes.set_xticks(ticks, [f"{100 * share:g} %" for share in ticks])
    axes.minorticks_off()
    axes.set_xlim(1.5 * high, low)  # room for the first name
    axes.margins(y=0.12)
    axes.set_xlabel("active features of the projector (ℓ0), sparser to the right")
    axes.set_ylabel(f"accuracy, {'frozen' if name.endswith('_frozen') else 'online'} probe (%)")
    axes.set_title(described(collected), loc="right", fontsize=7.5, fontweight="normal", color=theme().muted)
    if panel.get("legend", True):  # of both panels, below them: no corner of a panel is sure to be empty
        handles, labels = axes.get_legend_handles_labels()
        axes.figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=7.5)


def _bars(deviations: Sequence[float | None]) -> list[float] | None:
    """Half lengths of the bars; none where no training has several seeds."""
    return [value or 0.0 for value in deviations] if any(deviations) else None


def worth_showing(collected: Collected) -> bool:
    """Whether the first line of the recipe has points enough."""
    panel = collected.recipe.panels[0]
    return len(_measured(collected.where({"group": panel["lines"][0]}), panel["y"])) >= POINTS


def _measured(entries: list[Entry], name: str) -> list[tuple[Entry, float, float, float | None]]:
    """Entry, l0, value and its deviation over seeds, of those that were trained and have active features."""
    found = []
    for entry in entries:
        share, value = entry.mean("l0"), measured(name, entry.case, entry.results)
        if share and value is not None:
            found.append((entry, share, value[0], value[1]))
    return found


def _name(axes: Axes, text: str, x: float, y: float) -> None:
    """Below and to the left, where a falling line leaves room."""
    axes.annotate(
        text, (x, y), xytext=(-4, -11), textcoords="offset points", ha="right",
        fontsize=7, color=theme().ink, zorder=5,
        path_effects=[withStroke(linewidth=2.5, foreground=theme().background)],  # lines pass behind it
    )  # fmt: skip
