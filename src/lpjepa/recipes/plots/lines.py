"""Lines: one quantity against another over trainings, over epochs, and features beside their target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes

from lpjepa.distributions import RectifiedGeneralizedGaussian, sigma_gn, sigma_rgn
from lpjepa.recipes.catalog import catalog
from lpjepa.recipes.collected import Collected, Entry
from lpjepa.recipes.values import FIELDS, heading, number
from lpjepa.report.figures.style import plain_log, series_colour, series_dash, series_marker, theme
from lpjepa.report.figures.training import frontier

Panel = Mapping[str, Any]
THEORY: dict[str, Any] = {"linestyle": (0, (3, 2)), "linewidth": 1.0}
FINE = 121  # points of a theoretical curve
CROWDED = 4  # lines in a legend that still finds room among the data
NEAR = np.array([0.08, 0.06])  # of the axes: names of points that are nearer would lie on each other
DECADES = 3.0  # ends of an axis whose quotient is smaller have too few ticks on a logarithmic one
PAPER_MARKERS = ("D", "p")  # hollow; one a table
PAPER_TABLES = {"cifar100": "paper, CIFAR-100 (1000 epochs)", "vit": "paper, ViT on ImageNet-100"}
ACCURACY = ("encoder_accuracy", "projector_accuracy")


def xy(axes: Axes, panel: Panel, collected: Collected) -> None:
    """`y` against `x`, a line for each value of the `series` fields; theory dashed, the paper hollow.

    `names` is a field whose value stands beside each point. Theory, frontier and the paper's points stand
    beside lines of ours that have results, never by themselves.
    """
    x_name, y_name = panel["x"], panel["y"]
    axes.set_xlabel(heading(x_name))
    axes.set_ylabel(heading(y_name))
    drawn: dict[int, list[Entry]] = {}
    for index, label, entries in series_of(collected, panel):
        points = sorted(
            (x, y) for e in entries for x, y in [(e.mean(x_name), e.mean(y_name))] if None not in (x, y)
        )
        if not points:
            continue
        drawn[index] = entries
        x, y = zip(*points)
        axes.plot(
            x, y, linestyle=series_dash(index) if panel.get("lines", True) else "none", label=label,
            color=series_colour(index), marker=series_marker(index), markersize=5,
            markerfacecolor=None if panel.get("lines", True) else "none",  # all are seen of points that meet
        )  # fmt: skip
    if not drawn:
        return
    if field := panel.get("names"):  # when all points are there: how near two of them are is a matter of all
        for index, entries in drawn.items():
            _name_points(axes, x_name, y_name, field, entries, index)
    if panel.get("theory"):
        _theories(axes, x_name, y_name, drawn)
    if panel.get("frontier") and len(drawn) > 1:
        _frontier(axes, x_name, y_name, collected, panel)
    colours = {float(e[0].case["p"]): series_colour(i) for i, e in drawn.items()} if _by_p(panel) else {}
    for marker, name in zip(PAPER_MARKERS, panel.get("paper", ())):
        _published(axes, x_name, y_name, panel, name, marker, colours)
    if panel.get("logx"):
        axes.set_xscale("log", base=2 if x_name in FIELDS else 10)
        plain_log(axes.xaxis)
        if x_name in FIELDS:  # a sweep: its own values are the ticks
            ticks = sorted({float(entry.case[x_name]) for entry in collected.entries})
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    if panel.get("names"):
        axes.margins(x=0.06, y=0.1)  # for the names of the outermost points
    if panel.get("legend", True):
        _legend(axes)


def curves(axes: Axes, panel: Panel, collected: Collected) -> None:
    """A quantity over the epochs, the mean over seeds, a line for each value of the `series` fields.

    `relative` puts trainings of different lengths on one axis, `theory` adds the target's l0, and `paper`
    where rows of the paper's table end.
    """
    name = panel["y"]
    for index, label, entries in series_of(collected, panel):
        found = [r["curves"] for e in entries for r in e.results if name in r.get("curves", {})]
        if not found:
            continue
        length = min(len(curve["epoch"]) for curve in found)
        values = np.array([[np.nan if v is None else v for v in curve[name][:length]] for curve in found])
        values = 100 * values if name in ACCURACY else values
        epochs = np.array(found[0]["epoch"][:length])
        axes.plot(
            epochs / epochs[-1] if panel.get("relative") else epochs, values.mean(0),
            color=series_colour(index), linestyle=series_dash(index),
            marker=series_marker(index), markersize=3.5, markevery=max(1, length // 8), label=label,
        )  # fmt: skip
    if panel.get("theory") and axes.has_data():
        wanted = float(target_of(collected.where(panel.get("where"))[0]).active_probability)
        axes.axhline(wanted, color=theme().target, label="target", **THEORY)
        for table in panel.get("paper", ()):
            _published_ends(axes, name, panel, table)
    low, high = axes.get_ylim()
    if name not in ACCURACY and not panel.get("linear") and axes.has_data() and high > DECADES * max(low, 0):
        axes.set_yscale("log")
        plain_log(axes.yaxis)
    axes.set_xlabel("share of the training" if panel.get("relative") else "epoch")
    names = {"l0": "ℓ0 of validation images"}
    axes.set_ylabel(
        f"{name.split('_')[0]} accuracy (%)" if name in ACCURACY else names.get(name, name.replace("_", " "))
    )
    _legend(axes)


def marginals(axes: Axes, panel: Panel, collected: Collected) -> None:
    """Distribution function of all features together beside the target's, from below their atoms at zero."""
    lowest = 1.0
    ends = [0.0]
    for entry in collected.where(panel.get("where")):
        target = target_of(entry)
        for result in entry.results[:1]:
            piece = result["pieces"].get("marginals")
            if piece is None:
                continue
            # The last is the largest value of all, far from the one before it: a line to it would be no tail.
            quantiles, levels = piece["quantiles"][:-1], np.linspace(0, 1, len(piece["quantiles"]))[:-1]
            lowest, ends = min(lowest, piece["zero"]), [*ends, quantiles[-1]]
            axes.plot(quantiles, levels, color=series_colour(0), label="features")
        high = max(ends) or float(target.icdf(torch.tensor(0.999, dtype=torch.float64)))
        x = torch.linspace(0, high, FINE, dtype=torch.float64)
        axes.plot(x, target.cdf(x), color=theme().target, label="target", **THEORY)
        axes.set_xlim(-0.02 * high, high)
        lowest = min(lowest, float(target.cdf(torch.zeros((), dtype=torch.float64))))
    axes.set_ylim(max(0.0, lowest - 0.3 * (1 - lowest)), 1 + 0.02 * (1 - lowest))
    axes.set_xlabel("feature value")
    axes.set_ylabel("distribution function")
    _legend(axes)


def series_of(collected: Collected, panel: Panel) -> list[tuple[int, str, list[Entry]]]:
    """The panel's entries by the values of its `series` fields, each with its index among all panels'."""
    fields = panel.get("series", ())
    places = list(collected.series(fields))
    own = collected.series(fields, panel.get("where"))
    return [(places.index(label), label, entries) for label, entries in own.items()]


def target_of(entry: Entry) -> RectifiedGeneralizedGaussian:
    mu, p, sigma = (entry.case[key] for key in ("mu", "p", "sigma"))
    return RectifiedGeneralizedGaussian.from_location(float(mu), float(p), sigma, dtype=torch.float64)


def _by_p(panel: Panel) -> bool:
    return list(panel.get("series", ())) == ["p"]


def _theories(axes: Axes, x_name: str, y_name: str, drawn: Mapping[int, list[Entry]]) -> None:
    """The theory of each line in its colour, or one for all where they have one target at each mu."""
    targets = {(entry.case["p"], entry.case["sigma"]) for entries in drawn.values() for entry in entries}
    if len(targets) == 1:
        _theory(
            axes, x_name, y_name, [entry for entries in drawn.values() for entry in entries], theme().target
        )
        axes.plot([], [], color=theme().target, label="theory", **THEORY)
        return
    for index, entries in drawn.items():
        _theory(axes, x_name, y_name, entries, series_colour(index))
    axes.plot([], [], color=theme().muted, label="theory", **THEORY)


def _theory(axes: Axes, x_name: str, y_name: str, entries: list[Entry], colour: str) -> None:
    """What targets between the smallest and the largest mu of the series predict."""
    values = [float(entry.case["mu"]) for entry in entries]
    mu = torch.linspace(min(values), max(values), FINE, dtype=torch.float64)
    p = torch.full_like(mu, float(entries[0].case["p"]))
    scale = sigma_gn(p) if entries[0].case["sigma"] == "gn" else sigma_rgn(p, mu)
    target = RectifiedGeneralizedGaussian(mu, scale, p)
    read = {
        "mu": lambda: mu,
        "l0": lambda: target.active_probability,
        "sparsity_l1": lambda: 1 - target.expected_l1_metric,
        "entropy": target.entropy,
    }
    x, y = read[x_name](), read[y_name]()
    axes.plot(x, y, color=colour, label="_theory", **THEORY)


def _name_points(axes: Axes, x_name: str, y_name: str, field: str, entries: list[Entry], index: int) -> None:
    """The value of `field` above each point, below for every other series; near ones share a name.

    Towards the middle of the panel, so that no name leaves it.
    """
    above, spans = index % 2 == 0, np.maximum(axes.dataLim.size, 1e-12)
    middle = axes.dataLim.intervalx.mean()
    groups: list[tuple[np.ndarray, list[float]]] = []
    for entry in sorted(entries, key=lambda entry: float(entry.case[field])):
        x, y = entry.mean(x_name), entry.mean(y_name)
        if x is None or y is None:
            continue
        place = np.array([x, y])
        near = next((names for at, names in groups if (np.abs(place - at) < NEAR * spans).all()), None)
        if near is None:
            groups.append((place, near := []))
        near.append(float(entry.case[field]))
    for at, values in groups:
        axes.annotate(
            ", ".join(f"{value:g}" for value in values).replace("-", "−"), tuple(at), fontsize=6.5,
            xytext=(-3 if at[0] < middle else 3, 5 if above else -5), textcoords="offset points",
            va="bottom" if above else "top", ha="left" if at[0] < middle else "right",
            color=series_colour(index),
        )  # fmt: skip


def _frontier(axes: Axes, x_name: str, y_name: str, collected: Collected, panel: Panel) -> None:
    known = [(e.mean(x_name), e.mean(y_name)) for e in collected.where(panel.get("where"))]
    points = [(x, y) for x, y in known if x is not None and y is not None]
    if len(points) < 2:
        return
    on_it = frontier([-x for x, _ in points], [y for _, y in points])  # more zeros are better here
    axes.plot(
        [points[i][0] for i in on_it], [points[i][1] for i in on_it],
        color=theme().muted, linewidth=3.5, alpha=0.35, label="frontier", zorder=1,
    )  # fmt: skip


def _published(
    axes: Axes, x_name: str, y_name: str, panel: Panel, name: str, marker: str, colours: Mapping[float, str]
) -> None:
    """Rows of one of the paper's tables in the panel's quantities, those with the same kind of target.

    `colours` are those of lines of ours by p; where we have none of a row's p it is black.
    """
    recipe = catalog()[name]
    shown = False
    for case in _targeted(recipe, panel):
        read = lambda what, case=case: (
            case[what] if what in ("mu", "p") else _paper_number(recipe, case, what)
        )
        x, y = read(x_name), read(y_name)
        if x is not None and y is not None:
            axes.plot(
                [x], [y], linestyle="none", marker=marker, markersize=6, markerfacecolor="none",
                markeredgecolor=colours.get(float(case["p"]), theme().ink), label="_",
            )  # fmt: skip
            shown = True
    if shown:
        axes.plot(
            [], [], linestyle="none", marker=marker, markersize=6, markerfacecolor="none",
            markeredgecolor=theme().ink, label=PAPER_TABLES[name],
        )  # fmt: skip


def _published_ends(axes: Axes, column: str, panel: Panel, name: str) -> None:
    """What one of the paper's tables has after its training, at the right end, with p."""
    recipe = catalog()[name]
    right = axes.get_xlim()[1]
    for case in _targeted(recipe, panel):
        value = _paper_number(recipe, case, column)
        if value is not None:
            label = "_" if PAPER_TABLES[name] in axes.get_legend_handles_labels()[1] else PAPER_TABLES[name]
            axes.plot(
                [right], [value], linestyle="none", marker="D", markersize=6, markerfacecolor="none",
                markeredgecolor=theme().ink, label=label, clip_on=False,
            )  # fmt: skip
            axes.annotate(
                f"p = {case['p']:g}", (right, value), xytext=(6, 0), textcoords="offset points", va="center",
                fontsize=6.5,
            )  # fmt: skip
    axes.set_xlim(right=right)


def _targeted(recipe: Any, panel: Panel) -> list[Any]:
    """The paper's rows of Rectified LpJEPA that have the fields of the panel's entries."""
    wanted = {key: value for key, value in panel.get("where", {}).items() if key != "group"}
    return [
        case
        for case in recipe.cases("paper")
        if case["method"] == "rgn" and all(case[key] == value for key, value in wanted.items())
    ]


def _paper_number(recipe: Any, case: Any, name: str) -> float | None:
    if name.startswith("sparsity_"):
        value = number(recipe.published(case, name.removeprefix("sparsity_")))
        return None if value is None else 1 - value
    return number(recipe.published(case, name))


def _legend(axes: Axes) -> None:
    """Where there is room, or below the panel when there are too many lines for that."""
    count = len(axes.get_legend_handles_labels()[1])
    if count > CROWDED:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize=7, ncols=2)
    elif count:
        axes.legend(loc="best", fontsize=7)
