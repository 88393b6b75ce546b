"""Reading run folders: what is there is read, what is missing or broken is said and survived."""

import json

import pytest
import torch

from lpjepa.distributions import RectifiedGeneralizedGaussian, sigma_rgn
from lpjepa.report import write_report
from lpjepa.report.observation import Observation
from lpjepa.report.results import environment_of, evaluations_of, sparsity_groups, summarise
from lpjepa.report.run import read_run, read_runs, target_of


def test_run_is_read_whole(tmp_path, make_run):
    run = read_run(make_run(tmp_path / "digits", active=0.2))
    assert run.name == "digits"
    assert run.method == "rectified_lpjepa"
    assert run.config["model.encoder"] == "narrow"
    assert run.history["epoch/l0"][0] == [1, 2, 3, 4, 5, 6]
    assert run.last("final/nothing", "epoch/effective_rank") == pytest.approx(60 - 20 * 0.0497870684)
    assert run.last("nothing") is None
    assert run.problems == ()


@pytest.mark.parametrize("scale", ["gn", "rgn", 0.8])
@pytest.mark.parametrize(("key", "value"), [("active", 0.05), ("mu", -1.5)])
def test_target_follows_the_config(key, value, scale):
    config = {
        "loss.method": "rectified_lpjepa",
        "target.p": 2.0,
        "target.scale": scale,
        f"target.{key}": value,
    }
    target = target_of(config)
    reference = (
        RectifiedGeneralizedGaussian.from_active_fraction(value, 2.0, scale, torch.float64)
        if key == "active"
        else RectifiedGeneralizedGaussian.from_location(value, 2.0, scale, torch.float64)
    )
    assert target.mu == pytest.approx(float(reference.loc))
    assert target.sigma == pytest.approx(float(reference.scale))
    if (key, scale) == ("mu", "rgn"):
        assert target.sigma == pytest.approx(sigma_rgn(2.0, -1.5))
    assert target.predicted["active"] == pytest.approx(float(reference.active_probability))
    assert target.predicted["l1"] == pytest.approx(float(reference.expected_l1_metric))
    assert target.rule == (scale if isinstance(scale, str) else "number")


def test_methods_without_a_target_have_none():
    assert target_of({"loss.method": "vicreg", "target.p": 1.0, "target.active": 0.2}) is None
    dense = target_of({"loss.method": "lpjepa", "target.p": 1.0, "target.mu": 0.0})
    assert not dense.rectified
    assert "active" not in dense.predicted
    assert dense.symbol == "GN₁(0, σ_GN)"


def test_the_target_is_as_given_to_every_digit():
    """The explorer finds a run on its curve only where p and σ are equal to 1e-9."""
    config = {"loss.method": "rectified_lpjepa", "target.p": 0.7, "target.scale": 0.3, "target.mu": -1.1}
    target = target_of(config)
    assert (target.p, target.sigma, target.mu) == (0.7, 0.3, -1.1)


def test_a_target_is_not_made_up():
    config = {"loss.method": "rectified_lpjepa", "target.p": 1.0}
    for given in ({}, {"target.active": None, "target.mu": None}):
        with pytest.raises(ValueError, match=r"target\.active or target\.mu"):
            target_of(config | given)
    later = config | {"target.active": 0.2, "target.shift": 1.0, "novelty.key": 2}  # of another version
    assert target_of(later).predicted["active"] == pytest.approx(0.2, rel=1e-12)


def test_symbol_is_the_papers():
    config = {"loss.method": "rectified_lpjepa", "target.p": 0.5, "target.scale": "rgn", "target.mu": -1.0}
    assert target_of(config).symbol == "RGN₀.₅(−1, σ_RGN)"


def test_equal_names_are_told_apart(tmp_path, make_run):
    folders = [make_run(tmp_path / part / "run") for part in ("a", "b")] + [make_run(tmp_path / "other")]
    assert [run.name for run in read_runs(folders)] == ["a/run", "b/run", "other"]


def test_not_a_run_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        read_run(tmp_path / "nothing")
    with pytest.raises(ValueError, match="not a run"):
        read_run(tmp_path)


def test_cut_line_and_nan_are_passed_over(tmp_path, make_run):
    folder = make_run(tmp_path / "run", epochs=2)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "epoch", "step": 9, "epoch": 3, "l0": null}\n[1, 2]\n{"kind": "epo')
    run = read_run(folder)
    assert run.history["epoch/l0"][0] == [1, 2]
    assert len(run.problems) == 1
    assert "2 line(s) are not JSON" in run.problems[0]


def test_broken_files_become_problems(tmp_path, make_run):
    folder = make_run(tmp_path / "run")
    (folder / "evaluation.json").write_text("{")
    (folder / "config.yaml").write_text("a: [")
    run = read_run(folder)
    assert run.evaluations == []
    assert run.config == {}
    assert len(run.problems) == 2
    assert all("\n" not in problem for problem in run.problems)


def test_impossible_target_becomes_a_problem(tmp_path, make_run):
    folder = make_run(tmp_path / "run")
    text = (folder / "config.yaml").read_text().replace("p: 1.0", "p: -1.0")
    (folder / "config.yaml").write_text(text)
    run = read_run(folder)
    assert run.target is None
    assert "target could not be understood" in run.problems[0]


def test_summary_prefers_the_newest_finished_evaluation_on_own_data(tmp_path, make_run):
    folder = make_run(tmp_path / "run", sources=("pets", "digits"))
    content = json.loads((folder / "evaluation.json").read_text())
    newer, unfinished = (json.loads(json.dumps(content["evaluations"][1])) for _ in range(2))
    newer["pieces"]["probe 1"]["encoder"]["top1"]["mean"] = 0.77
    unfinished |= {"finished": None, "pieces": {}}
    content["evaluations"] += [newer, unfinished]
    (folder / "evaluation.json").write_text(json.dumps(content))
    summary = summarise(read_run(folder), Observation())
    assert summary.encoder == 0.77
    assert summary.projector == pytest.approx(0.9812 - 0.0123)
    assert summary.source == "linear probe (adam) on digits"
    assert summary.notes == ()
    recorded = environment_of(read_run(folder))
    assert recorded["evaluated with torch"] == "2.4"
    assert recorded["checkpoint step"] == 42


def test_summary_without_evaluation_says_how_to_get_one(tmp_path, make_run):
    folder = make_run(tmp_path / "run", evaluated=False)
    run = read_run(folder)
    summary = summarise(run, Observation())
    assert summary.encoder == run.history["final/encoder_accuracy"][1][-1]
    assert summary.source == "frozen linear probe"
    assert f"lpjepa evaluate {folder}" in summary.notes[0]
    assert sparsity_groups([run]) == []


def test_sparsity_groups_are_the_stored_quantiles(tmp_path, make_run):
    runs = [
        read_run(make_run(tmp_path / "a", sources=("digits", "pets"))),
        read_run(make_run(tmp_path / "b")),
    ]
    groups = sparsity_groups(runs)
    assert [label for label, _, _ in groups] == ["a digits", "a pets", "b"]
    stored = runs[1].evaluations[0]["pieces"]["probe 1"]["projector"]["by_correctness"]
    assert groups[2][1].tolist() == stored["l1_correct"]
    assert groups[2][2].tolist() == stored["l1_incorrect"]


@pytest.mark.parametrize("source", ["digits", "pets"])
def test_the_headline_is_of_the_runs_own_data(make_run, tmp_path, source):
    run = read_run(make_run(tmp_path / "run", sources=(source,)))
    seen = summarise(run, Observation())
    own = evaluations_of(run)[source]
    if source == "digits":
        assert seen.encoder == own["pieces"]["probe 1"]["encoder"]["top1"]["mean"]
        assert seen.notes == ()
    else:  # pets are transfer: the numbers of the training stand
        assert seen.encoder == run.last("final/encoder_accuracy")
        assert "has not been run" in seen.notes[0]


def test_pictures_that_cannot_be_made_are_told(make_run, tmp_path):
    heard = []
    write_report([make_run(tmp_path / "run")], say=heard.append)
    (note,) = heard
    assert note.startswith(f"{tmp_path / 'run'}: no pictures of features and images: ")
