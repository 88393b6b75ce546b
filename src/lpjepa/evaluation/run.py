"""Evaluating a run: its newest checkpoint on its own images and on any others.

    evaluate_run("runs/digits", on=["digits", "npz=pets64.npz"])

writes `evaluation.json` (see `results`) and, for the pictures of a report, a sample of the held-out projector
features as `features/SOURCE.pt` into the run's folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lpjepa._whole import whole
from lpjepa.data import EvalTransform, ImageSet, load_source
from lpjepa.evaluation import results
from lpjepa.evaluation.features import Features, extract
from lpjepa.evaluation.progress import Progress
from lpjepa.evaluation.protocol import EvaluationSettings, evaluate_features
from lpjepa.metrics import FeatureSample
from lpjepa.models import SparseModel
from lpjepa.training import Run
from lpjepa.training.checkpoint import step_of
from lpjepa.training.objectives import target_of
from lpjepa.training.processes import pick_device

KEPT_FEATURES = 2048  # rows of projector features kept for pictures


@dataclass(frozen=True)
class Source:
    """A data set to evaluate on, as `lpjepa.data.load_source` takes it."""

    name: str
    root: str | None = None
    title: str | None = None

    @property
    def label(self) -> str:
        """Its name in tables: that of the file or folder where the source is any such, or its own."""
        if self.title is not None:
            return self.title
        if self.root is None or self.name not in ("npz", "folder"):
            return self.name
        return Path(self.root).name.removesuffix(".npz")

    @property
    def place(self) -> str | None:
        return None if self.root is None else os.path.realpath(self.root)

    @classmethod
    def of(cls, run: Run) -> Source:
        """The images that a run was trained on."""
        return cls(run.config.data.source, run.config.data.root)

    def is_of(self, run: Run) -> bool:
        """Whether a run was trained on these images. Their place may be left out, or written otherwise."""
        own = Source.of(run)
        if self.root is None or own.root is None:
            return self.name == own.name and self.root is None
        return self.name == own.name and self.place == own.place

    @classmethod
    def parse(cls, text: str) -> Source:
        """`NAME`, or `NAME=PATH` for one that lies in a file or folder of its own."""
        name, separator, root = text.partition("=")
        if not name or (separator and not root):
            raise ValueError(f"A data set is NAME or NAME=PATH, such as folder=images/pets, not {text!r}.")
        return cls(name, root or None)


def evaluate_run(
    folder: str | Path,
    on: Sequence[str] | None = None,
    settings: EvaluationSettings | None = None,
    device: str = "auto",
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Evaluates the run in `folder` on each source of `on` (by default its own), and gives the new entries.

    What an interrupted evaluation with the same settings has finished is kept; a finished one is left as it
    is, and a new one is added beside it.
    """
    settings = settings or EvaluationSettings()
    settings.check()
    progress = progress or Progress()
    run = Run.open(folder)
    sources = _told_apart(run, [Source.parse(text) for text in on] if on else [Source.of(run)])
    labels = [source.label for source in sources]
    on_device = pick_device(device)
    weights, path = run.weights()
    model = run.model(on_device, weights)
    checkpoint: dict[str, Any] = {
        "file": path.name,
        "step": step_of(path),
        "sha256": Path(f"{path}.sha256").read_text().strip(),
    }
    target = target_of(run.config)
    shared = {
        "settings": settings.as_dict(),
        "checkpoint": checkpoint,
        "versions": results.versions(),
        "together": labels,
    }
    identities = {s.label: {"source": s.label, "root": s.place, **shared} for s in sources}
    done = {label: results.finished(run.folder, identity) for label, identity in identities.items()}
    # Sources that an interrupted call has finished are ahead of the others by one: the others catch up.
    ahead = max(map(len, done.values()))
    behind = [label for label, found in done.items() if len(found) < ahead] or list(done)
    entries = []
    for source in sources:
        if source.label not in behind:
            progress.say(f"{source.label}: finished before the interruption")
            entries.append(done[source.label][-1])
            continue
        entry = results.open_entry(run.folder, identities[source.label])
        if entry.content["pieces"]:
            progress.say(f"{source.label}: going on with the evaluation of {entry.content['started']}")
        train, _ = _features(run, model, source, "train", batch_size, progress)
        val, places = _features(run, model, source, "test", batch_size, progress)
        _keep_features(run.folder, source, val, places, checkpoint["step"], settings.seed)
        entries.append(evaluate_features(entry, train, val, settings, target, on_device, progress))
    return entries


def _told_apart(run: Run, given: list[Source]) -> list[Source]:
    """The sources, the run's own as it stands in its config, those of one name by their folders' too."""
    taken = {Source.of(run).label: Source.of(run).place}
    for entry in results.read(run.folder):
        taken.setdefault(entry["source"], entry.get("root"))
    sources: list[Source] = []
    for source in given:
        source = Source.of(run) if source.is_of(run) else source
        if source.root is not None and taken.get(source.label, source.place) not in (source.place, None):
            source = replace(source, title=f"{Path(source.root).absolute().parent.name}/{source.label}")
        taken[source.label] = source.place
        sources.append(source)
    labels = [source.label for source in sources]
    if len(set(labels)) < len(labels):
        raise ValueError(f"Each data set can be named once, but there are {', '.join(labels)}.")
    return sources


def run_features(
    folder: str | Path, source: str | None = None, split: str = "test", device: str = "auto"
) -> Features:
    """The features of one split of a source (by default the run's own) under the run's newest checkpoint."""
    run = Run.open(folder)
    wanted = Source.parse(source) if source else Source.of(run)
    return _features(run, run.model(pick_device(device)), wanted, split, None, Progress())[0]


def evaluation_transform(run: Run) -> EvalTransform:
    """The fixed preprocessing of a run's model: its image size and its channel statistics."""
    views = run.config.views
    return EvalTransform(views.size, mean=views.mean, std=views.std, interpolation=views.interpolation)


def load_images(run: Run, source: Source, split: str) -> ImageSet:
    """The run's own source as it was trained on; any other with its defaults."""
    data = run.config.data
    if source.is_of(run):
        return load_source(data.source, data.root, split, **data.source_options())
    return load_source(
        source.name, source.root, split, max_memory=data.max_memory, max_broken=data.max_broken
    )


def _features(
    run: Run, model: SparseModel, source: Source, split: str, batch_size: int | None, progress: Progress
) -> tuple[Features, Tensor]:
    """The features, and the places of their images in the set: those that cannot be read have none."""
    images = load_images(run, source, split)
    with progress.task(f"{source.label}: features of {len(images)} {split} images") as task:
        done = 0

        def count(more: int) -> None:
            nonlocal done
            done += more
            task(done, len(images))

        found = extract(model, images, batch_size, transform=evaluation_transform(run), progress=count)
    return found, images.readable()


def _keep_features(folder: Path, source: Source, val: Features, places: Tensor, step: int, seed: int) -> None:
    """A uniform sample of rows, for pictures; written whole or not at all; a later evaluation replaces it."""
    chosen = FeatureSample(KEPT_FEATURES, seed).update(torch.arange(len(val)).double().unsqueeze(1)).compute()
    rows = chosen.flatten().long()
    content = {
        "projector": val.projector[rows],
        "labels": None if val.labels is None else val.labels[rows],
        "indices": places[rows],
        "step": step,
    }
    path = folder / "features" / f"{file_name(source.label)}.pt"
    path.parent.mkdir(exist_ok=True)
    with whole(path) as file:
        torch.save(content, file)


def file_name(label: str) -> str:
    """A source's label without what a file's name cannot hold."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", label)
