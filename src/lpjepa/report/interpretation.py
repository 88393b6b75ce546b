"""The section of single features: what each stands for, and which of them are behind a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib.figure import Figure

from lpjepa.report.figures.style import plain, shortened, theme
from lpjepa.report.gallery import hang
from lpjepa.report.markup import note, section, text
from lpjepa.report.observation import ABSENT, Observation, Rows, sentence
from lpjepa.report.run import Run

if TYPE_CHECKING:
    from lpjepa.data import ImageSet

FEATURES, IMAGES, PREDICTIONS, SHOWN = 8, 8, 3, 6


def interpretation(runs: Sequence[Run], observations: Sequence[Observation]) -> str:
    """For each run its most selective features with the images that activate them, and some predictions."""
    parts = []
    for run, seen in zip(runs, observations):
        why, shown = seen.missing, ""
        if seen.images is not None and seen.rows is not None:
            try:
                why, shown = "", _run(run, seen.images, seen.rows)
            except ABSENT as error:
                why = sentence(error)
        if why:
            shown = note(f"{run.name}: no pictures of single features: {why}")
        parts.append(f"<h3>{text(run.name)}</h3>{shown}" if len(runs) > 1 and shown else shown)
    return section("interpretation", "Single features", *parts) if any(parts) else ""


def _run(run: Run, images: ImageSet, of_images: Rows) -> str:
    from lpjepa.inference.interpret import Atlas, atlas_of

    features, places = of_images.features(), of_images.indices_N
    if bool((features.projector < 0).any()):
        return ""  # dense features cannot be read one by one
    seen: Atlas = atlas_of(features, k=IMAGES)
    chosen = seen.most_selective(FEATURES)
    if not chosen:
        return ""
    name = lambda label: shortened(str(images.classes[label] if images.classes is not None else label))
    pixels = lambda rows: images.read(places[rows])[0].permute(0, 2, 3, 1).cpu().numpy()
    rows, told = [], ""
    for feature in chosen:
        title = f"feature {feature}"
        if seen.selectivity is not None:
            label, index = int(seen.selectivity.class_D[feature]), float(seen.selectivity.index_D[feature])
            title += f": {name(label)}, selectivity {index:.2f}"
        rows.append((title, pixels(seen.top.images_DK[feature])))
    if seen.selectivity is not None:
        alive = seen.selectivity.class_D >= 0
        median = float(seen.selectivity.index_D[alive].median())
        told = f" Median class selectivity of the {int(alive.sum())} living features: {median:.2f}."
    html = hang(
        run.folder / "figures",
        "features-images",
        partial(feature_sheet, rows),
        f"The images that activate each of {len(rows)} features most.{told}",
        f"<b>Images that activate a feature most</b>, for the most selective features.{text(told)}",
        photographs=True,
    )
    if seen.weight_DC is not None:
        held_out = torch.arange(1, len(features), 2)[:PREDICTIONS]  # the probe learned from the others
        explained = [
            (pixels(held_out[i : i + 1])[0], seen.explain(int(row), SHOWN)) for i, row in enumerate(held_out)
        ]
        html += hang(
            run.folder / "figures",
            "features-predictions",
            partial(prediction_sheet, explained, name),
            "The features that contribute most to the prediction of a linear probe for single images.",
            "<b>Features behind a prediction</b>: what each adds to the score of the predicted class",
            photographs=True,
        )
    return f'<div class="figures">{html}</div>'


def feature_sheet(rows: Sequence[tuple[str, np.ndarray]]) -> Figure:
    """One row a feature: its title, and the images (K, H, W, 3) that activate it most, strongest first."""
    columns = max(len(images) for _, images in rows)
    width, pitch = 0.62 * columns + 0.2, 0.86  # inches; a row takes `pitch`, its images 0.58 of it
    figure = Figure(figsize=(width, pitch * len(rows)))
    # One pair of axes, in inches: a pair for each image would take longer than all other figures together.
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    for row, (title, images) in enumerate(rows):
        high, wide = images.shape[1:3]
        scale = min((width / columns - 0.083) / wide, 0.58 / high)
        left, top = (width / columns - scale * wide) / 2, pitch * (row + 0.5) - scale * high / 2
        for column, image in enumerate(images):
            x = left + column * width / columns
            axes.imshow(image, interpolation="nearest", extent=(x, x + scale * wide, top + scale * high, top))
        axes.text(left, top - 0.04, plain(title), fontsize=7.5, fontweight="bold")
    axes.set(xlim=(0, width), ylim=(pitch * len(rows), 0), aspect="auto")
    return figure


def prediction_sheet(explained: Sequence[tuple[np.ndarray, Any]], name: Any) -> Figure:
    """One row an image: its prediction above, the image, and its features' contributions as bars."""
    figure = Figure(figsize=(4.6, 1.8 * len(explained)), layout="constrained")
    # A title over the whole row: a class may have a long name.
    rows = figure.subfigures(len(explained), 1, squeeze=False)
    for row, (image, found) in zip(rows[:, 0], explained):
        title = f"{name(found.predicted)}, score {found.score:.2f}"
        row.suptitle(plain(title), x=0.01, ha="left", fontsize=8, fontweight="bold")
        left, right = row.subplots(1, 2, width_ratios=(1, 2.4))
        left.axis("off")
        left.imshow(image, interpolation="nearest")
        labels = [f"feature {part.feature}" for part in found.features] + ["all others", "bias"]
        amounts = [part.amount for part in found.features] + [found.rest, found.bias]
        colours = [theme().correct if amount >= 0 else theme().incorrect for amount in amounts]
        right.barh(range(len(amounts)), amounts, color=colours)
        right.set_yticks(range(len(labels)), labels, fontsize=7)
        right.invert_yaxis()
        right.axvline(0, color=theme().ink, linewidth=0.8)
        right.grid(axis="y", visible=False)
    return figure
