"""Figures made of samples and images, drawn by `lpjepa.report.figures` from the pieces of results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from lpjepa.data import ImageSet, load_source
from lpjepa.evaluation import crop
from lpjepa.recipes.cases import config_of, scale_of
from lpjepa.recipes.collected import Collected
from lpjepa.report.figures import NeighbourRow, attribution_overlay, neighbour_grid, violin_panels

Panel = Mapping[str, Any]
SIDES = ("correct", "incorrect")


def violins(panel: Panel, collected: Collected, places: Any) -> Figure:
    """Per-sample sparsity of rightly and wrongly classified samples: a panel a training, a row a data set.

    Sparsities differ by more between trainings than between the samples of one.
    """
    panels = []
    for entry in collected.entries:
        groups: list[tuple[str, np.ndarray, np.ndarray]] = []
        for source in scale_of(collected.scale)["transfer"]:
            for result in entry.results[:1]:
                probe = result["pieces"].get("transfer", {}).get(source, {}).get("probe 1")
                if probe is not None:
                    found = probe["projector"]["by_correctness"]
                    right, wrong = (np.asarray(found[f"{panel['y']}_{side}"]) for side in SIDES)
                    groups.append((source, right, wrong))
        if groups:
            panels.append((entry.case.label, groups))
    return violin_panels(panels, f"ℓ{panel['y'][1:]} of a sample") if panels else _empty()


def neighbours(panel: Panel, collected: Collected, places: Any) -> Figure:
    """A query and its nearest neighbours, a row a training."""
    query = panel["query"]
    found = _with_piece(collected, "neighbours")
    images = _images(collected, places) if found else None
    if images is None:
        return _empty("no results yet" if not found else "the images are not here")
    rows = []
    for label, piece in found:
        one = piece[query]
        shown = _image(images, one["query"], one["box"])
        near = [_image(images, index, None) for index in one["indices"]]
        rows.append(NeighbourRow(label, shown, near, one["match"], one["similarities"]))
    return neighbour_grid(rows)


def attribution(panel: Panel, collected: Collected, places: Any) -> Figure:
    """The scene and its crop, and each training's maps over them."""
    found = _with_piece(collected, "attribution")
    images = _images(collected, places) if found else None
    if images is None:
        return _empty("no results yet" if not found else "the images are not here")
    names = ("busy", "crop", "plain")
    first = found[0][1]
    shown = [_image(images, first[name]["query"], first[name]["box"]) for name in names]
    maps = [
        (label, [np.maximum(np.asarray(piece[name]["raw"]), 0) for name in names]) for label, piece in found
    ]
    return attribution_overlay(shown, maps, least=len(names))


def _with_piece(collected: Collected, name: str) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for entry in collected.entries:
        for result in entry.results[:1]:
            if name in result["pieces"]:
                found.append((entry.case.label, result["pieces"][name]))
    return found


def _images(collected: Collected, places: Any) -> ImageSet | None:
    """The validation images of the recipe's base, or None where they are not on this machine."""
    case = collected.entries[0].case
    data = places.located(config_of(case, collected.scale, 0)).data
    try:
        return load_source(data.source, data.root, "val", **data.options)
    except (ValueError, OSError):
        return None


def _image(images: ImageSet, index: int, box: Any) -> np.ndarray:
    x = images.decode(torch.tensor([index]))
    if box is not None:
        x = crop(x, tuple(box))
    return x[0].permute(1, 2, 0).numpy()


def lacks_images(collected: Collected, places: Any) -> bool:
    """Whether a figure would show images that are not on this machine."""
    kind = collected.recipe.panels[0]["plot"]
    return kind in ("neighbours", "attribution") and bool(
        _with_piece(collected, kind) and _images(collected, places) is None
    )


def _empty(text: str = "no results yet") -> Figure:
    figure = Figure(figsize=(4.4, 2.0))
    figure.text(0.5, 0.5, text, ha="center", va="center")
    return figure
