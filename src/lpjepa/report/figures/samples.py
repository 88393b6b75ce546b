"""Pictures made of samples: violins of sparsity, nearest neighbours, attribution maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import ArrayLike

from lpjepa.report.figures.style import few_ticks, new_figure, plain, theme

Group = tuple[str, ArrayLike, ArrayLike]  # label, correct, incorrect
HATCH = "////"
DIGITS = (2, 6)  # of a similarity: at least, and at most, since float32 knows no more


def sparsity_violins(groups: Sequence[Group], xlabel: str) -> Figure:
    """Distribution of per-sample sparsity for correctly (above, plain) and incorrectly (below, hatched)
    classified samples; one row a group ``(label, correct, incorrect)``, the medians as short lines.

    Rows rather than columns: the figure stays narrow enough for a phone however many groups there are.
    """
    figure, axes = new_figure(4.4, max(2.2, 0.55 * len(groups) + 1.0))
    _violins(axes, groups)
    axes.set_xlabel(xlabel)
    _legend_of_sides(figure)
    return figure


def violin_panels(panels: Sequence[tuple[str, Sequence[Group]]], xlabel: str, across: int = 2) -> Figure:
    """The same in panels (title, groups), each with a range of its own, in rows of `across`."""
    down = -(-len(panels) // across)
    tallest = max(len(groups) for _, groups in panels)
    figure = Figure(figsize=(4.3 * across, down * (0.45 * tallest + 0.8) + 0.3), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False).ravel()
    for axes, (title, groups) in zip(grid, panels):
        few_ticks(axes, 5)
        _violins(axes, groups)
        axes.set_xlabel(xlabel)
        axes.set_title(plain(title), loc="left")
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    _legend_of_sides(figure)
    return figure


def _violins(axes: Axes, groups: Sequence[Group]) -> None:
    for position, (_, correct, incorrect) in enumerate(groups):
        _half_violin(axes, position, np.asarray(correct, dtype=float), -1, theme().correct, None)
        _half_violin(axes, position, np.asarray(incorrect, dtype=float), 1, theme().incorrect, HATCH)
    axes.set_yticks(range(len(groups)), [plain(_wrap(label)) for label, _, _ in groups])
    axes.set_ylim(len(groups) - 0.4, -0.6)  # the first group on top
    axes.grid(axis="y", visible=False)


def _legend_of_sides(figure: Figure) -> None:
    sides = [_looks(theme().correct, None), _looks(theme().incorrect, HATCH)]
    handles: Any = [tuple(Patch(**look) for look in looks) for looks in sides]
    figure.legend(handles, ["correct", "incorrect"], loc="outside lower center", ncols=2)


def _half_violin(
    axes: Axes, position: int, values: np.ndarray, side: int, colour: str, hatch: str | None
) -> None:
    """A Gaussian density estimate (Scott's bandwidth) on one side of the row, and the median."""
    if not values.size:
        return
    width = values.std() * values.size**-0.2
    if width > 0:
        at = np.linspace(values.min(), values.max(), 120)
        density = np.exp(-0.5 * ((at[:, None] - values[None, :]) / width) ** 2).mean(1)
        edge = position + side * 0.42 * density / density.max()
        for look in _looks(colour, hatch):
            axes.fill_between(at, position, edge, **look)
    axes.vlines(float(np.median(values)), position, position + side * 0.42, color=theme().ink, linewidth=1.4)


def _looks(colour: str, hatch: str | None) -> list[dict[str, Any]]:
    """A side's face, and over it the outline and hatch, which in the colour of the face nobody would see.

    They are two, since an SVG lets the background through a hatch as it does through the face under it.
    """
    return [
        {"facecolor": colour, "alpha": 0.7, "linewidth": 0},
        {"facecolor": "none", "edgecolor": theme().ink, "linewidth": 0.8, "hatch": hatch},
    ]


def _wrap(text: str, width: int = 16) -> str:
    """Break a long label once, so that it leaves the figure most of its width."""
    if len(text) <= width:
        return text
    cut = max(text.rfind(mark, 0, width + 1) for mark in " -_,") + 1 or width
    rest = text[cut:]
    return text[:cut].rstrip() + "\n" + (rest if len(rest) <= width else rest[: width - 1] + "…")


@dataclass(frozen=True)
class NeighbourRow:
    """A query and its nearest neighbours in one run; images are (H, W) or (H, W, 3), uint8 or in [0, 1].

    ``agrees`` says for each neighbour whether it has the query's label (None: labels are not known).
    """

    label: str
    query: ArrayLike
    neighbours: Sequence[ArrayLike]
    agrees: Sequence[bool] | None = None
    similarities: Sequence[float] | None = None


def neighbour_grid(rows: Sequence[NeighbourRow]) -> Figure:
    """One row a run: the query, then its neighbours from the nearest on.

    A neighbour of the query's class has a solid outline and a tick, another a dashed one and a cross: the
    colours (green and red in the paper) are not the only sign.
    """
    if not rows:
        raise ValueError("rows is empty: a neighbour grid needs at least one run")
    columns = 1 + max(len(row.neighbours) for row in rows)
    figure = Figure(figsize=(0.82 * columns + 0.2, 0.98 * len(rows) + 0.3), layout="constrained")
    grid = figure.subplots(len(rows), columns, squeeze=False)
    digits = max(_telling_digits(row.similarities or ()) for row in rows)
    for row, axes_row in zip(rows, grid):
        for axes in axes_row:
            axes.set(xticks=[], yticks=[])
            axes.grid(visible=False)
            for spine in axes.spines.values():
                spine.set_visible(False)
        _show(axes_row[0], row.query)
        axes_row[0].set_title(plain(row.label), fontsize=7.5, fontweight="bold", loc="left", pad=3)
        axes_row[0].set_xlabel("query" if row is rows[-1] else "", fontsize=7.5)
        for index, (axes, image) in enumerate(zip(axes_row[1:], row.neighbours)):
            _show(axes, image)
            if row.similarities is not None:
                axes.set_xlabel(f"{row.similarities[index]:.{digits}f}", fontsize=7, labelpad=1.5)
            if row.agrees is not None:
                _mark(axes, bool(row.agrees[index]))
    return figure


def _telling_digits(values: Sequence[float]) -> int:
    """The fewest decimals, of those allowed, that tell the values apart as well as the most do."""
    least, most = DIGITS
    shown = [len({f"{value:.{digits}f}" for value in values}) for digits in range(least, most + 1)]
    return least + shown.index(shown[-1])


def _show(axes: Axes, image: ArrayLike) -> None:
    axes.imshow(np.asarray(image), cmap="gray", interpolation="nearest")


def _mark(axes: Axes, agrees: bool) -> None:
    colour = theme().correct if agrees else theme().incorrect
    for spine in axes.spines.values():
        spine.set(visible=True, color=colour, linewidth=2.4, linestyle="-" if agrees else (0, (2, 1)))
    axes.text(
        0.96, 0.95, "✓" if agrees else "✗", transform=axes.transAxes, ha="right", va="top", fontsize=9,
        fontweight="bold", color=theme().background,
        bbox={"boxstyle": "round,pad=0.15", "facecolor": colour, "edgecolor": "none"},
    )  # fmt: skip


def attribution_overlay(
    images: Sequence[ArrayLike], maps: Sequence[tuple[str, Sequence[ArrayLike]]], least: int = 5
) -> Figure:
    """The images in the first row, then one row ``(label, maps)`` a run with its maps laid over them.

    There is room for ``least`` columns: on a page that stretches figures, a few images must not fill it.
    Maps are (h, w), non-negative, of any scale: each is stretched to [0, 1] and drawn over the grey image,
    from dark (nothing) to yellow (most).
    """
    columns = max(len(images), least)
    figure = Figure(figsize=(0.98 * columns + 0.2, 1.14 * (len(maps) + 1)), layout="constrained")
    grid = figure.subplots(len(maps) + 1, columns, squeeze=False)
    for axes in grid.ravel():
        axes.axis("off")
    for axes, image in zip(grid[0], images):
        _show(axes, image)
    grid[0][0].set_title("image", fontsize=7.5, fontweight="bold", loc="left", pad=3)
    for (label, of_run), axes_row in zip(maps, grid[1:]):
        axes_row[0].set_title(plain(label), fontsize=7.5, fontweight="bold", loc="left", pad=3)
        for axes, image, heat in zip(axes_row, images, of_run):
            grey = np.asarray(image, dtype=float)
            grey = grey.mean(-1) if grey.ndim == 3 else grey
            height, width = grey.shape
            axes.imshow(grey, cmap="gray", interpolation="nearest", extent=(0, width, height, 0))
            heat = np.asarray(heat, dtype=float)
            spread = heat.max() - heat.min()
            scaled = (heat - heat.min()) / spread if spread > 0 else np.zeros_like(heat)
            axes.imshow(
                scaled, cmap="inferno", alpha=0.55, vmin=0, vmax=1, interpolation="bilinear",
                extent=(0, width, height, 0),
            )  # fmt: skip
    return figure
