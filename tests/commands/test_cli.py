"""The command `lpjepa` itself."""

import contextlib
import io
import signal
import subprocess
import sys
import time
import warnings

import pytest
import torch

import lpjepa
from lpjepa._commands import target
from lpjepa.cli import main


def test_a_reader_who_has_seen_enough_gets_no_complaint(monkeypatch, capsys):
    """As in `lpjepa target | head`: no sentence, no traceback at exit, and the status of a closed pipe."""

    def closed(arguments):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(target, "run", closed)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert main(["target"]) == 141
    sys.stdout.close()  # the null device, which Python flushes at exit instead of the pipe
    assert capsys.readouterr().err == ""


def test_what_others_make_of_a_ctrl_c_is_no_error(monkeypatch, capsys):
    """torch's exporter catches it and fails later, over a module that was imported by half."""

    def exports(arguments):
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise RuntimeError("the model could not be exported")

    monkeypatch.setattr(target, "run", exports)
    before = signal.getsignal(signal.SIGINT)
    assert main(["target"]) == 130
    assert signal.getsignal(signal.SIGINT) is before
    assert capsys.readouterr().err == ""


def test_a_ctrl_c_that_meets_a_finalizer_is_not_lost(monkeypatch, capsys):
    """Python cannot raise there, shows a traceback and goes on."""

    class Finalized:
        def __del__(self):
            signal.raise_signal(signal.SIGINT)

    def draws(arguments):
        Finalized()
        time.sleep(60)
        return 0

    monkeypatch.setattr(target, "run", draws)
    began = time.monotonic()
    assert main(["target"]) == 130
    assert time.monotonic() - began < 30
    assert capsys.readouterr().err == ""


def test_a_ctrl_c_while_python_ends_shows_nothing():
    """Finalizers of torch and of others would meet it, whose tracebacks nobody can catch."""
    code = (
        "import atexit, signal, sys\n"
        "atexit.register(signal.raise_signal, signal.SIGINT)\n"
        "from lpjepa.cli import program\n"
        "sys.exit(program())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=False
    )
    assert ended.stderr == ""
    assert ended.stdout.strip() == lpjepa.__version__
    assert ended.returncode == -signal.SIGINT


def test_an_ignored_ctrl_c_stays_ignored(monkeypatch):
    monkeypatch.setattr(target, "run", lambda arguments: signal.raise_signal(signal.SIGINT) or 0)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert main(["target"]) == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("file", "category", "shown"),
    [
        (target.__file__, RuntimeWarning, "lpjepa: a checkpoint is damaged\n"),
        (torch.__file__, UserWarning, "lpjepa: a checkpoint is damaged (a warning of torch/__init__.py:7)\n"),
        (torch.__file__, FutureWarning, ""),
    ],
)
def test_warnings_are_sentences(file, category, shown, monkeypatch, capsys):
    def warns(arguments):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn_explicit("a checkpoint is damaged", category, file, 7)
        return 0

    monkeypatch.setattr(target, "run", warns)
    monkeypatch.setattr(sys, "warnoptions", [])
    before = warnings.showwarning
    assert main(["target"]) == 0
    assert capsys.readouterr().err == shown
    assert warnings.showwarning is before
    monkeypatch.setattr(sys, "warnoptions", ["always"])  # python -W always: everything is to be seen
    assert main(["target"]) == 0
    assert "a checkpoint is damaged" in capsys.readouterr().err


def test_what_the_system_refuses_is_a_sentence_without_its_number(monkeypatch, capsys):
    def refused(arguments):
        raise PermissionError(13, "Permission denied", "pictures/x.png")

    monkeypatch.setattr(target, "run", refused)
    assert main(["target"]) == 2
    assert capsys.readouterr().err == "lpjepa: pictures/x.png: Permission denied\n"


@pytest.mark.parametrize(
    ("command", "words"),
    [("embed", "RUN IMAGES"), ("search", "INDEX IMAGE"), ("export", "RUN"), ("evaluate", "RUN")],
)
def test_help_names_what_is_to_be_given(command, words, capsys):
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    usage = shown[: shown.index("\n\n")]
    assert usage.split("]")[-1].strip() == words
