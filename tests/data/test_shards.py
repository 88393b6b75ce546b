"""Tar shards: our reader against the standard library's, labels, order, damage."""

import io
import os
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from lpjepa.data import Batches, DataError, MissingData, MissingSplit, in_order, load_source
from lpjepa.data.sources.shards import expand_braces, tar_members


def png(value):
    buffer = io.BytesIO()
    Image.new("RGB", (6, 6), (value, value // 2, 7)).save(buffer, "PNG")
    return buffer.getvalue()


def write_shard(path, samples, labelled=True, format=tarfile.USTAR_FORMAT, prefix=""):
    with tarfile.open(path, "w", format=format) as tar:
        for number, value in samples:
            members = [(f"{prefix}{number:05d}.png", png(value))]
            members += [(f"{prefix}{number:05d}.cls", str(value % 3).encode())] if labelled else []
            members += [(f"{prefix}{number:05d}.json", b"{}")]
            for name, data in members:
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))


@pytest.fixture
def shards(tmp_path):
    for shard in range(4):
        write_shard(tmp_path / f"set-{shard:03d}.tar", [(i, 10 * shard + i) for i in range(10)])
    return tmp_path


def test_braces():
    assert expand_braces("a-{008..011}.tar") == ["a-008.tar", "a-009.tar", "a-010.tar", "a-011.tar"]
    assert expand_braces("{x,y}-{0..1}") == ["x-0", "x-1", "y-0", "y-1"]
    assert expand_braces("plain.tar") == ["plain.tar"]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_those_of_the_standard_library(tmp_path, format):
    path = tmp_path / "a.tar"
    deep = "folder/" * (
        30 if format != tarfile.USTAR_FORMAT else 15
    )  # long names use each format's extension
    write_shard(path, [(1, 5), (2, 9)], format=format, prefix=deep)
    with tarfile.open(path) as tar:
        expected = [(m.name, m.offset_data, m.size) for m in tar if m.isfile()]
    assert [tuple(member) for member in tar_members(path)] == expected


def test_patterns_start_where_the_user_is(shards, monkeypatch):
    monkeypatch.delenv("LPJEPA_DATA", raising=False)
    monkeypatch.chdir(shards.parent)
    assert len(load_source(f"wds:{shards.name}/set-*.tar")) == 40


def test_reads_images_and_labels(shards):
    images = load_source("wds:set-{000..003}.tar", shards)
    values = torch.arange(40)
    assert torch.equal(images.images[:, 0, 0, 0].long(), values)
    assert torch.equal(images.labels, values % 3)
    assert len(load_source("wds:set-*.tar", shards)) == 40
    assert len(load_source(f"wds:{shards}/set-00[01].tar")) == 20


def test_streams_with_workers_and_resumes(shards):
    images = load_source("wds:set-*.tar", shards, resident=False, buffer=4)
    assert images.images is None
    batches = Batches(images, 5, workers=2)
    whole = list(batches.epoch(1))
    seen = torch.cat([batch.indices for batch in whole])
    assert len(seen.unique()) == len(seen) >= 30
    for batch in whole:
        assert torch.equal(batch.images[:, 0, 0, 0].long(), batch.indices)
        assert torch.equal(batch.labels, batch.indices % 3)
    rest = list(Batches(images, 5, workers=0).epoch(1, start=3))
    assert all(torch.equal(a.indices, b.indices) for a, b in zip(whole[3:], rest))
    assert len(rest) == len(whole) - 3
    ordered = torch.cat([batch.images for batch in in_order(images, 7, workers=0)])
    assert torch.equal(ordered[:, 0, 0, 0].long(), torch.arange(40))
    ranks = [
        torch.cat([b.indices for b in Batches(images, 4, rank=r, world=2, workers=0).epoch(0)])
        for r in (0, 1)
    ]
    assert not set(ranks[0].tolist()) & set(ranks[1].tolist())
    images.reader.close()


def test_unlabelled_and_broken(tmp_path):
    write_shard(tmp_path / "a.tar", [(i, i) for i in range(5)], labelled=False)
    data = bytearray((tmp_path / "a.tar").read_bytes())
    third = list(tar_members(tmp_path / "a.tar"))[4]
    assert third.name == "00002.png"
    data[third.offset : third.offset + third.size] = os.urandom(third.size)
    (tmp_path / "a.tar").write_bytes(data)
    images = load_source("wds:a.tar", tmp_path)
    assert images.labels is None
    assert images.images[:, 0, 0, 0].tolist() == [0, 1, 3, 4]
    assert [path.endswith("a.tar/00002.png") for path in images.broken.paths] == [True]


def test_validation_shards(shards):
    with pytest.raises(MissingSplit, match="option val"):
        load_source("wds:set-000.tar", shards, "val")
    assert len(load_source("wds:set-{000..002}.tar", shards, "val", val="set-003.tar")) == 10
    os.rename(shards / "set-000.tar", shards / "train-0.tar")
    os.rename(shards / "set-001.tar", shards / "val-0.tar")
    for split, first in (("train", 0), ("val", 10)):
        assert int(load_source("wds:{split}-*.tar", shards, split).images[0, 0, 0, 0]) == first


def test_errors(shards, tmp_path):
    with pytest.raises(MissingData, match="no shard matches"):
        load_source("wds:nothing-*.tar", shards)
    with pytest.raises(MissingData, match=r"set-004\.tar does not exist"):
        load_source("wds:set-{003..004}.tar", shards)
    (tmp_path / "text.tar").write_bytes(b"not a tar" * 100)
    with pytest.raises(DataError, match="not an uncompressed tar archive"):
        load_source("wds:text.tar", tmp_path)
    whole = (shards / "set-000.tar").read_bytes()
    last = list(tar_members(shards / "set-000.tar"))[-1]
    (tmp_path / "cut.tar").write_bytes(whole[: last.offset + 1])
    with pytest.raises(DataError, match="ends in the middle"):
        load_source("wds:cut.tar", tmp_path)
    with tarfile.open(tmp_path / "bad.tar", "w") as tar:
        for name, data in (("1.png", png(1)), ("1.cls", b"cat")):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    with pytest.raises(DataError, match="not a class number"):
        load_source("wds:bad.tar", tmp_path)
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    with pytest.raises(DataError, match="hold no images"):
        load_source("wds:empty.tar", tmp_path)


def test_many_processes_open_their_own_files(shards):
    images = load_source("wds:set-*.tar", shards, resident=False, max_memory=0)
    assert images.cached == 0
    images.read(torch.arange(3))  # opens a file in this process
    values = torch.cat([batch.images[:, 0, 0, 0] for batch in in_order(images, 5, workers=2)])
    assert np.array_equal(values.numpy(), np.arange(40))
    images.reader.close()
