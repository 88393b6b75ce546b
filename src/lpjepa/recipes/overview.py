"""All verdicts in one table before the sections, and what to make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lpjepa.recipes.catalog import Recipe
from lpjepa.recipes.chapters import CHAPTERS
from lpjepa.recipes.claims import LAG, Verdict, verdicts
from lpjepa.recipes.collected import Collected
from lpjepa.recipes.setting import length, stands_in
from lpjepa.recipes.values import measured
from lpjepa.recipes.wording import typeset

SO_FAR = " so far"
ENOUGH = 3  # rows with several seeds, before their spread is pooled
Shown = Mapping[str, Sequence[Collected]]


def overview(shown: Shown, spread: Mapping[str, float], waiting: Sequence[Recipe]) -> str:
    """The verdicts of the sections, the paper's claims before ours; claims of `waiting` recipes have none."""
    if not any(collected.recipe.claims for found in shown.values() for collected in found):
        return "No training has been run yet."
    parts: list[str] = []
    judged: list[Verdict] = []
    for papers, heading in (
        (True, "**The paper's claims, and what its tables show**"),
        (False, "**Claims of our own studies**, which the paper does not make"),
    ):
        elsewhere = sum(len(recipe.claims) for recipe in waiting if bool(recipe.label) == papers)
        text, table, found = _verdicts_of(shown, spread, papers, elsewhere)
        parts += [f"{heading}. {text}", table]
        judged += found
    parts.append(_about_seeds(spread))
    if any(verdict.lags for verdict in judged):
        parts.append(
            f"*Against a row that lags* stands where a claim holds by over {LAG:g} points more than for the "
            "paper's rows: the row that it is held against trains worse here, so that it shows little."
        )
    if any(verdict.behind for verdict in judged):
        parts.append(
            f"*Further off than the paper's rows* stands where a claim fails and is over {LAG:g} points "
            "further from holding than the paper's rows, which are trained ten times as long and more: "
            "methods learn at different speeds, so that it may hold then."
        )
    return "\n\n".join(part for part in parts if part)


def _verdicts_of(
    shown: Shown, spread: Mapping[str, float], papers: bool, elsewhere: int
) -> tuple[str, str, list[Verdict]]:
    """Counts, a table, and all that is in it: of recipes of the paper's tables and figures, or of ours."""
    rows: list[str] = []
    every: list[Verdict] = []
    judged: list[Verdict] = []
    for chapter in CHAPTERS:
        for place, collected in (pair for name in chapter.recipes for pair in enumerate(shown.get(name, ()))):
            if bool(collected.recipe.label) != papers:
                continue
            where = f"[{collected.recipe.name}](#{anchor(collected.recipe.title)}), {_on(collected)}"
            for verdict in verdicts(collected, spread):
                if not place:  # of several lengths the first counts
                    judged.append(verdict)
                every.append(verdict)
                rows.append(f"| {typeset(verdict.claim)} | {where} | {verdict.summary()} |")
    unknown = elsewhere + sum(not verdict.known for verdict in judged)
    counts = [
        _count(judged, "holds", "hold"),
        _count(judged, "partly", "hold partly"),
        _count(judged, "does not hold", "do not hold"),
    ]
    text = f"Of these {len(judged) + elsewhere}, {', '.join(counts)}, and {unknown} cannot be judged yet"
    text += f" ({elsewhere} of these are about recipes listed at the end)." if elsewhere else "."
    table = "\n".join(["| claim | judged on | verdict |", "| --- | --- | --- |", *rows]) if rows else ""
    return text, table, every


def _count(judged: Sequence[Verdict], word: str, verb: str) -> str:
    """`11 hold (9 of them so far)`."""
    found = [verdict.word for verdict in judged if verdict.word.removesuffix(SO_FAR) == word]
    so_far = sum(one.endswith(SO_FAR) for one in found)
    note = "" if not so_far else " (all so far)" if so_far == len(found) else f" ({so_far} of them so far)"
    return f"{len(found)} {verb}{note}"


def _on(collected: Collected) -> str:
    """Length and scale, and the images where they are others than the paper's."""
    scale = "" if collected.scale == "small" else f" ({collected.scale} scale)"
    other = stands_in(collected)
    return f"{f'on {other}, ' if other else ''}{length(collected)}{scale}"


def anchor(title: str) -> str:
    """What a heading of this title is linked by."""
    kept = (c for c in typeset(title).lower().replace(" ", "-") if c.isalnum() or c in "-_")
    return "".join(kept)


def seed_spread(tables: Sequence[Collected]) -> dict[str, float]:
    """Standard deviation over seeds by column, pooled over rows of a table that have several."""
    found = {}
    for column in ("encoder", "projector", "encoder_frozen", "projector_frozen"):
        deviations = [
            value[1]
            for collected in tables[:1]
            for entry in collected.entries
            if (value := measured(column, entry.case, entry.results)) and value[1] is not None
        ]
        if len(deviations) >= ENOUGH:
            found[column] = (sum(d * d for d in deviations) / len(deviations)) ** 0.5
    return found


def _about_seeds(spread: Mapping[str, float]) -> str:
    if not spread:
        return (
            "Most rows are single trainings. How far seeds of one row differ is said here once three rows of "
            "the CIFAR-100 table have two: differences of a few tenths of a point are no evidence."
        )
    named = {column: column.replace("_frozen", ", frozen probe") for column in spread}
    shown = ", ".join(f"{value:.2f} ({named[column]})" for column, value in spread.items())
    return (
        "Seeds of one row of the CIFAR-100 table differ by a standard deviation, pooled over its rows, of "
        f"{shown} points. A verdict is *within the spread of seeds* when a row's accuracy, or "
        "the difference of two, lies closer to its bound than two standard deviations of it, so that "
        "other seeds could turn it, and *within the spread of label draws* when the few labels of a transfer "
        "probe, drawn three times, could. That of transfer over seeds is not known, and taken to be no less "
        "than that of frozen probes. Of other numbers (sparsity, nHSIC, changes from a row of the same seed) "
        "none is known."
    )
