"""The command `lpjepa` itself."""

import io
import sys

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
