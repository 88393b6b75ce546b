"""Whole evaluations on features: what is stored, that it adds, resumes and never overwrites; the tables."""

import json
import os

import pytest
import torch

from lpjepa.distributions import RectifiedGeneralizedGaussian
from lpjepa.evaluation import (
    EvaluationSettings,
    Features,
    ProbeJob,
    evaluate_features,
    probe_protocol,
    protocol,
    rectification,
    results,
    same_labels,
    sparsity_deviation,
    stratified_draw,
    summary_table,
    tables,
    train_probes,
    transfer_table,
)
from lpjepa.evaluation.progress import Progress, Silent

SETTINGS = EvaluationSettings(fractions=(0.1, 1.0), draws=2, epochs=20, neighbours=5)
TARGET = RectifiedGeneralizedGaussian.from_active_fraction(0.3)


def split(samples, seed, dense=False):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % 3
    centres = torch.randn(3, 8, generator=torch.Generator().manual_seed(99)) * 2
    z = centres[labels] + torch.randn(samples, 8, generator=generator)
    return Features(z, z if dense else z.relu(), labels)


def identity(source="toy", settings=SETTINGS):
    return {
        "source": source,
        "settings": settings.as_dict(),
        "checkpoint": {"step": 7},
        "versions": results.versions(),
        "together": [source],
    }


def run(folder, source="toy", settings=SETTINGS, train=None, val=None):
    entry = results.open_entry(folder, identity(source, settings))
    train = split(120, 0) if train is None else train
    return evaluate_features(entry, train, val or split(60, 1), settings, TARGET, progress=Silent())


def test_an_evaluation_has_every_piece_and_plausible_numbers(tmp_path):
    content = run(tmp_path)
    stored = json.loads((tmp_path / "evaluation.json").read_text())
    assert stored == {"format": 1, "evaluations": [content]}
    pieces = content["pieces"]
    assert list(pieces) == ["measures", "probe 0.1", "probe 1", "knn", "posthoc"]
    assert pieces["measures"]["predicted"]["l0"] == pytest.approx(0.3, rel=1e-4)
    assert pieces["probe 0.1"]["samples"] == 12
    assert len(pieces["probe 0.1"]["encoder"]["top1"]["values"]) == 2
    assert pieces["probe 1"]["encoder"]["top1"]["std"] is None
    assert pieces["probe 1"]["encoder"]["top1"]["mean"] > 0.9
    assert pieces["knn"]["projector"]["cosine"] > 0.8
    groups = pieces["probe 1"]["projector"]["by_correctness"]
    assert len(groups["l0_correct"]) == protocol.QUANTILES
    assert content["versions"]["torch"] == torch.__version__
    assert content["settings"]["seed"] == 0


def test_running_again_adds_and_the_same_seed_repeats(tmp_path):
    first, second = run(tmp_path), run(tmp_path)
    other = run(tmp_path, "elsewhere")
    stored = results.read(tmp_path)
    assert [entry["source"] for entry in stored] == ["toy", "toy", "elsewhere"]
    assert stored[0] == first
    assert first["pieces"] == second["pieces"] == other["pieces"]


def test_interrupted_work_resumes_where_it_stopped(tmp_path, monkeypatch):
    whole = run(tmp_path / ".." / tmp_path.name)["pieces"]

    def stop(*_args, **_kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(protocol, "knn_accuracies", stop)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    unfinished = results.read(tmp_path)[1]
    assert unfinished["finished"] is None
    assert list(unfinished["pieces"]) == ["measures", "probe 0.1", "probe 1"]
    with monkeypatch.context() as patch:
        patch.setattr(protocol, "probe_regime", stop)  # done before: must not be computed again
        patch.setattr(protocol, "measures", stop)
        resumed = run(tmp_path)
    assert resumed["pieces"] == whole
    assert len(results.read(tmp_path)) == 2
    changed = EvaluationSettings(**{**SETTINGS.as_dict(), "seed": 1})
    run(tmp_path, settings=changed)
    assert len(results.read(tmp_path)) == 3


def test_labels_are_drawn_of_each_class_or_of_all():
    train = Features(torch.randn(120, 8), torch.randn(120, 8), torch.arange(120) // 2)
    for stratified, samples in ((True, 60), (False, 12)):
        settings = EvaluationSettings(**{**SETTINGS.as_dict(), "stratified": stratified})
        assert protocol.probe_regime(train, train, 0.1, settings)["samples"] == samples


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    run(tmp_path)
    before = (tmp_path / "evaluation.json").read_bytes()

    def full(*_args, **_kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        run(tmp_path)
    assert (tmp_path / "evaluation.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["evaluation.json"]


def test_a_damaged_file_is_not_overwritten(tmp_path):
    path = tmp_path / "evaluation.json"
    for content in ("{", "[]", '{"format": 99}'):
        path.write_text(content)
        with pytest.raises(ValueError, match="move it away"):
            run(tmp_path)
        assert path.read_text() == content


def test_a_piece_is_stored_once(tmp_path):
    entry = results.open_entry(tmp_path, identity())
    entry.store("measures", {"x": float("nan"), "y": torch.tensor([1, 2])})
    assert results.read(tmp_path)[0]["pieces"]["measures"] == {"x": None, "y": [1, 2]}
    with pytest.raises(ValueError, match="already"):
        entry.store("measures", {})


def test_unlabelled_sets_have_measures_only(tmp_path):
    bare = Features(torch.randn(20, 4), torch.randn(20, 4))
    assert list(run(tmp_path, train=bare, val=bare)["pieces"]) == ["measures"]


def test_a_class_with_one_example_and_features_without_content(tmp_path):
    labels = torch.tensor([0] * 10 + [1] * 10 + [2])
    zero = Features(torch.zeros(21, 4), torch.ones(21, 4), labels)
    pieces = run(tmp_path, train=zero, val=zero)["pieces"]
    assert pieces["measures"]["encoder"]["l1"] == pieces["measures"]["encoder"]["effective_rank"] == 0
    assert pieces["measures"]["projector"]["nhsic"] == 0
    assert pieces["probe 0.1"]["samples"] == 3
    assert pieces["probe 1"]["encoder"]["top1"]["mean"] == pytest.approx(10 / 21)


def test_settings_are_checked():
    for changes, message in [
        ({"protocol": "lbfgs"}, "adam, sgd"),
        ({"draws": 0}, "draws"),
        ({"fractions": (0.5, 2.0)}, "fractions"),
    ]:
        with pytest.raises(ValueError, match=message):
            EvaluationSettings(**changes).check()


def test_post_hoc_rectification_reports_before_and_after():
    train, val = split(120, 0, dense=True), split(60, 1, dense=True)
    train, val = (Features(f.encoder.abs(), f.projector, f.labels) for f in (train, val))
    quick = probe_protocol("sgd", epochs=3, batch_size=32)
    result = rectification(train, val, quick)
    assert result["encoder"]["unchanged"]
    assert result["encoder"]["before"] == result["encoder"]["after"]
    dense, sparse = result["projector"]["before"], result["projector"]["after"]
    assert dense["l0"] == 1.0
    assert sparse["l0"] == pytest.approx((val.projector > 0).float().mean().item())
    assert sparse["l1"] < 1
    by_hand = ProbeJob(train.projector.relu(), train.labels, val.projector.relu(), val.labels)
    assert sparse["top1"] == pytest.approx(train_probes([by_hand], quick)[0].top1, abs=0.02)
    as_is = ProbeJob(train.projector, train.labels, val.projector, val.labels)
    assert dense["top1"] == pytest.approx(train_probes([as_is], quick)[0].top1, abs=0.02)
    assert dense["top1"] != sparse["top1"]


def entry(source, top1, l0, finished="now"):
    kinds = {kind: {"top1": {"mean": top1}} for kind in ("encoder", "projector")}
    measured = {"projector": {"l0": l0, "l1": l0 / 2}, "predicted": {"l0": 0.5, "l1": 0.25}}
    return {"source": source, "finished": finished, "pieces": {"measures": measured, "probe 1": kinds}}


def test_tables_have_a_row_a_run_a_column_a_source_and_the_mean():
    first = [
        entry("a", 0.1, 0.4),
        entry("a", 0.2, 0.4),
        entry("b", 0.6, 0.6),
        entry("b", 0.9, 0.6, finished=None),
    ]
    table = transfer_table({"one": first, "two": first[:1]})
    assert table.columns == ("a", "b", "avg.")
    assert table.rows == (
        ("one", (pytest.approx(20), pytest.approx(60), pytest.approx(40))),
        ("two", (pytest.approx(10), None, None)),
    )
    lines = table.text().splitlines()
    assert lines[2].split() == ["one", "20.00", "60.00", "40.00"]
    assert lines[3].split() == ["two", "10.00", "-", "-"]
    assert len({len(line) for line in lines[1:]}) == 1
    titles = [table.title for table in tables({"one": first})]
    assert len(titles) == 2
    assert "encoder features, 100 %" in titles[0]
    assert "projector features, 100 %" in titles[1]
    summary = summary_table(first)
    assert summary.rows[1] == ("b", (pytest.approx(60), pytest.approx(60), 0.3, 0.6, 0.25, 0.5))
    assert sparsity_deviation(first)["l0"] == pytest.approx(0.1 / 0.5)


def test_small_classes_are_named_where_two_regimes_are_the_same_images():
    """Ten images a class: 1 % and 10 % are one image each, as the draw itself says."""
    labels = torch.arange(3).repeat_interleave(10)
    sizes = {f: len(stratified_draw(labels, f)) for f in (0.01, 0.1, 1.0)}
    probes = {f"probe {f:g}": {"fraction": f, "samples": size} for f, size in sizes.items()}
    flowers = {"source": "flowers", "finished": "now", "pieces": {"measures": {}, **probes}}
    (sentence,) = same_labels([flowers])
    assert sentence.startswith("flowers: 1 % and 10 % of the labels are the same 3 images")
    probes["probe 0.1"]["samples"] = 4
    assert same_labels([{**flowers, "pieces": probes}]) == []


def test_progress_writes_plain_lines_where_there_is_no_terminal(capsys):
    with Progress().task("toy: probes") as task:
        task(1, 2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "toy: probes ..."
    assert lines[1].startswith("toy: probes: done in")


def test_shuffled_features_keep_their_marginals_and_lose_their_dependence():
    x = torch.randn(512, 1).relu()
    z = torch.cat([x, x.sqrt(), x.square()], 1)  # each determines the others
    found = protocol.measures(Features(z, z, None), None, 0)["projector"]
    independent = protocol.measures(Features(z, torch.randn(512, 3).relu(), None), None, 0)["projector"]
    assert found["nhsic"] > 0.5
    assert found["nhsic_shuffled"] < 0.05
    assert independent["nhsic"] == pytest.approx(independent["nhsic_shuffled"], abs=0.02)
    other = protocol._shuffled(z, 1)
    assert torch.equal(other.sort(0).values, z.sort(0).values)
