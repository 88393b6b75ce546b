"""The inverted index against a dense search over what it stores, and what happens to it on the disk."""

import json
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lpjepa._commands import search as command
from lpjepa.evaluation.progress import Silent
from lpjepa.inference import index as index_module
from lpjepa.inference import load
from lpjepa.inference.embedding import embed_images
from lpjepa.inference.embeddings_file import read_embeddings
from lpjepa.inference.index import SparseIndex, open_index
from lpjepa.training.checkpoint import list_checkpoints


def vectors(count, width=30, active=0.2, seed=0):
    rng = np.random.default_rng(seed)
    return ((rng.random((count, width)) < active) * rng.exponential(size=(count, width))).astype(np.float32)


def stored(x, form):
    """What the format keeps: relative to the largest value, in 127 steps or half precision."""
    largest = np.abs(x).max(1, keepdims=True)
    largest[largest == 0] = 1
    steps = 127 if form == "int8" else 1
    scale = (largest / steps).astype(np.float32)
    kept = np.rint(x / scale) if form == "int8" else (x / scale).astype(np.float16)
    return kept.astype(np.float64) * scale


def dense_scores(x, q, metric):
    if metric == "dot":
        return q.astype(np.float64) @ x.T
    norm = lambda a: np.linalg.norm(a, axis=1, keepdims=True)
    unit = lambda a: a / np.where(norm(a) > 0, norm(a), 1)
    return unit(q.astype(np.float64)) @ unit(x).T


def assert_exact(hits, scores, k, ids=None):
    """The k largest scores in falling order, each that of its document."""
    ids = np.arange(scores.shape[1]) if ids is None else ids
    expected = -np.sort(-scores, axis=1)[:, :k]
    np.testing.assert_allclose(hits.scores, expected, rtol=1e-5, atol=1e-6)
    rows = np.searchsorted(ids, hits.ids)
    np.testing.assert_array_equal(ids[rows], hits.ids)
    np.testing.assert_allclose(np.take_along_axis(scores, rows, 1), hits.scores, rtol=1e-5, atol=1e-6)
    assert all(len(set(row)) == len(row) for row in hits.ids)


@pytest.mark.parametrize("form", ["int8", "fp16"])
@pytest.mark.parametrize("metric", ["cosine", "dot"])
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 60),
    active=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    block=st.sampled_from([1, 40, 2**18]),
)
@settings(max_examples=15, deadline=None)
def test_search_is_exact(form, metric, seed, count, active, block):
    """Also where the postings of a query are worked on in several blocks."""
    x, q = vectors(count, active=active, seed=seed), vectors(4, active=active, seed=seed + 1)
    index = SparseIndex(30, form)
    index.add(x)
    with mock.patch.object(index_module, "BLOCK", block):
        hits = index.search(q, 7, metric)
    assert hits.ids.shape == (4, min(7, count))
    assert_exact(hits, dense_scores(stored(x, form), q, metric), min(7, count))


def test_ties_go_to_the_lower_id_and_zeros_are_found_last():
    x = np.array([[0, 2], [1, 0], [0, 0], [2, 0], [3, 0]], np.float32)
    index = SparseIndex(2)
    index.add(x)
    hits = index.search(np.array([1.0, 0.0]), 5)
    assert hits.ids.tolist() == [[1, 3, 4, 0, 2]]
    assert hits.scores.tolist() == [[1, 1, 1, 0, 0]]
    assert index.search(np.array([[1.0, 0.0]]), 2).ids.tolist() == [[1, 3]]
    assert index.search(np.zeros((1, 2)), 3).ids.tolist() == [[0, 1, 2]]
    assert index.search(np.zeros((0, 2)), 3).ids.shape == (0, 3)


def test_negative_values_and_every_kind_of_vectors():
    x = np.random.default_rng(0).normal(size=(50, 30)).astype(np.float32)
    results = []
    for given_as in (x, torch.from_numpy(x), scipy.sparse.csr_array(x), scipy.sparse.coo_matrix(x)):
        index = SparseIndex(30, "fp16")
        index.add(given_as)
        results.append(index.search(given_as, 5, threads=2))
        assert_exact(results[-1], dense_scores(stored(x, "fp16"), x, "cosine"), 5)
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].ids, other.ids)
        np.testing.assert_array_equal(results[0].scores, other.scores)


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_adding_and_removing_is_the_same_as_building_anew(data):
    index, kept = SparseIndex(30), {}
    for turn in range(data.draw(st.integers(1, 5))):
        x = vectors(data.draw(st.integers(0, 12)), seed=turn)
        ids = index.add(x, [f"{turn}/{row}" for row in range(len(x))])
        kept |= {int(i): (f"{turn}/{row}", x[row]) for row, i in enumerate(ids)}
        gone = data.draw(st.lists(st.sampled_from(sorted(kept)), unique=True)) if kept else []
        index.remove(gone)
        kept = {i: pair for i, pair in kept.items() if i not in gone}
    assert len(index) == len(kept)
    if not kept:
        with pytest.raises(ValueError, match="empty"):
            index.search(vectors(1))
        return
    q, k = vectors(3, seed=99), min(5, len(kept))
    ids, x = np.array(sorted(kept)), np.stack([kept[i][1] for i in sorted(kept)])
    hits = index.search(q, k)
    assert_exact(hits, dense_scores(stored(x, "int8"), q, "cosine"), k, ids)
    assert all(index.name(i) == kept[int(i)][0] for i in hits.ids.ravel())
    index.compact()
    np.testing.assert_array_equal(index.search(q, k).ids, hits.ids)
    np.testing.assert_array_equal(index.search(q, k).scores, hits.scores)


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("form", ["int8", "fp16"])
def test_a_saved_index_is_the_same_and_goes_on(tmp_path, mmap, form):
    x, q = vectors(80), vectors(5, seed=1)
    index = SparseIndex(30, form, {"note": "mine"})
    ids = index.add(x, labels=np.arange(80) % 3)
    index.remove(ids[10:20])
    index.save(tmp_path / "x.index")
    again = SparseIndex.load(tmp_path / "x.index", mmap=mmap)
    assert isinstance(again._postings.values, np.memmap) == mmap
    before, after = index.search(q), again.search(q)
    np.testing.assert_array_equal(before.ids, after.ids)
    np.testing.assert_array_equal(before.scores, after.scores)
    assert again.info == {"note": "mine"}
    assert again.label(25) == 1
    again.remove([ids[0]])
    new = again.add(vectors(3, seed=2))
    assert new.tolist() == [80, 81, 82]
    assert len(again) == 72
    with pytest.raises(ValueError, match="exists already"):
        index.save(tmp_path / "x.index")
    empty = SparseIndex(30)
    empty.save(tmp_path / "empty.index")
    assert len(SparseIndex.load(tmp_path / "empty.index")) == 0


def test_bytes_follow_sparsity():
    """Five bytes an entry (a document's number and an int8), eight a feature, seventeen a document."""
    x = vectors(200, active=0.1)
    index = SparseIndex(30)
    index.add(x)
    entries = np.count_nonzero(stored(x, "int8"))
    assert index.nbytes == 5 * entries + 8 * 31 + 17 * 200


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: (f / "values.npy").write_bytes((f / "values.npy").read_bytes()[:-5]), "bytes instead of"),
        (lambda f: (f / "labels.npy").unlink(), "labels.npy"),
        (lambda f: (f / "index.json").write_text("{"), "not an index"),
        (lambda f: (f / "index.json").unlink(), "not an index"),
        (lambda f: (f / "index.json").write_text('{"format": "annoy", "version": 3}'), "annoy 3"),
    ],
)
def test_a_damaged_or_foreign_index_is_one_sentence(tmp_path, damage, said):
    index = SparseIndex(30)
    index.add(vectors(20))
    index.save(tmp_path / "x.index")
    damage(tmp_path / "x.index")
    with pytest.raises(ValueError, match=said):
        SparseIndex.load(tmp_path / "x.index")


def test_flipped_bits_are_found_where_the_index_is_read_whole(tmp_path):
    index = SparseIndex(30)
    index.add(vectors(20))
    index.save(tmp_path / "x.index")
    content = bytearray((tmp_path / "x.index" / "values.npy").read_bytes())
    content[-1] ^= 1
    (tmp_path / "x.index" / "values.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"checksum of values\.npy"):
        SparseIndex.load(tmp_path / "x.index", mmap=False)


def test_wrong_use_is_named(tmp_path):
    index = SparseIndex(30)
    index.add(vectors(4))
    for call, said in (
        (lambda: index.search(vectors(1, width=7)), "30 features"),
        (lambda: index.search(vectors(1), 0), "k must be"),
        (lambda: index.search(vectors(1), metric="l2"), "'l2'"),
        (lambda: index.search(np.full((1, 30), np.nan)), "not finite"),
        (lambda: index.add(np.full((1, 30), np.inf)), "not finite"),
        (lambda: index.add(vectors(2), names=["one"]), "as many names"),
        (lambda: index.remove([17]), "no document 17"),
        (lambda: SparseIndex(30, "int4"), "int4"),
        (lambda: SparseIndex(0), "width"),
        (lambda: SparseIndex.load(tmp_path / "no.index"), "no such index"),
    ):
        with pytest.raises(ValueError, match=said):
            call()
    index.remove([2])
    with pytest.raises(ValueError, match="no document 2"):
        index.remove([2])


def test_embed_index_search_round_trip(model, digits, tmp_path):
    """An index written part by part is that of the whole matrix, and finds every image itself first."""
    for name in ("d.index", "d.npz"):
        embed_images(model, "digits", tmp_path / name, split="test", part_size=90, progress=Silent())
    on_disk, in_memory = open_index(tmp_path / "d.index"), open_index(tmp_path / "d.npz")
    for ours, theirs in zip(on_disk._postings, in_memory._postings):
        np.testing.assert_array_equal(ours, theirs)
    queries = model.embed(digits.images)
    hits = on_disk.search(queries, 3)
    np.testing.assert_array_equal(hits.ids, in_memory.search(queries, 3).ids)
    np.testing.assert_array_equal(hits.scores, in_memory.search(queries, 3).scores)
    exact = dense_scores(read_embeddings(tmp_path / "d.npz").matrix.toarray(), queries.numpy(), "cosine")
    best = np.take_along_axis(exact, hits.ids, 1)[:, 0]
    assert (best > 1 - 1e-3).all()
    assert on_disk.label(17) == int(digits.labels[17])
    assert on_disk.name(17) == "digits/test/17"


def test_search_prints_and_draws_neighbours(run_folder, model, photos, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    index = tmp_path / "photos.index"
    embed_images(model, str(photos), index, source=str(run_folder), progress=Silent())
    query = next(photos.rglob("007.png"))
    assert command.run([str(index), str(query), "--k", "3", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "007.png" in lines[0]
    assert lines[0].split()[:2] == ["1", "1.0000"]
    assert (tmp_path / "neighbours.png").read_bytes()[:4] == b"\x89PNG"


def test_an_index_of_another_model_is_refused(run_folder, model, photos, tmp_path):
    index = tmp_path / "photos.index"
    embed_images(model, str(photos), index, source=str(tmp_path / "moved"), progress=Silent())
    query = str(next(photos.rglob("007.png")))
    with pytest.raises(ValueError, match="--model"):
        command.run([str(index), query])
    other = load(list_checkpoints(run_folder / "checkpoints")[0], "cpu")  # of an earlier step
    with pytest.raises(ValueError, match="another model"):
        SparseIndex.load(index).require_model(other)
    content = json.loads((index / "index.json").read_text())
    content["info"]["model"] = {"source": ""}
    (index / "index.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="does not say which model"):
        SparseIndex.load(index).require_model(model)
    with pytest.raises(ValueError, match="where its model is"):
        command.run([str(index), query])


def test_postings_outside_a_mapped_index_are_named(tmp_path):
    """The compiled product writes wherever it is told to: a damaged number must not reach it."""
    index = SparseIndex(30)
    index.add(vectors(20))
    for number, wrong in enumerate((20, -1, 2**31 - 1)):
        folder = tmp_path / f"{number}.index"
        index.save(folder)
        content = np.load(folder / "documents.npy")
        content[-3] = wrong
        np.save(folder / "documents.npy", content)
        with pytest.raises(ValueError, match="index is damaged"):
            SparseIndex.load(folder).search(np.ones((1, 30)))


def test_documents_that_cannot_be_added_leave_the_index_as_it_was():
    class Unprintable:
        def __str__(self):
            raise TypeError("no name")

    index = SparseIndex(30)
    index.add(vectors(5), [Path("a") / str(row) for row in range(5)])  # paths are names too
    assert index.name(3) == str(Path("a") / "3")
    before = index.search(vectors(2, seed=1), 5)
    for names, labels in (
        (["x", Unprintable()], None),
        (["x", "\udfff\ud800"], None),  # no UTF-8 has these
        (["x", "y"], ["no", "numbers"]),
    ):
        with pytest.raises((TypeError, ValueError)):
            index.add(vectors(2, seed=2), names, labels)
        after = index.search(vectors(2, seed=1), 9)
        np.testing.assert_array_equal(before.ids, after.ids)
        np.testing.assert_array_equal(before.scores, after.scores)
    assert len(index) == 5


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_search_finds_the_pictures_from_another_folder(
    run_folder, model, photos, tmp_path, capsys, monkeypatch, kind
):
    """The index was made with a relative path; the picture is that of one made with an absolute path."""
    work, query = tmp_path / "work", str(next(photos.rglob("007.png")))
    shutil.copytree(photos, work / "photos")
    shutil.make_archive(str(work / "photos"), "zip", photos)
    name = "photos" if kind == "folder" else "photos.zip"
    monkeypatch.chdir(work)
    embed_images(model, name, work / "relative.npz", source=str(run_folder), progress=Silent())
    embed_images(model, str(work / name), work / "absolute.npz", source=str(run_folder), progress=Silent())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for index in ("relative", "absolute"):
        assert command.run([str(work / f"{index}.npz"), query, "--k", "2", "--out", f"{index}.png"]) == 0
    assert Path("relative.png").read_bytes() == Path("absolute.png").read_bytes()
    assert "grey" not in capsys.readouterr().out
    shutil.rmtree(work / "photos")
    (work / "photos.zip").unlink()
    assert command.run([str(work / "relative.npz"), query, "--k", "2", "--out", "gone.png"]) == 0
    assert "2 of the images are no longer where they were" in capsys.readouterr().out
    assert Path("gone.png").read_bytes() != Path("relative.png").read_bytes()


def test_many_neighbours_are_printed_and_some_drawn(run_folder, model, photos, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "DRAWN", 2)
    embed_images(model, str(photos), tmp_path / "photos.npz", source=str(run_folder), progress=Silent())
    query = str(next(photos.rglob("007.png")))
    assert command.run(["photos.npz", query, "--k", "1000"]) == 0
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 41
    assert "the first 2 of them" in printed
    with pytest.raises(ValueError, match="not a file of embeddings"):
        command.run([query, query])
