"""The command: what it prints, its exit status, one sentence for a mistake."""

import os
import signal
import subprocess
import sys

import pytest
import yaml

from lpjepa.cli import COMMANDS, main
from lpjepa.training import to_dict


@pytest.fixture
def file(tiny, tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(to_dict(tiny())))
    return str(path)


def test_pretrain_ends_with_the_table_and_the_folder(file, tmp_path, capsys, monkeypatch):
    assert main(["pretrain", file, "--train.epochs", "1"]) == 0
    out = capsys.readouterr().out
    assert "encoder acc" in out
    assert "target predicts" in out
    assert out.rstrip().endswith(str(tmp_path / "run" / "report.html"))
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    # Asked again, it says so at once instead of training and drawing again.
    drawn = []
    monkeypatch.setattr("lpjepa.report.html.write_report", lambda folders: drawn.append(folders) or "drawn")
    assert main(["pretrain", file, "--train.epochs", "1"]) == 0
    again = capsys.readouterr().out
    assert "encoder acc" in again
    assert again.rstrip().endswith(str(tmp_path / "run" / "report.html"))
    assert drawn == []
    # What came after the report is not in it yet.
    later = (tmp_path / "run" / "report.html").stat().st_mtime_ns + 1
    (tmp_path / "run" / "evaluation.json").write_text("{}")
    os.utime(tmp_path / "run" / "evaluation.json", ns=(later, later))
    assert main(["pretrain", file, "--train.epochs", "1"]) == 0
    assert drawn == [[tmp_path / "run"]]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["pretrian"], "did you mean pretrain"),
        (["pretrain", "--train.epoch", "3"], "the nearest is train.epochs"),
        (["pretrain", "presets:cifar1000"], "cifar100"),
        (["pretrain", "--data.source", "digit"], "digits"),
        (["pretrain", "--data.source", "folder", "--data.root", "/nonexistent"], "/nonexistent"),
    ],
)
def test_a_mistake_is_one_line(words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert error.startswith("lpjepa: ")


def test_help_and_version(capsys):
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in COMMANDS)
    with pytest.raises(SystemExit) as left:
        main(["pretrain", "--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert "--target.active" in shown
    assert "Fraction of active features" in shown
    assert main(["--version"]) == 0


def test_interruption_prints_the_command_that_resumes(file, tmp_path):
    """A real process and a real Ctrl-C."""
    command = [sys.executable, "-m", "lpjepa", "pretrain", file, "--train.epochs", "500"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("epoch 2"):
            break
    os.kill(process.pid, signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == 130
    assert f"lpjepa pretrain {tmp_path / 'run' / 'config.yaml'}" in error
    assert "Traceback" not in error


def test_an_interrupted_report_says_that_the_training_is_saved(file, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("lpjepa.report.html.write_report", lambda folders: signal.raise_signal(signal.SIGINT))
    assert main(["pretrain", file, "--train.epochs", "1"]) == 130
    run = tmp_path / "run"
    said = f"\n{run} is finished and saved; for its report: lpjepa report {run}\n"
    assert capsys.readouterr().err == said


def test_demo_shows_three_targets(array_file, tmp_path, capsys):
    flags = [
        "--data.source", "npz", "--data.root", str(array_file),
        "--views.size", "8", "--model.encoder", "narrow",
        "--model.projector-dim", "16", "--model.projector-hidden", "16", "--loss.num-slices", "16",
        "--train.epochs", "1", "--train.batch-size", "32", "--train.out", str(tmp_path / "demo"),
    ]  # fmt: skip
    assert main(["demo", *flags]) == 0
    out = capsys.readouterr().out
    for percent in ("50", "20", "5"):
        assert f"asked for {percent} % active" in out
    found = {path.name for path in (tmp_path / "demo").iterdir()}
    assert found == {"active-0.05", "active-0.2", "active-0.5", "report.html", "report_figures"}


def test_help_describes_every_preset_and_key(capsys):
    from lpjepa.training import preset_names

    with pytest.raises(SystemExit):
        main(["pretrain", "presets:imagenet1k", "--help"])
    shown = capsys.readouterr().out
    for name in preset_names():
        assert f"presets:{name} " in shown
    words = " ".join(shown.replace("│", " ").split())
    assert "--views.size INT Side of a view in pixels. (default: 224)" in words
    assert "--data.options.keep" in words
    for flag in ("--views.crop-scale FLOAT FLOAT", "--views.hue FLOAT", "--views.mean FLOAT FLOAT FLOAT"):
        assert not words.split(flag)[1].lstrip().startswith("(default")


def test_interrupted_demo_goes_on_as_demo(monkeypatch, capsys):
    from lpjepa.training import Interrupted, loop

    def stop(config):
        raise Interrupted("stopped", 2)

    monkeypatch.setattr(loop, "pretrain", stop)
    assert main(["demo", "--train.out", "my runs"]) == 130
    assert "go on with: lpjepa demo --train.out 'my runs'" in capsys.readouterr().err
