"""`lpjepa bench embeddings`: the numbers that do not depend on the machine, and its files."""

import json

import pytest
import torch

from lpjepa._commands import bench_embeddings as command
from lpjepa.evaluation.features import Features
from lpjepa.inference import benchmark
from lpjepa.inference.benchmark import measure_features, measure_runs


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(benchmark, "SECONDS", 0.01)


def test_exact_forms_find_everything_and_sparse_ones_take_less():
    generator = torch.Generator().manual_seed(0)
    centres = torch.rand(4, 64, generator=generator) * (torch.rand(4, 64, generator=generator) < 0.2)

    def draw(count):
        labels = torch.arange(count) % 4
        noise = torch.rand(count, 64, generator=generator) * (
            torch.rand(count, 64, generator=generator) < 0.05
        )
        return Features(torch.zeros(count, 2), centres[labels] + noise, labels)

    rows = {row.form: row for row in measure_features("x", draw(300), draw(40), 5, 40, 1, 40)}
    dense, fp16, int8 = (rows[f] for f in ("dense float32, NumPy", "sparse fp16", "sparse int8"))
    assert dense.recall == 1
    assert fp16.recall > 0.97
    assert int8.recall > 0.85
    assert dense.bytes_per_image == 256
    assert int8.bytes_per_image < fp16.bytes_per_image < dense.bytes_per_image
    assert dense.active == pytest.approx(float((draw(2000).projector > 0).float().mean()), abs=0.03)
    assert min(row.single_per_second for row in rows.values()) > 0
    assert dense.accuracy == 1
    assert int8.accuracy > 0.95


def test_the_command_writes_table_figure_and_numbers(run_folder, tmp_path, capsys):
    out = tmp_path / "bench"
    arguments = [str(run_folder), "--queries", "20", "--epochs", "2", "--threads", "1", "--device", "cpu"]
    assert command.run([*arguments, "--out", str(out)]) == 0
    result = json.loads((out / "embeddings.json").read_text())
    assert {row["run"] for row in result["forms"]} == {"digits"}
    assert result["forms"][0]["documents"] == 1438
    assert (out / "embeddings.svg").stat().st_size > 1000
    table = (out / "embeddings.md").read_text()
    assert table in capsys.readouterr().out
    assert f"{result['forms'][-1]['bytes_per_image']:.0f}" in table


def test_wrong_requests_are_named(run_folder):
    with pytest.raises(ValueError, match="--k"):
        command.run([str(run_folder), "--k", "0"])
    with pytest.raises(ValueError, match="name the runs"):
        measure_runs([])
