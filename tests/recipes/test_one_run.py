"""One training of a sweep, in whatever state it was left: what is trained, made of it, said of its cost."""

import json
import os
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from lpjepa.recipes import Places, Store, catalog, plan, sweep
from lpjepa.recipes.one_run import finish_job
from lpjepa.training import Interrupted, pretrain
from lpjepa.training.config import identity
from lpjepa.training.display import Silent
from lpjepa.training.fork import plain_until

SHORT: dict = {"train": {"epochs": 2, "batch_size": 200}, "loss": {"num_slices": 16}}


def _places(folder: Path) -> Places:
    places = Places(folder / "work", folder / "results", folder, "smoke")
    places.prepare()
    return places


def _stop_in_epoch(job, places: Places, epoch: float) -> None:
    """Leave the training with a checkpoint of its middle."""
    from lpjepa.recipes.one_run import as_trained

    class Stop(Silent):
        def advance(self, step, now, speed, latest) -> None:
            if now > epoch:
                os.kill(os.getpid(), signal.SIGTERM)

    config = as_trained(job.config, places, places.run_folder(job.config), torch.device("cpu"))
    with pytest.raises(Interrupted):
        pretrain(config, Stop())


def test_pieces_of_a_training_without_its_checkpoints_train_it_anew(tiny, tmp_path: Path) -> None:
    job = plan([catalog()["cifar100-mark"]], "smoke", changes=tiny.changes)[0]
    places = _places(tmp_path)
    job.pieces = ()
    finish_job(job, places, "cpu", 1)
    first = Store(places.results, "smoke").get(job.config)
    folder = places.run_folder(job.config)
    for path in (folder / "checkpoints").iterdir():
        path.unlink()
    (folder / "cost.json").write_text('{"seconds": 1e6}')
    job.pieces = ("measures",)
    finish_job(job, places, "cpu", 1)
    second = Store(places.results, "smoke").get(job.config)
    assert second["pieces"]["measures"]
    assert second["final"]["l0"] == first["final"]["l0"]
    assert second["seconds"] < 1e6, "of the new training alone"


def test_cost_adds_up_over_sessions(tmp_path: Path, monkeypatch) -> None:
    from lpjepa.recipes import one_run

    job = plan([catalog()["cifar100-mark"]], "smoke")[0]
    monkeypatch.setattr(one_run, "pretrain", lambda *given: None)
    found = []
    for seen, workers in (([90.0, 96.0], 2), ([], 3), ([30.0], 1)):  # one may be too short for a sample

        @contextmanager
        def utilisation(device, samples, seen=seen):
            yield samples.extend(seen)

        monkeypatch.setattr(one_run, "_utilisation", utilisation)
        found.append(one_run._timed(job.config, torch.device("cpu"), tmp_path / "cost.json", workers)[1])
    assert [cost["utilisation"] for cost in found] == [93.0, 93.0, 72.0]
    assert [cost["trainings_at_once"] for cost in found] == [2, 3, 3]
    assert found[0]["seconds"] < found[1]["seconds"] < found[2]["seconds"]


def test_the_time_of_a_killed_session_is_not_known(tmp_path: Path, monkeypatch) -> None:
    from lpjepa.recipes import one_run

    job = plan([catalog()["cifar100-mark"]], "smoke")[0]
    timed = lambda: one_run._timed(job.config, torch.device("cpu"), tmp_path / "run" / "cost.json", 1)[1]
    left = []

    def killed(config, display) -> None:
        (tmp_path / "run").mkdir(exist_ok=True)
        display.start(0, 1)
        left.append((tmp_path / "run" / "cost.json").read_text())

    monkeypatch.setattr(one_run, "pretrain", killed)
    assert timed()["seconds"] is not None
    (tmp_path / "run" / "cost.json").write_text(left[0])  # as a kill in the middle leaves it
    assert timed()["seconds"] is None
    assert timed()["seconds"] is None, "also when it goes on once more"


def test_what_is_left_of_a_training_is_less_what_its_checkpoint_has(tmp_path: Path) -> None:
    from lpjepa.recipes.one_run import epochs_ahead

    job = plan(
        [catalog()["cifar100-mark"]], "smoke", changes={**SHORT, "train": {"epochs": 3, "batch_size": 200}}
    )[0]
    places = _places(tmp_path)
    assert epochs_ahead(job.config, places) == 3
    _stop_in_epoch(job, places, 1)
    assert epochs_ahead(job.config, places) == 2


def test_what_goes_on_from_a_training_ahead_counts_what_is_left_of_it(tmp_path: Path) -> None:
    from lpjepa.recipes.sweep import _epochs_left

    changes = {**SHORT, "train": {"epochs": 10, "batch_size": 200}}
    jobs = plan([catalog()["exact-sparsity-preset"]], "smoke", changes=changes)
    ahead = {identity(job.config) for job in jobs}
    found = [_epochs_left(job.config, _places(tmp_path), ahead) for job in jobs]
    assert sorted(found) == pytest.approx([0.0] * 4 + [1.0] * 2 + [10.0] * 4)
    assert [_epochs_left(job.config, _places(tmp_path), set()) for job in jobs] == [10.0] * 10


def test_a_fork_that_was_killed_on_its_way_is_made_again(tmp_path: Path) -> None:
    jobs = plan([catalog()["exact-sparsity-preset"]], "smoke", changes=SHORT)
    places = _places(tmp_path)
    late = next(job for job in jobs if job.config.train.calibrate_from == 1)
    before = plain_until(late.config)[0]
    first = next(job for job in jobs if identity(job.config) == identity(before))
    first.pieces, late.pieces = (), ("measures",)
    finish_job(first, places, "cpu", 1)
    places.run_folder(late.config).mkdir()
    shutil.copy(places.run_folder(first.config) / "metrics.jsonl", places.run_folder(late.config))
    finish_job(late, places, "cpu", 1)
    result = Store(places.results, "smoke").get(late.config)
    assert result is not None
    assert result["goes_on"] == {"from": identity(before), "epoch": 2}


def test_of_two_files_of_one_training_that_named_after_it_counts(tiny, tmp_path: Path) -> None:
    """An option that came later gives a training another identity; its file keeps the old one's name."""
    job = plan([catalog()["cifar100-mark"]], "smoke", changes=tiny.changes)[0]
    own = tmp_path / "smoke" / f"{identity(job.config)}.json"
    kept = tiny.store.get(job.config)
    own.parent.mkdir()
    own.write_text(json.dumps({**kept, "date": "new"}))
    for name in ("00000000", "ffffffff"):
        old = own.with_name(f"{name}.json")
        old.write_text(json.dumps({**kept, "date": "old", "identity": name}))
        assert Store(tmp_path, "smoke").get(job.config)["date"] == "new", "whichever comes first"
        old.unlink()
    own.rename(old)
    old.write_text(old.read_text().replace(identity(job.config), old.stem))
    store = Store(tmp_path, "smoke")
    assert store.get(job.config)["identity"] == identity(job.config)
    store.put(job.config, store.get(job.config))
    assert [path.name for path in own.parent.iterdir()] == [own.name]


def test_a_finished_training_costs_no_more(tiny, tmp_path: Path) -> None:
    """Its result may be written anew, such as on a machine that has its folder but lost the file."""
    job = plan([catalog()["cifar100-mark"]], "smoke", changes=tiny.changes)[0]
    places = _places(tmp_path)
    found = []
    for workers in (2, 3):
        finish_job(job, places, "cpu", workers)
        (path,) = (tmp_path / "results" / "smoke").glob("*.json")
        found.append(json.loads(path.read_text()))
        path.unlink()
    assert found[0]["seconds"] == found[1]["seconds"]
    assert [result["hardware"]["trainings_at_once"] for result in found] == [2, 2]


def test_pieces_are_never_those_of_a_training_that_was_stopped(tmp_path: Path) -> None:
    """A result may be there besides, such as one that came with a clone."""
    job = plan([catalog()["cifar100-mark"]], "smoke", changes=SHORT)[0]
    job.pieces = ("measures",)
    places, other = _places(tmp_path / "a"), _places(tmp_path / "b")
    finish_job(job, places, "cpu", 1)
    store = Store(places.results, "smoke")
    whole = store.get(job.config)
    Store(other.results, "smoke").put(job.config, {**whole, "pieces": {}})
    _stop_in_epoch(job, other, 1)
    finish_job(job, other, "cpu", 1)
    assert Store(other.results, "smoke").get(job.config)["pieces"] == whole["pieces"]


def test_the_time_of_a_finished_training_is_never_that_of_finding_it(tmp_path: Path) -> None:
    job = plan([catalog()["cifar100-mark"]], "smoke", changes=SHORT)[0]
    job.pieces = ()
    places = _places(tmp_path)
    finish_job(job, places, "cpu", 1)
    (path,) = (tmp_path / "results" / "smoke").glob("*.json")
    seconds = json.loads(path.read_text())["seconds"]
    shutil.rmtree(places.checkpoints(job.config))
    for expected in (seconds, None):
        path.unlink()
        finish_job(job, places, "cpu", 1)
        assert json.loads(path.read_text())["seconds"] == expected
        (places.run_folder(job.config) / "cost.json").unlink(missing_ok=True)


def test_a_result_without_its_time_is_trained_anew_where_time_is_shown(tmp_path: Path) -> None:
    job = next(job for job in plan([catalog()["runtime"]], "smoke", changes=SHORT) if job.alone)
    job.pieces = ()
    places = _places(tmp_path)
    finish_job(job, places, "cpu", 1)
    store = Store(places.results, "smoke")
    store.put(job.config, {**store.get(job.config), "seconds": None})
    summary = sweep([job], places, device="cpu", say=lambda line: None)
    assert (summary.done, summary.left) == (1, 0)
    assert Store(places.results, "smoke").get(job.config)["seconds"] > 0.2
    assert sweep([job], places, device="cpu", say=lambda line: None).done == 0


def test_a_fork_does_without_a_damaged_checkpoint(tmp_path: Path) -> None:
    jobs = plan([catalog()["exact-sparsity-preset"]], "smoke", changes=SHORT)
    places = _places(tmp_path)
    late = next(job for job in jobs if job.config.train.calibrate_from == 1)
    first = next(job for job in jobs if identity(job.config) == identity(plain_until(late.config)[0]))
    first.pieces, late.pieces = (), ()
    finish_job(first, places, "cpu", 1)
    for path in places.checkpoints(first.config).glob("*.pt"):
        path.write_bytes(path.read_bytes()[:-9] + b"something")
    finish_job(late, places, "cpu", 1)
    result = Store(places.results, "smoke").get(late.config)
    assert "goes_on" not in result
    assert result["final"]["l0"] > 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_folder_that_cannot_be_read_fails_its_own_training_only(tmp_path: Path, workers: int) -> None:
    jobs = plan([catalog()["runtime"]], "smoke", changes=SHORT)
    for job in jobs:
        job.alone, job.pieces = False, ()
    places = _places(tmp_path)
    _stop_in_epoch(jobs[0], places, 1)
    config = places.run_folder(jobs[0].config) / "config.yaml"
    config.write_text(config.read_text() + "nosuchgroup: {key: 1}\n")
    summary = sweep(jobs, places, workers=workers, device="cpu", say=lambda line: None)
    assert summary.done == len(jobs) - 1
    (message,) = summary.messages
    assert f"{config}: nosuchgroup: there is no such" in message


def test_a_worker_that_was_killed_is_reported(tmp_path: Path, monkeypatch) -> None:
    from lpjepa.recipes import workers

    monkeypatch.setattr(workers, "_worker", _die)
    jobs = plan([catalog()["runtime"]], "smoke", changes=SHORT)
    for job in jobs:
        job.alone = False
    summary = sweep(jobs, _places(tmp_path), workers=2, device="cpu", say=lambda line: None)
    assert (summary.done, summary.left) == (0, 2)
    assert (
        summary.messages
        == ["a worker ended by signal 9, perhaps for want of memory; its training is left"] * 2
    )


def _die(*_given) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_results_that_cannot_be_written_are_named_before_anything_is_trained(tmp_path: Path) -> None:
    from lpjepa.training import CheckpointError

    jobs = plan([catalog()["runtime"]], "smoke", changes=SHORT)
    (tmp_path / "file").write_text("")
    places = Places(tmp_path / "work", tmp_path / "file", tmp_path, "smoke")
    with pytest.raises(CheckpointError, match=r"file/smoke: the folder cannot be written .* with --results"):
        sweep(jobs, places, device="cpu", say=lambda line: None)
    assert not (tmp_path / "work" / "smoke").exists()


def test_a_result_of_a_newer_version_is_not_to_be_removed(tmp_path: Path) -> None:
    (tmp_path / "smoke").mkdir()
    (tmp_path / "smoke" / "a.json").write_text('{"format": 2}')
    with pytest.raises(ValueError, match="of a newer lpjepa; update this one"):
        Store(tmp_path, "smoke")
