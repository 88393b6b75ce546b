"""The examples run, and print what they promise."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
# Lightning imports torchvision, which fails beside a CPU build of torch; see lpjepa.models._torchvision_shim.
WITH_TORCHVISION = """
import runpy, sys
from lpjepa.models._torchvision_shim import declare_missing_ops
declare_missing_ops()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("name", "launcher"), [("drop_in.py", []), ("lightning_module.py", ["-c", WITH_TORCHVISION])]
)
def test_example_runs(name, launcher, tmp_path):
    command = [sys.executable, *launcher, str(EXAMPLES / name), "60"]
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
