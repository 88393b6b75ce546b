"""`lpjepa bench loss`: the sliced losses, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from lpjepa._commands.bench_output import Measurement, prepare, publish


@dataclass
class Arguments(Measurement):
    """Speed and memory of the sliced losses against the paper's formula in plain torch.

    Equality with float64 is checked first. The default is the table of ratios; --quality, --growth and
    --processes measure something else in its place.
    """

    rows: tuple[str, ...] = ()
    """Sizes, samples x dimensions x slices, such as 256x512x8192 (the first is the one of --growth and
    --processes)."""
    peer: tyro.conf.UseAppendAction[tuple[Path, ...]] = ()
    """Checkout of the authors' code or of LeJEPA's, to time too; may repeat."""
    quality: bool = False
    """Variance of the estimate with orthogonal and Hadamard directions against independent ones."""
    growth: bool = False
    """Time and memory over samples, dimensions and slices, with fitted exponents."""
    processes: tuple[int, ...] = ()
    """Numbers of processes, such as 1 2 4: work and bytes of one rank (on the CPU, over gloo)."""


def run(arguments: list[str]) -> int:
    from lpjepa.bench.loss import COLUMNS, CPU_ROWS, GPU_ROWS, measure_rows, parse_row
    from lpjepa.bench.peers import load_peer
    from lpjepa.bench.reference import check_equality

    chosen = tyro.cli(Arguments, prog="lpjepa bench loss", args=arguments)
    asked = [name for name in ("quality", "growth", "processes", "peer") if getattr(chosen, name)]
    if len(asked) > 1:
        raise ValueError(f"--{asked[0]} and --{asked[1]} are different measurements; ask for one at a time.")
    device, command = prepare(chosen), ["loss", *arguments]
    rows = [parse_row(word) for word in chosen.rows]
    peers = [load_peer(path, device) for path in chosen.peer]
    check = check_equality(device)
    for line in check:
        print(
            f"error against float64, {line['loss']} directions, features {line['features']} the target: "
            f"value {line['value']:.1e}, gradient {line['gradient']:.1e}"
        )
    print()
    if chosen.quality:
        from lpjepa.bench import quality

        found = quality.measure_quality(device)
        publish(chosen, command, device, quality.COLUMNS, found, "quality", check=check)
    elif chosen.growth:
        from lpjepa.bench import growth

        found = growth.measure_growth(rows[0] if rows else growth.BASES[device.type], device, chosen.rounds)
        publish(chosen, command, device, growth.COLUMNS, found, "growth", check=check)
    elif chosen.processes:
        from lpjepa.bench import processes

        found = processes.measure_processes(rows[0] if rows else CPU_ROWS[0], chosen.processes, chosen.rounds)
        publish(chosen, command, device, processes.COLUMNS, found, "processes", check=check)
    else:
        found = measure_rows(
            rows or (GPU_ROWS if device.type == "cuda" else CPU_ROWS), device, chosen.rounds, peers
        )
        publish(chosen, command, device, COLUMNS, found, "losses", check=check)
    return 0
