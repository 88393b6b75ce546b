"""Sparse vectors for databases: the forms they document, and Qdrant's own engine where it is installed."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lpjepa.evaluation.progress import Silent
from lpjepa.inference.embedding import embed_images
from lpjepa.inference.vectors import ENGINES, document

EXAMPLE = Path(__file__).parents[2] / "examples" / "search_qdrant.py"


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def dense(pairs, width):
    row = np.zeros(width)
    for index, value in pairs:
        row[int(index)] = value
    return row


@pytest.mark.parametrize("engine", list(ENGINES))
def test_documents_hold_unit_vectors_and_what_is_known(model, photos, digits, tmp_path, engine):
    out = tmp_path / f"{engine}.jsonl"
    embed_images(model, str(photos), out, engine=engine, part_size=11, progress=Silent())
    found = lines(out)
    if engine == "opensearch":
        actions, found = found[::2], found[1::2]
        assert [action["index"]["_id"] for action in actions] == [str(n) for n in range(40)]
    else:
        assert [entry["id"] for entry in found] == list(range(40))
    for entry in found[:5]:
        if engine == "qdrant":
            vector, fields = entry["vector"]["features"], entry["payload"]
            assert vector["indices"] == sorted(set(vector["indices"]))
            pairs = zip(vector["indices"], vector["values"])
        else:
            fields, pairs = entry, entry["features"].items()
        features = model.embed(fields["path"])[0].double().numpy()
        np.testing.assert_allclose(
            dense(pairs, 48), features / np.linalg.norm(features), rtol=1e-4, atol=1e-6
        )
        assert fields["class"] == Path(fields["path"]).parent.name
        place = int(Path(fields["path"]).stem)
        assert fields["class"] == f"digit {int(digits.labels[place])}"


def test_vectors_without_active_features_and_wrong_requests(model, tmp_path):
    none = np.zeros(0, np.int64), np.zeros(0, np.float32)
    assert document("qdrant", 3, *none)[0]["vector"]["features"] == {"indices": [], "values": []}
    assert document("milvus", 3, *none)[0]["features"] == {}
    with pytest.raises(ValueError, match="faiss"):
        document("faiss", 0, *none)
    with pytest.raises(ValueError, match="positive weights"):
        document("opensearch", 0, np.array([1]), np.array([-1.0]))
    with pytest.raises(ValueError, match="--engine"):
        embed_images(model, "digits", tmp_path / "x.jsonl", engine="lucene", progress=Silent())


def test_the_example_finds_with_qdrant_what_the_index_finds(run_folder, photos, tmp_path):
    pytest.importorskip("qdrant_client")
    query = next(photos.rglob("007.png"))
    command = [sys.executable, str(EXAMPLE), str(run_folder), str(photos), str(query)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=200)
    assert ran.returncode == 0, ran.stderr
    ours, theirs = (
        [line.split()[0] for line in block.splitlines() if line.startswith("  ")]
        for block in ran.stdout.split("Qdrant")
    )
    assert float(theirs[0]) == pytest.approx(1, abs=1e-4)
    np.testing.assert_allclose([float(s) for s in theirs], [float(s) for s in ours], atol=5e-3)
