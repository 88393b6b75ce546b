"""`lpjepa bench`: measurements, each a mode of its own."""

from __future__ import annotations

from importlib import import_module

from lpjepa._names import suggestion

# In the order of the list that `lpjepa bench` prints; a mode is the module bench_MODE beside this one.
MODES = {
    "loss": "the sliced losses against the paper's formula: [--rows 256x512x8192 ...] [--peer CHECKOUT]",
    "step": "the training step of a preset against its bare encoder: [--preset NAME] [--GROUP.KEY VALUE ...]",
    "data": "views and decoding in images a second: [--size 32] [--workers 0 1 2]",
    "evaluation": "feature extraction and the linear probe: [--preset NAME] [--probe 50000x2048]",
    "cost": "a model of the loss on 1 to 1,024 GPUs: bytes, work, time, share of the step",
    "embeddings": "what sparsity buys in storage and search: RUN [RUN ...]",
}


def run(arguments: list[str]) -> int:
    """Run the mode that the first word names."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: lpjepa bench MODE [...]\n")
        for name, description in MODES.items():
            print(f"  {name:<10} {description}")
        print("\n  lpjepa bench MODE --help shows what a mode takes.")
        return 0
    if arguments[0] not in MODES:
        raise ValueError(f"bench: there is no mode {arguments[0]!r}; {suggestion(arguments[0], MODES)}")
    return import_module(f"lpjepa._commands.bench_{arguments[0]}").run(arguments[1:])
