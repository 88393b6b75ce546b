"""`lpjepa bench embeddings`: what sparsity buys in storage and search, measured on runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lpjepa._commands.bench_output import Measurement, make_folder, prepare, publish


@dataclass
class Arguments:
    """Bytes per image, queries per second, recall and probe accuracy of dense and sparse features."""

    runs: tuple[Path, ...]
    """Folders of runs, such as four trained for different active fractions."""
    on: str | None = None
    """Images to use instead of the runs' own: NAME or NAME=PATH."""
    k: int = 10
    """Neighbours."""
    queries: int = 1000
    """Held-out images that are searched for."""
    threads: int = 2
    """Threads of every form."""
    epochs: int = 30
    """Epochs of the linear probes."""
    rounds: int = 5
    """Times that every form is timed in turn; the table gives medians."""
    device: str = "auto"
    """Where features are computed: auto, cpu or cuda. Search always runs on the CPU."""
    out: Path = Path("embeddings")
    """Folder for embeddings.json, embeddings.md and the figure, embeddings.svg."""


def run(arguments: list[str]) -> int:
    import torch
    import tyro

    from lpjepa.bench.embeddings import COLUMNS, Settings, measure_runs, setting_sentence

    chosen = tyro.cli(
        Arguments,
        prog="lpjepa bench embeddings",
        args=arguments,
        config=(tyro.conf.PositionalRequiredArgs,),
    )
    settings = Settings(chosen.k, chosen.queries, chosen.threads, chosen.epochs, chosen.rounds)
    for name, value in settings._asdict().items():
        if value < 1:
            raise ValueError(f"--{name} must be 1 or more, not {value}.")
    make_folder(chosen.out, f"--out {chosen.out}")
    files = {name: chosen.out / f"embeddings.{name}" for name in ("json", "svg", "md")}
    output = Measurement(files["json"], files["svg"], chosen.rounds, chosen.device)
    device = prepare(output)
    rows = measure_runs(chosen.runs, chosen.on, settings, device)
    depends_on = setting_sentence(rows, settings)
    print(f"{depends_on}\n")
    # The stamp is that of the CPU, which searched; where features were computed changes no column.
    table = publish(
        output,
        ["embeddings", *arguments],
        torch.device("cpu"),
        COLUMNS,
        rows,
        "embeddings",
        settings=settings._asdict() | {"device": str(device)},
    )
    files["md"].write_text(f"{depends_on}\n\n{table}\n", encoding="utf-8")
    print(files["md"])
    return 0
