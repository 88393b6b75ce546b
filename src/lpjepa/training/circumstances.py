"""What a run depends on besides its config: its images, and the number of processes."""

from __future__ import annotations

import hashlib
import os
import warnings
from pathlib import Path
from typing import Any

from lpjepa._spread import spread
from lpjepa.data import ImageSet
from lpjepa.training._typed import ConfigError
from lpjepa.training.config import Config
from lpjepa.training.layers import replace

SAMPLED = 32  # images that are looked at


def with_absolute_root(config: Config) -> Config:
    """The config with a root that means the same from every directory."""
    root = config.data.root
    if root == "":
        raise ConfigError("data.root: expected the file or folder that holds the images, got nothing")
    if root is None or "://" in root:
        return config
    return replace(config, {"data": {"root": os.path.abspath(os.path.expanduser(root))}})


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


def objection(
    folder: Path, before: dict[str, Any], now: dict[str, Any], stored: Config, config: Config, name: str
) -> str | None:
    """Why a run cannot go on: another number of processes, other classes, the images of another place.

    `before` and `now` are described circumstances, `name` is that of the images. Images that were moved are
    the same ones. Where a place has other images than it had, the run goes on with a warning: someone has
    added to a folder.
    """
    before = now | before  # what an older version did not write down
    if before["world"] != now["world"]:
        return (
            f"{folder} was trained by {before['world']} processes with train.batch_size "
            f"{config.train.batch_size} each; with {now['world']} it would be another training: "
            f"start it with torchrun --nproc-per-node {before['world']}, or choose another folder "
            "with --train.out"
        )
    if before["classes"] != now["classes"]:
        return (
            f"{folder} was trained on {before['classes']} classes and {name} has {now['classes']} now; "
            "choose another folder with --train.out"
        )
    if before["fingerprint"] == now["fingerprint"]:
        return None
    if _moved(stored, config):
        return (
            f"{folder} was trained on {stored.data.root}, and {config.data.root} holds other images; choose "
            f"another folder with --train.out, or go on with --data.root {stored.data.root}"
        )
    other = f"{now['images']} now" if before["images"] != now["images"] else "others now"
    warnings.warn(
        f"{folder} was trained on {before['images']} images and {name} has {other}: "
        "the run goes on, in another order than it would have had",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


def fingerprint(train: ImageSet) -> str:
    """A digest of the labels and of some images, wherever they lie and whether or not they are in memory."""
    found = hashlib.sha256(str((len(train), train.shape)).encode())
    if train.labels is not None:
        found.update(train.labels.cpu().numpy().tobytes())
    places = spread(len(train), SAMPLED)
    found.update(train.read(places).images.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def _moved(before: Config, now: Config) -> bool:
    roots = [None if c.data.root is None else os.path.realpath(c.data.root) for c in (before, now)]
    return roots[0] != roots[1]
