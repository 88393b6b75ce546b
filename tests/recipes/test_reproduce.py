"""Every recipe from training to page at the smoke scale, tiny; resuming; the command; the documentation."""

import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lpjepa._commands import reproduce
from lpjepa.evaluation.run import Source
from lpjepa.recipes import Places, Store, catalog, collect, plan, render, select, sweep, tables
from lpjepa.recipes.cases import config_of
from lpjepa.recipes.pace import Pace
from lpjepa.recipes.pieces import Subject
from lpjepa.recipes.planning import chains, outstanding
from lpjepa.recipes.plots import mathematics
from lpjepa.recipes.store import hardware
from lpjepa.recipes.values import number
from lpjepa.recipes.wording import typeset
from lpjepa.recipes.workers import Job, Stopped, _told_by_us, _until
from lpjepa.training import CheckpointError, Run, to_dict
from lpjepa.training.config import identity
from lpjepa.training.fork import plain_until
from lpjepa.training.layers import replace


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
    assert typeset(recipe.title) in text
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
        shown = [cell for cell, head in zip(row, rows[0]) if head == recipe.beside]
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
    assert content["curves"]["epoch"] == content["training"]["epoch"] == [1.0]
    assert {"loss", "l0", "l1", "encoder_train_accuracy"} <= set(content["training"])
    assert content["images_per_second"] > 0
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
    order, _ = outstanding([*[job for job in others if job.label.startswith("SIGReg")], *jobs], places)
    assert identity(order[0].config) == identity(jobs[0].config)


def test_what_has_a_result_is_not_trained_again_unless_asked(tiny, tmp_path: Path) -> None:
    jobs = [
        job for job in plan([catalog()["nhsic"]], "smoke", changes=tiny.changes) if "measures" in job.pieces
    ]
    job, other = jobs[:2]
    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "smoke")
    store = Store(places.results, "smoke")
    result = {**tiny.store.get(job.config), "pieces": {}}
    store.put(job.config, result)
    assert outstanding([job, other], places) == ([other], [job])
    assert outstanding([job, other], places, again=True) == ([job, other], [])
    assert collect(catalog()["nhsic"], "smoke", store, changes=tiny.changes).found == 0, "it has no measures"
    summary = sweep([job], places)
    assert (summary.done, summary.left) == (0, 0)
    assert "1 lack pieces" in summary.text()
    shutil.copytree(tiny.places.run_folder(job.config), places.run_folder(job.config))
    assert outstanding([job], places) == ([job], []), "its checkpoint is there"


def test_pieces_have_a_little_longer_than_the_limit(monkeypatch) -> None:
    def overrun() -> None:
        with _until(time.time() + 0.05):
            for _ in range(10):
                time.sleep(0.05)

    overrun()
    # The package's `sweep` is the function, not its module.
    monkeypatch.setitem(_until.__wrapped__.__globals__, "GRACE", 0.05)  # type: ignore[attr-defined]
    with pytest.raises(Stopped):
        overrun()


def test_no_training_is_begun_that_will_not_end(tmp_path: Path, monkeypatch) -> None:
    begun = []

    def train(job, *_) -> None:
        begun.append(job.config.train.epochs)
        time.sleep(0.5)

    monkeypatch.setattr("lpjepa.recipes.one_run.finish_job", train)
    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "smoke")
    short, long = (plan([catalog()["cifar100"]], "smoke", epochs)[0] for epochs in (1, 1000))
    summary = sweep([short, long], places, minutes=1.0, whole=True, say=lambda line: None)
    assert begun == [1]
    assert (summary.done, summary.left, summary.left_epochs) == (1, 1, 1000)
    small = replace(long.config, {"train": {"batch_size": 24}})
    summary = sweep([short, Job(small, "B = 24")], places, minutes=1.0, whole=True, say=lambda line: None)
    assert begun == [1, 1], "not sooner than the fastest of its encoder"
    slower = replace(short.config, {"train": {"batch_size": 24, "epochs": 100}})
    sweep([short, Job(slower, "100")], places, minutes=1.0, whole=True, say=lambda line: None)
    assert begun == [1, 1, 1, 100]
    another = replace(long.config, {"model": {"projector_dim": 128, "encoder": "resnet18"}})
    sweep([short, Job(another, "other")], places, minutes=1.0, whole=True, say=lambda line: None)
    assert begun == [1, 1, 1, 100, 1, 1000], "how long that one takes is not known"


@pytest.mark.parametrize(("machine", "whole", "begins"), [
    ({}, True, False), ({}, False, True), ({"device": "another"}, True, True),
])  # fmt: skip
def test_results_tell_how_long_a_training_takes(tmp_path: Path, monkeypatch, machine, whole, begins) -> None:
    begun = []
    monkeypatch.setattr("lpjepa.recipes.one_run.finish_job", lambda job, *_: begun.append(job.label))
    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "smoke")
    config = plan([catalog()["cifar100"]], "smoke", 10)[0].config
    known = {"config": to_dict(config), "seconds": 1e4, "hardware": hardware("cpu") | machine}
    Store(places.results, "smoke").put(config, known)
    faster = replace(config, {"train": {"batch_size": 9}})
    Store(places.results, "smoke").put(faster, {**known, "config": to_dict(faster), "seconds": 500.0})
    changes = {"of another seed": {"train": {"seed": 9}}, "of another batch": {"train": {"batch_size": 24}}}
    jobs = [Job(replace(config, change), label) for label, change in changes.items()]
    sweep(jobs, places, minutes=5.0, whole=whole, device="cpu", say=lambda line: None)
    assert begun == list(changes) * begins
    if not begins:
        sweep(jobs, places, minutes=9.0, whole=whole, device="cpu", say=lambda line: None)
        assert begun == ["of another batch"], "which may be as fast as the fastest"


def test_a_slow_kind_does_not_make_others_slow(tmp_path: Path) -> None:
    """A second training takes twice as long beside others as results tell: so do those of its encoder."""
    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "smoke")
    fast = plan([catalog()["cifar100"]], "smoke", 10)[0].config
    slow, unknown = (replace(fast, {"train": {"batch_size": size}}) for size in (4, 24))
    for config, seconds in ((fast, 20.0), (slow, 100.0)):
        known = {"config": to_dict(config), "seconds": seconds, "hardware": hardware("cpu")}
        Store(places.results, "smoke").put(config, known)
    pace = Pace(places, "cpu")
    assert [pace.needed(config, 10) for config in (fast, slow, unknown)] == [20.0, 100.0, 20.0]
    pace.note(slow, 10, 200.0)
    assert [pace.needed(config, 10) for config in (fast, slow, unknown)] == [40.0, 200.0, 40.0]
    assert pace.needed(replace(fast, {"model": {"encoder": "resnet18"}}), 10) == 0
    pace.note(slow, 5, 130.0)
    assert pace.needed(slow, 2) == 40.0 + 30.0


def test_trainings_share_compiled_code_while_shapes_stay(monkeypatch) -> None:
    from lpjepa.recipes import one_run

    resets: list[None] = []
    monkeypatch.setattr("torch._dynamo.reset", lambda: resets.append(None))
    monkeypatch.setattr(one_run, "_compiled_for", [""])
    for job in plan(select(["cifar100", "necessity", "eigenvectors", "exact-sparsity"]), "small"):
        one_run._share_compiled(job.config)
    assert resets == [], "target, method, weights, directions and length change nothing"
    sizes = [job.config for job in plan(select(["batch-size"]), "small")][:7]
    for config in sizes:
        one_run._share_compiled(config)
    assert len(resets) == 7
    one_run._share_compiled(sizes[-1])
    assert len(resets) == 7


def test_features_of_the_own_source_are_computed_once(tiny) -> None:
    job = plan([catalog()["violins"]], "smoke", changes=tiny.changes)[0]
    subject = Subject(tiny.places.run_folder(job.config), tiny.places, "cpu")
    downstream = {name: Source.parse(text) for name, text in tiny.places.transfer_sources().items()}
    assert downstream["digits"].is_of(subject.run)
    assert subject.features(downstream["digits"], "test") is subject.val
    assert subject.features(downstream["rotated"], "test") is not subject.val
    again = Subject(tiny.places.run_folder(job.config), tiny.places, "cpu")
    assert again.val_images is subject.val_images


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


@pytest.mark.parametrize("workers", [1, 2])
def test_trainings_that_are_another_one_at_first_go_on_from_it(tmp_path: Path, workers: int) -> None:
    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "smoke")
    changes = {"train": {"epochs": 2, "batch_size": 200}, "loss": {"num_slices": 16}}
    jobs = plan([catalog()["exact-sparsity-preset"]], "smoke", changes=changes)
    jobs = [job for job in jobs if job.config.target.from_mu is None]
    late = [job for job in jobs if job.config.train.calibrate_from]
    first = [job for job in jobs if job.keep_at == (0.9, 1.0)]
    assert (len(jobs), len(late), len(first)) == (8, 6, 2)
    assert [[job.config.target.mu for job in chain] for chain in chains(jobs, places)] == [[-2] * 4, [0] * 4]
    summary = sweep(jobs, places, workers=workers, say=lambda line: None)
    assert (summary.done, summary.messages) == (8, [])
    store = Store(places.results, "smoke")
    for job in late:
        result = store.get(job.config)
        assert result is not None
        assert result["goes_on"]["epoch"] == 2 * job.config.train.calibrate_from
        assert result["training"]["epoch"] == [1, 2]
        (before,) = [one for one in first if identity(one.config) == result["goes_on"]["from"]]
        plain = store.get(before.config)
        assert plain is not None
        assert "goes_on" not in plain
        journals = [Run.open(places.run_folder(one.config)).metrics("train") for one in (before, job)]
        speeds = [[entry["images_per_second"] for entry in journal] for journal in journals]
        assert speeds[0] == speeds[1], "the clock would not tell the same twice"
    again = next(job for job in late if job.config.train.calibrate_from == 1)
    shutil.rmtree(places.run_folder(again.config))
    (places.results / "smoke" / f"{identity(again.config)}.json").unlink()
    for path in places.work.rglob("kept-*.pt"):
        path.unlink()
    assert outstanding(jobs, places)[0] == [again], "the plain training is done"
    again.pieces = ("measures",)
    assert sweep(jobs, places, say=lambda line: None).done == 1
    result = Store(places.results, "smoke").get(again.config)
    assert result is not None
    assert result["goes_on"]["epoch"] == 2, "from the last checkpoint of the plain training"
    assert result["pieces"]["measures"]


def test_what_goes_on_from_one_that_goes_on_follows_it(tmp_path: Path) -> None:
    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "smoke")
    changes = {"train": {"epochs": 2, "batch_size": 200}, "loss": {"num_slices": 16}}
    jobs = plan([catalog()["dense-first"]], "smoke", changes=changes)
    chain = max(chains(list(reversed(jobs)), places), key=len)
    assert len(chain) == 5
    assert chain[0].config.loss.method == "lpjepa"
    assert chain[0].keep_at == (0.5, 1.0)
    order = [identity(job.config) for job in chain]
    for place, job in enumerate(chain[1:], 1):
        assert identity(plain_until(job.config)[0]) in order[:place]
    late = [job.config.train.rectify_from for job in chain]
    assert late == [0.0, 1.0, 1.0, 0.5, 0.5], "what costs nothing more comes first"
    assert sweep(chain, places, say=lambda line: None).messages == []
    store = Store(places.results, "smoke")
    for job in chain[1:]:
        result = store.get(job.config)
        assert result is not None
        before, share = plain_until(job.config)
        assert result["goes_on"] == {"from": identity(before), "epoch": 2 * share}


def test_what_would_go_on_from_what_failed_is_left(tmp_path: Path, monkeypatch) -> None:
    from lpjepa.recipes import one_run

    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "smoke")
    changes = {"train": {"epochs": 2, "batch_size": 200}, "loss": {"num_slices": 16}}
    chain = max(chains(plan([catalog()["dense-first"]], "smoke", changes=changes), places), key=len)
    (middle, after) = [job for job in chain if job.config.train.rectify_from == 0.5]
    assert identity(plain_until(after.config)[0]) == identity(middle.config)
    train, tried = one_run.pretrain, []

    def fails(config, display):
        tried.append(config.train.rectify_from)
        if config.train.rectify_from == 0.5:
            raise RuntimeError("out of memory")
        return train(config, display)

    monkeypatch.setattr(one_run, "pretrain", fails)
    summary = sweep(chain, places, say=lambda line: None)
    assert tried == [0.0, 1.0, 1.0, 0.5]
    assert (summary.done, len(summary.messages), summary.left) == (3, 1, 1)


def test_workers_of_a_killed_sweep_save_and_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lpjepa", "reproduce", "l0-gap", "--scale", "smoke", "--jobs", "2"]
    process = subprocess.Popen(
        [*command, "--epochs", "2000"], cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    runs = tmp_path / "runs" / "reproduce" / "smoke"
    wait_for(lambda: len(list(runs.glob("*/metrics.jsonl"))) == 2)
    process.kill()
    heard = process.communicate(timeout=120)[0]  # until the workers, which write there too, have ended
    assert heard.count("stopping after this step") == 2
    assert len(list(runs.glob("*/checkpoints/step-*.pt"))) == 2


def wait_for(met: Callable[[], bool], seconds: float = 120) -> None:
    end = time.time() + seconds
    while not met():
        assert time.time() < end, "it never came"
        time.sleep(0.1)


def test_what_fails_or_does_not_fit_stops_only_what_needs_it(tmp_path: Path, monkeypatch) -> None:
    from lpjepa.recipes import one_run

    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "smoke")
    jobs = plan([catalog()["exact-sparsity-preset"]], "smoke")
    chain = chains(jobs, places)[0]
    fails: list[object] = []

    def finish(job, *_) -> None:
        if job in fails:
            raise RuntimeError("out of memory")

    def outcome(*failing) -> tuple[int, int, int]:
        fails[:] = failing
        summary = sweep(chain, places, device="cpu", say=lambda line: None)
        return summary.done, len(summary.messages), summary.left

    monkeypatch.setattr(one_run, "finish_job", finish)
    assert outcome() == (4, 0, 0)
    assert outcome(chain[1]) == (3, 1, 0), "the others do not need it"
    assert outcome(chain[0]) == (0, 1, 3), "they would do what has failed"
    monkeypatch.setattr(one_run, "epochs_ahead", lambda config, _: 1e9 if config == chain[1].config else 8)
    monkeypatch.setattr("lpjepa.recipes.workers.time", _Clock())
    fails.clear()
    summary = sweep(chain, places, minutes=10, whole=True, device="cpu", say=lambda line: None)
    assert (summary.done, summary.left) == (3, 1)


class _Clock:
    """Each look at it is ten seconds later."""

    sleep = staticmethod(time.sleep)

    def __init__(self) -> None:
        self.now = time.time() - 1000

    def time(self) -> float:
        self.now += 10
        return self.now


def test_ctrl_c_stops_all_workers_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lpjepa", "reproduce", "l0-gap", "--scale", "smoke", "--jobs", "2"]
    process = subprocess.Popen(
        command, cwd=tmp_path, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().startswith("done: ")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the parent and both workers
    heard = process.communicate(timeout=120)[0]
    assert process.returncode == 130
    assert "Traceback" not in heard
    assert heard.count("stopping every training after its step (Ctrl-C again ") == 1
    assert heard.endswith("; the same command goes on\n")


def test_two_sweeps_do_not_meet_in_one_folder(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "smoke")
    jobs = plan([catalog()["cifar100-mark"]], "smoke", epochs=1)[:1]
    holds = (
        "import sys; from pathlib import Path; from lpjepa.recipes.lock import alone_in\n"
        "with alone_in(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", holds, str(places.work / "smoke")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    with pytest.raises(ValueError, match=rf"process {other.pid} on .* is training there; wait for it to end"):
        sweep(jobs, places)
    assert len(Store(places.results, "smoke")) == 0
    other.kill()  # and a killed one holds nothing
    other.communicate()
    jobs[0].pieces = ()
    assert sweep(jobs, places, say=lambda line: None).done == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_last_measurements_of_a_training_stops_the_sweep(tmp_path, monkeypatch, number):
    from lpjepa.training.assembly import Assembly

    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "smoke")
    changes = {"train": {"epochs": 1, "batch_size": 200}, "loss": {"num_slices": 16}}
    jobs = plan([catalog()["l0-gap"]], "smoke", changes=changes)
    final = Assembly.final
    with monkeypatch.context() as patch:
        patch.setattr("lpjepa.training.assembly.LARGEST_FROZEN_PROBE", 0)
        patch.setattr(Assembly, "final", lambda self: signal.raise_signal(number) or final(self))
        summary = sweep(jobs, places, device="cpu", say=lambda line: None)
    assert (summary.signal, summary.stopped, summary.done) == (number, 1, 0)
    assert summary.left == len(jobs) - 1
    trained = [job for job in jobs if places.run_folder(job.config).is_dir()]
    assert len(trained) == 1
    assert Run.open(places.run_folder(trained[0].config)).finished


def test_workers_leave_ctrl_c_to_their_parent_from_their_first_moment_on() -> None:
    """A child that does not ignore the signal it sends itself dies of it, and is not 0."""
    before = signal.getsignal(signal.SIGINT)
    context = multiprocessing.get_context("spawn")
    (process,) = processes = [context.Process(target=signal.raise_signal, args=(signal.SIGINT,))]
    with _told_by_us(processes, []):
        process.join()
    assert process.exitcode == 0
    assert signal.getsignal(signal.SIGINT) is before


def test_a_training_that_fails_is_named_and_the_rest_goes_on(tmp_path: Path, monkeypatch) -> None:
    from lpjepa.recipes import one_run

    def fail(job, *_) -> None:
        raise RuntimeError(f"out of memory in {job.label}")

    monkeypatch.setattr(one_run, "finish_job", fail)
    places = Places(tmp_path / "work", tmp_path / "results", tmp_path / "nowhere", "small")
    jobs = plan([catalog()["cifar100-mark"]], "small")
    summary = sweep(jobs, places, device="cpu", say=lambda line: None)
    assert summary.done == 0
    assert "RGN_1.0(0, σ_GN), probes at 0.1, seed 5 (cifar100-mark, 55 epochs, " in summary.messages[0]
    for job, message in zip(jobs, summary.messages, strict=True):
        trace = places.run_folder(job.config) / "failure.txt"
        assert str(trace) in message
        assert "Traceback" in trace.read_text()


def test_images_that_are_not_there_are_asked_for_once(tmp_path: Path) -> None:
    places = Places(tmp_path / "work", tmp_path / "results", tmp_path / "nowhere", "small")
    jobs = plan([catalog()["cifar100-mark"]], "small")
    jobs += [job for job in plan([catalog()["runtime"]], "small") if job.alone][:1]
    summary = sweep(jobs, places, device="cpu", say=lambda line: None)
    (message,) = summary.messages
    assert re.search(r"cifar100 is not in .*nowhere; get it from .* and put it in ", message)
    assert (summary.done, summary.left) == (0, len(jobs) - 1)
    assert not (tmp_path / "work").exists()


def test_two_workers_ask_for_the_same_images_once(tmp_path: Path, monkeypatch) -> None:
    jobs = plan([catalog()["cifar100"]], "small")[:3]
    each = [("missing", job.label, ": cifar100 is not there") for job in jobs[:2]]
    monkeypatch.setitem(sweep.__globals__, "outcomes", lambda *_: iter(each))
    heard: list[str] = []
    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "small")
    summary = sweep(jobs, places, workers=2, device="cpu", say=heard.append)
    assert heard == [f"failed: {jobs[0].label}: cifar100 is not there"]
    assert (len(summary.messages), summary.left) == (1, 2)


def test_a_transfer_set_that_is_not_there_stops_no_other_training(tmp_path: Path, monkeypatch) -> None:
    from lpjepa.data import MissingData
    from lpjepa.recipes import one_run

    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "small")
    jobs = plan([catalog()["cifar100"]], "small")[:3]

    def finish(job, *_) -> None:
        Store(places.results, "small").put(job.config, {"config": to_dict(job.config), "pieces": {}})
        if job is jobs[0]:
            raise MissingData("flowers is not there")

    monkeypatch.setattr(one_run, "finish_job", finish)
    summary = sweep(jobs, places, device="cpu", say=lambda line: None)
    assert (summary.done, summary.left, len(summary.messages)) == (2, 0, 1)


def test_a_transfer_set_that_is_not_there_takes_no_other_piece_with_it(
    tiny, tmp_path: Path, monkeypatch
) -> None:
    from lpjepa.data import MissingData
    from lpjepa.recipes import one_run

    job = plan([catalog()["cifar100-mark"]], "smoke", changes=tiny.changes)[0]
    job.pieces = ("transfer", "measures")

    def compute(subject: Subject, name: str) -> dict:
        if name == "transfer/rotated":
            raise MissingData("rotated is not there")
        return {"made": 1}

    monkeypatch.setattr(one_run, "compute", compute)
    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "smoke")
    summary = sweep([job], places, device="cpu", say=lambda line: None)
    assert len(summary.messages) == 1
    assert "rotated is not there" in summary.messages[0]
    result = Store(places.results, "smoke").get(job.config)
    assert result is not None
    assert set(result["pieces"]["transfer"]) == {"digits", "inverted"}
    assert result["pieces"]["measures"] == {"made": 1}


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
    assert re.search(r"^bisection .* ready ready ready$", listed, re.MULTILINE)
    assert re.search(r"^violins .* samples\* +0/4 ", listed, re.MULTILINE)  # its mark is explained below
    assert re.search(r"^  \* +also needs downstream data sets$", listed, re.MULTILINE)
    assert "fig:" not in listed  # no reader of the paper sees its labels
    assert max(map(len, listed.splitlines())) <= 100
    assert reproduce.run(["bisection", "--scale", "small", *folders]) == 0
    assert (tmp_path / "out" / "small" / "bisection.svg").is_file()
    with pytest.raises(ValueError, match="--scal: there is no such flag"):
        reproduce.run(["bisection", "--scal", "small"])


def test_the_command_trains_what_it_is_asked_for(tmp_path: Path, monkeypatch, capsys) -> None:
    asked: list[tuple[int, int]] = []

    def train(job, *_) -> None:
        asked.append((job.config.train.seed, job.config.train.epochs))

    monkeypatch.setattr("lpjepa.recipes.one_run.finish_job", train)
    folders = [f"--{name}={tmp_path / name}" for name in ("results", "work", "out")]
    command = ["cifar100", "--scale", "small", *folders, "--train-only"]
    assert reproduce.run([*command, "--seeds", "6", "--epochs", "20"]) == 0
    assert asked == [(6, 20)] * 12
    assert "12 trainings finished" in capsys.readouterr().out
    asked.clear()
    assert reproduce.run([*command, "--seeds", "5", "--rows", "Sparse baselines", "LeJEPA"]) == 0
    assert asked == [(5, 100)] * 5
    assert "5 trainings finished" in capsys.readouterr().out
    asked.clear()
    shared = ["exact-sparsity-preset", "dense-first", *command[1:], "--rows", "stays until the end"]
    assert reproduce.run(shared) == 0
    assert asked == [(5, 100)] * 9, "half of them by another name in the first recipe"
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="nothing would be done"):
        reproduce.run([*command, "--render-only"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["runtime", "--seeds", "9"], "--seeds 9: these recipes have seed 0"),
        (
            ["runtime", "--rows", "SIGReg", "SIGreg"],
            "--rows 'SIGreg': no training of these recipes has that in its name",
        ),
        (["runtime", "--whole"], "--whole: say with --minutes how long it may take"),
        (["runtime", "--epochs", "-1"], "--epochs -1: expected 1 or more"),
        (["runtime", "--minutes", "nan"], "--minutes nan: expected more than 0"),
        (["runtime", "--minutes", "-3"], "--minutes -3: expected more than 0"),
        (["runtime", "--device", "gpu"], "device: 'gpu' is not a device here"),
        (
            ["runtime", "--out", "FILE"],
            "FILE: the folder cannot be written (File exists); choose another with --out",
        ),
        (
            ["runtime", "--work", "FILE"],
            "FILE: the folder cannot be written (File exists); choose another with --work",
        ),
        (
            ["runtime", "--results", "FILE"],
            "FILE/smoke: the folder cannot be written (Not a directory); choose another with --results",
        ),
    ],
)
def test_flags_that_cannot_be_are_named_before_anything_is_trained(
    words, sentence, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "FILE").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, CheckpointError), match=re.escape(sentence)):
        reproduce.run(words)
    assert not [*tmp_path.rglob("smoke"), *tmp_path.glob("re*")], "nothing trained or rendered"


def test_what_is_all_there_needs_no_folder_to_write_in(tmp_path: Path, monkeypatch) -> None:
    """Results of a checkout that may only be read can be shown."""
    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "small")
    jobs = plan([catalog()["cifar100-mark"]], "small")
    for job in jobs:
        Store(places.results, "small").put(
            job.config, {"config": _as_dict(job.config), "pieces": {}, "seconds": 1.0}
        )

    def refuse(*given, **options) -> None:
        raise CheckpointError("read-only")

    monkeypatch.setattr(sys.modules["lpjepa.recipes.sweep"], "check_writable", refuse)
    assert sweep(jobs, places, device="cpu").left == 0
    with pytest.raises(CheckpointError):
        sweep(plan([catalog()["cifar100"]], "small"), places, device="cpu")


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
    row = "RGN_1.0(0, σ_GN), probes at 0.1"
    assert f"yes: encoder {row} 50.00 for 47.7 or more; no: projector {row} 39.00 for 40.3 or more" in page
    assert "0 hold, 1 hold partly, 0 do not hold" in page
    assert "lpjepa reproduce cifar100 --scale small" in page.split("## Waiting for trainings")[1]
    headings = {line.lstrip("# ") for line in page.splitlines() if line.startswith("#")}
    anchors = {results.anchor(heading) for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= anchors, "links of the contents lead somewhere"
    assert (tmp_path / "docs" / "results" / "densities.png").is_file()
    for link in re.findall(r"\]\((results/[^)]+)\)", page):
        assert (tmp_path / "docs" / link).is_file()


def _store_made_up(folder: Path, names: list[str], epochs: int | None = None, skip: int = 0) -> Store:
    """A store of the small scale with plausible numbers for all trainings of the recipes but the last few."""
    store = Store(folder, "small")
    jobs = plan(select(names), "small", epochs)
    for job in jobs[: len(jobs) - skip]:
        final = {
            "encoder_accuracy": 0.5,
            "projector_accuracy": 0.4,
            "probe": "frozen",
            "l0": 0.3,
            "l1": 0.2,
            "l0_predicted": 0.3,
        }
        store.put(
            job.config,
            {
                "config": _as_dict(job.config),
                "seed": job.config.train.seed,
                "hardware": {"device": "CPU"},
                "versions": {"torch": "2", "lpjepa": "0"},
                "seconds": 1.0,
                "final": final,
                "curves": {},
                "pieces": {},
            },
        )
    return store


def test_documentation_of_partial_results_and_of_two_lengths(tmp_path: Path, monkeypatch) -> None:
    from lpjepa.recipes import results

    monkeypatch.setattr(results, "catalog", lambda: {n: catalog()[n] for n in ("cifar100", "nhsic", "vit")})
    monkeypatch.setattr(results, "README_FIGURE", "none")
    _store_made_up(tmp_path / "results", ["cifar100"], skip=9)  # 15 of 24: three rows with two seeds
    _store_made_up(tmp_path / "results", ["cifar100"], epochs=20)
    _store_made_up(tmp_path / "results", ["vit"], epochs=7, skip=13)
    places = {"small": Places(tmp_path / "w", tmp_path / "results", tmp_path, "small")}
    page = results.write_docs(places, tmp_path / "docs").read_text(encoding="utf-8")
    assert page.index("### At the small scale, 100 epochs") < page.index("### At the small scale, 20 epochs")
    assert "15 of 24 trainings (`lpjepa reproduce cifar100 --scale small`)" in page
    assert (
        "100 epochs, batch 256, rates 0.03 (Rectified LpJEPA), 0.3 (LeJEPA, NVICReg and VICReg), 0.4 (NCL "
        "and SimCLR), seeds 5, 6 (mean ± standard deviation; 9 rows with one seed so far). **The paper's "
    ) in page
    assert "24 of 24 trainings" in page
    waiting = page.split("## Waiting for trainings")[1]
    assert "reproduce nhsic" in waiting, "its trainings are there, its measures are not"
    assert "reproduce vit" in waiting, "one training of another length is no table"


def test_a_picture_of_images_that_are_not_here_is_left_as_it_is(tiny, tmp_path: Path) -> None:
    from lpjepa.recipes.results import _draw

    collected = collect(catalog()["neighbours-plain"], "smoke", tiny.store, changes=tiny.changes)
    path = tmp_path / "neighbours.png"
    path.write_bytes(b"drawn where the images are")
    _draw(collected, Places(tmp_path / "none", tiny.places.results, tmp_path, "smoke"), path)
    assert path.read_bytes() == b"drawn where the images are"
    _draw(collected, tiny.places, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_readme_shows_accuracy_against_sparsity(tmp_path: Path) -> None:
    from lpjepa.recipes import results

    recipe = catalog()[results.README_FIGURE]
    store = _store_made_up(tmp_path, [recipe.name], skip=18)
    assert results.readme_figure(results.lengths(recipe, "small", store), tmp_path / "figures") is None
    assert not (tmp_path / "figures").exists()
    store = _store_made_up(tmp_path, [recipe.name])
    path = results.readme_figure(results.lengths(recipe, "small", store), tmp_path / "figures")
    assert path is not None
    assert path.name == "accuracy-sparsity.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def _as_dict(config) -> dict:
    from lpjepa.recipes.store import _kept

    return _kept(config)
