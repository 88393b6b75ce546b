"""`lpjepa reproduce`: the paper's tables and figures, listed, run, resumed and rendered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass
class Arguments:
    """Reproduce tables and figures by name (or: tables, figures, all); without a name, list them."""

    scale: Literal["smoke", "small", "paper"] = "smoke"
    """smoke: digits on the CPU; small: CIFAR-100 on one GPU; paper: as published."""
    jobs: int = 1
    """Trainings at once on one device."""
    minutes: float | None = None
    """Stop cleanly after this time; the same command goes on."""
    whole: bool = False
    """Begin no training that will not end within the minutes, where what is saved would be lost."""
    again: bool = False
    """Train anew what has a result that lacks pieces (transfer sets that came later) and no checkpoint."""
    epochs: int | None = None
    """Epochs instead of those of the recipe and scale."""
    seeds: tuple[int, ...] = ()
    """Train these of the recipe's seeds only."""
    rows: tuple[str, ...] = ()
    """Train rows with one of these in their name only, such as 'moves to the end'."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:1."""
    data_root: Path = Path("data")
    """Folder that holds the images."""
    work: Path = Path("runs/reproduce")
    """Folder of the trainings and their checkpoints."""
    results: Path = Path("results")
    """Folder of the results, a small JSON file a training."""
    out: Path = Path("reproduction")
    """Folder of the rendered tables and figures."""
    render_only: bool = False
    """Train nothing; show what there is."""
    train_only: bool = False
    """Render nothing: on a machine that is lent by the minute."""
    docs: Path | None = None
    """Write results.md and its pictures into this folder, from the results of the small and paper scales."""


def run(arguments: list[str]) -> int:
    """the paper's tables and figures: [NAME ...] [--scale smoke|small|paper] [--jobs 4] [--minutes 9]"""
    import tyro

    chosen, names = tyro.cli(
        Arguments, prog="lpjepa reproduce [NAME ...]", args=arguments, return_unknown_args=True
    )
    for word in names:
        if word.startswith("-"):
            raise ValueError(f"{word}: there is no such flag; `lpjepa reproduce --help` lists them")
    from lpjepa.recipes import Places, collect, plan, render, results, select, sweep
    from lpjepa.recipes.sound import check_recipe
    from lpjepa.recipes.store import Store
    from lpjepa.training.checkpoint import check_writable

    if chosen.jobs < 1:
        raise ValueError(f"--jobs {chosen.jobs}: expected 1 or more")
    if chosen.epochs is not None and chosen.epochs < 1:
        raise ValueError(f"--epochs {chosen.epochs}: expected 1 or more")
    if chosen.minutes is not None and not chosen.minutes > 0:
        raise ValueError(f"--minutes {chosen.minutes:g}: expected more than 0")
    places_of = {
        scale: Places(chosen.work, chosen.results, chosen.data_root, scale)
        for scale in ("smoke", "small", "paper")
    }
    if chosen.whole and chosen.minutes is None:
        raise ValueError("--whole: say with --minutes how long it may take")
    if chosen.render_only and chosen.train_only:
        raise ValueError("--render-only --train-only: nothing would be done; leave one of them out")
    if not names and chosen.docs is None:
        print(results.listing(places_of))
        return 0
    recipes, places = select(names), places_of[chosen.scale]
    for recipe in recipes:
        check_recipe(recipe)
    if names and not chosen.train_only:
        check_writable(chosen.out, "--out", create=False)
    status = 0
    if names and not chosen.render_only:
        jobs = plan(recipes, chosen.scale, chosen.epochs)
        known = sorted({job.config.train.seed for job in jobs})
        for seed in chosen.seeds if known else ():
            if seed not in known:
                raise ValueError(f"--seeds {seed}: these recipes have seed {', '.join(map(str, known))}")
        jobs = [job for job in jobs if not chosen.seeds or job.config.train.seed in chosen.seeds]
        for part in chosen.rows if jobs else ():
            if not any(part in row for job in jobs for row in job.rows):
                raise ValueError(
                    f"--rows {part!r}: no training of these recipes has that in its name; "
                    "--render-only shows their rows"
                )
        wanted = lambda job: any(part in row for part in chosen.rows for row in job.rows)
        jobs = [job for job in jobs if not chosen.rows or wanted(job)]
        summary = sweep(
            jobs, places, chosen.jobs, chosen.minutes, chosen.device, whole=chosen.whole, again=chosen.again
        )
        if jobs:
            print(summary.text())
        if summary.signal is not None:
            return 128 + summary.signal
        status = 1 if summary.messages else 0
    else:
        places.prepare()
    store = Store(chosen.results, chosen.scale)
    for recipe in recipes if not chosen.train_only else []:
        collected = collect(recipe, chosen.scale, store, chosen.epochs)
        page, *others = render(collected, places, chosen.out / chosen.scale)
        trained = f" ({collected.found} of {collected.wanted} trainings)" if recipe.trains else ""
        print(f"{page}{trained}", *others)
    if chosen.docs is not None:
        print(results.write_docs({s: places_of[s] for s in results.DOCUMENTED}, chosen.docs))
    return status
