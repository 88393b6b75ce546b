"""`lpjepa bench`: its list, tables, JSON, pictures, and one sentence for a mistake."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch

import lpjepa
from lpjepa._commands import bench
from lpjepa._commands.bench_step import split_flags
from lpjepa.bench import figures, quality, reference, startup
from lpjepa.bench.loss import Row
from lpjepa.cli import main
from lpjepa.report.figures.style import LIGHT, render

STEP = [
    "--model.encoder", "narrow", "--train.batch-size", "8", "--model.projector-dim", "16",
    "--loss.num-slices=32", "--preset", "digits",
]  # fmt: skip
MODES = {
    "loss": ["--rows", "16x32x48", "8x32x48", "--rounds", "2"],
    "step": [*STEP, "--rounds", "1"],
    "step --startup": [*STEP],
    "data": ["--size", "8", "--images", "4", "--files", "0", "--rounds", "2"],
    "evaluation": [*STEP, "--probe", "1500x8", "--epochs", "10", "--rounds", "1"],
    "cost": ["--fixed", "global", "--batch", "4096"],
}


def test_every_mode_is_listed_with_a_line(capsys):
    assert main(["bench"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for mode, description in bench.MODES.items():
        assert any(line.split() == [mode, *description.split()] for line in lines)


@pytest.fixture
def small(monkeypatch):
    """The losses' check at a small size; start-up, which test_parts.py times for real, without processes."""
    check = partial(reference.check_equality, samples=32, dim=40, slices=64)
    monkeypatch.setattr(reference, "check_equality", check)
    parts = ("import_s", "assemble_s", "first_step_s", "further_steps_s", "startup_s")
    times = dict(zip(parts, (1.0, 2.0, 3.0, 4.0, 11.0)))
    rows = [{"kind": "eager", "caches": caches, **times} for caches in ("empty", "filled")]
    monkeypatch.setattr(startup, "measure_startup", lambda config, device: rows)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("small")
def test_a_mode_prints_a_table_and_writes_json_and_picture(mode, tmp_path, capsys):
    kept, drawn = tmp_path / "new" / "numbers.json", tmp_path / "picture.png"
    own = [] if mode == "cost" else ["--device", "cpu"]
    words = [*mode.split(), *MODES[mode], *own, "--json", str(kept), "--figure", str(drawn)]
    assert main(["bench", *words]) == 0
    shown = capsys.readouterr().out
    content = json.loads(kept.read_text())
    assert content["mode"] == mode.split()[0]
    assert content["stamp"]["command"].startswith(f"lpjepa bench {mode} ")
    assert content["stamp"]["torch"] == torch.__version__
    assert {"date", "processor", "threads", "python", "lpjepa"} <= set(content["stamp"])
    table = [line for line in shown.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(content["rows"])
    assert len({line.count("|") for line in table}) == 1
    assert content["stamp"]["date"] in shown
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_pictures_of_the_other_measurements():
    rows = quality.measure_quality(torch.device("cpu"), samples=8, dim=8, draws=4)
    assert render(lambda: figures.quality(rows), LIGHT, "png").startswith(b"\x89PNG")
    grown = [
        {"axis": axis, "size": size, "ms": size**1.5, "peak_MB": None if axis == "dim" else 3.0 * size}
        for axis in Row._fields
        for size in (1, 2, 4)
    ]
    picture = figures.growth(grown)
    texts = [text.get_text() for panel in picture.axes for text in panel.texts]
    assert texts.count("exponent 1.50") == 3
    assert texts.count("exponent 1.00") == 2
    ranks = [
        {"world": w, "cpu_ms": 8 / w, "low": 7 / w, "high": 9 / w, "gathered": 4, "scattered": 4}
        for w in (1, 2)
    ]
    assert render(lambda: figures.processes(ranks), LIGHT, "svg").startswith(b"<?xml")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["los"], "did you mean loss"),
        (["loss", "--rows", "256x512"], "--rows 256x512"),
        (["loss", "--peer", "nowhere"], "--peer nowhere"),
        (["loss", "--quality", "--growth"], "one at a time"),
        (["loss", "--rounds", "0"], "--rounds must be 1 or more"),
        (["loss", "--figure", "picture.bmp"], "--figure picture.bmp"),
        (["loss", "--device", "gpu"], "gpu"),
        (["step", "--preset", "cifar1000"], "cifar100"),
        (["step", "--train.epoch", "3"], "train.epochs"),
        (["evaluation", "--probe", "many"], "--probe many"),
        (["cost", "--batch", "0"], "--batch must be positive"),
    ],
)
def test_a_mistake_is_one_sentence(words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_dotted_flags_go_to_the_config():
    own, dotted = split_flags(
        ["--rounds", "3", "--train.precision", "bf16", "--views.size=8", "--json", "a.json"]
    )
    assert own == ["--rounds", "3", "--json", "a.json"]
    assert dotted == ["--train.precision", "bf16", "--views.size=8"]


def test_only_the_command_imports_the_measurements():
    package = Path(lpjepa.__file__).parent
    users = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*.py")
        if re.search(r"^\s*(from|import) lpjepa\.bench\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert users == {"bench", "_commands"}
