"""The examples run as a newcomer would run them, and print what they promise."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import lpjepa.training

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("name", ["drop_in.py", "lightning_module.py"])
def test_example_runs(name, tmp_path):
    command = [sys.executable, str(EXAMPLES / name), "60"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    loss = float(re.findall(r"loss +([\d.]+)", run.stdout)[-1])
    active, predicted = map(
        float, re.findall(r"active fraction ([\d.]+), the target predicts ([\d.]+)", run.stdout)[0]
    )
    # At the first step the loss is about 22; after 60 it is about 4.
    assert loss < 10
    assert predicted == pytest.approx(0.2, abs=1e-3)
    assert active == pytest.approx(predicted, abs=0.08)
    assert list(tmp_path.iterdir()) == []


def test_own_folder_without_a_folder_or_stopped_says_so(monkeypatch, tmp_path):
    def stopped(config):
        raise lpjepa.training.Interrupted(f"stopped; images are in {config.data.root}", 2)

    monkeypatch.setattr(lpjepa.training, "pretrain", stopped)
    for words, said in (
        ([], "usage: python examples/own_folder.py IMAGES"),
        ([str(tmp_path)], "stopped; images"),
    ):
        monkeypatch.setattr(sys, "argv", ["own_folder.py", *words])
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(EXAMPLES / "own_folder.py"))
        assert str(left.value.code).startswith(said)
