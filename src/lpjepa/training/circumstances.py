"""What a run depends on besides its config: its images, and the number of processes."""

from __future__ import annotations

import hashlib
import os
import warnings
from pathlib import Path
from typing import Any

from lpjepa.data import ImageSet
from lpjepa.training._typed import ConfigError
from lpjepa.training.config import Config
from lpjepa.training.layers import replace

SAMPLED = 64  # images of a set without paths that are looked at


def with_absolute_root(config: Config) -> Config:
    """The config with a root that means the same from every directory."""
    root = config.data.root
    if root is None or "://" in root:
        return config
    return replace(config, {"data": {"root": str(Path(root).expanduser().absolute())}})


def check_place(folder: Path, before: Config, now: Config) -> None:
    """Refuses a finished run for a command that names other images."""
    if _moved(before, now):
        raise ConfigError(
            f"{folder} was trained on {before.data.root} and is finished; for {now.data.root} choose another "
            "folder with --train.out, or replace it with --train.no-resume"
        )


def describe(train: ImageSet, world: int) -> dict[str, Any]:
    """The circumstances of a training, as its checkpoints keep them."""
    return {
        "world": world,
        "images": len(train),
        "classes": train.num_classes,
        "fingerprint": fingerprint(train),
    }


def check_unchanged(
    folder: Path, before: dict[str, Any], stored: Config, now: Config, train: ImageSet, world: int
) -> None:
    """Refuses to go on with another number of processes, other classes or the images of another place.

    Images that were moved are the same ones. Where a place has other images than it had, the run goes on with
    a warning: someone has added to a folder.
    """
    if before["world"] != world:
        raise ConfigError(
            f"{folder} was trained by {before['world']} processes with train.batch_size "
            f"{now.train.batch_size} each; with {world} it would be another training: "
            f"start it with torchrun --nproc-per-node {before['world']}, or choose another folder "
            "with --train.out"
        )
    if before["classes"] != train.num_classes:
        raise ConfigError(
            f"{folder} was trained on {before['classes']} classes and {train.name} has "
            f"{train.num_classes} now; choose another folder with --train.out"
        )
    if before["fingerprint"] == fingerprint(train):
        return
    if _moved(stored, now):
        raise ConfigError(
            f"{folder} was trained on {stored.data.root}, and {now.data.root} holds other images; choose "
            f"another folder with --train.out, or go on with --data.root {stored.data.root}"
        )
    other = f"{len(train)} now" if before["images"] != len(train) else "others now"
    warnings.warn(
        f"{folder} was trained on {before['images']} images and {train.name} has {other}: "
        "the run goes on, in another order than it would have had",
        RuntimeWarning,
        stacklevel=2,
    )


def fingerprint(train: ImageSet) -> str:
    """A digest of labels and of paths below their common folder, or of some images; not of the place."""
    found = hashlib.sha256(str((len(train), train.shape)).encode())
    if train.labels is not None:
        found.update(train.labels.cpu().numpy().tobytes())
    if train.paths is not None:
        paths = [os.fspath(path) for path in train.paths]
        common = len(os.path.commonpath([min(paths), max(paths)]))  # that of all, as they are extremes
        found.update("\n".join(path[common:] for path in paths).encode(errors="surrogateescape"))
    elif train.images is not None:
        some = train.images[:: max(1, len(train) // SAMPLED)]
        found.update(some.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def _moved(before: Config, now: Config) -> bool:
    roots = [None if c.data.root is None else os.path.realpath(c.data.root) for c in (before, now)]
    return roots[0] != roots[1]
