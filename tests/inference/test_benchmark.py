"""`lpjepa bench embeddings`: the numbers that do not depend on the machine, and its files."""

import json

import pytest
import torch

from lpjepa._commands import bench_embeddings as command
from lpjepa.bench import figures
from lpjepa.bench.embeddings import Settings, measure_features, measure_runs
from lpjepa.evaluation.features import Features

CPU = torch.device("cpu")


def test_exact_forms_find_everything_and_sparse_ones_take_less():
    generator = torch.Generator().manual_seed(0)
    centres = torch.rand(4, 64, generator=generator) * (torch.rand(4, 64, generator=generator) < 0.2)

    def draw(count):
        labels = torch.arange(count) % 4
        noise = torch.rand(count, 64, generator=generator) * (
            torch.rand(count, 64, generator=generator) < 0.05
        )
        return Features(torch.zeros(count, 2), centres[labels] + noise, labels)

    settings = Settings(k=5, queries=40, threads=1, epochs=40, rounds=2)
    rows = {row["form"]: row for row in measure_features(draw(300), draw(50), settings, CPU)}
    dense, fp16, int8 = (rows[f] for f in ("dense float32, NumPy", "sparse fp16", "sparse int8"))
    assert (dense["documents"], dense["queries"]) == (300, 40)
    assert dense["recall"] == 1
    assert fp16["recall"] > 0.97
    assert int8["recall"] > 0.85
    assert dense["bytes_per_image"] == 256
    assert int8["bytes_per_image"] < fp16["bytes_per_image"] < dense["bytes_per_image"]
    assert dense["active"] == pytest.approx(float((draw(2000).projector > 0).float().mean()), abs=0.03)
    for row in rows.values():
        for kind in ("single", "batch"):
            assert 0 < row[f"{kind}_slow"] <= row[f"{kind}_per_second"] <= row[f"{kind}_fast"]
    assert dense["accuracy"] == 1
    assert int8["accuracy"] > 0.95


def test_the_command_writes_table_figure_and_numbers(run_folder, tmp_path, capsys):
    out = tmp_path / "bench"
    arguments = [str(run_folder), "--queries", "20", "--epochs", "2", "--threads", "1", "--device", "cpu"]
    assert command.run([*arguments, "--rounds", "1", "--out", str(out)]) == 0
    result = json.loads((out / "embeddings.json").read_text())
    assert result["stamp"]["command"].startswith(f"lpjepa bench embeddings {run_folder} ")
    assert {row["run"] for row in result["rows"]} == {"digits"}
    assert result["rows"][0]["documents"] == 1438
    assert (out / "embeddings.svg").stat().st_size > 1000
    table = (out / "embeddings.md").read_text()
    assert table in capsys.readouterr().out
    assert table.startswith("1,438 documents, 20 queries, k = 10; search on the CPU, threads: 1, rounds: 1 ")
    assert f" {result['rows'][-1]['bytes_per_image']:.0f} |" in table
    assert result["stamp"]["date"] in table


def test_the_figure_has_a_line_a_form_over_the_active_fraction():
    speeds = {f"{kind}_{key}": 10.0 for kind in ("single", "batch") for key in ("per_second", "slow", "fast")}
    rows = [
        {"form": form, "active": active, "bytes_per_image": 100 * active, **speeds}
        for active in (0.5, 0.1)
        for form in ("dense", "sparse")
    ]
    panels = figures.embeddings(rows).axes
    assert [line.get_xdata().tolist() for line in panels[0].lines] == [[0.1, 0.5]] * 2
    assert [line.get_ydata().tolist() for line in panels[0].lines] == [[10, 50]] * 2
    assert [len(panel.containers) for panel in panels] == [0, 2, 2]  # with quartiles


def test_wrong_requests_are_named(run_folder, tmp_path):
    for flag in ("--k", "--rounds"):
        with pytest.raises(ValueError, match=flag):
            command.run([str(run_folder), flag, "0"])
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"--out .*file: its folder cannot be made"):
        command.run([str(run_folder), "--out", str(tmp_path / "file")])
    with pytest.raises(ValueError, match="name the runs"):
        measure_runs([], None, Settings(), CPU)
