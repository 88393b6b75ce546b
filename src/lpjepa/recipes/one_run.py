"""One training of a sweep from where it stands to its result: train, measure time and memory, add pieces."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from lpjepa._whole import write_whole
from lpjepa.data import MissingData
from lpjepa.recipes.cases import scale_of
from lpjepa.recipes.pieces import Subject, compute, missing_pieces
from lpjepa.recipes.places import Places
from lpjepa.recipes.store import Result, Store, hardware, result_of
from lpjepa.recipes.workers import Job
from lpjepa.training import Config, Run, pretrain, to_dict
from lpjepa.training.checkpoint import CheckpointError, kept_name, list_checkpoints, step_of
from lpjepa.training.config import identity
from lpjepa.training.display import Silent
from lpjepa.training.fork import fork, plain_until
from lpjepa.training.layers import replace
from lpjepa.training.processes import pick_device

MONITORS = 50  # measurements of the validation images over a training, at most: enough for a curve
_compiled_for = [""]  # the shapes of this process's compiled code


def finish_job(job: Job, places: Places, device: str, workers: int) -> None:
    """Bring a job to its end; what is done is kept after every piece.

    Of one that is trained for others nothing is kept but its checkpoints.
    """
    store = Store(places.results, places.scale)
    folder = places.run_folder(job.config)
    result = store.get(job.config)
    lacking = missing_pieces(result, job.pieces, places)
    on = pick_device(device)
    saved, finished = bool(list_checkpoints(places.checkpoints(job.config))), is_finished(folder)
    wanting, under_way = bool(lacking) or untimed(job, result), saved and not finished
    # Pieces are made from the last checkpoint: where a finished training has left none, it is trained anew.
    lost = bool(lacking) and not saved and (result is not None or finished)
    anew = not under_way and (lost or untimed(job, result))
    if job.for_others:
        if not all(_checkpoint_at(share, job.config, places) for share in job.keep_at):
            _train(job, places, folder, on, workers, anew=finished)
        return
    if result is None or anew or (under_way and wanting):
        result = _train(job, places, folder, on, workers, anew)
        store.put(job.config, result)
        lacking = missing_pieces(result, job.pieces, places)
    subject, absent = Subject(folder, places, str(on)), None
    for name in lacking:
        piece, _, source = name.partition("/")
        try:
            made = compute(subject, name)
        except MissingData as error:  # a set that cannot be had takes no other piece with it
            absent = absent or error
            continue
        result["pieces"].setdefault(piece, {}).update({source: made} if source else made)
        store.put(job.config, result)
    if absent is not None:
        raise absent


def untimed(job: Job, result: Result | None) -> bool:
    """Whether a training whose time is what its recipe shows has a result without it."""
    return job.alone and result is not None and result["seconds"] is None


def epochs_ahead(config: Config, places: Places) -> float:
    """How much of a training is left, where it stands or where it may go on from another one."""
    if saved := list_checkpoints(places.checkpoints(config)):
        lines = Run.open(places.run_folder(config)).metrics("train")
        passed = [line["epoch"] for line in lines if line["step"] <= step_of(saved[-1])]
        return config.train.epochs - max(passed, default=0.0)
    share = plain_until(config)[1] if shared_checkpoint(config, places) else 0.0
    return config.train.epochs * (1.0 - share)


def is_finished(folder: Path) -> bool:
    return (folder / "config.yaml").is_file() and Run.open(folder).finished


def shared_checkpoint(config: Config, places: Places) -> Path | None:
    """A checkpoint of the training that `config` is at first, from where they part; None: there is none."""
    plain, share = plain_until(config)
    return _checkpoint_at(share, plain, places) if share > 0 else None


def _checkpoint_at(share: float, config: Config, places: Places) -> Path | None:
    """The checkpoint of a training at a share of it; None: there is none."""
    path = places.checkpoints(config) / kept_name(share)
    if share == 1 and not path.is_file() and (found := list_checkpoints(places.checkpoints(config))):
        return found[-1] if is_finished(places.run_folder(config)) else None
    return path if path.is_file() else None


def _train(job: Job, places: Places, folder: Path, device: torch.device, workers: int, anew: bool) -> Result:
    config, cost_file = job.config, folder / "cost.json"
    trained = as_trained(config, places, folder, device)
    trained = replace(trained, {"train": {"keep_at": list(job.keep_at)}})
    saved = bool(list_checkpoints(places.checkpoints(config)))
    if anew or not (saved or is_finished(folder)):
        cost_file.unlink(missing_ok=True)  # of what is done again
        path = None if job.alone or saved else shared_checkpoint(config, places)
        if not (path and _goes_on(path, config, trained, cost_file)) and anew:
            trained = replace(trained, {"train": {"resume": False}})
    run, cost = _timed(trained, device, cost_file, workers)
    machine = {**hardware(device), "trainings_at_once": cost["trainings_at_once"]}
    if device.type == "cuda":
        machine |= {"memory_gb": cost["memory_gb"], "utilisation": cost["utilisation"]}
    result = result_of(run, config, machine, cost["seconds"])
    return result | {"goes_on": cost["goes_on"]} if "goes_on" in cost else result


def _goes_on(path: Path, config: Config, trained: Config, cost_file: Path) -> bool:
    """Begin with a checkpoint of the training that this one is at first; whether it is sound."""
    plain, share = plain_until(config)
    goes_on = {"from": identity(plain), "epoch": round(share * config.train.epochs, 3)}
    cost_file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(cost_file, json.dumps({"goes_on": goes_on}))
    try:
        fork(path, trained)
    except CheckpointError:  # damaged: the training can be done without it
        cost_file.unlink()
        return False
    return True


def as_trained(config: Config, places: Places, folder: Path, device: torch.device) -> Config:
    """The config with its data, its folder and how often it is measured; nothing that it computes."""
    epochs, scale = config.train.epochs, scale_of(places.scale)
    return replace(
        places.located(config),
        {
            "train": {
                "out": str(folder),
                "device": str(device),
                "capture": device.type == "cuda",
                "compile": device.type == "cuda",
                "checkpoint_every": scale["checkpoint_every"],
            },
            # Every line of training metrics is then the mean of an epoch.
            "log": {
                "monitor_every": max(scale["monitor_every"], epochs // MONITORS),
                "every": 5000,
                "plain": True,
            },
        },
    )


class _Marked(Silent):
    """Notes beside a training that has begun what was spent before, and that more is being spent."""

    def __init__(self, path: Path, spent: dict[str, Any]):
        self.path, self.spent = path, spent

    def start(self, step: int, total: int) -> None:
        write_whole(self.path, json.dumps(self.spent | {"running": True}))


def _timed(config: Config, device: torch.device, path: Path, workers: int) -> tuple[Run, dict[str, Any]]:
    """Train, adding this session's seconds to those of the sessions before it; a finished one costs nothing.

    `trainings_at_once` is the most that shared the device in any of its sessions. `seconds` are None where a
    session was killed, or its record is gone: what it took is not known.
    """
    spent: dict[str, Any] = {"seconds": 0.0, "memory_gb": 0.0, "utilisation": None, "samples": 0}
    spent["trainings_at_once"] = workers
    if known := path.is_file():
        spent |= json.loads(path.read_text())
        if spent.pop("running", False):
            spent["seconds"] = None
    if config.train.resume and is_finished(path.parent):
        return Run.open(path.parent), spent if known else spent | {"seconds": None}
    spent["trainings_at_once"] = max(spent["trainings_at_once"], workers)
    gc.collect()  # the training before this one hangs in cycles, with its weights and its CUDA graph
    if device.type == "cuda":
        _share_compiled(config)
        torch.cuda.init()  # or there are no statistics to reset in a process that has not used the device
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    began = time.monotonic()
    samples: list[float] = []
    try:
        with _utilisation(device, samples):
            run = pretrain(config, _Marked(path, spent))
    finally:
        if spent["seconds"] is not None:
            spent["seconds"] += time.monotonic() - began
        if samples:
            total = (spent["utilisation"] or 0.0) * spent["samples"] + sum(samples)
            spent["samples"] += len(samples)
            spent["utilisation"] = total / spent["samples"]
        if device.type == "cuda":
            reserved = torch.cuda.max_memory_reserved(device) / 1e9
            spent["memory_gb"] = round(max(spent["memory_gb"], reserved), 3)
        if path.parent.is_dir():
            write_whole(path, json.dumps(spent))
    return run, spent


def _share_compiled(config: Config) -> None:
    """Keep compiled code while shapes stay as they are, and start anew when they change.

    Trainings of the same shapes run the same networks and views, whatever their target: torch guards types
    and shapes, not values of tensors. The rest of a step is compiled once a method, exponent and weight, of
    which a sweep may have more than torch's limit of eight, beyond which it would no longer compile. Other
    shapes would be compiled beside the first as dynamic ones, which are slower.
    """
    limit = "recompile_limit" if hasattr(torch._dynamo.config, "recompile_limit") else "cache_size_limit"
    setattr(torch._dynamo.config, limit, 64)
    content = to_dict(config)
    content["model"].pop("activation")  # five kinds, which fit under the limit together
    shapes = json.dumps([content["model"], content["views"], config.train.batch_size, config.train.precision])
    if _compiled_for[0] not in ("", shapes):
        torch._dynamo.reset()
    _compiled_for[0] = shapes


@contextmanager
def _utilisation(device: torch.device, samples: list[float]) -> Iterator[None]:
    """Fills `samples` with nvidia-smi's percentages, one a second; none where it is missing."""
    program = shutil.which("nvidia-smi")
    if device.type != "cuda" or program is None:
        yield
        return
    command = [program, "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "--loop=1"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, f"--id={device.index or 0}"], stdout=log, stderr=subprocess.DEVNULL
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait()
            log.seek(0)
            samples += [float(line) for line in log.read().split() if line.isdigit()]
