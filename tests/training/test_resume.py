"""A run that is stopped, in whatever way, ends with the weights and the journal of one that is not."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import weakref

import numpy as np
import pytest
import torch
import yaml

import lpjepa
from lpjepa.cli import main
from lpjepa.training import (
    CheckpointError,
    ConfigError,
    Interrupted,
    Run,
    checkpoint,
    load_config,
    pretrain,
    to_dict,
)
from lpjepa.training.circumstances import fingerprint, with_absolute_root
from lpjepa.training.combination import check_combination
from lpjepa.training.config import default_folder, identity
from lpjepa.training.display import Lines
from lpjepa.training.fork import fork, plain_until, rectified_state
from lpjepa.training.layers import replace


def final_state(run):
    state = checkpoint.load_newest(run.checkpoints)
    return {name: state[name] for name in ("trainee", "optimizers", "criterion", "ema") if name in state}


def assert_same(a, b):
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            assert_same(x, y)
    else:
        assert a == b


def journal(run):
    """The journal without what the clock decides."""
    return [{k: v for k, v in entry.items() if k != "images_per_second"} for entry in run.metrics()]


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the loop may catch it."""


SETTINGS = {
    "adamw": {},
    "lars, accumulation, average": {"optim": {"name": "lars", "accumulate": 2, "ema": 0.9, "lr": 0.1}},
    "sgd, clipping, bf16": {"optim": {"name": "sgd", "grad_clip": 0.5}, "train": {"precision": "bf16"}},
    "fp16": {"train": {"precision": "fp16"}},
    "location that moves": {"target": {"from_mu": 1.0}},
    "rectified late": {"train": {"rectify_from": 0.4}, "optim": {"ema": 0.9}},
    "eigenvectors": {"loss": {"directions": {"random": 12, "eigen": 4}, "axes_weight": 0.1}},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_killed_at_every_kind_of_moment(tiny, tmp_path, watch, setting):
    saves = {"train": {"checkpoint_every": 0.7}}  # in the middle of epochs
    whole = pretrain(
        tiny(SETTINGS[setting], saves, {"train": {"out": str(tmp_path / "whole")}}), watch(lambda step: None)
    )
    config = tiny(SETTINGS[setting], saves)

    def kill_at(wanted):
        def act(step):
            if step == wanted:
                raise Killed

        return watch(act)

    steps = 2 * (3 // config.optim.accumulate)
    for wanted in (1, steps // 2, steps):
        with pytest.raises(Killed):
            pretrain(config, kill_at(wanted))
    run = pretrain(config, watch(lambda step: None))
    assert_same(final_state(run), final_state(whole))
    assert journal(run) == journal(whole)
    assert run.final["l0"] == whole.final["l0"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(tiny, tmp_path, watch, number):
    handler = signal.getsignal(signal.SIGINT)
    whole = pretrain(tiny({"train": {"out": str(tmp_path / "whole")}}), watch(lambda step: None))
    config = tiny()
    with pytest.raises(Interrupted, match=r"lpjepa pretrain .*config\.yaml") as caught:
        pretrain(config, watch(lambda step: os.kill(os.getpid(), number) if step == 4 else None))
    assert caught.value.signal_number == number
    run = Run.open(tmp_path / "run")
    assert [checkpoint.step_of(path) for path in checkpoint.list_checkpoints(run.checkpoints)] == [3, 4]
    assert not run.finished
    assert signal.getsignal(signal.SIGINT) is handler
    run = pretrain(run.config, watch(lambda step: None))
    assert_same(final_state(run), final_state(whole))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_last_step_is_handed_on_when_the_run_is_finished(
    tiny, tmp_path, monkeypatch, capsys, number
):
    from lpjepa.training.assembly import Assembly

    final = Assembly.final
    monkeypatch.setattr(Assembly, "final", lambda self: signal.raise_signal(number) or final(self))
    before = signal.signal(number, signal.default_int_handler)  # SIGTERM would end the tests
    try:
        with pytest.raises(KeyboardInterrupt):
            pretrain(tiny())
    finally:
        signal.signal(number, before)
    assert Run.open(tmp_path / "run").finished
    closing = capsys.readouterr().out.splitlines()[-1]
    again = f"lpjepa pretrain {tmp_path / 'run' / 'config.yaml'}"
    assert closing == f"{tmp_path / 'run'} is finished and saved; for its table and report: {again}"


def test_what_lies_in_the_folder_is_not_written_over_unasked(tiny, tmp_path):
    """A run that has lost its config, and a config.yaml of something else."""
    run = pretrain(tiny())
    (run.folder / "config.yaml").unlink()
    before = {path: path.read_bytes() for path in run.checkpoints.iterdir()}
    with pytest.raises(ConfigError, match=r"holds checkpoints, but no config\.yaml .* --train\.no-resume"):
        pretrain(tiny())
    assert before == {path: path.read_bytes() for path in run.checkpoints.iterdir()}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_text("hi")
    with pytest.raises(ConfigError, match=r"mine/config\.yaml: .* choose another folder with --train\.out"):
        pretrain(tiny({"train": {"out": str(tmp_path / "mine")}}))
    assert (tmp_path / "mine" / "config.yaml").read_text() == "hi"


@pytest.mark.slow
def test_sigkill_at_random_moments(tiny, tmp_path, watch):
    """Real processes, really killed; `benchmarks/kill_resume.py` does it 20 times."""
    longer = {"train": {"epochs": 12, "checkpoint_every": 0.34}, "log": {"monitor_every": 4}}
    whole = pretrain(tiny(longer, {"train": {"out": str(tmp_path / "whole")}}), watch(lambda step: None))
    config = tiny(longer)
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(to_dict(config)))
    command = [sys.executable, "-m", "lpjepa", "pretrain", str(file)]
    journal_file = tmp_path / "run" / "metrics.jsonl"
    lines = 0
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}  # sums depend on how many share them
    for delay in (0.05, 0.4):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, **threads}
        )
        while process.poll() is None and not (
            journal_file.exists() and len(journal_file.read_text()) > lines
        ):
            time.sleep(0.01)
        time.sleep(delay)
        process.kill()
        process.communicate()
        lines = len(journal_file.read_text()) if journal_file.exists() else 0
    run = pretrain(config, watch(lambda step: None))
    assert_same(final_state(run), final_state(whole))
    assert journal(run) == journal(whole)


def test_a_damaged_checkpoint_costs_only_the_work_since_the_one_before(tiny, tmp_path, watch):
    whole = pretrain(tiny({"train": {"out": str(tmp_path / "whole")}}), watch(lambda step: None))
    with pytest.raises(Interrupted):
        pretrain(tiny(), watch(lambda step: os.kill(os.getpid(), signal.SIGTERM) if step == 5 else None))
    newest = checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    with pytest.warns(RuntimeWarning, match="damaged"):
        run = pretrain(tiny(), watch(lambda step: None))
    assert_same(final_state(run), final_state(whole))


def test_a_changed_config_names_the_keys_and_a_finished_run_is_returned(tiny, tmp_path, watch):
    run = pretrain(tiny(), watch(lambda step: None))
    before = final_state(run)
    with pytest.raises(ConfigError, match=r"differs in target\.active, train\.seed; .*--train\.out"):
        pretrain(tiny({"train": {"seed": 7}, "target": {"active": 0.3}}))
    # Where and how fast may change; and what is finished is not done again.
    steps = []
    again = pretrain(tiny({"log": {"every": 3}, "train": {"checkpoint_every": 2.0}}), watch(steps.append))
    assert steps == []
    assert_same(final_state(again), before)
    anew = pretrain(tiny({"train": {"seed": 7, "resume": False}}), watch(steps.append))
    assert len(steps) == 6
    assert Run.open(anew.folder).config.train.seed == 7
    assert len(anew.metrics("final")) == 1


def stopped_at(step, tiny, watch, *changes):
    with pytest.raises(Interrupted) as caught:
        pretrain(
            tiny(*changes), watch(lambda now: os.kill(os.getpid(), signal.SIGTERM) if now == step else None)
        )
    return caught.value


def test_the_command_that_resumes_does_not_replace(tiny, tmp_path, watch):
    folder = tmp_path / "my run"
    stopped = stopped_at(4, tiny, watch, {"train": {"out": str(folder), "resume": False}})
    command = str(stopped).split("go on with: ")[1]
    assert shlex.split(command)[:2] == ["lpjepa", "pretrain"]
    steps = []
    pretrain(load_config(shlex.split(command)[2]), watch(steps.append))
    assert steps == [5, 6]


def test_other_circumstances_are_noticed(tiny, tmp_path, watch):
    stopped_at(4, tiny, watch)
    newest = checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    saved = checkpoint.load(newest)

    def as_if(**changes):
        content = {**saved, "progress": {**saved["progress"], **changes}}
        checkpoint.save(newest.parent, checkpoint.step_of(newest), content)
        return pretrain(tiny(), watch(lambda step: None))

    with pytest.raises(ConfigError, match=r"by 2 processes .* --nproc-per-node 2"):
        as_if(world=2)
    with pytest.raises(ConfigError, match="on 7 classes and quarters has 4 now"):
        as_if(classes=7)
    with pytest.warns(RuntimeWarning, match="on 95 images and quarters has 96 now"):
        assert as_if(images=95, fingerprint="").finished


def test_a_checkpoint_without_a_fingerprint_goes_on(tiny, tmp_path, watch):
    stopped_at(4, tiny, watch)
    newest = checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")[-1]
    saved = checkpoint.load(newest)
    del saved["progress"]["fingerprint"]
    checkpoint.save(newest.parent, checkpoint.step_of(newest), saved)
    assert pretrain(tiny(), watch(lambda step: None)).finished


def squares(path, seed, labelled=True):
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (24, 8, 8, 3), dtype=np.uint8)
    labels = {"y_train": np.arange(24) % 2, "y_test": np.arange(8) % 2} if labelled else {}
    np.savez(path, x_train=images, x_test=images[:8], **labels)
    return {"data": {"source": "npz", "root": str(path)}, "train": {"batch_size": 8}}


@pytest.mark.parametrize("labelled", [True, False])
def test_images_of_another_place_are_another_run(tiny, tmp_path, watch, labelled, monkeypatch):
    a, b = (squares(tmp_path / f"{name}.npz", seed, labelled) for seed, name in enumerate("ab"))
    stopped_at(4, lambda: tiny(a), watch)
    with pytest.raises(ConfigError, match=r"on .*a\.npz, and .*b\.npz holds other images; choose"):
        pretrain(tiny(b), watch(lambda step: None))
    moved = tmp_path / "elsewhere" / "c.npz"
    moved.parent.mkdir()
    (tmp_path / "a.npz").rename(moved)
    monkeypatch.chdir(moved.parent)
    c = {**a, "data": {"source": "npz", "root": "c.npz"}}
    run = pretrain(tiny(c), watch(lambda step: None))
    assert run.finished
    assert Run.open(run.folder).config.data.root == str(moved), "from any directory"
    assert pretrain(tiny(c), watch(lambda step: None)).finished
    with pytest.raises(ConfigError, match=r"c\.npz and is finished; for .*b\.npz choose another folder"):
        pretrain(tiny(b), watch(lambda step: None))


def test_images_that_changed_in_their_place_are_warned_of(tiny, tmp_path, watch):
    a = squares(tmp_path / "a.npz", 0)
    stopped_at(4, lambda: tiny(a), watch)
    squares(tmp_path / "a.npz", 1)
    with pytest.warns(RuntimeWarning, match="on 24 images and a has others now: the run goes on"):
        assert pretrain(tiny(a), watch(lambda step: None)).finished
    folder = default_folder(tiny(a))
    assert folder.name.startswith("npz-a-npz-rectified_lpjepa-")
    assert folder != default_folder(tiny(squares(tmp_path / "b.npz", 1)))


def test_a_journal_line_cut_short_does_not_stop_a_resume(tiny, tmp_path, watch):
    stopped_at(4, tiny, watch)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    assert pretrain(tiny(), watch(lambda step: None)).finished


def test_a_failed_start_leaves_nothing_that_stands_in_the_way(tiny, tmp_path, watch, monkeypatch):
    out = tmp_path / "run"
    with pytest.raises(ValueError, match="no encoder"):
        pretrain(tiny({"model": {"encoder": "resnet19x"}}), watch(lambda step: None))
    assert not out.exists()
    monkeypatch.setitem(sys.modules, "wandb", None)
    deep = {"train": {"out": str(tmp_path / "runs" / "a" / "b")}, "log": {"wandb": "project"}}
    with pytest.raises(ValueError, match=r"log\.wandb: Weights"):
        pretrain(tiny(deep), watch(lambda step: None))
    assert not (tmp_path / "runs").exists()
    out.mkdir()  # nor what a kill before the first step has left
    (out / "config.yaml").write_text("train: {seed: 9}\n")
    assert pretrain(tiny(), watch(lambda step: None)).finished


def test_replacing_a_run_removes_what_was_said_of_it(tiny, tmp_path, watch):
    one = {"train": {"epochs": 1}}
    run = pretrain(tiny(one), watch(lambda step: None))
    (run.folder / "evaluation.json").write_text("[]")
    heard = watch(lambda step: None)
    heard.say = lambda text: said.append(text)
    said = []
    pretrain(tiny(one), heard)
    assert said == [f"{run.folder} is finished; --train.no-resume trains it anew"]
    assert (run.folder / "evaluation.json").exists()
    pretrain(tiny(one, {"train": {"resume": False}}), watch(lambda step: None))
    assert not (run.folder / "evaluation.json").exists()


def test_a_finished_run_that_lost_its_checkpoints_is_not_sent_in_a_circle(tiny, watch, capsys):
    config = tiny({"train": {"epochs": 1}})
    run = pretrain(config, watch(lambda step: None))
    shutil.rmtree(run.checkpoints)
    gone = f"{run.folder} is finished, but its checkpoints are gone"
    anew = ["pretrain", str(run.folder / "config.yaml"), "--train.no-resume"]
    with pytest.raises(CheckpointError) as caught:
        run.weights()
    assert str(caught.value) == f"{gone}; train it anew: lpjepa {' '.join(anew)}"
    pretrain(config)
    assert capsys.readouterr().out == f"{gone}; --train.no-resume trains it anew\n"
    assert main(anew) == 0
    assert run.weights()


def test_a_folder_that_was_moved_is_the_same_and_one_of_the_same_names_is_not(tmp_path):
    from PIL import Image

    from lpjepa.data import load_source

    def write(folder, level):
        for name in ("cat", "dog"):
            (folder / name).mkdir(parents=True)
            for i in range(3):
                Image.new("RGB", (8, 8), (level + 40 * i, 0, 0)).save(folder / name / f"{i}.png")
        return folder

    def found(root, **options):
        return fingerprint(load_source("folder", root, "train", val_fraction=0.3, **options))

    a, b = write(tmp_path / "a", 0), write(tmp_path / "b", 1)
    before = found(a)
    assert found(b) != before
    assert found(a, max_memory=100) == before, "streamed"
    assert found(a.rename(tmp_path / "c")) == before


def test_roots_of_all_kinds(tiny, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    def root(text):
        return with_absolute_root(tiny({"data": {"root": text}})).data.root

    assert root("a/../b") == str(tmp_path / "b")
    assert root("~/b") == str(tmp_path / "b")
    assert root("~nobodyhere/b") == str(tmp_path / "~nobodyhere" / "b")
    assert root("s3://bucket/b") == "s3://bucket/b"
    with pytest.raises(ConfigError, match="got nothing"):
        root("")
    assert default_folder(tiny({"data": {"root": "a\udcff"}})).parent.name == "runs"


@pytest.mark.parametrize("optim", [{}, {"name": "lars", "accumulate": 3, "ema": 0.9, "lr": 0.1}])
@pytest.mark.parametrize(
    ("activation", "start", "by"),
    [
        ("calibrated", 0.5, "views"),
        ("calibrated", 0.5, "images"),
        ("calibrated", 1.0, "images"),
        ("top", 0.5, "views"),
        ("top", 1.0, "views"),
        ("soft_top", 0.5, "views"),
        ("calibrated", 0.4, "views"),
    ],
)
def test_a_late_share_from_the_checkpoint_of_the_plain_run_is_that_of_a_run_of_its_own(
    tiny, tmp_path, optim, activation, start, by
):
    """Weights, optimizers and journal of a run of its own are the oracle, to the last bit."""
    late = {
        "model": {"activation": activation},
        "optim": optim,
        "train": {"epochs": 4, "calibrate_from": start, "calibrate_on": by, "out": str(tmp_path / "whole")},
    }
    config = tiny(late)
    plain, share = plain_until(config)
    assert (plain.model.activation, plain.train.calibrate_from, share) == ("auto", 0.0, start)
    first = pretrain(replace(plain, {"train": {"out": str(tmp_path / "plain"), "keep_at": [0.25, share]}}))
    kept = sorted(path.name for path in first.checkpoints.glob("kept-*.pt"))
    assert kept == ["kept-0.25.pt", f"kept-{start:g}.pt"]
    begun = fork(first.checkpoints / kept[1], replace(config, {"train": {"out": str(tmp_path / "forked")}}))
    assert not begun.finished
    assert len(begun.metrics("epoch")) in (int(4 * start), round(4 * start)), "as the steps of an epoch fall"
    forked, whole = pretrain(begun.config), pretrain(config)
    assert_same(final_state(forked), final_state(whole))
    # The epoch that ends where the share begins has been measured by the plain run.
    found = [
        [e for e in journal(run) if (e["kind"], e["epoch"]) != ("epoch", 4 * start)]
        for run in (forked, whole)
    ]
    assert found[0] == found[1]
    assert whole.final["l0"] != first.final["l0"]


@pytest.mark.parametrize("scale", ["gn", "rgn"])
@pytest.mark.parametrize(("leaves", "there", "activation"), [(0.5, 1.0, "auto"), (1.0, 1.0, "soft_top")])
def test_a_location_that_stays_is_that_of_a_training_there_until_it_leaves(
    tiny, tmp_path, leaves, there, activation, scale
):
    """Weights, optimizers and journal of a run of its own are the oracle, to the last bit."""
    way = {"from_mu": 1.0, "leaves_at": leaves, "there_at": there}
    target = {"active": None, "mu": -3.0, "scale": scale, **way}
    own = {
        "epochs": 4,
        "out": str(tmp_path / "whole"),
        "calibrate_from": 1.0 if activation != "auto" else 0.0,
    }
    config = tiny({"target": target, "train": own, "model": {"activation": activation}})
    before, share = plain_until(config)
    assert share == leaves
    assert identity(before) == identity(
        tiny({"target": {"active": None, "mu": 1.0, "scale": scale}, "train": {"epochs": 4}})
    )
    first = pretrain(replace(before, {"train": {"out": str(tmp_path / "before"), "keep_at": [share]}}))
    begun = fork(
        first.checkpoints / f"kept-{share:g}.pt",
        replace(config, {"train": {"out": str(tmp_path / "forked")}}),
    )
    forked, whole = pretrain(begun.config), pretrain(config)
    assert_same(final_state(forked), final_state(whole))
    predicted = [entry.get("l0_predicted") for entry in forked.metrics("epoch")]
    others = [None] * round(4 * leaves), [whole.final["l0_predicted"]] * round(4 - 4 * leaves)
    assert predicted == others[0] + others[1], "no epoch is beside the target of the other training"
    assert forked.final == whole.final
    kept, moved = final_state(first)["trainee"], final_state(whole)["trainee"]
    weights = [key for key in kept if key.startswith("model.encoder") and key.endswith("weight")]
    assert all(torch.equal(kept[key], moved[key]) for key in weights) == (leaves == 1), "it did leave"


def test_a_share_at_the_end_leaves_what_epochs_say_of_a_target_that_has_moved(tiny, tmp_path):
    target = {"active": None, "mu": -1.0, "from_mu": 1.0, "leaves_at": 0.25, "there_at": 0.75}
    own = {"epochs": 4, "out": str(tmp_path / "moved")}
    moved = pretrain(tiny({"target": target, "train": own}))
    share = {"model": {"activation": "top"}, "train": {"calibrate_from": 1.0, "out": str(tmp_path / "late")}}
    begun = fork(checkpoint.list_checkpoints(moved.checkpoints)[-1], replace(moved.config, share))
    assert begun.metrics("epoch") == moved.metrics("epoch")
    assert {entry["l0_predicted"] for entry in begun.metrics("epoch")} == {moved.final["l0_predicted"]}


def test_turns_at_one_place_are_all_taken_back(tiny):
    target = {"active": None, "mu": -3.0, "from_mu": 1.0, "leaves_at": 0.5, "there_at": 1.0}
    turns = {"rectify_from": 0.5, "calibrate_from": 1.0}
    before, share = plain_until(tiny({"target": target, "train": turns, "model": {"activation": "top"}}))
    assert (share, before.model.activation, before.target.mu) == (1.0, "auto", -3.0)
    first, share = plain_until(before)
    assert (share, plain_until(first)[1]) == (0.5, 0.0)
    lpjepa = tiny({"target": {"active": None, "mu": 1.0}, "loss": {"method": "lpjepa"}})
    assert identity(first) == identity(lpjepa)


@pytest.mark.parametrize("start", [0.4, 0.5, 1.0])
@pytest.mark.parametrize("activation", ["auto", "top", "calibrated"])
def test_features_rectified_late_are_lpjepas_until_then(tiny, tmp_path, activation, start):
    """LpJEPA's own run is the oracle before, and its features, rectified by hand, when that is at the end."""
    by = "images" if activation == "calibrated" else "views"
    late = {"model": {"activation": activation}, "train": {"epochs": 4, "rectify_from": start}}
    config = tiny(late, {"target": {"mu": -1.0, "active": None}, "train": {"calibrate_on": by}})
    dense, share = plain_until(config)
    assert (dense.loss.method, dense.model.activation, share) == ("lpjepa", "auto", start)
    assert identity(dense) == identity(
        tiny({"loss": {"method": "lpjepa"}, "target": {"mu": -1.0, "active": None}, "train": {"epochs": 4}})
    )
    kept = {"train": {"out": str(tmp_path / "dense"), "keep_at": [start]}}
    plain, whole = pretrain(replace(dense, kept)), pretrain(config)
    place = plain.checkpoints / f"kept-{start:g}.pt"
    begun = fork(place, replace(config, {"train": {"out": str(tmp_path / "forked")}}))
    forked = pretrain(begun.config)
    assert_same(final_state(forked), final_state(whole))

    steps = 12 * start
    before, forked_whole = (
        [[e for e in journal(run) if e["step"] <= most and e["kind"] != "final"] for run in runs]
        for runs, most in (((plain, whole), steps), ((forked, whole), 12))
    )
    assert before[0] == before[1], "also where it turns"
    assert forked_whole[0] == forked_whole[1]
    shares = [entry["l0"] for entry in whole.metrics("train") if entry["step"] > steps + 2]
    assert all(entry["l0"] == 1 for entry in plain.metrics("train"))
    assert max(shares, default=0) < 0.9
    trained = [checkpoint.load_newest(run.checkpoints)["trainee"] for run in (plain, whole)]
    same = all(torch.equal(value, trained[1][name]) for name, value in trained[0].items())
    assert same == (start == 1), "of weights"
    if start == 1:
        x = torch.rand(50, 3, 8, 8)
        z = plain.model()(x)[1]
        assert (z < 0).any()
        if activation == "auto":
            torch.testing.assert_close(whole.model()(x)[1], z.clamp(min=0), rtol=0, atol=0)
        assert whole.final["encoder_accuracy"] == plain.final["encoder_accuracy"]
    if activation == "top":  # of 12 features, as the target says: 0.12 of them
        assert whole.final["l0"] == pytest.approx(1 / 12, abs=1e-6)


def test_what_was_trained_with_is_gone_before_there_is_more(tiny, monkeypatch):
    """Weights, moments, CUDA graphs and loaders twice might not fit."""
    from lpjepa.training import loop

    build, made, alive = loop.assemble, [], []

    def note(*arguments, **options):
        alive.append([ref() for ref in made])
        parts = build(*arguments, **options)
        made.append(weakref.ref(parts))
        return parts

    monkeypatch.setattr(loop, "assemble", note)
    pretrain(tiny({"train": {"rectify_from": 0.4}}))
    assert alive == [[], [None]]


@pytest.mark.parametrize(("stop", "built"), [(1, 2), (2, 1), (5, 1)])
def test_what_goes_on_beyond_the_turn_is_built_once(tiny, watch, monkeypatch, stop, built):
    from lpjepa.training import loop

    late = {"train": {"rectify_from": 0.4}, "log": {"every": 1}}  # step 2 of 6
    stopped_at(stop, tiny, watch, late)
    build, methods = loop.assemble, []

    def note(*arguments, **options):
        parts = build(*arguments, **options)
        methods.append(parts.config.loss.method)
        return parts

    monkeypatch.setattr(loop, "assemble", note)
    assert pretrain(tiny(late), watch(lambda step: None)).finished
    assert methods == ["lpjepa", "rectified_lpjepa"][-built:]


def test_kernels_of_before_the_turn_are_compiled_before_there_are_others(tiny, monkeypatch):
    from lpjepa.training import assembly

    did = []

    class Compiling:
        def join(self):
            did.append("compiled")

    monkeypatch.setattr(assembly, "precompile", lambda *given: did.append("built") or Compiling())
    pretrain(tiny({"train": {"rectify_from": 0.4}}))
    assert did == ["built", "compiled", "built"]


@pytest.mark.parametrize("start", [0.3, 0.8])
def test_building_anew_is_no_time_of_training(tiny, watch, monkeypatch, start):
    from types import SimpleNamespace

    from lpjepa.training import loop

    build, now = loop.assemble, [0.0]

    def pass_by(seconds):
        now[0] += seconds

    def slow(*arguments, **options):
        pass_by(1000)
        return build(*arguments, **options)

    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(loop, "assemble", slow)
    run = pretrain(tiny({"train": {"rectify_from": start}}), watch(lambda step: pass_by(1)))
    assert [entry["images_per_second"] for entry in run.metrics("train")] == [32.0] * 4
    assert now == [2000 + 6]


def test_a_turn_that_moved_because_images_are_gone_is_made_on_resuming(tiny, tmp_path, watch):
    late = {"model": {"activation": "top"}, "train": {"rectify_from": 0.7}, "optim": {"ema": 0.9}}
    a = squares(tmp_path / "a.npz", 0)
    stopped_at(3, lambda: tiny(a, late), watch)  # one before the turn
    with np.load(tmp_path / "a.npz") as arrays:
        np.savez(tmp_path / "a.npz", **{name: part[:16] for name, part in arrays.items()})
    with pytest.warns(RuntimeWarning, match="on 24 images and a has 16 now"):
        run = pretrain(tiny(a, late), watch(lambda step: None))  # its third step of four
    assert run.metrics("train")[-1]["l0"] == pytest.approx(2 / 12)


@pytest.mark.parametrize("stop", [3, 5])
@pytest.mark.parametrize("activation", ["auto", "top", "calibrated"])
def test_a_turn_that_was_made_is_not_undone_by_further_images(
    tiny, tmp_path, watch, capsys, activation, stop
):
    late = {"model": {"activation": activation}, "train": {"rectify_from": 0.5}, "log": {"every": 1}}
    a = squares(tmp_path / "a.npz", 0)
    stopped_at(stop, lambda: tiny(a, late), watch)  # the turn is at step 3 of 6
    with np.load(tmp_path / "a.npz") as arrays:
        np.savez(tmp_path / "a.npz", **{name: np.concatenate([part] * 3) for name, part in arrays.items()})
    with pytest.warns(RuntimeWarning, match="on 24 images and a has 72 now"):
        run = pretrain(tiny(a, late), Lines())  # of 18 steps, of which the turn would be at the ninth
    assert max(entry["l0"] for entry in run.metrics("train") if entry["step"] > stop) < 1
    assert "rectified from here on" not in capsys.readouterr().out


@pytest.mark.parametrize("ema", [None, 0.9])
@pytest.mark.parametrize("activation", ["top", "calibrated"])
def test_a_run_that_is_not_rectified_yet_can_be_opened(tiny, watch, activation, ema):
    late = {"model": {"activation": activation}, "train": {"rectify_from": 0.9}, "optim": {"ema": ema}}
    stopped_at(3, tiny, watch, late)
    run, images = Run.open(tiny().train.out), torch.rand(20, 3, 8, 8)
    with torch.no_grad():
        z = run.model()(images)[1]
        for source in (run.folder, run.weights()[1]):
            model = lpjepa.load(source, "cpu")
            assert torch.equal(model.projector(model.encoder(images)), z)
    if activation == "top":
        assert ((z > 0).sum(1) == 2).all(), "of 12 features, as the target says: 0.2 of them"
    assert (z >= 0).all()


@pytest.mark.parametrize("ema", [False, True])
def test_a_run_that_is_not_rectified_yet_lacks_nothing_but_its_rectifier(tiny, watch, ema):
    average = {"optim": {"ema": 0.9 if ema else None}}
    late = {"model": {"activation": "top"}, "train": {"rectify_from": 0.9}, **average}
    stopped_at(3, tiny, watch, late)
    run = Run.open(tiny().train.out)
    state = checkpoint.load_newest(run.checkpoints)
    places = [(state[part], part, prefix) for part, prefix in (("trainee", "model."), ("ema", ""))[: 1 + ema]]
    for weights, _, prefix in places:
        del weights[f"{prefix}encoder.stem.0.weight"]
    rectified = rectified_state(state, run.config)
    for weights, part, prefix in places:
        added = {f"{prefix}projector.7.{name}" for name in ("active", "batches")}
        assert rectified[part].keys() - weights.keys() == added
        assert rectified[part][f"{prefix}projector.7.batches"] == 3
    checkpoint.save(run.checkpoints, 3, state)
    with pytest.raises(RuntimeError, match=r"Missing key.*encoder\.stem\.0\.weight"):
        run.model()
    with pytest.raises(ValueError, match="the weights do not fit the encoder that is described there"):
        lpjepa.load(run.folder, "cpu")


def test_a_share_at_the_end_of_a_training_that_is_rectified_late_goes_on_from_that(tiny):
    late = {"model": {"activation": "top"}, "train": {"rectify_from": 0.5, "calibrate_from": 1.0}}
    rectified, share = plain_until(tiny(late))
    assert (share, rectified.train.rectify_from, rectified.model.activation) == (1.0, 0.5, "auto")
    assert plain_until(rectified)[1] == 0.5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": {"method": "lpjepa"}}, "rectify_from: 0.5 is of no use where the target is not rectified"),
        ({"loss": {"method": "simclr"}}, "use it with loss.method rectified_lpjepa"),
        ({"target": {"rectified": False}}, "0.5 is of no use where the target is not rectified"),
        (
            {"model": {"activation": "none"}},
            "0.5 is of no use with model.activation none, .*; use relu, rep_relu, .* top or soft_top",
        ),
        ({"train": {"rectify_from": 1.5}}, r"train.rectify_from: expected a share from 0 to 1, got 1.5"),
        ({"model": {"activation": "calibrated"}, "train": {"rectify_from": 1.0}}, "rectify_from: at 1 the"),
        (
            {"model": {"activation": "top"}, "train": {"calibrate_from": 0.3}},
            r"train.calibrate_from: 0.3 is before train.rectify_from 0.5, .* set it to 0.5 or more$",
        ),
        (
            {"model": {"activation": "top"}, "target": {"from_mu": 1.0}},
            r"train.calibrate_from: 0.0 is before target.there_at 0.8, .*; set it to 0.8 or more, or to 1$",
        ),
        (
            {"model": {"activation": "top"}, "target": {"from_mu": 1.0, "there_at": 1.0}},
            r"train.calibrate_from: 0.0 is before target.there_at 1.0, .*; set it to 1$",
        ),
    ],
)
def test_rectifying_late_what_is_not_rectified_is_refused(tiny, changes, words):
    with pytest.raises(ConfigError, match=words):
        pretrain(tiny({"train": {"rectify_from": 0.5}}, changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"activation": "rep_relu"}},
        {"model": {"activation": "top"}, "train": {"calibrate_from": 0.5}},
        {"model": {"activation": "top"}, "target": {"from_mu": 1.0, "there_at": 0.5}},
        {"model": {"activation": "top"}, "target": {"from_mu": 1.0}, "train": {"calibrate_from": 0.8}},
    ],
)
def test_rectifying_late_goes_with_other_shares_of_the_training(tiny, changes):
    check_combination(tiny({"train": {"rectify_from": 0.5}}, changes), 1)


def test_a_checkpoint_of_another_training_begins_no_run(tiny, tmp_path):
    first = pretrain(tiny({"train": {"keep_at": [0.5], "seed": 1}}))
    late = {"model": {"activation": "top"}, "train": {"calibrate_from": 0.5, "out": str(tmp_path / "late")}}
    with pytest.raises(ConfigError, match=r"kept-0.5.pt is of another training, which differs in train.seed"):
        fork(first.checkpoints / "kept-0.5.pt", tiny(late))


def test_a_share_that_is_past_is_said(tiny, capsys):
    pretrain(tiny({"train": {"keep_at": [0.01]}}))
    assert (Run.open(tiny().train.out).checkpoints / "kept-0.01.pt").is_file(), "at the first step at least"
    run = Run.open(tiny().train.out)
    run.checkpoints.joinpath("kept-0.01.pt").unlink()
    (run.folder / "metrics.jsonl").write_text("")
    pretrain(tiny({"train": {"keep_at": [0.01]}}))
    assert "train.keep_at 0.01: step 1 is past, no checkpoint is kept there" in capsys.readouterr().out


def test_a_checkpoint_is_kept_at_a_share_of_the_training_only(tiny):
    with pytest.raises(ConfigError, match=r"train.keep_at: expected shares above 0 and up to 1, got \[1.5\]"):
        pretrain(tiny({"train": {"keep_at": [1.5]}}))
    assert plain_until(tiny({"model": {"activation": "calibrated"}}))[1] == 0
