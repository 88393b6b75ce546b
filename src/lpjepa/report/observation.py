"""Looking at a run's held-out images with its trained model: what the pictures of features and images show.

Features that `lpjepa evaluate` kept are used where there are any; otherwise some are computed here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from lpjepa.report.figures import NeighbourRow
from lpjepa.report.portrait import Portrait, portrait
from lpjepa.report.run import Run

if TYPE_CHECKING:
    from lpjepa.data import ImageSet
    from lpjepa.evaluation.features import Features
    from lpjepa.evaluation.retrieval import Neighbours
    from lpjepa.training.run import Run as TrainedRun

COMPUTED_IMAGES = 1000  # enough for every picture, and bearable without an accelerator
QUERIES, NEIGHBOURS, ATTRIBUTED = 4, 6, 6
CROP = (0.2, 0.2, 0.6, 0.6)  # top, left, height, width: the centre, 60 % of each side
# What a missing or damaged checkpoint, data set or package raises; each says so in its own sentence.
ABSENT = (ValueError, RuntimeError, OSError, ImportError)


@dataclass(frozen=True)
class Rows:
    """Projector features of some images of a set, with their labels and places in it."""

    z_ND: Tensor
    labels_N: Tensor | None
    indices_N: Tensor

    def features(self) -> Features:
        from lpjepa.evaluation.features import Features

        return Features(self.z_ND, self.z_ND, self.labels_N)


@dataclass(frozen=True)
class Observation:
    """What one run's model made of some held-out images; parts that could not be had are empty.

    Images are named by a key (source and place), by which several runs' pictures of one image find together.
    """

    portrait: Portrait | None = None
    neighbours: dict[str, NeighbourRow] = field(default_factory=dict)
    attributions: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)  # (image, map)
    cropped: dict[str, NeighbourRow] = field(default_factory=dict)  # neighbours of the queries' centres
    notes: tuple[str, ...] = ()
    images: ImageSet | None = None
    rows: Rows | None = None
    missing: str = ""  # why there are no images or no rows, in one sentence


def observe(run: Run, loaded: dict[str, ImageSet] | None = None) -> Observation:
    """Everything that can be seen of a run; what cannot becomes a note of one sentence.

    ``loaded`` keeps the image sets for the next call: the runs of a comparison share most of them.
    """
    rows, notes, missing = kept_rows(run), [], ""
    images = model = prepare = None
    try:
        # Here, not above: a report of folders without checkpoints needs neither timm nor the data.
        from lpjepa.evaluation.features import extract
        from lpjepa.evaluation.run import evaluation_transform
        from lpjepa.training.processes import pick_device
        from lpjepa.training.run import Run as TrainedRun

        trained = TrainedRun.open(run.folder)
        images, prepare = held_out(trained, {} if loaded is None else loaded), evaluation_transform(trained)
        model = trained.model(pick_device("auto"))
        if rows is None:
            order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
            chosen = order[:COMPUTED_IMAGES].sort().values
            batches = [images.read(part) for part in chosen.split(128)]
            found = extract(model, (prepare(batch.images, batch.sizes) for batch in batches))
            read = torch.cat([batch.indices.cpu() for batch in batches])  # without images that are broken
            rows = Rows(found.projector, _of(images.labels, read), read)
    except ABSENT as error:
        missing = sentence(error)
        notes.append(f"no pictures of {'features and images' if rows is None else 'images'}: {missing}")
    if rows is None:
        return Observation(notes=tuple(notes), missing=missing)
    try:
        seen = portrait(rows.z_ND, run.target.distribution if run.target else None)
    except ValueError as error:
        return Observation(notes=(sentence(error),), missing=sentence(error))
    neighbours, cropped, attributions = {}, {}, {}
    if images is not None and model is not None:
        neighbours = _neighbours(run.name, rows, images)
        try:
            cropped = _cropped(run.name, model, prepare, rows, images)
        except ABSENT as error:
            notes.append(f"no cropped queries: {sentence(error)}")
        try:
            attributions = _attributions(model, prepare, rows, images)
        except ABSENT as error:
            notes.append(f"no attribution maps: {sentence(error)}")
    return Observation(seen, neighbours, attributions, cropped, tuple(notes), images, rows, missing)


def own_source(config: dict[str, Any]) -> str:
    """The name under which a run's own data stand in its evaluations."""
    from lpjepa.evaluation.run import Source

    return Source(str(config.get("data.source")), config.get("data.root")).label


def kept_rows(run: Run) -> Rows | None:
    """The features an evaluation on the run's own data kept, or None."""
    from lpjepa.evaluation.run import file_name

    path = run.folder / "features" / f"{file_name(own_source(run.config))}.pt"
    if not path.is_file():
        return None
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        return Rows(content["projector"].float(), content["labels"], content["indices"])
    except Exception:  # a damaged file in any of torch's ways: the features are computed anew
        return None


def held_out(trained: TrainedRun, loaded: dict[str, ImageSet]) -> ImageSet:
    """The run's held-out images, or its training images where it held none out; kept in ``loaded``."""
    from lpjepa.data import MissingSplit
    from lpjepa.evaluation.run import Source, load_images

    data = trained.config.data
    if str(data) not in loaded:
        source = Source(data.source, data.root)
        try:
            loaded[str(data)] = load_images(trained, source, "test")
        except MissingSplit:
            loaded[str(data)] = load_images(trained, source, "train")
    return loaded[str(data)]


def _queries(rows: Rows, count: int) -> list[int]:
    """Rows of the first image of each of `count` classes, or simply the first rows."""
    if rows.labels_N is None:
        return list(range(min(count, len(rows.z_ND))))
    firsts: dict[int, int] = {}
    for place, label in enumerate(rows.labels_N.tolist()):
        firsts.setdefault(label, place)
    return [firsts[label] for label in sorted(firsts)][:count]


def _key(images: Any, rows: Rows, row: int) -> str:
    name = f"{images.name}, image {int(rows.indices_N[row])}"
    if rows.labels_N is None:
        return name
    label = int(rows.labels_N[row])
    return f"{name} ({images.classes[label] if images.classes is not None else label})"


def _shown(images: Any, indices: Tensor) -> np.ndarray:
    """Pixels (N, H, W, 3) as stored."""
    return images.read(indices)[0].permute(0, 2, 3, 1).cpu().numpy()


def _neighbours(name: str, rows: Rows, images: Any) -> dict[str, NeighbourRow]:
    from lpjepa.evaluation.retrieval import neighbours

    places = torch.tensor(_queries(rows, QUERIES))
    k = min(NEIGHBOURS, len(rows.z_ND) - 1)
    if k < 1:
        return {}
    found = neighbours(rows.z_ND[places], rows.features(), k, _of(rows.labels_N, places), exclude=places)
    return _found(name, _shown(images, rows.indices_N[places]), places, found, rows, images)


def _cropped(name: str, model: nn.Module, prepare: Any, rows: Rows, images: Any) -> dict[str, NeighbourRow]:
    """Neighbours of the centres of the same queries ("probe crop"): does the model know the part alone?"""
    from lpjepa.evaluation.retrieval import crop, retrieve

    places = torch.tensor(_queries(rows, QUERIES))
    k = min(NEIGHBOURS, len(rows.z_ND) - 1)
    if k < 1:
        return {}
    x_NCHW = _input(prepare, rows, images, places).to(next(model.parameters()).device)
    with torch.no_grad():
        width = model(x_NCHW[:1])[1].shape[1]
    if width != rows.z_ND.shape[1]:
        raise ValueError(f"the kept features have {rows.z_ND.shape[1]} entries, the model gives {width}")
    labels = _of(rows.labels_N, places)
    found = retrieve(model, x_NCHW, rows.features(), k, CROP, labels, exclude=places)
    return _found(f"{name}, cropped", _stretched(crop(x_NCHW, CROP)), places, found, rows, images)


def _found(
    name: str, queries: np.ndarray, places: Tensor, found: Neighbours, rows: Rows, images: Any
) -> dict[str, NeighbourRow]:
    """By key, a row of pictures for each query; `queries` (Q, H, W, 3) are the queries' own."""
    result = {}
    for row, place in enumerate(places.tolist()):
        result[_key(images, rows, place)] = NeighbourRow(
            name,
            queries[row],
            list(_shown(images, rows.indices_N[found.indices[row].cpu()])),
            None if found.match is None else found.match[row].tolist(),
            found.similarities[row].tolist(),
        )
    return result


def _attributions(
    model: nn.Module, prepare: Any, rows: Rows, images: Any
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    from lpjepa.evaluation.attribution import attribute

    places = torch.tensor(_queries(rows, ATTRIBUTED))
    x_NCHW = _input(prepare, rows, images, places)
    heat = attribute(model, x_NCHW.to(next(model.parameters()).device)).heat.cpu().numpy()
    # Shown as the model sees it, so that the map lies where it belongs.
    shown = _stretched(x_NCHW)
    return {_key(images, rows, place): (shown[i], heat[i]) for i, place in enumerate(places.tolist())}


def _input(prepare: Any, rows: Rows, images: Any, places: Tensor) -> Tensor:
    """What the model gets of some rows' images."""
    batch = images.read(rows.indices_N[places])
    return prepare(batch.images, batch.sizes)


def _stretched(x_NCHW: Tensor) -> np.ndarray:
    """Normalised images as pixels (N, H, W, 3): each stretched to [0, 1]."""
    low, high = x_NCHW.amin((1, 2, 3), keepdim=True), x_NCHW.amax((1, 2, 3), keepdim=True)
    return ((x_NCHW - low) / (high - low).clamp(min=1e-6)).permute(0, 2, 3, 1).cpu().numpy()


def _of(labels: Tensor | None, indices: Tensor) -> Tensor | None:
    return None if labels is None else labels.cpu()[indices]


def sentence(error: BaseException) -> str:
    """The first line of an error, which is what a note shows."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
