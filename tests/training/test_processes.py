"""Two processes train what one process trains with twice the batch: copied (DDP) or divided (FSDP2)."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from lpjepa.training import Run, checkpoint, pretrain, to_dict

pytestmark = pytest.mark.slow

# Rectified LpJEPA in all its parts, VICReg for statistics that only travel as sums. Rates are small: rounding
# grows from step to step at a pace that they set.
CASES = {
    "ddp": {"optim": {"name": "lars", "lr": 0.003}, "loss": {"axes_weight": 0.1}},
    "ddp-vicreg": {
        "loss": {"method": "vicreg"},
        "optim": {"name": "sgd", "lr": 0.002, "accumulate": 3, "grad_clip": 1.0},
    },
    "fsdp": {"optim": {"name": "lars", "lr": 0.003}, "loss": {"axes_weight": 0.1}, "train": {"fsdp": True}},
    "fsdp-adamw": {"optim": {"name": "adamw", "lr": 1e-5}, "train": {"fsdp": True}},
    "ddp-late": {"optim": {"name": "lars", "lr": 0.003}, "train": {"epochs": 2, "rectify_from": 0.5}},
    "fsdp-late": {
        "optim": {"name": "lars", "lr": 0.003},
        "train": {"epochs": 2, "rectify_from": 0.5, "fsdp": True},
    },
}


@pytest.fixture(scope="module")
def folders(array_file, tmp_path_factory):
    """The runs of all cases, made by one call of torchrun."""
    from lpjepa.training import load_config

    folder = tmp_path_factory.mktemp("processes")
    files = []
    for name, changes in CASES.items():
        base = {
            "data": {"source": "npz", "root": str(array_file), "workers": 0},
            "views": {"size": 8, "flip": 0.0, "blur": 0.0},
            "model": {"encoder": "narrow", "projector_hidden": 16, "projector_dim": 12},
            "loss": {"num_slices": 300},
            "optim": {"warmup_epochs": 0.0},
            "train": {"epochs": 1, "batch_size": 16, "out": str(folder / name), "device": "cpu"},
            "log": {"every": 1},
        }
        file = folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(to_dict(load_config(None, base, changes))))
        files.append(str(file))
    job = Path(__file__).with_name("_job.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*torchrun, str(job), *files], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (folder / "ddp" / "report.html").is_file()
    return folder


@pytest.mark.parametrize("case", CASES)
def test_same_training_as_one_process(folders, tmp_path, watch, case):
    two = Run.open(folders / case)
    config = two.config
    config.train.batch_size, config.train.out, config.train.fsdp = 32, str(tmp_path / case), False
    one = pretrain(config, watch(lambda step: None))
    weights = [checkpoint.load_newest(run.checkpoints)["trainee"] for run in (one, two)]
    start = one_step_weights(config)
    for name, tensor in weights[0].items():
        if tensor.is_floating_point():
            # Equal to a few hundredths of the way it has moved; a wrong gradient would be off by halves.
            moved = (tensor - start[name]).norm()
            assert (tensor - weights[1][name]).norm() <= 4e-2 * moved + 1e-5, name
    for mine, theirs in zip(one.metrics("train"), two.metrics("train")):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
        assert mine["l0"] == pytest.approx(theirs["l0"], abs=2e-3)
        assert mine["lr"] == pytest.approx(theirs["lr"])
    assert one.final["l0"] == pytest.approx(two.final["l0"], abs=0.01)
    assert len(two.metrics("train")) == len(one.metrics("train"))  # one process writes, not both


def one_step_weights(config):
    from lpjepa.training.assembly import assemble

    return {
        k: v.clone() for k, v in assemble(config, torch.device("cpu"), 0, 1).step.trainee.state_dict().items()
    }
