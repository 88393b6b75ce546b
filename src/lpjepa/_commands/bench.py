"""`lpjepa bench`: measurements, each a mode of its own."""

from __future__ import annotations

from importlib import import_module

MODES = {"embeddings": "lpjepa._commands.bench_embeddings"}


def run(arguments: list[str]) -> int:
    """Run the mode that the first word names."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: lpjepa bench MODE [...], where MODE is {', '.join(MODES)}")
        return 0
    if arguments[0] not in MODES:
        raise ValueError(f"bench: there is no mode {arguments[0]!r}; there is {', '.join(MODES)}")
    return import_module(MODES[arguments[0]]).run(arguments[1:])
