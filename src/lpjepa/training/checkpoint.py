"""Checkpoints that survive a kill at any moment: written whole or not at all, checked when read.

A checkpoint `step-000001200.pt` has a companion `step-000001200.pt.sha256` with its checksum. Both are
written under another name, flushed to the disk and renamed, the checksum first: a checkpoint that bears
its name is complete. One that is written over has both checksums until its new file is there. The newest
two are kept, so that one that a disk has damaged has a predecessor.
They hold tensors and plain containers only, and are always read with `weights_only=True`.
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

import torch

from lpjepa._digest import digest
from lpjepa.data.memory import human

KEPT = 2
_NAME = re.compile(r"step-(\d+)\.pt")


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read; one sentence, for the user."""


def save(folder: Path, step: int, state: dict[str, Any], name: str | None = None) -> Path:
    """Write `state` as the checkpoint of `step` (or as `name`, which is never counted or removed)."""
    path = folder / (name or f"step-{step:09d}.pt")
    partial = path.with_suffix(".partial")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as stream:  # Python's own file: its errors say what is wrong with the disk
            torch.save(state, stream)
        checked = digest(partial)
        checksum = Path(f"{path}.sha256")
        checksum_partial = checksum.with_suffix(".sha256-partial")
        before = checksum.read_text() if path.is_file() and checksum.is_file() else ""
        _flush(partial)
        for content in dict.fromkeys([f"{checked}\n{before}", f"{checked}\n"]):
            checksum_partial.write_text(content)
            _flush(checksum_partial)
            os.replace(checksum_partial, checksum)
            if partial.is_file():
                os.replace(partial, path)
        _flush(folder)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        reason = _reason(error, folder)
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        kept = "the checkpoint before it is intact" if list_checkpoints(folder) else "there is none before it"
        raise CheckpointError(f"{path} could not be written: {reason}; {kept}") from error
    if name is None:
        for old in list_checkpoints(folder)[:-KEPT]:
            old.unlink(missing_ok=True)
            Path(f"{old}.sha256").unlink(missing_ok=True)
    return path


def _reason(error: Exception, folder: Path) -> str:
    """Why a write failed, for the user: the system's words, which torch hides behind its own."""
    with suppress(OSError):
        if shutil.disk_usage(folder).free < 2**20:
            return "the disk is full"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__context__
    return str(error).split("\n")[0]


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, oldest first."""
    found = [path for path in folder.glob("step-*.pt") if _NAME.fullmatch(path.name)]
    return sorted(found, key=step_of)


def kept_name(share: float) -> str:
    """The name of the checkpoint that is kept at a share of the training."""
    return f"kept-{share:g}.pt"


def step_of(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    return int(match.group(1)) if match else -1


def load_newest(folder: Path) -> dict[str, Any] | None:
    """The content of `newest`."""
    found = newest(folder)
    return None if found is None else found[1]


def newest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest intact checkpoint, its file and its content; None where there is none at all.

    A damaged one is passed over with a warning. If all are damaged, that is an error: starting over by
    itself would throw the run away.
    """
    paths = list_checkpoints(folder)
    for path in reversed(paths):
        try:
            return path, load(path)
        except CheckpointError as error:
            others = "using the one before it" if path != paths[0] else "there is none before it"
            warnings.warn(f"{error}; {others}", RuntimeWarning, stacklevel=2)
    if paths:
        anew = f"{command(folder.parent)} --train.no-resume"
        raise CheckpointError(f"{folder}: every checkpoint is damaged; train it anew: {anew}")
    return None


def command(run: Path) -> str:
    """The command that trains the run in this folder."""
    return f"lpjepa pretrain {quote(str(run / 'config.yaml'))}"


def load(path: Path) -> dict[str, Any]:
    """One checkpoint, its checksum verified before anything is unpacked."""
    checksum = Path(f"{path}.sha256")
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such checkpoint")
    if not checksum.is_file():
        raise CheckpointError(f"{path} has no checksum beside it ({checksum.name})")
    if digest(path) not in checksum.read_text().split():
        raise CheckpointError(f"{path} is damaged: its checksum does not match")
    return torch.load(path, map_location="cpu", weights_only=True)


def clear(folder: Path) -> None:
    """Remove every checkpoint, its checksum and what an interrupted write left."""
    for path in folder.glob("*"):
        if path.suffix in (".pt", ".partial", ".sha256", ".sha256-partial"):
            path.unlink()


def check_room(folder: Path, state_bytes: int, besides: int = 0) -> None:
    """Refuse a run whose checkpoints the disk cannot hold: the two kept, the one being written and `besides`.

    Those that a resumed run has there already need no room of their own.
    """
    there = sum(path.stat().st_size for path in (folder / "checkpoints").glob("*.pt"))
    free, needed = shutil.disk_usage(folder).free + there, (KEPT + 1 + besides) * state_bytes
    if free < needed:
        raise CheckpointError(
            f"{folder}: checkpoints need {human(needed)} and {human(free)} are free; "
            "choose another folder with --train.out"
        )


def check_writable(folder: Path, flag: str = "--train.out", create: bool = True) -> None:
    """Prove that a file can be written in the folder, which `flag` names; with `create` it is there then."""
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.write_text("")
        probe.unlink()
        for place in [] if create else new:
            place.rmdir()
    except OSError as error:
        raise CheckpointError(
            f"{folder}: the folder cannot be written ({error.strerror}); choose another with {flag}"
        ) from error


def _flush(path: Path) -> None:
    """Make the content of a file, or the names in a folder, outlive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
