"""Files written whole or not at all."""

import os

import pytest

from lpjepa._whole import whole, write_whole


def test_what_fails_leaves_the_file_as_it_was_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_whole(path, "first ℓ0")
    assert path.read_text(encoding="utf-8") == "first ℓ0"

    def stopped():
        with whole(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()

    def full(*_arguments):
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space"):
            write_whole(path, "second")
    assert path.read_text(encoding="utf-8") == "first ℓ0"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_a_reader_sees_the_old_file_until_the_end(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with whole(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_others_may_read_what_the_umask_lets_them(tmp_path):
    before = os.umask(0o022)
    try:
        write_whole(tmp_path / "a.txt", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o644
