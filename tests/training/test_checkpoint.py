"""Checkpoints: whole or not at all."""

import os
import pickle
import re

import pytest
import torch

from lpjepa.training import checkpoint
from lpjepa.training.checkpoint import CheckpointError


def _save(folder, step):
    return checkpoint.save(folder, step, {"step": step, "w": torch.arange(1000.0) * step})


def test_newest_two_are_kept(tmp_path):
    for step in (5, 10, 100, 1000):
        _save(tmp_path, step)
    assert [p.name for p in checkpoint.list_checkpoints(tmp_path)] == [
        "step-000000100.pt",
        "step-000001000.pt",
    ]
    assert sorted(os.listdir(tmp_path)) == sorted(
        f"step-{s:09d}.pt{e}" for s in (100, 1000) for e in ("", ".sha256")
    )
    assert checkpoint.load_newest(tmp_path)["step"] == 1000


@pytest.mark.parametrize("damage", ["truncated", "bit", "no checksum"])
def test_damaged_one_is_passed_over_with_a_warning(tmp_path, damage):
    _save(tmp_path, 1)
    path = _save(tmp_path, 2)
    if damage == "no checksum":
        (tmp_path / (path.name + ".sha256")).unlink()
    else:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content[: len(content) // 2] if damage == "truncated" else content)
    with pytest.warns(RuntimeWarning, match="using the one before"):
        assert checkpoint.load_newest(tmp_path)["step"] == 1


def test_all_damaged_is_an_error_and_none_is_none(tmp_path):
    assert checkpoint.load_newest(tmp_path) is None
    folder = tmp_path / "my run" / "checkpoints"
    _save(folder, 1).write_bytes(b"")
    # The advice is a command by itself: the message also reaches those of export, embed and report.
    advice = f"train it anew: lpjepa pretrain '{folder.parent}/config.yaml' --train.no-resume"
    with pytest.warns(RuntimeWarning), pytest.raises(CheckpointError, match=re.escape(advice)):
        checkpoint.load_newest(folder)


def test_a_partial_write_is_not_a_checkpoint(tmp_path):
    _save(tmp_path, 1)
    (tmp_path / "step-000000002.partial").write_bytes(b"half")
    assert checkpoint.load_newest(tmp_path)["step"] == 1
    checkpoint.clear(tmp_path)
    assert os.listdir(tmp_path) == []


def test_loading_runs_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.system, ("touch " + str(tmp_path / "ran"),))

    path = checkpoint.save(tmp_path, 1, {"evil": Evil()})
    with pytest.raises(pickle.UnpicklingError):
        checkpoint.load(path)
    assert not (tmp_path / "ran").exists()


def test_a_failed_write_leaves_the_one_before(tmp_path, monkeypatch):
    _save(tmp_path, 1)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CheckpointError, match="No space left"):
        _save(tmp_path, 2)
    monkeypatch.undo()
    assert checkpoint.load_newest(tmp_path)["step"] == 1


def test_no_room_and_no_permission_are_said_up_front(tmp_path):
    with pytest.raises(CheckpointError, match="checkpoints need"):
        checkpoint.check_room(tmp_path, 2**60)
    checkpoint.check_room(tmp_path, 1)
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(CheckpointError, match=r"--train\.out"):
        checkpoint.check_writable(blocked / "run")


def test_the_systems_own_words_are_passed_on(tmp_path):
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="File too large; there is none before it"):
            _save(tmp_path, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_that_are_there_count_as_room(tmp_path, monkeypatch):
    """A run that just fits its disk can be resumed there."""
    for step in (1, 2):
        _save(tmp_path / "checkpoints", step)
    size = checkpoint.list_checkpoints(tmp_path / "checkpoints")[0].stat().st_size
    usage = checkpoint.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path: usage._replace(free=size))
    checkpoint.check_room(tmp_path, size)
    with pytest.raises(CheckpointError, match=r"need .* kB and .* kB are free"):
        checkpoint.check_room(tmp_path, size + size // 100 + 1)


@pytest.mark.parametrize("survived", range(4))
def test_a_kill_while_one_is_written_over_leaves_the_old_or_the_new(tmp_path, monkeypatch, survived):
    """Killed before each rename in turn; there is no other checkpoint to fall back to."""
    _save(tmp_path, 7)
    renames, replace = [], os.replace

    def rename(*names):
        if len(renames) == survived:
            raise KeyboardInterrupt
        renames.append(names)
        replace(*names)

    monkeypatch.setattr(os, "replace", rename)
    if survived < 3:
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(tmp_path, 7, {"step": 8})
    else:
        checkpoint.save(tmp_path, 7, {"step": 8})
        assert len((tmp_path / "step-000000007.pt.sha256").read_text().split()) == 1
    assert checkpoint.load_newest(tmp_path)["step"] == (7 if survived < 2 else 8)
