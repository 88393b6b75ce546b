"""The section of single features: what each stands for, and which of them are behind a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from lpjepa.report.figures.style import plain, theme
from lpjepa.report.gallery import Gallery
from lpjepa.report.markup import note, section, text
from lpjepa.report.run import Run

FEATURES, IMAGES, PREDICTIONS, SHOWN = 8, 8, 3, 6
COMPUTED_IMAGES = 1000
_ABSENT = (ValueError, RuntimeError, OSError, ImportError)


def interpretation(runs: Sequence[Run], gallery: Gallery) -> str:
    """For each run its most selective features with the images that activate them, and some predictions."""
    parts = []
    for run in runs:
        try:
            shown = _run(run, gallery)
        except _ABSENT as error:
            shown = note(f"{run.name}: no pictures of single features: {str(error).splitlines()[0]}")
        parts.append(f"<h3>{text(run.name)}</h3>{shown}" if len(runs) > 1 and shown else shown)
    return section("interpretation", "Single features", *parts) if any(parts) else ""


def _run(run: Run, gallery: Gallery) -> str:
    from lpjepa.inference.interpret import Atlas, atlas_of

    images, features, places = _features(run)
    if bool((features.projector < 0).any()):
        return ""  # dense features cannot be read one by one
    seen: Atlas = atlas_of(features, k=IMAGES)
    chosen = seen.most_selective(FEATURES)
    if not chosen:
        return ""
    name = lambda label: str(images.classes[label] if images.classes is not None else label)
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
    html = gallery.hang(
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
        html += gallery.hang(
            run.folder / "figures",
            "features-predictions",
            partial(prediction_sheet, explained, name),
            "The features that contribute most to the prediction of a linear probe for single images.",
            "<b>Features behind a prediction</b>: what each adds to the score of the predicted class",
            photographs=True,
        )
    return f'<div class="figures">{html}</div>'


def _features(run: Run) -> tuple[Any, Any, Any]:
    """Held-out images, features of some of them, and their places; kept ones where there are any."""
    from lpjepa.evaluation.features import Features, extract
    from lpjepa.evaluation.run import evaluation_transform
    from lpjepa.report.observation import held_out, kept_rows
    from lpjepa.training.processes import pick_device
    from lpjepa.training.run import Run as TrainedRun

    trained = TrainedRun.open(run.folder)
    images, kept = held_out(trained), kept_rows(run)
    if kept is not None:
        return images, Features(kept.z_ND, kept.z_ND, kept.labels_N), kept.indices_N
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    places = order[:COMPUTED_IMAGES].sort().values
    batches = (images.read(part)[0] for part in places.split(128))
    found = extract(trained.model(pick_device("auto")), batches, transform=evaluation_transform(trained))
    labels = None if images.labels is None else images.labels.cpu()[places]
    return images, Features(found.encoder, found.projector, labels), places


def feature_sheet(rows: Sequence[tuple[str, np.ndarray]]) -> Figure:
    """One row a feature: its title, and the images (K, H, W, 3) that activate it most, strongest first."""
    columns = max(len(images) for _, images in rows)
    figure = Figure(figsize=(0.62 * columns + 0.2, 0.86 * len(rows)))
    figure.set_layout_engine("constrained", h_pad=0.14)
    for (title, images), axes_row in zip(rows, figure.subplots(len(rows), columns, squeeze=False)):
        for axes in axes_row:
            axes.axis("off")
        for axes, image in zip(axes_row, images):
            axes.imshow(image, interpolation="nearest")
        first = axes_row[0]
        heading = first.text(
            0, 1.07, plain(title), transform=first.transAxes, fontsize=7.5, fontweight="bold"
        )
        heading.set_in_layout(False)  # it reaches over the row, and must not widen the first column
    return figure


def prediction_sheet(explained: Sequence[tuple[np.ndarray, Any]], name: Any) -> Figure:
    """One row an image: the image with its prediction, and its features' contributions as bars."""
    figure = Figure(figsize=(4.6, 1.7 * len(explained)), layout="constrained")
    grid = figure.subplots(len(explained), 2, squeeze=False, width_ratios=(1, 2.4))
    for (image, found), (left, right) in zip(explained, grid):
        left.axis("off")
        left.imshow(image, interpolation="nearest")
        left.set_title(plain(name(found.predicted)), fontsize=8, fontweight="bold", loc="left", pad=3)
        labels = [f"feature {part.feature}" for part in found.features] + ["all others", "bias"]
        amounts = [part.amount for part in found.features] + [found.rest, found.bias]
        colours = [theme().correct if amount >= 0 else theme().incorrect for amount in amounts]
        right.barh(range(len(amounts)), amounts, color=colours)
        right.set_yticks(range(len(labels)), labels, fontsize=7)
        right.invert_yaxis()
        right.axvline(0, color=theme().ink, linewidth=0.8)
        right.grid(axis="y", visible=False)
        right.set_title(f"score {found.score:.2f}", fontsize=8, loc="left", pad=3)
    return figure
