"""Features of a large set, computed part by part: each part on the disk whole or not at all.

A part is a fixed range of the set, whatever the number of processes and the batch size, so that a job that
was killed goes on where it was, with any number of processes, without duplicates or holes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lpjepa._whole import whole, write_whole
from lpjepa.evaluation.features import require_finite
from lpjepa.inference.inputs import NO_LABEL, Items
from lpjepa.inference.model import Model

PART = 4096  # images; with features of 2048 entries a part is 32 MB


@dataclass(frozen=True)
class Part:
    """Features of the readable images of one part, dense or as rows of indices and values.

    Attributes:
        places: (n,) of the images in the set.
        labels: (n,), -1 where unknown.
        dense: (n, D) float32, or None.
        counts, indices, values: entries of each row, their features and values, or None for dense ones.
        unreadable: (path, reason) of the images that are left out.
    """

    places: np.ndarray
    labels: np.ndarray
    unreadable: list[tuple[str, str]]
    dense: np.ndarray | None = None
    counts: np.ndarray | None = None
    indices: np.ndarray | None = None
    values: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.places)


def compute(
    model: Model,
    items: Items,
    places: range,
    features: str,
    sparse: bool,
    batch_size: int,
    pool: ThreadPoolExecutor,
) -> Part:
    """The features of the images at `places`, the next batch being decoded while the model works on one."""
    side, interpolation = model.frame_side, model.description.preprocessing.interpolation
    batches = [places[start : start + batch_size] for start in range(0, len(places), batch_size)]
    found, kept, unreadable = [], [], []
    with ThreadPoolExecutor(1) as ahead:
        read = lambda batch: items.frames(batch, side, interpolation, pool)
        coming = ahead.submit(read, batches[0])
        for following in [*batches[1:], None]:
            frames = coming.result()
            if following is not None:
                coming = ahead.submit(read, following)
            unreadable += [(items.names[place], reason) for place, reason in frames.unreadable]
            kept += frames.places
            if frames.places:
                z_ND = model.embed_frames(frames.pixels, features)
                require_finite(z_ND, f"The {features} features")
                found.append(z_ND.cpu().numpy())
    dense = np.concatenate(found) if found else np.empty((0, model.width(features)), np.float32)
    labels = np.full(len(kept), NO_LABEL) if items.labels is None else items.labels[kept]
    part = Part(np.array(kept, np.int64), labels.astype(np.int64), unreadable, dense)
    return to_rows(part) if sparse else part


def to_rows(part: Part) -> Part:
    """The same part as rows of indices and values."""
    assert part.dense is not None
    rows, columns = np.nonzero(part.dense)
    counts = np.bincount(rows, minlength=len(part)).astype(np.int64)
    values = part.dense[rows, columns]
    return Part(part.places, part.labels, part.unreadable, None, counts, columns.astype(np.int32), values)


class PartStore:
    """The parts of one job in a folder beside its result, with a manifest that says which job it is."""

    def __init__(self, folder: Path, count: int, size: int = PART):
        self.folder, self.size = folder, size
        self.ranges = [range(start, min(start + size, count)) for start in range(0, count, size)]

    def open(self, manifest: dict[str, Any]) -> None:
        """Start or resume the job of `manifest`; a folder of another job is an error."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "job.json"
        try:
            there = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            write_json(path, manifest)
            return
        except ValueError:
            there = {}
        differing = [key for key in manifest if there.get(key) != manifest[key]]
        if differing:
            raise ValueError(
                f"{self.folder} holds parts of another job, which differs in its {differing[0]}; remove it "
                "or choose another --out."
            )

    def path(self, number: int) -> Path:
        return self.folder / f"part-{number:07d}.npz"

    def missing(self) -> list[int]:
        return [number for number in range(len(self.ranges)) if not self.path(number).is_file()]

    def save(self, number: int, part: Part) -> None:
        arrays = {
            name: getattr(part, name)
            for name in ("places", "labels", "dense", "counts", "indices", "values")
            if getattr(part, name) is not None
        }
        notes = np.frombuffer(json.dumps(part.unreadable).encode(), np.uint8)
        with whole(self.path(number)) as file:
            np.savez(file, unreadable=notes, **arrays)

    def __iter__(self) -> Iterator[Part]:
        for number in range(len(self.ranges)):
            with np.load(self.path(number)) as arrays:
                given = {name: arrays[name] for name in arrays.files}
            notes = [(path, reason) for path, reason in json.loads(given.pop("unreadable").tobytes())]
            yield Part(unreadable=notes, **given)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def items_digest(items: Items) -> str:
    """Sixteen hexadecimal digits of the names and labels of a set."""
    digest = hashlib.sha256()
    for name in items.names:
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
    digest.update(b"" if items.labels is None else np.ascontiguousarray(items.labels).tobytes())
    return digest.hexdigest()[:16]


def write_json(path: Path, content: Any) -> None:
    """Whole or not at all."""
    write_whole(path, json.dumps(content, indent=1))
