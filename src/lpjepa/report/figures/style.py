"""One look for every figure: two themes, one palette, and how a figure becomes a file.

The palette is Okabe and Ito's, which people with the common colour deficiencies can tell apart; its colours
are lightened for the dark theme. Runs differ in marker and dash as well, so that a figure also reads in grey.
Figures are built on ``matplotlib.figure.Figure`` directly: no pyplot, hence no global state and no display.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

MARKERS = ("o", "s", "^", "D", "v")  # the shapes that markup.py and chart.js draw too
TICKS = 7  # intervals between ticks of a horizontal axis, at most
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))


@dataclass(frozen=True)
class Theme:
    """Colours of one theme; ``series`` is cycled over the runs."""

    name: str
    background: str
    ink: str
    muted: str
    grid: str
    target: str
    correct: str
    incorrect: str
    series: tuple[str, ...]


LIGHT = Theme(
    name="light",
    background="#ffffff",
    ink="#1c2430",
    muted="#566172",
    grid="#e3e7ed",
    target="#1c2430",
    correct="#00805d",
    incorrect="#c44700",
    series=("#0072b2", "#d55e00", "#009e73", "#b85c92", "#b57a00", "#3b9bd4", "#6a5acd", "#5f6b7a"),
)
DARK = Theme(
    name="dark",
    background="#161b22",
    ink="#e6eaf0",
    muted="#a3adba",
    grid="#2c3440",
    target="#e6eaf0",
    correct="#3ccfa0",
    incorrect="#ff8a4c",
    series=("#58b0e8", "#ff8a4c", "#3ccfa0", "#e49ac4", "#f0b840", "#8cd0f5", "#a99cf0", "#aab4c0"),
)
_current: ContextVar[Theme] = ContextVar("theme", default=LIGHT)


def theme() -> Theme:
    """The theme in force (light unless inside :func:`using`)."""
    return _current.get()


def series_colour(index: int) -> str:
    """Colour of the run with this index, the same in every figure and in the page's tables."""
    return theme().series[index % len(theme().series)]


def series_marker(index: int) -> str:
    return MARKERS[index % len(MARKERS)]


def series_dash(index: int) -> Any:
    """Solid for the first eight runs, then dashed, so that a colour's second use still differs."""
    return DASHES[(index // len(LIGHT.series)) % len(DASHES)]


def plain(label: str) -> str:
    """A user's text as matplotlib shows it: no mathematics between dollars, no label hidden by "_"."""
    shown = label.replace("\\", "\\\\").replace("$", r"\$") if "$" in label else label
    return f" {shown}" if shown.startswith("_") else shown


def shortened(label: str, most: int = 44) -> str:
    """A name that leaves a title room for what else it says."""
    return label if len(label) <= most else label[: most - 1].rstrip(" ,_-") + "…"


@contextmanager
def using(chosen: Theme) -> Iterator[Theme]:
    """Draw with ``chosen``: figures must be both built and saved inside."""
    token = _current.set(chosen)
    settings: dict[Any, Any] = {
        "figure.facecolor": chosen.background,
        "savefig.facecolor": chosen.background,
        "axes.facecolor": chosen.background,
        "axes.edgecolor": chosen.muted,
        "axes.labelcolor": chosen.ink,
        "text.color": chosen.ink,
        "xtick.color": chosen.muted,
        "ytick.color": chosen.muted,
        "xtick.labelcolor": chosen.ink,
        "ytick.labelcolor": chosen.ink,
        "grid.color": chosen.grid,
        "grid.linewidth": 0.7,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlesize": 10,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.labelsize": 9,
        "xtick.labelsize": 8.5,
        "ytick.labelsize": 8.5,
        "legend.fontsize": 8,
        "legend.frameon": False,
        "lines.linewidth": 1.6,
        "hatch.linewidth": 0.7,
        "font.family": "DejaVu Sans",  # carried by matplotlib: the same letters on every machine
        "svg.fonttype": "path",
        "svg.hashsalt": "lpjepa",  # the same figure gives the same bytes
        "image.composite_image": False,  # photographs stay apart in an SVG, and are not drawn into one first
        "figure.dpi": 100,
    }
    try:
        with mpl.rc_context(settings):
            yield chosen
    finally:
        _current.reset(token)


def new_figure(width: float = 4.4, height: float = 3.1) -> tuple[Figure, Axes]:
    """One pair of axes; the default width keeps 9 pt letters legible on a phone and in a paper's column."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    few_ticks(axes)
    return figure, axes


def few_ticks(axes: Axes, most: int = TICKS) -> None:
    """As many ticks whatever the width: matplotlib's own choice moves with the layout and cuts the last."""
    axes.xaxis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))


def legend_of(axes: Axes) -> None:
    """A legend inside the axes while it is short, and below them where it would cover the curves."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) <= 3:
        axes.legend(loc="best", handlelength=2.4)
    else:
        assert isinstance(axes.figure, Figure)
        axes.figure.legend(handles, labels, loc="outside lower center", ncols=2, handlelength=2.4)


def plain_log(axis: Axis) -> None:
    """Plain numbers on a logarithmic axis whose data are drawn: decades, with 2 and 5 where there are few."""
    low, high = sorted(axis.get_view_interval())
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 300 * low else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def to_bytes(figure: Figure, kind: str, dpi: int = 200) -> bytes:
    """The figure as ``"svg"`` or ``"png"`` bytes, without a date, so that equal figures give equal bytes."""
    engine = figure.get_layout_engine()
    if engine is not None:  # once: savefig would lay out, and draw once more to do so, for every file
        figure.set_dpi(dpi)  # letters are of whole pixels: at a smaller one they would be narrower
        engine.execute(figure)
        figure.set_layout_engine(None)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # A run may be named in a script that DejaVu lacks: it shows boxes, and that is not worth a warning.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=metadata)
    return buffer.getvalue()


def render(build: Callable[[], Figure], chosen: Theme, kind: str = "svg", dpi: int = 200) -> bytes:
    """Build and encode a figure in one theme."""
    with using(chosen):
        return to_bytes(build(), kind, dpi)


def in_the_dark(svg: bytes) -> bytes:
    """A figure of the light theme in the dark one: themes differ in nothing but their colours."""
    return re.sub(rb'(?<=: |=")#[0-9a-f]{6}\b', lambda colour: _DARKENED.get(colour[0], colour[0]), svg)


def _colours(of: Theme) -> list[bytes]:
    _, *single, series = astuple(of)
    return [colour.encode() for colour in (*single, *series)]


_DARKENED = dict(zip(_colours(LIGHT), _colours(DARK)))


def save(build: Callable[[], Figure], folder: Path, name: str) -> list[Path]:
    """Write ``name.svg`` and ``name.png`` (light theme, for papers) into ``folder``; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with using(LIGHT):
        figure = build()
        for kind in ("svg", "png"):
            paths.append(folder / f"{name}.{kind}")
            paths[-1].write_bytes(to_bytes(figure, kind))
    return paths
