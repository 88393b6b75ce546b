"""The pictures of `lpjepa bench`, in the look of all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lpjepa.bench.growth import AXES, fitted_exponent
from lpjepa.report.figures.style import plain_log, series_colour, series_marker, theme

Rows = Sequence[Mapping[str, Any]]


def losses(rows: Rows) -> Figure:
    """Milliseconds of every loss at every size, with quartiles, on a logarithmic axis."""
    sizes = list(dict.fromkeys(row["row"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    figure = Figure(figsize=(max(5.0, 1.2 + 1.5 * len(sizes)), 3.9), layout="constrained")
    axes = figure.add_subplot()
    for number, method in enumerate(methods):
        chosen = [row for row in rows if row["method"] == method]
        middle = [row["ms"] for row in chosen]
        axes.errorbar(
            [sizes.index(row["row"]) + 0.09 * (number - (len(methods) - 1) / 2) for row in chosen],
            middle,
            yerr=_around(chosen, "ms", "low", "high"),
            linestyle="none",
            marker=series_marker(number),
            color=series_colour(number),
            label=method,
            markersize=5,
        )
    axes.set_yscale("log")
    plain_log(axes.yaxis)
    axes.set_xticks(range(len(sizes)), [size.replace("x", " × ") for size in sizes])
    axes.set_xlim(-0.6, len(sizes) - 0.4)
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("milliseconds, forward and backward")
    axes.set_xlabel("samples × dimensions × slices")
    axes.set_title("Time of the loss")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(methods)))
    return figure


def quality(rows: Rows) -> Figure:
    """Variance of the estimate by kind of directions."""
    label = lambda row: f"{row['features']}, {row['slices']} {row['directions']}"
    shown = [(label(row), row["variance_ratio"], None, row["directions"] != "random") for row in rows]
    return _bars(shown, "Variance of the estimated loss", "of that with independent directions")


def step(rows: Rows) -> Figure:
    """Milliseconds of every kind of step and of its bare encoder."""
    shown = [
        (f"{row['kind']}: {row['what']}", row["ms"], (row["low"], row["high"]), row["what"] == "step")
        for row in rows
    ]
    return _bars(shown, "The training step and the bare encoder", "milliseconds")


def startup(rows: Rows) -> Figure:
    """Seconds until a training runs, by what the caches hold."""
    shown = [(f"{row['caches']} caches", row["startup_s"], None, True) for row in rows]
    return _bars(shown, "Start-up of a training", "seconds")


def data(rows: Rows) -> Figure:
    """Images a second of views and of decoding, which differ too much for one axis."""
    stages = list(dict.fromkeys(row["stage"] for row in rows))
    counts = [sum(row["stage"] == stage for row in rows) for stage in stages]
    figure = Figure(figsize=(6.4, 0.9 * len(stages) + 0.36 * len(rows)), layout="constrained")
    panels = figure.subplots(len(stages), squeeze=False, gridspec_kw={"height_ratios": counts})[:, 0]
    for panel, stage in zip(panels, stages):
        chosen = [row for row in rows if row["stage"] == stage]
        shown = [
            (row["how"], row["images_per_second"], (row["slow"], row["fast"]), number == 0 or "JPEG" in stage)
            for number, row in enumerate(chosen)
        ]
        _draw_bars(panel, shown, stage, "images a second")
    return figure


def evaluation(rows: Rows) -> Figure:
    """Images a second of extraction and of the bare encoder; the probe's seconds stand in the title."""
    timed = [row for row in rows if row.get("ms") is not None]
    probes = [f"{row['what']} on {row['size']}: {row['seconds']:.2f} s" for row in rows if "seconds" in row]
    shown = [
        (row["what"], row["ms"], (row["low"], row["high"]), row["what"] == "extraction") for row in timed
    ]
    return _bars(shown, "\n".join(["Features of one set of images", *probes]), "milliseconds")


Bar = tuple[str, float, "tuple[float, float] | None", bool]  # label, value, quartiles, ours


def _bars(shown: Sequence[Bar], title: str, unit: str) -> Figure:
    figure = Figure(figsize=(6.4, 1.1 + 0.36 * len(shown)), layout="constrained")
    _draw_bars(figure.add_subplot(), shown, title, unit)
    return figure


def _draw_bars(axes: Axes, shown: Sequence[Bar], title: str, unit: str) -> None:
    """A horizontal bar each, its quartiles upon it and its value beside it."""
    ends = []
    for place, (_, value, quartiles, ours) in enumerate(shown):
        low, high = quartiles or (value, value)
        error = [[max(0.0, value - low)], [max(0.0, high - value)]] if quartiles else None
        axes.barh(
            place, value, xerr=error, color=series_colour(0 if ours else 7), ecolor=theme().ink, height=0.62
        )
        ends.append(max(value, high))
    for place, (_, value, _, _) in enumerate(shown):
        text = f"{value:,.0f}" if value >= 1e3 else f"{value:.3g}"
        axes.text(ends[place] + 0.012 * max(ends), place, text, va="center", fontsize=8.5)
    axes.set_yticks(range(len(shown)), [label for label, *_ in shown])
    axes.set_xlim(0, 1.17 * max(ends))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(unit)
    axes.set_title(title)


def growth(rows: Rows) -> Figure:
    """Time and memory over samples, dimensions and slices, each with the line of its fitted exponent."""
    figure = Figure(figsize=(8.4, 5.0), layout="constrained")
    panels = figure.subplots(2, 3, sharey="row")
    names = dict(zip(AXES, ("samples", "dimensions", "slices")))
    for column, axis in enumerate(AXES):
        chosen = [row for row in rows if row["axis"] == axis]
        for panel, key, colour in ((panels[0, column], "ms", 0), (panels[1, column], "peak_MB", 1)):
            known = [row for row in chosen if row[key]]
            _fitted(panel, [row["size"] for row in known], [row[key] for row in known], colour)
        panels[1, column].set_xlabel(names[axis])
        panels[0, column].set_title(f"over {names[axis]}")
    panels[0, 0].set_ylabel("milliseconds")
    panels[1, 0].set_ylabel("peak megabytes")
    for panel in panels.flat:
        plain_log(panel.yaxis)
    return figure


def _fitted(panel: Axes, sizes: list[float], values: list[float], colour: int) -> None:
    panel.set_xscale("log")
    panel.set_yscale("log")
    if len(sizes) < 2:
        return
    panel.plot(sizes, values, linestyle="none", marker=series_marker(colour), color=series_colour(colour))
    exponent = fitted_exponent(sizes, values)
    # Through the geometric means, as least squares in logarithms goes.
    middle, height = (_geometric_mean(x) for x in (sizes, values))
    panel.plot(
        sizes,
        [height * (size / middle) ** exponent for size in sizes],
        color=series_colour(colour),
        alpha=0.7,
    )
    panel.text(0.06, 0.9, f"exponent {exponent:.2f}", transform=panel.transAxes, fontsize=8.5)
    panel.set_xticks(sizes, [f"{size:g}" for size in sizes])
    panel.minorticks_off()


def processes(rows: Rows) -> Figure:
    """CPU time of a rank over the number of processes, beside the ideal 1/W, and the bytes it exchanges."""
    figure = Figure(figsize=(7.4, 3.3), layout="constrained")
    left, right = figure.subplots(1, 2)
    worlds = [row["world"] for row in rows]
    left.errorbar(
        worlds,
        [row["cpu_ms"] for row in rows],
        yerr=_around(rows, "cpu_ms", "low", "high"),
        marker=series_marker(0),
        color=series_colour(0),
        label="measured",
    )
    start = rows[0]["cpu_ms"] * worlds[0]
    left.plot(worlds, [start / world for world in worlds], linestyle="--", color=theme().muted, label="1/W")
    left.set_title("Work of one rank")
    left.set_ylabel("CPU milliseconds")
    left.set_xscale("log")
    left.set_yscale("log")
    plain_log(left.yaxis)
    left.legend()
    for number, (key, name) in enumerate((("gathered", "features gathered"), ("scattered", "gradients"))):
        right.plot(
            worlds,
            [row[key] / 1e6 for row in rows],
            marker=series_marker(number),
            linestyle="-" if number == 0 else "--",
            color=series_colour(number),
            label=name,
        )
    right.set_title("Payload of its collectives")
    right.set_ylabel("megabytes")
    right.set_ylim(bottom=0)
    right.set_xscale("log")
    right.legend(loc="lower right")
    for panel in (left, right):
        panel.set_xticks(worlds, [str(world) for world in worlds])
        panel.minorticks_off()
        panel.set_xlabel("processes")
    return figure


def cost(rows: Rows) -> Figure:
    """Predicted time of the loss by its parts, and its share of the step, over the number of GPUs."""
    figure = Figure(figsize=(7.8, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    worlds = [row["world"] for row in rows]
    parts = {"products_ms": "products", "sort_ms": "sorting", "draw_ms": "drawing", "link_ms": "link"}
    for number, (key, name) in enumerate(parts.items()):
        shown = [(row["world"], row[key]) for row in rows if row[key] > 0]
        left.plot(
            [world for world, _ in shown],
            [value for _, value in shown],
            marker=series_marker(number),
            color=series_colour(number),
            label=name,
            markersize=4,
        )
    left.plot(worlds, [row["loss_ms"] for row in rows], color=theme().ink, linestyle="--", label="loss")
    left.set_yscale("log")
    plain_log(left.yaxis)
    left.set_title("Time of the loss on one rank")
    left.set_ylabel("predicted milliseconds")
    right.plot(worlds, [100 * row["share"] for row in rows], marker="o", color=series_colour(0), markersize=4)
    right.set_ylim(0, 100)
    right.set_title("Share of the step")
    right.set_ylabel("per cent")
    for panel in (left, right):
        panel.set_xscale("log", base=2)
        panel.set_xticks(worlds[::2], [str(world) for world in worlds[::2]])
        panel.set_xlabel("GPUs")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def embeddings(rows: Rows) -> Figure:
    """Bytes per image and queries per second against the active fraction, one line a form."""
    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    panels = figure.subplots(1, 3)
    forms = list(dict.fromkeys(row["form"] for row in rows))
    for number, form in enumerate(forms):
        chosen = sorted((row for row in rows if row["form"] == form), key=lambda row: row["active"])
        look = {"color": series_colour(number), "marker": series_marker(number), "label": form}
        active = [row["active"] for row in chosen]
        panels[0].plot(active, [row["bytes_per_image"] for row in chosen], **look)
        for panel, kind in zip(panels[1:], ("single", "batch")):
            speed, slow, fast = (f"{kind}_{key}" for key in ("per_second", "slow", "fast"))
            around = _around(chosen, speed, slow, fast)
            panel.errorbar(active, [row[speed] for row in chosen], yerr=around, **look)
    for panel, title in zip(
        panels, ("Bytes per image", "Queries/s, one at a time", "Queries/s, all at once")
    ):
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_title(title)
        panel.set_xlabel("active fraction, measured")
        for axis in (panel.xaxis, panel.yaxis):
            plain_log(axis)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(forms))
    return figure


def _around(rows: Rows, value: str, low: str, high: str) -> list[list[float]]:
    """Distances down to the lower and up to the upper quartile."""
    return [
        [max(0.0, row[value] - row[low]) for row in rows],
        [max(0.0, row[high] - row[value]) for row in rows],
    ]


def _geometric_mean(values: Sequence[float]) -> float:
    product = 1.0
    for value in values:
        product *= value ** (1 / len(values))
    return product
