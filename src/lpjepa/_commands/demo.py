"""`lpjepa demo`: three targets on handwritten digits, and the paper's table of what came out."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

ACTIVE = (0.5, 0.2, 0.05)


def run(arguments: list[str]) -> int:
    """Train one encoder for each active fraction; `arguments` are flags of `lpjepa pretrain` for all."""
    from lpjepa.report import write_report
    from lpjepa.training.interruption import Interrupted
    from lpjepa.training.layers import load_config, parse_flags
    from lpjepa.training.loop import pretrain
    from lpjepa.training.run import Run, table

    if "-h" in arguments or "--help" in arguments:
        print("usage: lpjepa demo [--GROUP.KEY VALUE ...], with the keys of lpjepa pretrain")
        return 0
    flags = parse_flags(arguments)
    folder = Path(flags.get("train", {}).pop("out", None) or "runs/demo")
    began = time.monotonic()
    runs: list[Run] = []
    for active in ACTIVE:
        own = {"target": {"active": active}, "train": {"out": str(folder / f"active-{active:g}")}}
        try:
            runs.append(pretrain(load_config(None, flags, own)))
        except Interrupted as stopped:
            again = shlex.join(["lpjepa", "demo", *arguments])
            raise Interrupted(f"stopped and saved; go on with: {again}", stopped.signal_number) from None
    names = [f"asked for {100 * active:g} % active" for active in ACTIVE]
    print(f"\n{table(runs, names)}\n")
    print(f"runs    {folder}")
    print(f"report  {write_report([trained.folder for trained in runs])}")
    print(f"        in {time.monotonic() - began:.0f} s")
    return 0
