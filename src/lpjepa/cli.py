"""The command `lpjepa`: finds the command's module, runs it, and says a user's mistake in one sentence.

A command is a module of `lpjepa._commands` with `run(arguments) -> exit status`. It is imported when it is
called, so that `lpjepa target` does not wait for what `lpjepa pretrain` needs.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from lpjepa._names import suggestion

# In the order of the list that `lpjepa` prints.
COMMANDS = {
    "demo": "train three sparse encoders on handwritten digits, to show the dial of sparsity turning",
    "target": "design a target: --active 0.05 --p 1 (or --mu -2), --compare 0.5 1 2, --json",
    "pretrain": "train an encoder: [CONFIG.yaml | presets:NAME] [--data.source cifar100 --target.mu -1 ...]",
    "evaluate": "measure and probe a trained run: RUN [--on cifar10 folder=IMAGES ...]",
    "report": "write an HTML report: RUN [RUN ...]",
    "embed": "features of images as CSR, Parquet, npy or a search index: RUN IMAGES --out F",
    "search": "the images of an index nearest to one: INDEX IMAGE",
    "export": "a trained run for other tools: RUN --format timm|safetensors|onnx|torch-export",
    "reproduce": "the paper's tables and figures: [NAME ...] [--scale smoke|small|paper]",
    "bench": "measure: loss, step, data, evaluation, cost, embeddings",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 is success, 2 a user's mistake, 128 + n an interruption by signal n."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        return _list_commands()
    if words[0] == "--version":
        from lpjepa import __version__

        print(__version__)
        return 0
    if words[0] not in COMMANDS:
        return _complain(f"there is no command {words[0]!r}; {suggestion(words[0], COMMANDS)}")
    shown_before, warnings.showwarning = warnings.showwarning, _show_warning
    try:
        return _run(words[0], words[1:])
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read the output, such as `head`, has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - Python flushes the old one at exit otherwise
        return 141  # as if ended by the signal
    except MemoryError:
        return _complain("not enough memory; lower train.batch_size, data.store_size or data.max_memory")
    except ModuleNotFoundError as error:
        # Only what the extra `train` would have brought is the user's to mend; the rest is a bug of ours.
        if error.name is None or error.name.startswith("lpjepa"):
            raise
        return _complain(f"{error.name} is not installed; get it with: pip install 'lpjepa[train]'")
    except OSError as error:
        where = error.filename and error.strerror
        return _complain(f"{error.filename}: {error.strerror}" if where else str(error))
    except (ValueError, ImportError) as error:
        return _complain(str(error))
    except RuntimeError as error:
        return _runtime_error(error)
    finally:
        warnings.showwarning = shown_before


def program() -> int:
    """`main` as a program: a Ctrl-C while Python ends, when there is nothing left to stop, just ends it."""
    try:
        return main()
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run(command: str, arguments: list[str]) -> int:
    """Run the command's module. After a Ctrl-C, whatever else goes wrong is taken for its consequence.

    Others' code catches KeyboardInterrupt and goes on, or stumbles over a module that is half imported.
    """
    # Where Ctrl-C is ignored, as in the background of a shell, or is met by somebody else, it stays so.
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not default or threading.current_thread() is not threading.main_thread():
        return import_module(f"lpjepa._commands.{command}").run(arguments)
    interrupted = False
    again: list[threading.Timer] = []

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    def passed_over(unraisable: Any) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            # It met a finalizer, which cannot raise; again in a moment, when others run.
            again.append(threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)))
            again[-1].daemon = True
            again[-1].start()
        else:
            shown_before(unraisable)

    signal.signal(signal.SIGINT, note)
    shown_before, sys.unraisablehook = sys.unraisablehook, passed_over
    try:
        return import_module(f"lpjepa._commands.{command}").run(arguments)
    except Exception as error:
        if interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        for timer in again:
            timer.cancel()
        sys.unraisablehook = shown_before
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _runtime_error(error: RuntimeError) -> int:
    """Our own errors are sentences for the user; anything else is a bug and keeps its traceback."""
    from lpjepa.training import CheckpointError, Diverged, Interrupted

    if isinstance(error, Interrupted):
        print(f"\n{error}", file=sys.stderr)
        return 128 + error.signal_number
    if isinstance(error, (CheckpointError, Diverged)):
        return _complain(str(error))
    raise error


def _complain(sentence: str) -> int:
    print(f"lpjepa: {sentence}", file=sys.stderr)
    return 2


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning in one line, without the source that a user did not write.

    Ours are sentences for the user. Those of other packages may be as well (a driver that is too old), and
    say whose they are; what a package is going to change is for us, and shown where `python -W` asks for it.
    """
    if issubclass(category, (DeprecationWarning, PendingDeprecationWarning, FutureWarning)):
        if not sys.warnoptions:
            return
        text = f"{filename}:{lineno}: {category.__name__}: {message}"
    elif Path(filename).is_relative_to(Path(__file__).parent):
        text = f"lpjepa: {message}"
    else:
        text = f"lpjepa: {message} (a warning of {Path(filename).parent.name}/{Path(filename).name}:{lineno})"
    print(text, file=file or sys.stderr)


def _list_commands() -> int:
    print("usage: lpjepa COMMAND [...]\n")
    for name, description in COMMANDS.items():
        print(f"  {name:<10} {description}")
    print("\n  lpjepa COMMAND --help shows what a command takes.")
    return 0
