"""What recipes need of a trained model beyond the training's own numbers, as small plain data.

| piece | holds |
|---|---|
| measures | entropy, nHSIC, rank, covariance of validation features, and the target's predictions |
| posthoc | probes and sparsity before and after a ReLU at evaluation time |
| transfer | for each downstream set: measures, linear probes in three label regimes |
| marginals | quantiles of all projector features together |
| neighbours | the nearest validation images of three queries |
| attribution | maps of two images on the late layer's grid |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lpjepa.data import ImageSet
from lpjepa.evaluation import (
    EvaluationSettings,
    Features,
    attribute,
    crop,
    extract,
    probe_protocol,
    rectification,
    retrieve,
)
from lpjepa.evaluation.protocol import measures, probe_regime
from lpjepa.evaluation.run import Source, evaluation_transform, load_images
from lpjepa.models import SparseModel
from lpjepa.recipes.cases import scale_of
from lpjepa.recipes.places import Places, query_places
from lpjepa.recipes.store import Result
from lpjepa.training import Run, to_dict
from lpjepa.training.objectives import target_of

PIECES = ("measures", "marginals", "posthoc", "neighbours", "attribution", "transfer")
NEIGHBOURS = 7  # as in the paper's figures
LEVELS = 201  # quantiles of the marginals
BATCH = 1000  # images a step: small batches would only wait for their launches
HELD = 2**28  # values: features up to a gigabyte stay on the device, where all that follows is quick
LOADED = 2**28  # bytes: sets of images up to this size are loaded once for all trainings of a process
_loaded: dict[tuple[Source, str, str], ImageSet] = {}


def missing_pieces(result: Result | None, wanted: tuple[str, ...], places: Places) -> list[str]:
    """The pieces a result still lacks; `transfer/SOURCE` for each downstream set that is there."""
    have = result["pieces"] if result is not None else {}
    lacking = [name for name in PIECES if name in wanted and name != "transfer" and name not in have]
    if "transfer" in wanted:
        known = have.get("transfer", {})
        lacking += [f"transfer/{source}" for source in places.transfer_sources() if source not in known]
    return lacking


@dataclass
class Subject:
    """A trained run and what its pieces share: the model, and features computed once."""

    folder: Path
    places: Places
    device: str
    known: dict[tuple[Source, str], Features] = field(default_factory=dict)

    @cached_property
    def run(self) -> Run:
        return Run.open(self.folder)

    @cached_property
    def model(self) -> SparseModel:
        return self.run.model(self.device)

    @cached_property
    def target(self) -> Any:
        return target_of(self.run.config)

    @cached_property
    def settings(self) -> EvaluationSettings:
        return EvaluationSettings(**scale_of(self.places.scale)["evaluation"])

    @property
    def train(self) -> Features:
        return self.features(self.own_source, "train")

    @property
    def val(self) -> Features:
        return self.features(self.own_source, "val")

    @property
    def val_images(self) -> ImageSet:
        return self.images(self.own_source, "val")

    @property
    def own_source(self) -> Source:
        return Source.of(self.run)

    def images(self, source: Source, split: str) -> ImageSet:
        """The images of a source; those of small ones are kept for the trainings that follow."""
        key = (source, split, json.dumps(to_dict(self.run.config)["data"]))
        if (images := _loaded.get(key)) is None:
            images = load_images(self.run, source, split)
            if images.images is not None and images.images.nbytes <= LOADED:
                _loaded[key] = images
        return images

    def features(self, source: Source, split: str) -> Features:
        """Features by source and split; the run's own source among the downstream ones is computed once."""
        if source.is_of(self.run):
            source, split = self.own_source, "train" if split == "train" else "val"
        if (source, split) not in self.known:
            images, model = self.images(source, split), self.model
            small = len(images) * (model.encoder_dim + model.projector_dim) <= HELD
            self.known[source, split] = extract(
                model,
                images,
                BATCH,
                transform=evaluation_transform(self.run),
                store=self.device if small else "cpu",
            )
        return self.known[source, split]

    def queries(self) -> Iterator[tuple[str, int, Tensor, Any]]:
        """Name, place, model input (1, C, S, S) and box of each query."""
        places = query_places(self.places.scale)
        transform = evaluation_transform(self.run)
        for name, place, box in (
            ("plain", places["plain"], None),
            ("busy", places["busy"], None),
            ("crop", places["busy"], tuple(places["box"])),
        ):
            x = transform(self.val_images.decode(torch.tensor([place]))).to(self.device)
            yield name, place, x, box


def compute(subject: Subject, name: str) -> dict[str, Any]:
    """One piece by name; `transfer/SOURCE` is one downstream set."""
    if name.startswith("transfer/"):
        return _transfer(subject, name.split("/", 1)[1])
    makers: dict[str, Callable[[Subject], dict[str, Any]]] = {
        "measures": lambda s: measures(s.val, s.target, s.settings.seed),
        "marginals": _marginals,
        "posthoc": _posthoc,
        "neighbours": _neighbours,
        "attribution": _attribution,
    }
    return makers[name](subject)


def _transfer(subject: Subject, source: str) -> dict[str, Any]:
    images = Source.parse(subject.places.transfer_sources()[source])
    train, test = subject.features(images, "train"), subject.features(images, "test")
    settings = subject.settings
    piece: dict[str, Any] = {"measures": measures(test, None, settings.seed)}
    for fraction in settings.fractions:
        probe = probe_regime(train, test, fraction, settings, subject.device)
        probe["encoder"].pop("by_correctness", None)  # the violins show projector features
        piece[f"probe {fraction:g}"] = probe
    return piece


def _posthoc(subject: Subject) -> dict[str, Any]:
    settings = subject.settings
    protocol = probe_protocol("sgd", epochs=settings.epochs)
    return rectification(subject.train, subject.val, protocol, settings.seed, subject.device)


def _marginals(subject: Subject) -> dict[str, Any]:
    values = subject.val.projector.flatten().double().sort().values
    places = torch.linspace(0, len(values) - 1, LEVELS, dtype=torch.float64).round().long()
    chosen = values[places.to(values.device)]
    return {"quantiles": chosen.tolist(), "zero": float((values == 0).double().mean())}


def _neighbours(subject: Subject) -> dict[str, Any]:
    piece: dict[str, Any] = {}
    labels = subject.val.require_labels()
    for name, place, x, box in subject.queries():
        found = retrieve(
            subject.model, x, subject.val, NEIGHBOURS, box, labels[place : place + 1], torch.tensor([place])
        )
        assert found.match is not None
        piece[name] = {
            "query": place,
            "box": box,
            "indices": found.indices[0].tolist(),
            "similarities": found.similarities[0].tolist(),
            "match": found.match[0].tolist(),
        }
    return piece


def _attribution(subject: Subject) -> dict[str, Any]:
    piece: dict[str, Any] = {}
    for name, place, x, box in subject.queries():
        shown = x if box is None else crop(x, box)
        piece[name] = {"query": place, "box": box, "raw": attribute(subject.model, shown).raw[0].tolist()}
    return piece
