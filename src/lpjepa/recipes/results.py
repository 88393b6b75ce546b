"""`docs/results.md` from the committed results: tables and figures beside the paper's, a verdict a claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lpjepa.recipes.cases import SCALES, scale_of
from lpjepa.recipes.catalog import Recipe, catalog
from lpjepa.recipes.chapters import CHAPTERS, GAP
from lpjepa.recipes.claims import verdicts
from lpjepa.recipes.collected import Collected, collect
from lpjepa.recipes.gap import l0_answers
from lpjepa.recipes.places import Places
from lpjepa.recipes.render import section
from lpjepa.recipes.store import Store
from lpjepa.recipes.sweep import plan
from lpjepa.recipes.values import measured
from lpjepa.training.config import identity

DOCUMENTED = ("small", "paper")  # smoke proves that the machinery runs, nothing about the method
NEEDED = {"*": "downstream data sets", "+": "images to look at"}  # besides trainings, by mark
README_FIGURE = "accuracy-sparsity"  # the recipe that the README shows
WORDS = ("holds", "partly", "does not hold", "not measured")
Shown = dict[str, list[Collected]]
INTRODUCTION = """# Results

Every table and figure of the paper, from the trainings whose results lie in `results/` as JSON files; this
page is generated from them by `lpjepa reproduce --docs docs`. Each section states our setting and that of the
paper's scale. The small scale trains for 30 to 100 epochs where the paper trains for 1000, so most
accuracies lie far below the paper's: there a verdict judges the claim (an order, a bound on a difference) and
not the number. Trainings of 1000 epochs are held to the paper's numbers. The paper's figures give no numbers;
where a figure of ours has points of the paper, they are rows of its tables.

A claim *holds* when all of its tests do, for all rows that they are about; it holds *partly* when some do;
*so far* says that rows are still to be trained, and *not measured* that none of its tests can be made yet. In
a table a dash is a training that waits.
"""


def write_docs(places_of: dict[str, Places], folder: Path) -> Path:
    """Write `folder/results.md`, its pictures in `folder/results/`, and the figure that the README shows."""
    stores = {scale: Store(places.results, scale) for scale, places in places_of.items()}
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
    parts = [INTRODUCTION, _contents(shown), "## Claims", _overview(shown, spread), _about_spread(spread)]
    for chapter in CHAPTERS:
        names = [name for name in chapter.recipes if name in shown]
        asked = chapter.title == GAP and (names or "cifar100" in shown)
        if names or asked:
            parts += [f"## {chapter.title}", chapter.about]
        if asked:
            parts.append(l0_answers(_fullest(shown)))
        for name in names:
            parts += _sections(shown[name], places_of, folder, spread)
    parts.append(_waiting([recipe for recipe in catalog().values() if recipe.name not in shown]))
    path = folder / "results.md"
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(part.strip() for part in parts if part.strip())
    path.write_text(text + "\n", encoding="utf-8")
    readme_figure(shown.get(README_FIGURE, []), folder / "figures")
    return path


def _sections(
    chosen: list[Collected], places_of: dict[str, Places], folder: Path, spread: Mapping[str, float]
) -> list[str]:
    """A recipe's heading and what there is of it, a part for each scale and length; pictures are written."""
    recipe = chosen[0].recipe
    parts = [f"### {recipe.title}"]
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
    """One picture that reads on a light page and, white with its margins, on a dark one as well."""
    from lpjepa.recipes.plots import draw
    from lpjepa.report.figures.style import LIGHT, render

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(render(lambda: draw(collected, places), LIGHT, "png", dpi=120))


def lengths(
    recipe: Recipe, scale: str, store: Store, planned: frozenset[str] = frozenset()
) -> list[Collected]:
    """What there is of a recipe at its own number of epochs, and at others where most of it is there.

    What is there because recipes of that length want it (`planned`) is shown by them. Rows of other seeds
    alone make a section only when they are a quarter of it.
    """
    own = collect(recipe, scale, store)
    others = [collect(recipe, scale, store, epochs) for epochs in store.epochs()]
    kept = [
        c for c in others if 4 * c.found >= 3 * c.wanted and not c.identities() <= own.identities() | planned
    ]
    return [own, *kept] if own.found or 4 * own.rows >= len(own.entries) else kept


def _fullest(shown: Shown) -> dict[str, Collected]:
    """Of each recipe, what there is most of."""
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
    epochs = " and ".join(map(str, collected.trained_epochs()))
    return f"{collected.scale} scale, {epochs} epochs"


def _contents(shown: Shown) -> str:
    """Links to the sections, a line a chapter."""
    lines = []
    for chapter in CHAPTERS:
        titles = [catalog()[name].title for name in chapter.recipes if name in shown]
        links = [f"[{title}](#{_anchor(title)})" for title in titles]
        if links:
            lines.append(f"- **{chapter.title}**: {' · '.join(links)}")
    return "\n".join(lines)


def _overview(shown: Shown, spread: Mapping[str, float]) -> str:
    """All verdicts in one table, those that wait with what they wait for; and how many there are of each."""
    rows, counts = [], dict.fromkeys(WORDS, 0)
    for chapter in CHAPTERS:
        for collected in (c for name in chapter.recipes for c in shown.get(name, ())):
            recipe = collected.recipe
            for verdict in verdicts(collected, spread):
                counts[verdict.word.removesuffix(" so far")] += 1
                word = f"**{verdict.word}**" + ", within the spread of seeds" * verdict.faint
                if verdict.word == "not measured":
                    word = "; ".join(verdict.grounds) or "waits"
                where = f"[{recipe.name}](#{_anchor(recipe.title)}), {_length_in_words(collected)}"
                rows.append(f"| {verdict.claim} | {where} | {word} |")
    if not rows:
        return "No training has been run yet."
    waiting = sum(len(recipe.claims) for recipe in catalog().values() if recipe.name not in shown)
    text = (
        f"Of {sum(counts.values()) + waiting} claims {counts['holds']} hold, {counts['partly']} hold partly, "
        f"{counts['does not hold']} do not hold, and {counts['not measured'] + waiting} cannot be judged yet"
    )
    text += f" ({waiting} of these in sections without results, listed at the end)." if waiting else "."
    return "\n".join([text, "", "| claim | judged on | verdict |", "| --- | --- | --- |", *rows])


def _length_in_words(collected: Collected) -> str:
    epochs = " and ".join(map(str, collected.trained_epochs()))
    scale = "" if collected.scale == "small" else f" ({collected.scale} scale)"
    return f"{epochs} epochs{scale}"


def seed_spread(tables: Sequence[Collected]) -> dict[str, float]:
    """Standard deviation over seeds by column, pooled over rows of a table that have several."""
    found = {}
    for column in ("encoder", "projector"):
        deviations = [
            value[1]
            for collected in tables[:1]
            for entry in collected.entries
            if (value := measured(column, entry.case, entry.results)) and value[1] is not None
        ]
        if len(deviations) >= 3:
            found[column] = (sum(d * d for d in deviations) / len(deviations)) ** 0.5
    return found


def _about_spread(spread: Mapping[str, float]) -> str:
    if not spread:
        return (
            "Most rows are single trainings. How far two seeds of one row differ is not known before rows of "
            "the CIFAR-100 table have both: differences of a few tenths of a point are no evidence."
        )
    shown = " and ".join(f"{column} {value:.2f}" for column, value in spread.items())
    return (
        f"Seeds of one row of the CIFAR-100 table differ by a standard deviation of {shown} points (pooled "
        "over its rows). A verdict is *within the spread of seeds* when a difference that it rests on lies "
        "closer to its bound than two standard deviations of such a difference: other seeds could turn it."
    )


def _waiting(recipes: Sequence[Recipe]) -> str:
    if not recipes:
        return ""
    lines = ["| | trainings | claims | command |", "| --- | --- | --- | --- |"]
    for recipe in recipes:
        count = len(recipe.cases("small")) * len(recipe.seeds_at("small"))
        command = f"`lpjepa reproduce {recipe.name} --scale small`"
        lines.append(f"| {recipe.title} | {count} | {len(recipe.claims)} | {command} |")
    about = "Trainings are counted for each; many recipes share them."
    return "\n".join(["## Not run yet", "", about, "", *lines])


def _anchor(title: str) -> str:
    kept = (c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")
    return "".join(kept)


def listing(places_of: dict[str, Places]) -> str:
    """Every recipe by name and title, what it needs besides, and how much of it there is at each scale."""
    stores = {scale: Store(places.results, scale) for scale, places in places_of.items()}
    rows = [["name", "what it shows", *SCALES]]
    for recipe in catalog().values():
        states = ["ready"] * len(SCALES)
        if recipe.trains:
            found = [collect(recipe, scale, stores[scale]) for scale in SCALES]
            states = [f"{collected.found}/{collected.wanted}" for collected in found]
        title = recipe.title.replace("sigma", "σ")  # shorter: lines of 100 characters
        rows.append([recipe.name, title + _further(recipe), *states])
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
