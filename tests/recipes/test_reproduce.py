"""Every recipe from training to page at the smoke scale, tiny; resuming; the command; the documentation."""

import json
import multiprocessing
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch

from lpjepa._commands import reproduce
from lpjepa.recipes import Places, Store, catalog, collect, plan, render, sweep, tables
from lpjepa.recipes.cases import config_of
from lpjepa.recipes.plots import mathematics
from lpjepa.recipes.sweep import outstanding
from lpjepa.recipes.values import number
from lpjepa.training.config import identity


def test_all_trainings_ran_once(tiny) -> None:
    assert tiny.messages == []
    assert tiny.done == tiny.trainings == len(tiny.store)
    assert sweep(plan(catalog().values(), "smoke", changes=tiny.changes), tiny.places).done == 0


@pytest.mark.parametrize("name", list(catalog()))
def test_every_recipe_renders(tiny, name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(mathematics, "SAMPLES", 500)
    recipe = catalog()[name]
    collected = collect(recipe, "smoke", tiny.store, changes=tiny.changes)
    assert collected.found == collected.wanted
    page, *others = render(collected, tiny.places, tmp_path)
    text = page.read_text(encoding="utf-8")
    assert recipe.title in text
    assert "no results yet" not in text
    if recipe.kind == "table":
        assert others[0].read_text(encoding="utf-8").count(r" \\") >= 2
    else:
        svg, png = others
        assert png.read_bytes().startswith(b"\x89PNG")
        drawn = "".join(ElementTree.parse(svg).getroot().itertext())
        assert "no results yet" not in drawn


@pytest.mark.parametrize("name", [name for name, recipe in catalog().items() if recipe.kind == "table"])
def test_tables_hold_the_published_values_row_by_row(name: str, tmp_path: Path) -> None:
    recipe = catalog()[name]
    collected = collect(recipe, "paper", Store(tmp_path, "paper"))
    lines = [line for line in tables.latex(collected).splitlines() if line.endswith(r" \\")]
    rows = [[cell.strip() for cell in line.removesuffix(r" \\").split(" & ")] for line in lines]
    if recipe.transpose:
        rows = [list(column) for column in zip(*rows)]
    assert len({len(row) for row in rows}) == 1, "every row has as many cells as the header"
    for case, row in zip(recipe.cases("paper"), rows[1:], strict=True):
        assert case.latex in row
        shown = [cell for cell, head in zip(row, rows[0]) if head == "paper"]
        wanted = [number(value) for value in case.paper]
        assert [number(cell) for cell in shown] == wanted


def test_rows_without_results_show_as_missing(tiny, tmp_path: Path) -> None:
    recipe = catalog()["cifar100"]
    empty = collect(recipe, "smoke", Store(tmp_path, "smoke"), changes=tiny.changes)
    page, _ = render(empty, tiny.places, tmp_path / "out")
    text = page.read_text(encoding="utf-8")
    assert "| – | 65.97 |" in text
    assert text.count("not measured") == len(recipe.claims)
    figure = collect(catalog()["pareto"], "smoke", Store(tmp_path, "smoke"), changes=tiny.changes)
    assert render(figure, tiny.places, tmp_path / "out")


def test_a_result_says_where_it_comes_from(tiny) -> None:
    paths = list(tiny.store.folder.glob("*.json"))
    content = json.loads(paths[0].read_text())
    assert content["versions"]["torch"] == torch.__version__
    assert content["hardware"]["device"].startswith("CPU")
    assert content["seed"] == content["config"]["train"]["seed"] == 0
    assert content["curves"]["epoch"] == [1.0]
    assert max(path.stat().st_size for path in paths) < 60_000
    assert not [key for key in content["config"]["train"] if key in ("out", "device", "resume")]


def test_a_result_survives_a_new_option_and_not_another_value(tiny, tmp_path: Path) -> None:
    case = catalog()["cifar100"].cases("smoke")[0]
    config = config_of(case, "smoke", 0, changes=tiny.changes)
    result = tiny.store.get(config)
    assert result is not None
    older = json.loads(json.dumps(result))
    del older["config"]["optim"]["ema"]  # as if written before the option was there
    (tmp_path / "smoke").mkdir()
    (tmp_path / "smoke" / "a.json").write_text(json.dumps(older))
    assert Store(tmp_path, "smoke").get(config) is not None
    older["config"]["optim"]["ema"] = 0.99
    (tmp_path / "smoke" / "a.json").write_text(json.dumps(older))
    assert Store(tmp_path, "smoke").get(config) is None


def test_a_sweep_out_of_time_leaves_work_and_goes_on(tmp_path: Path) -> None:
    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "smoke")
    changes = {"train": {"epochs": 400}, "loss": {"num_slices": 32}}
    jobs = plan([catalog()["cifar100-mark"]], "smoke", changes=changes)
    first = sweep(jobs, places, minutes=3 / 60, say=lambda line: None)
    assert (first.done, first.stopped) == (0, 1)
    folder = places.run_folder(jobs[0].config)
    assert list((folder / "checkpoints").glob("step-*.pt"))
    assert "stopped and saved" in first.text()
    # A job with a checkpoint is taken up before one without.
    others = plan([catalog()["runtime"]], "smoke", changes=changes)
    order = outstanding([*[job for job in others if job.label.startswith("SIGReg")], *jobs], places)
    assert identity(order[0].config) == identity(jobs[0].config)


def test_two_processes_share_the_work(tmp_path: Path) -> None:
    if "spawn" not in multiprocessing.get_all_start_methods():
        pytest.skip("no spawn here")
    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "smoke")
    changes = {"train": {"epochs": 1, "batch_size": 200}, "loss": {"num_slices": 16}}
    recipe = catalog()["batch-size"]
    jobs = (
        plan([recipe], "smoke", changes=changes)[:1]
        + plan([catalog()["cifar100-mark"]], "smoke", epochs=1)[:1]
    )
    for job in jobs:
        job.pieces = ()
    jobs[1].config.train.epochs = 1
    heard: list[str] = []
    summary = sweep(jobs, places, workers=2, say=heard.append)
    assert summary.messages == []
    assert summary.done == len(jobs) == len(Store(places.results, "smoke"))
    assert all(line.startswith("done: ") for line in heard)


def test_a_training_that_fails_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    places = Places(tmp_path / "work", tmp_path / "results", tmp_path / "nowhere", "small")
    jobs = plan([catalog()["cifar100-mark"]], "small")
    summary = sweep(jobs, places, device="cpu", say=lambda line: None)
    assert summary.done == 0
    assert "RGN_1.0(0, σ_GN) seed 5 (cifar100-mark)" in summary.messages[0]


def test_the_command_lists_and_renders(tiny, tmp_path: Path, capsys) -> None:
    folders = [
        "--results",
        str(tmp_path / "none"),
        "--work",
        str(tmp_path / "w"),
        "--out",
        str(tmp_path / "out"),
    ]
    assert reproduce.run(folders) == 0
    listed = capsys.readouterr().out
    for name in catalog():
        assert re.search(rf"^{re.escape(name)} ", listed, re.MULTILINE)
    assert "0/24" in listed
    assert "nothing (mathematics)" in listed
    assert reproduce.run(["bisection", "--scale", "small", *folders]) == 0
    assert (tmp_path / "out" / "small" / "bisection.svg").is_file()
    with pytest.raises(ValueError, match="--scal: there is no such flag"):
        reproduce.run(["bisection", "--scal", "small"])


def test_documentation_shows_results_claims_and_what_waits(tiny, tmp_path: Path, monkeypatch) -> None:
    """Results of the smoke scale, put in the place of the small one's, to see the page they would make."""
    from lpjepa.recipes import results

    monkeypatch.setattr(mathematics, "SAMPLES", 500)
    recipe = catalog()["cifar100-mark"]
    config = config_of(recipe.cases("small")[0], "small", 5)
    found = dict(next(iter(tiny.store._found.values())))
    found |= {"config": json.loads(json.dumps(_as_dict(config))), "seed": 5}
    found["final"] = {
        "encoder_accuracy": 0.5,
        "projector_accuracy": 0.39,
        "l1": 0.3,
        "l0": 0.52,
        "l0_predicted": 0.5,
    }
    Store(tmp_path / "results", "small").put(config, found)
    places = {s: Places(tmp_path / "w", tmp_path / "results", tmp_path, s) for s in results.DOCUMENTED}
    page = results.write_docs(places, tmp_path / "docs").read_text(encoding="utf-8")
    assert "| 50.00 | 45.40 | 39.00 | 40.30 |" in page
    assert "**partly**" in page
    assert "50.00 for 47.7 or more; 39.00 for 40.3 or more" in page
    assert "lpjepa reproduce cifar100 --scale small" in page.split("## Not yet run")[1]
    assert (tmp_path / "docs" / "results" / "densities.svg").is_file()
    for link in re.findall(r"\]\((results/[^)]+)\)", page):
        assert (tmp_path / "docs" / link).is_file()


def _as_dict(config) -> dict:
    from lpjepa.recipes.store import _kept

    return _kept(config)
