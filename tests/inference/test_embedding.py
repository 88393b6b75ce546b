"""`lpjepa embed`: every form holds the same features, in order, whatever happened on the way."""

import csv
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

from lpjepa._commands import embed as command
from lpjepa.data import DataError, load_source
from lpjepa.evaluation.progress import Silent
from lpjepa.inference import embedding
from lpjepa.inference.embedding import embed_images
from lpjepa.inference.embeddings_file import read_embeddings
from lpjepa.inference.images import to_pillow
from lpjepa.inference.inputs import open_items
from lpjepa.inference.parts import PartStore


def embed(model, images, out, **options):
    split = "test" if images == "digits" else None
    options = {"part_size": 100, "split": split, "progress": Silent(), **options}
    return embed_images(model, str(images), out, **options)


def test_csr_is_what_scipy_reads_and_dense_the_same(model, digits, tmp_path):
    expected = model.embed(digits.images).numpy()
    done = embed(model, "digits", tmp_path / "d.npz")
    assert (done.rows, done.computed, done.unreadable) == (359, 359, [])
    matrix = scipy.sparse.load_npz(tmp_path / "d.npz")
    assert matrix.format == "csr"
    assert matrix.nnz == np.count_nonzero(expected)
    np.testing.assert_allclose(matrix.toarray(), expected, rtol=1e-5, atol=1e-6)
    embed(model, "digits", tmp_path / "d.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "d.npy"), matrix.toarray())
    with open(tmp_path / "d.npz.items.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows[:2]] == ["digits/test/0", "digits/test/1"]
    assert [int(row["label"]) for row in rows] == digits.labels.tolist()
    for name in ("d.npz", "d.npy"):
        back = read_embeddings(tmp_path / name)
        np.testing.assert_array_equal(back.matrix.toarray(), matrix.toarray())
        assert back.labels.tolist() == digits.labels.tolist()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "d.npy", "d.npy.items.csv", "d.npy.json", "d.npz", "d.npz.items.csv", "d.npz.json",
    ]  # fmt: skip


def test_encoder_features(model, digits, tmp_path):
    embed(model, "digits", tmp_path / "d.npy", features="encoder")
    expected = model.embed(digits.images, "encoder").numpy()
    np.testing.assert_allclose(np.load(tmp_path / "d.npy"), expected, rtol=1e-4, atol=1e-5)


def test_parquet(model, digits, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    embed(model, "digits", tmp_path / "d.parquet")
    table = parquet.read_table(tmp_path / "d.parquet").to_pydict()
    assert list(table) == ["indices", "values", "path", "label"]
    expected = model.embed(digits.images).numpy()
    dense = np.zeros_like(expected)
    for row, (indices, values) in enumerate(zip(table["indices"], table["values"])):
        dense[row, indices] = values
    np.testing.assert_allclose(dense, expected, rtol=1e-5, atol=1e-6)
    assert table["label"] == digits.labels.tolist()
    np.testing.assert_array_equal(read_embeddings(tmp_path / "d.parquet").matrix.toarray(), dense)


def test_parquet_without_pyarrow_is_one_sentence(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"pip install .lpjepa\[embed\]"):
        embed(model, "digits", tmp_path / "d.parquet")
    assert list(tmp_path.iterdir()) == []


def test_folder_archive_and_list_agree_and_name_what_cannot_be_read(model, photos, digits, tmp_path):
    done = embed(model, photos, tmp_path / "folder.npz", part_size=7)
    assert done.rows == 40
    assert [os.path.basename(path) for path, _ in done.unreadable] == ["broken.jpg"]
    folder = read_embeddings(tmp_path / "folder.npz")
    places = [int(os.path.basename(name).split(".")[0]) for name in folder.names]
    assert sorted(places) == list(range(40))
    np.testing.assert_allclose(
        folder.matrix.toarray(), model.embed(digits.images[places]).numpy(), rtol=1e-5, atol=1e-6
    )
    classes = folder.info["classes"]
    assert [classes[label] for label in folder.labels] == [f"digit {int(digits.labels[p])}" for p in places]

    for kind in ("zip", "tar"):
        archive = shutil.make_archive(str(tmp_path / "photos"), kind, photos)
        done = embed(model, archive, tmp_path / f"{kind}.npz")
        assert len(done.unreadable) == 1
        packed = read_embeddings(tmp_path / f"{kind}.npz")
        assert sorted(os.path.basename(n) for n in packed.names) == sorted(
            os.path.basename(n) for n in folder.names
        )
        order = {os.path.basename(name): row for row, name in enumerate(packed.names)}
        rows = [order[os.path.basename(name)] for name in folder.names]
        np.testing.assert_allclose(
            packed.matrix.toarray()[rows], folder.matrix.toarray(), rtol=1e-5, atol=1e-6
        )
        assert packed.labels[rows].tolist() == folder.labels.tolist()

    listed = tmp_path / "list.txt"
    listed.write_text("# three of them\n" + "\n".join([*folder.names[3:5], str(tmp_path / "gone.png")]))
    done = embed(model, listed, tmp_path / "list.npz")
    assert [path for path, _ in done.unreadable] == [str(tmp_path / "gone.png")]
    np.testing.assert_allclose(
        read_embeddings(tmp_path / "list.npz").matrix.toarray(),
        folder.matrix.toarray()[3:5],
        rtol=1e-5,
        atol=1e-6,
    )


def test_a_killed_job_goes_on_without_duplicates_or_holes(model, digits, tmp_path, monkeypatch):
    embed(model, "digits", tmp_path / "whole.npz")
    calls = []
    original = embedding.compute

    def stop_at_the_third(*arguments):
        calls.append(arguments[2])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(embedding, "compute", stop_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            embed(model, "digits", tmp_path / "d.npz")
    assert not (tmp_path / "d.npz").exists()
    # What a kill in the middle of a write leaves is not taken for a part.
    (tmp_path / "d.npz.parts" / "part-0000002.17.partial").write_bytes(b"half")
    with pytest.raises(ValueError, match="differs in its features"):
        embed(model, "digits", tmp_path / "d.npz", features="encoder")
    done = embed(model, "digits", tmp_path / "d.npz")
    assert done.computed == 159
    for name in ("data", "indices", "indptr"):
        with np.load(tmp_path / "whole.npz") as whole, np.load(tmp_path / "d.npz") as resumed:
            np.testing.assert_array_equal(whole[name], resumed[name])
    assert embed(model, "digits", tmp_path / "d.npz").computed == 0
    assert not (tmp_path / "d.npz.parts").exists()


def test_a_kill_while_the_result_is_written(model, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(PartStore, "remove", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            embed(model, "digits", tmp_path / "d.npz")
    assert (tmp_path / "d.npz.parts").exists()
    assert embed(model, "digits", tmp_path / "d.npz").computed == 0
    assert not (tmp_path / "d.npz.parts").exists()


def test_two_processes_share_the_work(run_folder, model, tmp_path):
    embed(model, "digits", tmp_path / "one.npz", part_size=4096)
    script = (
        "import sys, torch; torch.set_num_threads(1)\n"
        "from lpjepa.inference import load\n"
        "from lpjepa.inference.embedding import embed_images\n"
        f"done = embed_images(load({str(run_folder)!r}, 'cpu'), 'digits', {str(tmp_path / 'two.npz')!r},"
        " split='test', part_size=50)\n"
        "print('computed', done.computed)\n"
    )
    (tmp_path / "job.py").write_text(script)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    ran = subprocess.run(
        [*command, str(tmp_path / "job.py")], capture_output=True, text=True, timeout=200, cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    computed = sorted(int(line.split()[1]) for line in ran.stdout.splitlines() if "computed" in line)
    assert computed == [159, 200]  # eight parts of 50, the last of 9
    one, two = (read_embeddings(tmp_path / f"{name}.npz") for name in ("one", "two"))
    assert one.names == two.names
    np.testing.assert_allclose(one.matrix.toarray(), two.matrix.toarray(), rtol=1e-5, atol=1e-6)


def test_the_command_lists_what_it_could_not_read(run_folder, photos, tmp_path, capsys):
    out = tmp_path / "photos.npz"
    assert command.run([str(run_folder), str(photos), "--out", str(out), "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert f"40 images in {out}" in printed
    assert "broken.jpg (not an image" in printed
    assert json.loads((tmp_path / "photos.npz.json").read_text())["model"]["source"] == str(run_folder)
    with pytest.raises(ValueError, match="--out"):
        command.run([str(run_folder), str(photos)])
    with pytest.raises(ValueError, match=r"\.npz, \.parquet"):
        command.run([str(run_folder), str(photos), "--out", "x.txt"])


def test_inputs_that_cannot_be_embedded_say_why(model, run_folder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no images in"):
        open_items(str(tmp_path / "empty"))
    with pytest.raises(DataError, match="no such folder"):
        open_items(str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="no source 'digit'; did you mean digits"):
        open_items("digit")
    (tmp_path / "x.zip").write_bytes(b"no zip")
    with pytest.raises(DataError, match="not a zip"):
        open_items(str(tmp_path / "x.zip"))
    with zipfile.ZipFile(tmp_path / "none.zip", "w") as archive:
        archive.writestr("readme.txt", "x")
    with pytest.raises(DataError, match="no images in"):
        open_items(str(tmp_path / "none.zip"))
    (tmp_path / "x.tgz").write_bytes(b"")
    with pytest.raises(DataError, match=r"plain \.tar"):
        open_items(str(tmp_path / "x.tgz"))
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").write_bytes(b"x")
    with pytest.raises(ValueError, match="none of the 1 images"):
        embed(model, tmp_path / "bad", tmp_path / "bad.npz")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ValueError, match=r"^--out .*file/f\.npz: its folder cannot be written \(Not a dir"):
        embed(model, "digits", tmp_path / "file" / "f.npz")
    (tmp_path / "old.npz").write_bytes(b"mine")
    with pytest.raises(ValueError, match="exists"):
        embed(model, "digits", tmp_path / "old.npz")
    assert (tmp_path / "old.npz").read_bytes() == b"mine"


def test_a_diverged_model_is_an_error(run_folder, tmp_path):
    from lpjepa.inference import load

    broken = load(run_folder, "cpu")
    next(broken.encoder.parameters()).data.fill_(torch.nan)
    with pytest.raises(ValueError, match="not finite"):
        embed(broken, "digits", tmp_path / "d.npz")


@pytest.mark.parametrize("damage", ["cut", "info", "items"])
def test_damaged_embeddings_are_one_sentence(model, tmp_path, damage):
    path = tmp_path / "d.npz"
    embed(model, "digits", path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-300])
    elif damage == "info":
        (tmp_path / "d.npz.json").write_text("{")
    else:
        lines = (tmp_path / "d.npz.items.csv").read_text().splitlines()
        (tmp_path / "d.npz.items.csv").write_text("\n".join(lines[:-1]))
    with pytest.raises(ValueError, match="embed the images again"):
        read_embeddings(path)


def test_many_unreadable_files_do_not_fill_the_screen(run_folder, photos, tmp_path, capsys):
    for place in range(30):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{place}.jpg").write_bytes(b"x")
    shutil.copy(next(photos.rglob("007.png")), tmp_path / "in")
    for name, listing in (("a.npz", "a.npz.json"), ("a.index", "a.index/index.json")):
        out = tmp_path / name
        assert command.run([str(run_folder), str(tmp_path / "in"), "--out", str(out)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"1 image in {out}"
        assert len(lines) == 23
        assert lines[-1] == f"  and 10 more, all of them listed in {tmp_path / listing}"
        content = json.loads((tmp_path / listing).read_text())
        assert len(content.get("info", content)["unreadable"]) == 30


def test_only_the_first_process_speaks(model, tmp_path, monkeypatch, capsys):
    embed(model, "digits", tmp_path / "d.npz")
    for rank, said in (("1", ""), ("0", "complete already")):
        monkeypatch.setenv("RANK", rank)
        embed(model, "digits", tmp_path / "d.npz", progress=None)
        assert said in capsys.readouterr().err
        if rank == "1":
            assert capsys.readouterr().err == ""


def test_folders_in_an_archive_are_no_images(tmp_path, photos):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.mkdir("album.png") if hasattr(archive, "mkdir") else archive.writestr("album.png/", "")
        archive.write(next(photos.rglob("007.png")), "album.png/007.png")
    assert list(open_items(str(tmp_path / "x.zip")).names) == [f"{tmp_path}/x.zip/album.png/007.png"]


@pytest.fixture
def in_parts(tmp_path, photos):
    """train and val with classes inside, of which val lacks the first."""
    picture = next(photos.rglob("007.png"))
    for inside in ("train/ant/1", "train/bee/2", "train/cow/3", "val/cow/4", "val/bee/5"):
        path = tmp_path / "set" / f"{inside}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, path)
    return tmp_path / "set"


def shown(items, root):
    """What each image is called inside the set, with the name of its class."""
    labels = [None] * len(items) if items.labels is None else [items.classes[n] for n in items.labels]
    return dict(zip((os.path.relpath(name, root) for name in items.names), labels))


@pytest.mark.parametrize("form", ["folder", "zip", "tar", "wrapped zip"])
def test_parts_of_a_plain_folder_are_parts_and_not_classes(in_parts, tmp_path, form):
    path = in_parts
    if form == "wrapped zip":
        path = Path(shutil.make_archive(str(tmp_path / "packed"), "zip", in_parts.parent, "set"))
    elif form != "folder":
        path = Path(shutil.make_archive(str(tmp_path / "packed"), form, in_parts))
    root = path / "set" if form == "wrapped zip" else path
    train = {"train/ant/1.png": "ant", "train/bee/2.png": "bee", "train/cow/3.png": "cow"}
    val = {"val/bee/5.png": "bee", "val/cow/4.png": "cow"}
    assert shown(open_items(str(path)), root) == train | val
    assert shown(open_items(str(path), "train"), root) == train
    for held_out in ("val", "test"):  # a set with one held-out part gives it for both
        items = open_items(str(path), held_out)
        assert shown(items, root) == val
        source = load_source("folder", in_parts, held_out)  # the same numbers as the source by name
        named = {os.path.relpath(p, in_parts): int(n) for p, n in zip(source.paths, source.labels)}
        assert {os.path.relpath(p, root): int(n) for p, n in zip(items.names, items.labels)} == named
        assert all(to_pillow(items.image(place)).size == (8, 8) for place in range(2))


@pytest.mark.parametrize("form", ["folder", "zip", "tar"])
def test_a_set_of_one_part_has_that_part(in_parts, tmp_path, form):
    shutil.rmtree(in_parts / "val")
    path = in_parts if form == "folder" else Path(shutil.make_archive(str(tmp_path / "one"), form, in_parts))
    train = {"train/ant/1.png": "ant", "train/bee/2.png": "bee", "train/cow/3.png": "cow"}
    assert shown(open_items(str(path), "train"), path) == train
    assert shown(open_items(str(path)), path) == train
    with pytest.raises(DataError, match="has no folder 'val' inside"):
        open_items(str(path), "val")


def test_what_lies_beside_the_parts_is_in_none_of_them(in_parts, photos):
    (in_parts / "more").mkdir()
    shutil.copy(next(photos.rglob("007.png")), in_parts / "more" / "6.png")
    assert set(shown(open_items(str(in_parts)), in_parts).values()) == {"train", "val", "more"}
    assert list(shown(open_items(str(in_parts), "val"), in_parts)) == ["val/bee/5.png", "val/cow/4.png"]
    shutil.copy(next(photos.rglob("007.png")), in_parts / "train" / "7.png")  # no classes, then
    assert set(shown(open_items(str(in_parts), "val"), in_parts).values()) == {None}


def test_parts_that_are_not_there_are_named(in_parts, photos, tmp_path):
    with pytest.raises(DataError, match=r"^--split val: .* has no folder 'train' inside; leave --split out"):
        open_items(str(photos), "val")
    shutil.rmtree(in_parts / "val")
    with pytest.raises(DataError, match="has no folder 'val' inside"):
        open_items(str(in_parts), "val")
    (tmp_path / "list.txt").write_text("a.png")
    with pytest.raises(DataError, match=r"^--split test: .*list\.txt has no parts; leave --split out"):
        open_items(str(tmp_path / "list.txt"), "test")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no images in"):
        open_items(str(tmp_path / "empty"), "val")


def test_a_tar_that_was_cut_is_an_error(tmp_path, photos):
    """In a header, in a file, in what fills its last block: half a copy must not pass for the whole."""
    content = Path(shutil.make_archive(str(tmp_path / "whole"), "tar", photos)).read_bytes()
    header = content.index(b"ustar", 2000) - 257
    data = content.index(b"\x89PNG")
    for number, length in enumerate((header + 100, data + 20, data + 511)):  # the last in the padding
        (tmp_path / f"{number}.tar").write_bytes(content[:length])
        with pytest.raises(DataError, match="ends in the middle of"):
            open_items(str(tmp_path / f"{number}.tar"))
