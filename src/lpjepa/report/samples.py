"""The section of single images: sparsity of right and wrong predictions, neighbours, attribution."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from lpjepa.report.figures import attribution_overlay, neighbour_grid, sparsity_violins
from lpjepa.report.gallery import hang
from lpjepa.report.markup import section, text
from lpjepa.report.observation import QUERIES, Observation
from lpjepa.report.results import sparsity_groups
from lpjepa.report.run import Run


def samples(runs: Sequence[Run], seen: Sequence[Observation], folder: Path) -> str:
    """Violins, nearest-neighbour grids and attribution maps of whichever runs have them; rows are runs."""
    violins = _violins(runs, folder)
    grids = _neighbours(seen, folder)
    maps = _attributions(runs, seen, folder)
    parts = []
    if violins or maps:
        parts.append(f'<div class="figures">{violins}{maps}</div>')
    if grids:
        parts.append(f'<h3>Nearest neighbours</h3><div class="figures">{grids}</div>')
    return section("samples", "Samples", *parts) if parts else ""


def _violins(runs: Sequence[Run], folder: Path) -> str:
    groups = [group for group in sparsity_groups(runs) if len(group[1]) + len(group[2])]
    if not groups:
        return ""
    described = []
    for label, right, wrong in groups:
        sides = (("correct", right), ("incorrect", wrong))
        described.append(
            f"{label} " + ", ".join(f"{np.median(v):.3f} when {word}" for word, v in sides if len(v))
        )
    return hang(
        folder,
        "sparsity-by-correctness",
        partial(sparsity_violins, groups, r"$\ell_1$ sparsity of a sample"),
        f"Distribution of the l1 sparsity of samples; medians: {'; '.join(described)}.",
        "<b>Sparsity of correctly and incorrectly classified samples</b>, by the projector's probe",
    )


def _neighbours(seen: Sequence[Observation], folder: Path) -> str:
    keys = list(dict.fromkeys(key for observation in seen for key in observation.neighbours))[:QUERIES]
    hung = []
    for number, key in enumerate(keys, start=1):
        rows = [
            found[key]
            for observation in seen
            for found in (observation.neighbours, observation.cropped)
            if key in found
        ]
        cropped = any(key in observation.cropped for observation in seen)
        told = "; ".join(
            f"{row.label}: {sum(row.agrees)} of {len(row.agrees)} share its class"
            for row in rows
            if row.agrees is not None
        )
        hung.append(
            hang(
                folder,
                f"neighbours-{number}",
                partial(neighbour_grid, rows),
                f"Nearest neighbours of {key} by cosine of projector features. {told}".strip(),
                f"<b>{text(key)}</b>: ✓ solid outline, the same class; ✗ dashed, another"
                + ("; cropped: searched for with the centre of the query alone" if cropped else ""),
                photographs=True,
            )
        )
    return "".join(hung)


def _attributions(runs: Sequence[Run], seen: Sequence[Observation], folder: Path) -> str:
    having = [
        (run.name, observation.attributions)
        for run, observation in zip(runs, seen)
        if observation.attributions
    ]
    if not having:
        return ""
    keys = [key for key in having[0][1] if all(key in maps for _, maps in having)]
    if not keys:  # the runs saw different images: show the first run's alone
        having, keys = having[:1], list(having[0][1])
    images = [having[0][1][key][0] for key in keys]
    rows = [(name, [maps[key][1] for key in keys]) for name, maps in having]
    return hang(
        folder,
        "attribution",
        partial(attribution_overlay, images, rows),
        f"Attribution of the projector feature's norm over {len(keys)} images for {len(rows)} run(s).",
        "<b>Where the projector feature comes from</b>: gradient-weighted maps of ‖z‖², yellow is most",
        photographs=True,
    )
