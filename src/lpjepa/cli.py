"""The command `lpjepa`: finds the command's module, runs it, and prints a user's mistake as one sentence."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

# In the order of the list that `lpjepa` prints; each is a module of `lpjepa._commands`.
COMMANDS = ("target",)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 is success, 2 a user's mistake."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print("usage: lpjepa COMMAND [...]\n")
        for name in COMMANDS:
            print(f"  {name:<10} {(import_module(f'lpjepa._commands.{name}').run.__doc__ or '').strip()}")
        return 0
    if words[0] not in COMMANDS:
        print(f"lpjepa: there is no command {words[0]!r}; there are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        return import_module(f"lpjepa._commands.{words[0]}").run(words[1:])
    except ValueError as error:
        print(f"lpjepa: {error}", file=sys.stderr)
        return 2
