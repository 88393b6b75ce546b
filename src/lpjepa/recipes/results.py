"""`docs/results.md` from the committed results: tables and figures beside the paper's, a verdict a claim."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lpjepa.recipes.cases import SCALES, scale_of
from lpjepa.recipes.catalog import Recipe, catalog
from lpjepa.recipes.claims import verdicts
from lpjepa.recipes.collected import Collected, collect
from lpjepa.recipes.places import Places
from lpjepa.recipes.render import section
from lpjepa.recipes.store import Store

DOCUMENTED = ("small", "paper")  # smoke proves that the machinery runs, nothing about the method
README_FIGURE = "accuracy-sparsity"  # the recipe that the README shows
INTRODUCTION = """# Results

Every table and figure of the paper, from the trainings whose results lie in `results/` as JSON files; this
page is generated from them by `lpjepa reproduce --docs docs`. Ours is always beside the paper's. Where the
scale is not the paper's, absolute accuracies are not comparable, and the verdicts judge the claim, not the
number: a claim *holds* when all of its tests do, holds *partly* when some do, and *so far* when others wait.
A dash is a training that has not been run yet.
"""


def write_docs(places_of: dict[str, Places], folder: Path) -> Path:
    """Write `folder/results.md`, its pictures in `folder/results/`, and the figure that the README shows."""
    from lpjepa.recipes.plots import draw
    from lpjepa.report.figures import save

    stores = {scale: Store(places.results, scale) for scale, places in places_of.items()}
    shown: list[tuple[Recipe, list[Collected]]] = []
    waiting: list[Recipe] = []
    for recipe in catalog().values():
        if not recipe.trains:  # mathematics is the same at every scale
            shown.append((recipe, [collect(recipe, next(iter(stores)), next(iter(stores.values())))]))
        elif chosen := [c for scale, store in stores.items() for c in lengths(recipe, scale, store)]:
            shown.append((recipe, chosen))
        else:
            waiting.append(recipe)
    parts = [INTRODUCTION, _overview(shown)]
    for recipe, chosen in shown:
        parts.append(f"## {recipe.title}\n\nRecipe `{recipe.name}`.")
        for place, collected in enumerate(chosen):
            name = recipe.name if not recipe.trains else f"{recipe.name}-{collected.scale}"
            if place and chosen[place - 1].scale == collected.scale:
                name += f"-{collected.epochs}"
            if recipe.kind == "figure":
                save(lambda c=collected: draw(c, places_of[c.scale]), folder / "results", name)  # type: ignore[misc]
            if len(chosen) > 1:
                parts.append(f"### At the {_where(collected)}")
            parts.append(section(collected, f"results/{name}.svg").strip())
    if waiting:
        names = "\n".join(
            f"- {recipe.title}: `lpjepa reproduce {recipe.name} --scale small`" for recipe in waiting
        )
        parts.append(f"## Not run yet\n\n{names}")
    path = folder / "results.md"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(part.strip() for part in parts) + "\n", encoding="utf-8")
    found = [c for recipe, chosen in shown if recipe.name == README_FIGURE for c in chosen]
    readme_figure(found, folder / "figures")
    return path


def lengths(recipe: Recipe, scale: str, store: Store) -> list[Collected]:
    """What there is of a recipe at its own number of epochs, and at others where most of it is there."""
    own = collect(recipe, scale, store)
    others = [collect(recipe, scale, store, epochs) for epochs in store.epochs()]
    kept = [c for c in others if 4 * c.found >= 3 * c.wanted and not c.identities() <= own.identities()]
    return [own, *kept] if own.found else kept


def readme_figure(found: Sequence[Collected], folder: Path) -> Path | None:
    """Accuracy against sparsity as a PNG for the README, from the fullest results; none without enough."""
    from lpjepa.recipes.plots import draw
    from lpjepa.recipes.plots.tradeoff import worth_showing
    from lpjepa.report.figures.style import LIGHT, render

    ready = [collected for collected in found if worth_showing(collected)]
    if not ready:
        return None
    fullest = max(ready, key=lambda collected: collected.found)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{README_FIGURE}.png"
    # White with its margins, so that it reads on a dark page as well.
    path.write_bytes(render(lambda: draw(fullest, None), LIGHT, "png", dpi=150))
    return path


def _where(collected: Collected) -> str:
    epochs = " and ".join(map(str, collected.trained_epochs()))
    return f"{collected.scale} scale, {epochs} epochs"


def _overview(shown: Sequence[tuple[Recipe, list[Collected]]]) -> str:
    """All verdicts in one table."""
    lines = ["| claim | scale | verdict |", "| --- | --- | --- |"]
    for recipe, chosen in shown:
        for collected in chosen if recipe.trains else ():
            for verdict in verdicts(collected):
                if verdict.word != "not measured":
                    where = f"[{recipe.name}](#{_anchor(recipe.title)})"
                    lines.append(f"| {verdict.claim} {where} | {_where(collected)} | {verdict.word} |")
    return "\n".join(lines) if len(lines) > 2 else "No training has been run yet."


def _anchor(title: str) -> str:
    kept = (c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")
    return "".join(kept)


def listing(places_of: dict[str, Places]) -> str:
    """Every recipe with what it needs and how much of it there is at each scale."""
    stores = {scale: Store(places.results, scale) for scale, places in places_of.items()}
    rows = [["name", "kind", "paper", "needs", *SCALES]]
    for recipe in catalog().values():
        label = recipe.label[0] if recipe.label else "(ours)"
        if not recipe.trains:
            rows.append([recipe.name, recipe.kind, label, "nothing (mathematics)", *["ready"] * len(SCALES)])
            continue
        states, needs = [], ""
        for scale in SCALES:
            collected = collect(recipe, scale, stores[scale])
            states.append(f"{collected.found}/{collected.wanted}")
            needs = f"{len(collected.entries)} training" + "s" * (len(collected.entries) != 1)
        rows.append([recipe.name, recipe.kind, label, needs + _further(recipe), *states])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    lines.insert(1, "-" * max(map(len, lines)))
    about = [f"  {scale:<6} {scale_of(scale)['about']}" for scale in SCALES]
    return "\n".join([*lines, "", "scales (trainings with results / wanted):", *about])


def _further(recipe: Recipe) -> str:
    words = {"transfer": "downstream sets", "neighbours": "images", "attribution": "images"}
    needed = dict.fromkeys(words[piece] for piece in recipe.pieces if piece in words)
    return "".join(f" + {word}" for word in needed)
