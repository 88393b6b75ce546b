"""All verdicts in one table before the sections, and what to make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lpjepa.recipes.chapters import CHAPTERS
from lpjepa.recipes.claims import LAG, Verdict, verdicts
from lpjepa.recipes.collected import Collected
from lpjepa.recipes.values import measured
from lpjepa.recipes.wording import typeset

SO_FAR = " so far"
ENOUGH = 3  # rows with several seeds, before their spread is pooled
Shown = Mapping[str, Sequence[Collected]]


def overview(shown: Shown, spread: Mapping[str, float], elsewhere: int) -> str:
    """The verdicts of the sections, counted with those of `elsewhere` claims of recipes without a section."""
    rows: list[str] = []
    judged: list[Verdict] = []
    for chapter in CHAPTERS:
        for place, collected in (pair for name in chapter.recipes for pair in enumerate(shown.get(name, ()))):
            where = f"[{collected.recipe.name}](#{anchor(collected.recipe.title)}), {_length(collected)}"
            for verdict in verdicts(collected, spread):
                if not place:  # of several lengths the first counts
                    judged.append(verdict)
                rows.append(f"| {typeset(verdict.claim)} | {where} | {verdict.summary()} |")
    if not rows:
        return "No training has been run yet."
    waiting = elsewhere + sum(not verdict.known for verdict in judged)
    counts = [
        _count(judged, "holds", "hold"),
        _count(judged, "partly", "hold partly"),
        _count(judged, "does not hold", "do not hold"),
    ]
    text = f"Of {len(judged) + elsewhere} claims {', '.join(counts)}, and {waiting} cannot be judged yet"
    text += f" ({elsewhere} of these are about recipes listed at the end)." if elsewhere else "."
    parts = [text, "\n".join(["| claim | judged on | verdict |", "| --- | --- | --- |", *rows])]
    parts.append(_about_seeds(spread))
    if any(verdict.lags for verdict in judged):
        parts.append(
            f"*Against a row that lags* stands where a claim holds by over {LAG:g} points more than for the "
            "paper's rows: the row that it is held against trains worse here, so that it shows little."
        )
    return "\n\n".join(parts)


def _count(judged: Sequence[Verdict], word: str, verb: str) -> str:
    """`11 hold (9 of them so far)`."""
    found = [verdict.word for verdict in judged if verdict.word.removesuffix(SO_FAR) == word]
    so_far = sum(one.endswith(SO_FAR) for one in found)
    note = "" if not so_far else " (all so far)" if so_far == len(found) else f" ({so_far} of them so far)"
    return f"{len(found)} {verb}{note}"


def _length(collected: Collected) -> str:
    epochs = " and ".join(map(str, collected.trained_epochs()))
    scale = "" if collected.scale == "small" else f" ({collected.scale} scale)"
    return f"{epochs} epochs{scale}"


def anchor(title: str) -> str:
    """What a heading of this title is linked by."""
    kept = (c for c in typeset(title).lower().replace(" ", "-") if c.isalnum() or c in "-_")
    return "".join(kept)


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
        if len(deviations) >= ENOUGH:
            found[column] = (sum(d * d for d in deviations) / len(deviations)) ** 0.5
    return found


def _about_seeds(spread: Mapping[str, float]) -> str:
    if not spread:
        return (
            "Most rows are single trainings. How far seeds of one row differ is said here once three rows of "
            "the CIFAR-100 table have two: differences of a few tenths of a point are no evidence."
        )
    shown = " and ".join(f"{column} {value:.2f}" for column, value in spread.items())
    return (
        f"Seeds of one row of the CIFAR-100 table differ by a standard deviation of {shown} points (pooled "
        "over its rows). A verdict is *within the spread of seeds* when a difference that it rests on lies "
        "closer to its bound than two standard deviations of such a difference: other seeds could turn it."
    )
