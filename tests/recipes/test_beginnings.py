"""Trainings that are done once for several that go on from them."""

import dataclasses
import shutil
from pathlib import Path

from lpjepa.recipes import Places, Store, catalog, plan, sweep
from lpjepa.recipes.one_run import finish_job
from lpjepa.recipes.planning import with_beginnings
from lpjepa.recipes.workers import Job
from lpjepa.training import to_dict
from lpjepa.training.checkpoint import list_checkpoints
from lpjepa.training.config import identity
from lpjepa.training.fork import plain_until
from lpjepa.training.layers import replace


def test_what_several_trainings_are_at_first_is_done_once_for_them(tmp_path: Path) -> None:
    """Also where it has its result, from a time whose checkpoints are gone: that stays."""
    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "smoke")
    changes = {"train": {"epochs": 2, "batch_size": 200}, "loss": {"num_slices": 16}}
    jobs = plan([catalog()["exact-sparsity-preset"]], "smoke", changes=changes)
    exact = [job for job in jobs if job.config.target.leaves_at]
    before, share = plain_until(exact[0].config)
    assert (len(exact), before.target.mu, share) == (2, 1.0, 1.0)
    assert with_beginnings(exact[:1], places) == exact[:1], "which takes no longer by itself"
    first, *others = with_beginnings([*jobs[:1], *exact], places)[1:]
    assert (identity(first.config), others) == (identity(before), exact)
    assert (first.keep_at, first.pieces) == ((1.0,), ())
    assert with_beginnings([first, *exact], places) == [first, *exact]

    store = Store(places.results, "smoke")
    store.put(before, result := {"config": to_dict(before), "final": {"l0": 0.125}, "pieces": {}})
    heard: list[str] = []
    summary = sweep(exact, places, say=heard.append)
    assert (summary.done, summary.messages) == (3, [])
    assert heard[0].startswith("done: what 2 trainings are at first (seed 0, 2 epochs, ")
    store = Store(places.results, "smoke")
    assert store.get(before)["final"] == result["final"]
    for job in exact:
        assert store.get(job.config)["goes_on"] == {"from": identity(before), "epoch": 2}
    assert sweep(exact, places, say=heard.append).done == 0
    for job in exact:
        (places.results / "smoke" / f"{identity(job.config)}.json").unlink()
        shutil.rmtree(places.run_folder(job.config))
    assert sweep(exact, places, say=heard.append).done == 2, "from the checkpoint that is there"


def _exact(places: Places) -> list[Job]:
    """Two trainings that are one at first, which is none of them; their pieces left out."""
    changes = {"train": {"epochs": 2, "batch_size": 200}, "loss": {"num_slices": 16}}
    jobs = plan([catalog()["exact-sparsity-preset"]], places.scale, changes=changes)
    return [dataclasses.replace(job, pieces=()) for job in jobs if job.config.target.leaves_at]


def test_a_beginning_without_the_checkpoint_that_is_needed_is_trained(tmp_path: Path) -> None:
    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "smoke")
    exact = _exact(places)
    (first,) = (job for job in with_beginnings(exact, places) if job.for_others)
    places.prepare()
    finish_job(first, places, "cpu", 1)
    assert with_beginnings(exact, places) == exact, "it is there"
    shutil.rmtree(places.checkpoints(first.config))
    assert sweep(exact, places, say=lambda line: None).done == 3
    results = [Store(places.results, "smoke").get(job.config) for job in [first, *exact]]
    assert results[0] is None, "no one has asked for it"
    assert all(result and "goes_on" in result for result in results[1:])


def test_what_is_trained_again_goes_on_from_its_beginning(tmp_path: Path) -> None:
    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "smoke")
    exact = _exact(places)
    assert sweep(exact, places, say=lambda line: None).done == 3
    shutil.rmtree(places.work)
    for job in exact:
        job.pieces = ("measures",)
    assert sweep(exact, places, say=lambda line: None).done == 0, "no checkpoint to take them from"
    assert sweep(exact, places, say=lambda line: None, again=True).done == 3
    for job in exact:
        result = Store(places.results, "smoke").get(job.config)
        assert result is not None
        assert result["pieces"]["measures"]
        assert result["goes_on"]["epoch"] == 2


def test_what_would_go_on_from_a_beginning_that_fails_is_left(tmp_path: Path, monkeypatch) -> None:
    """Also where the beginning has its result from earlier on."""
    from lpjepa.recipes import one_run

    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "smoke")
    exact, tried = _exact(places), []
    before = plain_until(exact[0].config)[0]
    Store(places.results, "smoke").put(before, {"config": to_dict(before), "pieces": {}})

    def fails(config, display):
        tried.append(config.target.mu)
        raise RuntimeError("diverged")

    monkeypatch.setattr(one_run, "pretrain", fails)
    summary = sweep(exact, places, say=lambda line: None)
    assert tried == [1.0]
    assert (summary.done, summary.left, len(summary.messages)) == (0, 2, 1)


def test_only_what_saves_time_is_trained_for_others(tmp_path: Path) -> None:
    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "smoke")
    exact = _exact(places)
    alone = [dataclasses.replace(job, alone=True) for job in exact]
    assert with_beginnings(alone, places) == alone, "of these the whole time is wanted"
    places.checkpoints(exact[0].config).mkdir(parents=True)
    (places.checkpoints(exact[0].config) / "step-00000001.pt").touch()
    assert list_checkpoints(places.checkpoints(exact[0].config))
    assert with_beginnings(exact, places) == exact, "one of them is under way by itself"
    before = plain_until(exact[0].config)[0]
    places.checkpoints(before).mkdir(parents=True)
    (places.checkpoints(before) / "step-00000001.pt").touch()
    found = with_beginnings(exact, places)
    assert [job.for_others for job in found] == [False, True, False], "it is under way, and gone on with"


def test_beginnings_have_beginnings(tmp_path: Path) -> None:
    """Shares that are set at the end of trainings that are rectified late, which are LpJEPA until then."""
    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "smoke")
    rows = {job.config.train.rectify_from: job for job in plan([catalog()["dense-first"]], "smoke")}
    top = rows[0.5].config
    assert (top.model.activation, top.train.calibrate_from) == ("top", 1.0)
    thresholds = {"model": {"activation": "calibrated"}, "train": {"calibrate_on": "images"}}
    earlier = {"model": {"activation": "auto"}, "train": {"rectify_from": 0.3, "calibrate_from": 0.0}}
    first, *late = [Job(config, str(n)) for n, config in enumerate([top, replace(top, thresholds)])]
    found = with_beginnings([first, *late], places)
    assert [job.for_others for job in found] == [True, False, False]
    assert (found[0].config.train.rectify_from, found[0].keep_at) == (0.5, (1.0,))

    more = with_beginnings([first, *late, Job(replace(top, earlier), "earlier")], places)
    lpjepa = more[0]
    assert (lpjepa.config.loss.method, lpjepa.for_others, lpjepa.keep_at) == ("lpjepa", True, (0.3, 0.5))
    assert [identity(job.config) for job in more[1:4]] == [identity(job.config) for job in found]

    wanted = Job(lpjepa.config, "a row of its own", keep_at=(0.9,))
    more = with_beginnings([first, *late, wanted], places)
    assert [job.for_others for job in more] == [True, False, False, False]
    assert wanted.keep_at == (0.5, 0.9)
