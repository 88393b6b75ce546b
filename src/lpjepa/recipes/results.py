"""`docs/results.md` from the committed results: tables and figures beside the paper's, a verdict a claim."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from lpjepa.recipes.cases import SCALES, scale_of
from lpjepa.recipes.catalog import Recipe, catalog
from lpjepa.recipes.chapters import CHAPTERS, GAP
from lpjepa.recipes.claims import verdicts
from lpjepa.recipes.collected import Collected, collect
from lpjepa.recipes.gap import l0_answers
from lpjepa.recipes.overview import anchor, overview, seed_spread
from lpjepa.recipes.places import Places
from lpjepa.recipes.planning import plan
from lpjepa.recipes.render import section
from lpjepa.recipes.setting import length
from lpjepa.recipes.store import Store
from lpjepa.recipes.wording import typeset
from lpjepa.training.config import identity

DOCUMENTED = ("small", "paper")  # smoke proves that the machinery runs, nothing about the method
NEEDED = {"*": "downstream data sets", "+": "images to look at"}  # besides trainings, by mark
README_FIGURE = "accuracy-sparsity"  # the recipe that the README shows
Shown = dict[str, list[Collected]]
INTRODUCTION = """# Results

Every table and figure of the paper, from the trainings whose results lie in `results/` as JSON files; this
page is generated from them by `lpjepa reproduce --docs docs`. Each section states our setting and that of the
paper's scale. The small scale trains for 30 to 100 epochs where the paper trains for 1000, so most
accuracies lie far below the paper's: there a verdict judges the claim (an order, a bound on a difference) and
not the number. Trainings of 1000 epochs are held to the paper's numbers. The paper's figures give no numbers;
where a figure of ours has points of the paper, they are rows of its tables.

A claim *holds* when all of its tests do, for all rows that they are about; it holds *partly* when some do;
*so far* says that trainings of these rows, or of their further seeds, are still to come, and *not measured*
that none of its tests can be made yet. A recipe has a section once one of its claims can be judged or two of
the things that it compares have results; those that wait are listed at the end. In a table a dash is a
training that waits, or a measurement that came in after the training; bold is the best of a column in which
every row has a value. A mean over seeds says so, and a cell of fewer seeds than its row names them.
"""


def write_docs(places_of: dict[str, Places], folder: Path) -> Path:
    """Write `folder/results.md`, its pictures in `folder/results/`, and the figure that the README shows."""
    stores = {scale: Store(places.results, scale) for scale, places in places_of.items()}
    path = folder / "results.md"
    if path.is_file() and not any(store.epochs() for store in stores.values()):
        raise ValueError(
            f"--results {next(iter(places_of.values())).results}: there are no results of the "
            f"{' or '.join(stores)} scale; {path} stays as it is"
        )
    planned = {
        scale: frozenset(identity(job.config) for job in plan(catalog().values(), scale)) for scale in stores
    }
    shown: Shown = {}
    for recipe in catalog().values():
        if not recipe.trains:  # mathematics is the same at every scale
            shown[recipe.name] = [collect(recipe, next(iter(stores)), next(iter(stores.values())))]
        elif chosen := [c for s, store in stores.items() for c in lengths(recipe, s, store, planned[s])]:
            shown[recipe.name] = chosen
    spread = seed_spread(shown.get("cifar100", []))
    waiting = [recipe for recipe in catalog().values() if recipe.name not in shown]
    claims = overview(shown, spread, waiting)
    parts = [INTRODUCTION, _contents(shown), "## Claims", claims]
    for chapter in CHAPTERS:
        names = [name for name in chapter.recipes if name in shown]
        asked = chapter.title == GAP and (names or "cifar100" in shown)
        if names or asked:
            parts += [f"## {chapter.title}", chapter.about]
        if asked:
            parts.append(l0_answers(_fullest(shown)))
        for name in names:
            parts += _sections(shown[name], places_of, folder, spread)
    parts.append(_waiting(waiting, stores))
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(part.strip() for part in parts if part.strip())
    path.write_text(text + "\n", encoding="utf-8")
    _remove_unshown(folder / "results", text)
    readme_figure(shown.get(README_FIGURE, []), folder / "figures")
    return path


def _sections(
    chosen: list[Collected], places_of: dict[str, Places], folder: Path, spread: Mapping[str, float]
) -> list[str]:
    """A recipe's heading and what there is of it, a part for each scale and length; pictures are written."""
    recipe = chosen[0].recipe
    parts = [f"### {typeset(recipe.title)}"]
    for place, collected in enumerate(chosen):
        name = recipe.name if not recipe.trains else f"{recipe.name}-{collected.scale}"
        if place and chosen[place - 1].scale == collected.scale:
            name += f"-{collected.epochs}"
        if recipe.kind == "figure":
            _draw(collected, places_of[collected.scale], folder / "results" / f"{name}.png")
        if len(chosen) > 1:
            parts.append(f"#### At the {_where(collected)}")
        parts.append(section(collected, f"results/{name}.png", spread).strip())
    return parts


def _draw(collected: Collected, places: Places | None, path: Path) -> None:
    """One picture that reads on a light page and, white with its margins, on a dark one as well.

    One of images that are not on this machine is left as it is.
    """
    from lpjepa.recipes.plots import draw
    from lpjepa.recipes.plots.pictures import lacks_images
    from lpjepa.report.figures.style import LIGHT, render

    if path.is_file() and lacks_images(collected, places):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(render(lambda: draw(collected, places), LIGHT, "png", dpi=120))


def _remove_unshown(folder: Path, page: str) -> None:
    """Pictures of recipes that an earlier page had and this one has not."""
    ending = re.compile(rf"-({'|'.join(DOCUMENTED)})(-\d+)?$")  # as `_sections` names them
    for picture in folder.glob("*.png"):
        if ending.sub("", picture.stem) in catalog() and f"results/{picture.name}" not in page:
            picture.unlink()


def lengths(
    recipe: Recipe, scale: str, store: Store, planned: frozenset[str] = frozenset()
) -> list[Collected]:
    """What there is of a recipe at its own number of epochs, and at others where most of it is there.

    What is there because recipes of that length want it (`planned`) is shown by them.
    """
    own = collect(recipe, scale, store)
    others = [collect(recipe, scale, store, epochs) for epochs in store.epochs()]
    kept = [
        c for c in others if 4 * c.found >= 3 * c.wanted and not c.identities() <= own.identities() | planned
    ]
    return [own, *kept] if says_something(own) else kept


def says_something(collected: Collected) -> bool:
    """Whether a claim can be judged or there are results of two of the things that are compared.

    These are the lines of a figure, the groups of a table that holds them against one of them, or the rows
    of other tables and of what nothing is claimed about.
    """
    if any(verdict.known for verdict in verdicts(collected)):
        return True
    recipe = collected.recipe
    lines = collected.lines().values() if recipe.kind == "figure" or recipe.against else ()
    if lines and recipe.claims:
        return sum(any(entry.results for entry in rows) for rows in lines) >= 2
    return collected.rows >= min(2, len(collected.entries))


def _fullest(shown: Shown) -> dict[str, Collected]:
    """Of each recipe what there is most of; of two lengths with as much, its own, which comes first."""
    return {name: max(chosen, key=lambda c: c.found) for name, chosen in shown.items()}


def readme_figure(found: Sequence[Collected], folder: Path) -> Path | None:
    """Accuracy against sparsity as a PNG for the README, from the fullest results; none without enough."""
    from lpjepa.recipes.plots.tradeoff import worth_showing

    ready = [collected for collected in found if worth_showing(collected)]
    if not ready:
        return None
    path = folder / f"{README_FIGURE}.png"
    _draw(max(ready, key=lambda collected: collected.found), None, path)
    return path


def _where(collected: Collected) -> str:
    return f"{collected.scale} scale, {length(collected)}"


def _contents(shown: Shown) -> str:
    """Links to the sections, a line a chapter."""
    lines = []
    for chapter in CHAPTERS:
        titles = [catalog()[name].title for name in chapter.recipes if name in shown]
        links = [f"[{typeset(title)}](#{anchor(title)})" for title in titles]
        if links:
            lines.append(f"- **{chapter.title}**: {' · '.join(links)}")
    return "\n".join(lines)


def _waiting(recipes: Sequence[Recipe], stores: Mapping[str, Store]) -> str:
    """The recipes without a section, with what there is of them at the first scale."""
    if not recipes:
        return ""
    scale, store = next(iter(stores.items()))
    lines = ["| | trainings | claims | command |", "| --- | --- | --- | --- |"]
    for recipe in recipes:
        collected = collect(recipe, scale, store)
        command = f"`lpjepa reproduce {recipe.name} --scale {scale}`"
        share = f"{collected.found} of {collected.wanted}"
        lines.append(f"| {typeset(recipe.title)} | {share} | {len(recipe.claims)} | {command} |")
    about = "Too little has been trained for these to show anything. Many recipes share trainings."
    return "\n".join(["## Waiting for trainings", "", about, "", *lines])


def listing(places_of: dict[str, Places]) -> str:
    """Every recipe by name and title, what it needs besides, and how much of it there is at each scale."""
    stores = {scale: Store(places.results, scale) for scale, places in places_of.items()}
    rows = [["name", "what it shows", *SCALES]]
    for recipe in catalog().values():
        states = ["ready"] * len(SCALES)
        if recipe.trains:
            found = [collect(recipe, scale, stores[scale]) for scale in SCALES]
            states = [f"{collected.found}/{collected.wanted}" for collected in found]
        rows.append([recipe.name, typeset(recipe.title) + _further(recipe), *states])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    aligned = [[cell.ljust(width) for cell, width in zip(row, widths)] for row in rows]
    lines = [f"{name}  {title}  {' '.join(states)}".rstrip() for name, title, *states in aligned]
    lines.insert(1, "-" * max(map(len, lines)))
    about = [f"  {scale:<6} {scale_of(scale)['about']}" for scale in SCALES]
    marks = [f"  {mark:<6} also needs {what}" for mark, what in NEEDED.items()]
    scales = "scales (trainings with results / wanted; ready: mathematics, nothing to train):"
    return "\n".join([*lines, "", scales, *about, *marks])


def _further(recipe: Recipe) -> str:
    """The marks, after the title, of what a recipe needs besides its trainings."""
    marks = {"transfer": "*", "neighbours": "+", "attribution": "+"}
    return "".join(dict.fromkeys(marks[piece] for piece in recipe.pieces if piece in marks))
