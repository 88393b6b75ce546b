"""`lpjepa bench step`: the training step of a preset against the bare encoder."""

from __future__ import annotations

from dataclasses import dataclass

from lpjepa._commands.bench_output import Measurement, prepare, publish


@dataclass
class Arguments(Measurement):
    """Images a second of the eager, captured and compiled step, on random images of the preset's size.

    Any key of the config may follow as a dotted flag, such as --train.precision bf16. On the CPU there is
    only the eager step. Checks first that all kinds of steps give the same losses at the same seed.
    """

    preset: str = "cifar100"
    """A preset of `lpjepa pretrain`, or a YAML file."""
    startup: bool = False
    """Seconds until a fresh process has its step compiled and captured, with empty and filled caches."""


def run(arguments: list[str]) -> int:
    import tyro

    from lpjepa.bench import startup
    from lpjepa.bench.step import COLUMNS, measure_step
    from lpjepa.training.layers import parse_flags

    own, dotted = split_flags(arguments)
    chosen = tyro.cli(Arguments, prog="lpjepa bench step", args=own)
    device = prepare(chosen)
    config, command = load_preset(chosen.preset, parse_flags(dotted)), ["step", *arguments]
    if chosen.startup:
        publish(chosen, command, device, startup.COLUMNS, startup.measure_startup(config, device), "startup")
        return 0
    rows, check = measure_step(config, device, chosen.rounds)
    print(
        f"losses of the first steps differ by {check['largest_difference']:.1e} at most, "
        f"{check['tolerance']:g} is allowed\n"
    )
    publish(chosen, command, device, COLUMNS, rows, "step", check=check)
    return 0


def load_preset(name: str, changes: dict):  # type: ignore[no-untyped-def, type-arg]
    """The config of a preset, named with or without presets:, or of a file, with `changes`."""
    from lpjepa.training.layers import load_config

    named = name.startswith("presets:") or name.endswith((".yaml", ".yml"))
    return load_config(name if named else f"presets:{name}", changes)


def split_flags(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The mode's own flags, and dotted ones (--GROUP.KEY) with their values."""
    own: list[str] = []
    dotted: list[str] = []
    place = own
    for word in arguments:
        if word.startswith("--"):
            place = dotted if "." in word.partition("=")[0] else own
        place.append(word)
    return own, dotted
