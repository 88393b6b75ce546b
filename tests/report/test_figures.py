"""Figures: what is drawn is what was given, and the files are valid."""

import io
import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, StepPatch
from matplotlib.text import Text
from PIL import Image

from lpjepa.report import figures
from lpjepa.report.figures.style import MARKERS, in_the_dark, render, series_colour, shortened, to_bytes
from lpjepa.report.figures.training import frontier
from lpjepa.report.interpretation import feature_sheet, prediction_sheet

RNG = np.random.default_rng(0)
UNIT = np.linspace(0.01, 1, 50)


def drawn(figure, label):
    """The line with this label, as (x, y)."""
    (line,) = [line for line in figure.axes[0].get_lines() if line.get_label() == label]
    return np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)


def test_training_curve_draws_values_and_predictions():
    first = figures.Curve("dense", [1, 2, 3], [0.9, 0.6, 0.5], 0.5, 0)
    second = figures.Curve("sparse", [1, 2, 3], [0.8, 0.3, 0.1], 0.05, 1)
    figure = figures.training_curve([first, second], "l0")
    for curve in (first, second):
        x, y = drawn(figure, curve.label)
        np.testing.assert_array_equal(x, curve.steps)
        np.testing.assert_array_equal(y, curve.values)
    levels = [li.get_ydata()[0] for li in figure.axes[0].get_lines() if li.get_label() == "_prediction"]
    assert levels == [0.5, 0.05]
    assert figure.axes[0].get_ylabel() == "l0"
    assert figure.axes[0].get_xlabel() == "epoch"


@pytest.mark.parametrize("epochs", [2, 3, 7, 28, 1000])
def test_epochs_are_whole(epochs):
    steps = np.linspace(0.2, epochs, 50)
    axes = figures.training_curve([figures.Curve("run", steps, steps)], "y").axes[0]
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert 2 <= len(ticks) <= 8
    assert all(tick == round(tick) for tick in ticks)


def test_runs_differ_in_more_than_colour():
    curves = [figures.Curve(f"run {i}", [0, 1], [i, i], None, i) for i in range(10)]
    lines = figures.training_curve(curves, "y").axes[0].get_lines()
    looks = {(line.get_marker(), str(line.get_linestyle()), line.get_color()) for line in lines}
    assert len(looks) == 10
    assert len({line.get_marker() for line in lines[:8]}) == len(MARKERS)


@pytest.mark.parametrize("seed", range(20))
def test_frontier_holds_exactly_the_runs_that_none_beats(seed):
    rng = np.random.default_rng(seed)
    sparsity, accuracy = rng.integers(1, 8, 15) / 10, rng.integers(50, 60, 15) / 100
    kept = set(frontier(sparsity, accuracy).tolist())
    points = [(s, a) for s, a in zip(sparsity, accuracy)]
    beaten = lambda p: any(q != p and q[0] <= p[0] and q[1] >= p[1] for q in points)
    assert {points[i] for i in kept} == {p for p in points if not beaten(p)}
    assert len({points[i] for i in kept}) == len(kept)


def test_pareto_points_are_the_runs():
    figure = figures.pareto_frontier(["a", "b", "c"], [0.5, 0.1, None], [0.99, 0.98, 0.9], [0.97, None, 0.9])
    axes = figure.axes[0]
    points = sorted(
        (float(li.get_xdata()[0]), float(li.get_ydata()[0]))
        for li in axes.get_lines()
        if li.get_linestyle() == "None"
    )
    assert points == [(0.1, 98.0), (0.5, 97.0), (0.5, 99.0)]  # the run without sparsity is left out
    assert axes.xaxis_inverted()


def test_histogram_counts_every_feature_once():
    fraction = np.concatenate([RNG.uniform(0.1, 0.3, 97), [0.0, 0.0, 1.0]])
    figure = figures.active_fraction_histogram(fraction, 0.2)
    axes = figure.axes[0]
    assert sum(patch.get_height() for patch in axes.patches) == 100
    assert axes.get_title(loc="left") == "2 dead, 1 always on of 100"
    assert {round(float(li.get_xdata()[0]), 6) for li in axes.get_lines()} == {0.2, round(fraction.mean(), 6)}


def test_marginal_integrates_to_the_active_fraction_and_shows_both_atoms():
    values = np.concatenate([np.zeros(700), RNG.exponential(1.0, 300)])
    x = np.linspace(1e-6, 8, 200)
    figure = figures.feature_marginals(values, (x, 0.3 * np.exp(-x)), atom=0.7)
    (stairs,) = [patch for patch in figure.axes[0].patches if isinstance(patch, StepPatch)]
    heights, edges, _ = stairs.get_data()
    inside = (values[values > 0] <= edges[-1]).sum() / 1000
    assert np.sum(heights * np.diff(edges)) == pytest.approx(inside)
    np.testing.assert_array_equal(figure.axes[0].get_lines()[0].get_ydata(), 0.3 * np.exp(-x))
    atoms = [float(line.get_ydata()[0]) for line in figure.axes[1].get_lines()]
    assert atoms == [0.7, 0.7]


def test_dense_marginal_has_no_atom():
    figure = figures.feature_marginals(RNG.normal(size=500), rectified=False)
    assert len(figure.axes) == 1


def test_qq_lines_are_the_quantiles():
    features, target = np.sort(RNG.normal(size=(3, 9))), np.sort(RNG.normal(size=(3, 9)))
    lines = figures.qq_plot(features, target).axes[0].get_lines()[1:]
    for line, y, x in zip(lines, features, target, strict=True):
        np.testing.assert_array_equal(line.get_xdata(), x)
        np.testing.assert_array_equal(line.get_ydata(), y)
    with pytest.raises(ValueError, match="one shape"):
        figures.qq_plot(features, target[:, :4])


def test_spectrum_falls():
    figure = figures.covariance_spectrum([0.1, 3.0, 1.0], [1.0, 1.0, 1.0], 1.0)
    np.testing.assert_array_equal(drawn(figure, "features")[1], [3.0, 1.0, 0.1])
    np.testing.assert_array_equal(drawn(figure, "features")[0], [1, 2, 3])


@pytest.mark.parametrize("eigenvalues", [[2.0, 1e-3, 1e-17, 0.0], [0.0, 0.0]])
def test_spectrum_of_dead_features_keeps_a_sane_axis(eigenvalues):
    low, high = figures.covariance_spectrum(eigenvalues, variance=0.5).axes[0].get_ylim()
    assert 1e-4 < low < high < 10


def test_violins_mark_medians_and_bear_degenerate_groups():
    groups = [
        ("a", RNG.uniform(0, 1, 99), RNG.uniform(1, 2, 99)),
        ("b", np.full(5, 0.3), []),
        ("c", [0.1], [0.2]),
    ]
    axes = figures.sparsity_violins(groups, "l1").axes[0]
    medians = [seg[0][0] for c in axes.collections for seg in getattr(c, "get_segments", list)()]
    expected = [np.median(side) for _, *sides in groups for side in sides if len(side)]
    np.testing.assert_allclose(medians, expected)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]


@pytest.mark.parametrize(("low", "high"), [(0.2394, 0.3721), (0.5171, 0.6472), (0.2933, 0.445)])
def test_the_last_tick_label_is_inside_the_figure(low, high):
    values = np.linspace(low, high, 50)
    with figures.using(figures.LIGHT):
        figure = figures.sparsity_violins([("first-run-with-a-long-name", values, values[:20])], "l1")
        to_bytes(figure, "svg")
    renderer, right = FigureCanvasAgg(figure).get_renderer(), figure.axes[0].get_xlim()[1]
    labels = [label for label in figure.axes[0].get_xticklabels() if label.get_position()[0] <= right]
    assert labels
    assert all(label.get_window_extent(renderer).x1 < figure.bbox.width for label in labels)


@pytest.mark.parametrize("theme", [figures.LIGHT, figures.DARK], ids=lambda theme: theme.name)
def test_the_hatch_of_the_incorrect_is_seen(theme):
    with figures.using(theme):
        figure = figures.sparsity_violins([("a", UNIT, UNIT)], "l1")
        faces = [area.get_facecolor()[0] for area in figure.axes[0].collections if len(area.get_facecolor())]
        hatched = [area for area in figure.axes[0].collections if area.get_hatch()]
    in_legend = [patch for patch in figure.legends[0].findobj(Patch) if patch.get_hatch()]
    assert len(hatched) == len(in_legend) == 1
    *colour, alpha = faces[-1]  # the incorrect are drawn last; the background shines through
    face = to_hex(alpha * np.array(colour) + (1 - alpha) * np.array(to_rgb(theme.background)))
    for area in (*hatched, *in_legend):
        edge = np.atleast_2d(area.get_edgecolor())[0]  # the hatch's colour too
        assert edge[3] == 1
        assert contrast(to_hex(edge), face) >= 3.0


@pytest.mark.parametrize(
    ("similarities", "shown"),
    [
        ([0.9, 0.8, 0.7], ["0.90", "0.80", "0.70"]),
        ([0.9989, 0.9985, 0.9912], ["0.9989", "0.9985", "0.9912"]),
        ([0.9, 0.9, 0.85], ["0.90", "0.90", "0.85"]),
        ([0.99999991, 0.9999999, 0.5], ["1.00", "1.00", "0.50"]),  # what float32 cannot tell apart
    ],
)
def test_similarities_have_the_digits_that_tell_them_apart(similarities, shown):
    images = np.zeros((4, 8, 8))
    row = figures.NeighbourRow("run", images[0], list(images[1:]), None, similarities)
    assert [axes.get_xlabel() for axes in figures.neighbour_grid([row]).axes[1:]] == shown


def test_neighbours_are_marked_by_colour_outline_and_sign():
    images = RNG.integers(0, 255, (4, 8, 8, 3)).astype(np.uint8)
    row = figures.NeighbourRow("run", images[0], list(images[1:]), [True, False, True], [0.9, 0.8, 0.7])
    figure = figures.neighbour_grid([row, row])
    assert len(figure.axes) == 8
    for axes, image in zip(figure.axes, [*images, *images], strict=True):
        np.testing.assert_array_equal(axes.get_images()[0].get_array(), image)
    signs = [axes.texts[0].get_text() for axes in figure.axes[1:4]]
    dashes = [str(axes.spines["left"].get_linestyle()) for axes in figure.axes[1:4]]
    colours = [to_hex(axes.spines["left"].get_edgecolor()) for axes in figure.axes[1:4]]
    assert signs == ["✓", "✗", "✓"]
    assert dashes[0] == dashes[2] != dashes[1]
    assert colours[0] == colours[2] != colours[1]
    with pytest.raises(ValueError, match="rows is empty"):
        figures.neighbour_grid([])


def test_attribution_covers_its_image_and_is_stretched():
    images = [RNG.random((16, 12, 3)), RNG.random((16, 12))]
    heat = np.arange(12.0).reshape(4, 3)
    figure = figures.attribution_overlay(images, [("run", [heat, np.zeros((4, 3))])])
    shown = [axes.get_images() for axes in figure.axes if len(axes.get_images()) == 2]
    (under, over), (_, flat) = shown
    assert list(under.get_extent()) == list(over.get_extent()) == [0, 12, 16, 0]
    np.testing.assert_allclose(over.get_array(), heat / 11)
    assert not np.asarray(flat.get_array()).any()


def test_files_are_valid_and_the_same_every_time(tmp_path):
    build = lambda: figures.training_curve([figures.Curve("$a^ _b", [1, 2], [1.0, 2.0], 1.5)], "y", log=True)
    svg, png = figures.save(build, tmp_path / "figures", "curve")
    with Image.open(png) as image:
        image.load()
        assert image.size == (880, 620)
    assert ElementTree.parse(svg).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert svg.read_bytes() == render(build, figures.LIGHT, "svg")


def test_themes_paint_their_own_background_and_series():
    build = lambda: figures.training_curve([figures.Curve("run", [1, 2], [1.0, 2.0])], "y")
    for theme in (figures.LIGHT, figures.DARK):
        with Image.open(io.BytesIO(render(build, theme, "png", 50))) as image:
            assert "#{:02x}{:02x}{:02x}".format(*image.convert("RGB").getpixel((0, 0))) == theme.background
        with figures.using(theme):
            assert series_colour(0) == theme.series[0] == to_hex(build().axes[0].get_lines()[0].get_color())


VECTOR = {
    "training": lambda: figures.training_curve(
        [figures.Curve(f"run {i}", [1, 2], [1.0, i + 2.0], 1.5, i) for i in range(10)], "y", log=True
    ),
    "pareto": lambda: figures.pareto_frontier("ab", [0.5, 0.1], [0.99, 0.98], [0.97, None]),
    "histogram": lambda: figures.active_fraction_histogram(UNIT, 0.2, 3),
    "marginals": lambda: figures.feature_marginals(np.append(UNIT, 0), (UNIT, UNIT), 0.3, True, 1),
    "qq": lambda: figures.qq_plot(UNIT[None], UNIT[None], 5),
    "spectrum": lambda: figures.covariance_spectrum(UNIT, UNIT**2, 0.5, 2),
    "violins": lambda: figures.sparsity_violins([("a", UNIT, UNIT**2)], "l1"),
}


@pytest.mark.parametrize("build", VECTOR.values(), ids=VECTOR)
def test_the_dark_drawing_is_the_light_one_in_dark_colours(build):
    # The names of markers and hatches are made from their colours too.
    plain = lambda svg: re.sub(rb'(?<=id="|f="#|rl\(#)[mh][0-9a-f]{10}', b"name", svg)
    light, dark = (render(build, theme, "svg") for theme in (figures.LIGHT, figures.DARK))
    assert plain(in_the_dark(light)) == plain(dark) != plain(light)


def test_feature_sheet_places_every_image_in_its_row(tmp_path):
    images = RNG.integers(0, 255, (2, 3, 4, 8, 3)).astype(np.uint8)  # wider than high
    figure = feature_sheet([("feature 0", images[0]), ("feature 1", images[1])])
    (axes,) = figure.axes
    boxes = []
    for drawn, image in zip(axes.get_images(), images.reshape(6, 4, 8, 3), strict=True):
        np.testing.assert_array_equal(drawn.get_array(), image)
        left, right, bottom, top = drawn.get_extent()
        assert right - left == pytest.approx(2 * (bottom - top))  # inches, downwards
        assert 0 < left < right < figure.get_figwidth()
        assert 0 < top < bottom < figure.get_figheight()
        boxes.append((left, right, bottom, top))
    for row in (boxes[:3], boxes[3:]):
        assert all(a[1] < b[0] and a[2:] == b[2:] for a, b in pairwise(row))
    assert axes.get_xlim() == (0, figure.get_figwidth())
    assert axes.get_ylim() == (figure.get_figheight(), 0)
    above, below = axes.texts
    assert above.get_position()[1] < boxes[0][3] < boxes[0][2] < below.get_position()[1] < boxes[3][3]


def test_long_names_of_classes_cover_nothing():
    """Neither another text nor the edge, in a drawing as wide as that of a report."""
    names = ["German short-haired pointer, found in the north", "soft-coated_wheaten_terrier_of_old", "cat"]
    parts = [SimpleNamespace(feature=1000 + i, amount=0.5 - 0.2 * i) for i in range(6)]
    found = [
        SimpleNamespace(predicted=label, features=parts, rest=0.2, bias=-0.1, score=-12.34)
        for label in range(3)
    ]
    images = RNG.integers(0, 255, (3, 8, 8, 3)).astype(np.uint8)
    figure = prediction_sheet(list(zip(images, found)), lambda label: shortened(names[label]))
    figure.draw_without_rendering()
    # Without numbers: an axis keeps those outside its range, and does not draw them.
    named = lambda artist: isinstance(artist, Text) and re.search("[a-z]", artist.get_text())
    texts = [text for text in set(figure.findobj(named)) if text.get_visible()]
    assert sum("score -12.34" in text.get_text() for text in texts) == 3
    boxes = [text.get_window_extent() for text in texts]
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))


def test_shortened_names_keep_their_beginning():
    assert shortened("cat") == "cat"
    assert shortened("a" * 44) == "a" * 44
    assert shortened("soft-coated wheaten terrier", 13) == "soft-coated…"


def contrast(one, other):
    """WCAG 2 contrast ratio of two colours."""

    def luminance(colour):
        c = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        return float(
            np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]
        )

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [figures.LIGHT, figures.DARK], ids=lambda theme: theme.name)
def test_contrast(theme):
    for colour in (theme.ink, theme.muted, theme.correct, theme.incorrect):
        assert contrast(colour, theme.background) >= 4.5  # text
    for colour in theme.series:
        assert contrast(colour, theme.background) >= 3.0  # graphics


def test_labels_are_laid_out_at_the_size_they_are_drawn_at():
    """Letters are of whole pixels, so that a label is wider at some sizes than at others."""
    with figures.using(figures.LIGHT):
        figure = Figure(figsize=(4.3, 3.3), layout="constrained")
        axes = figure.subplots()
        axes.barh(range(4), range(4))
        axes.set_yticks(range(4), ["RGN_1.0(-2, σ_GN)"] * 4, fontsize=7.5)
        pixels = np.asarray(Image.open(io.BytesIO(to_bytes(figure, "png", dpi=120))))
    assert (pixels[:, :2] == pixels[0, 0]).all(), "nothing touches the left edge"
