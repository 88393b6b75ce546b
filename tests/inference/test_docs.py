"""The Python of docs/embeddings.md runs as it stands there, each block by itself."""

import re
import shutil
from pathlib import Path

import pytest

from lpjepa.evaluation.progress import Silent
from lpjepa.inference import load
from lpjepa.inference.embedding import embed_images
from lpjepa.inference.index import SparseIndex
from lpjepa.training.checkpoint import list_checkpoints

PAGE = (Path(__file__).parents[2] / "docs" / "embeddings.md").read_text(encoding="utf-8")
USE, SEARCH, INTERPRET = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def here(run_folder, photos, digits, tmp_path, monkeypatch):
    """The runs, images and index that the page names, in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("digits", "photos"):
        shutil.copytree(run_folder, tmp_path / "runs" / name)
    files = sorted(photos.rglob("0*.png"))
    (tmp_path / "more").mkdir()
    for file, name in zip(files, ("a.png", "b.jpg", "query.jpg", *(f"more/{i}.jpg" for i in range(5)))):
        shutil.copy(file, tmp_path / name)
    embed_images(load("runs/photos", "cpu"), str(photos), "photos.index", progress=Silent())
    return tmp_path


def run(block):
    names = {}
    exec(compile(block, "docs/embeddings.md", "exec"), names)
    return names


def test_features_of_images(here, model):
    names = run(USE)
    assert names["z"].shape == (3, model.width())
    assert (names["z"][1] == names["z"][2]).all()  # a photograph, and the same as an array
    assert names["h"].shape == (1, model.width("encoder"))


def test_search(here, capsys):
    names = run(SEARCH)
    assert names["kind"] == "projector"
    assert "png" in capsys.readouterr().out
    assert len(SparseIndex.load("photos2.index")) == len(SparseIndex.load("photos.index")) + 2


def test_the_check_in_the_block_refuses_another_model(here):
    """Without the line a model of the same width would search an index that is not its own."""
    list_checkpoints(here / "runs" / "photos" / "checkpoints")[-1].unlink()
    with pytest.raises(ValueError, match="made with another model"):
        run(SEARCH)
    assert not (here / "photos2.index").exists()


def test_what_features_mean(here):
    names = run(INTERPRET)
    assert len(names["seen"].explain(17).features) > 0
