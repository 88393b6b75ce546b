"""The paper's claims, judged on what was measured: a verdict each, with the numbers it rests on.

A claim has a sentence and a list of tests (see `claim_tests`); a row is named by its fields, such as
{p: 1.0, mu: 0}. It holds when all of its tests do, for all rows that they are about; partly when some do, but
for one that says `every: true`, which is about all or nothing; and so far while trainings of these rows wait,
also those of further seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lpjepa.recipes.claim_rows import (
    DEVIATIONS,
    NotAtThisScale,
    NotMeasured,
    Outcome,
    rows_of,
    unmeasured,
    waiting_rows,
)
from lpjepa.recipes.claim_tests import TESTS
from lpjepa.recipes.collected import Collected, Entry

LAG = 5.0  # points by which a difference may exceed the paper's before the lower row counts as a weak one
UNKNOWN = "not measured"
# Probes that are fitted to the end on frozen features, by what the spread of such probes is called.
AS_FROZEN = {
    "posthoc_projector": "projector_frozen",
    "posthoc_before": "projector_frozen",
    "posthoc_encoder": "encoder_frozen",
}


@dataclass(frozen=True)
class Verdict:
    """`word` is holds, partly, does not hold (each may be `so far`), or not measured; `grounds` says why.

    Attributes:
        cases: how many of the things that its tests look at are as it says, and how many there are.
        rows: how many of the rows that it is about have results, and how many there are.
        waits: how many trainings it waits for, one a row.
        lacks: how many measurements of trained rows it waits for.
        seeds: those that rows with results still lack.
        faint: what could turn a difference that it rests on: other seeds, or other draws of few labels.
        lags: it holds by LAG points more than the paper's rows do, so that the lower row is a weak one.
        behind: it fails by LAG points more than it would for the paper's rows.
    """

    claim: str
    word: str
    grounds: tuple[str, ...]
    cases: tuple[int, int] = (0, 0)
    rows: tuple[int, int] = (0, 0)
    waits: int = 0
    lacks: int = 0
    seeds: tuple[int, ...] = ()
    faint: tuple[str, ...] = ()
    lags: bool = False
    behind: bool = False

    @property
    def known(self) -> bool:
        return self.word != UNKNOWN

    def summary(self) -> str:
        """The verdict in a few words, with what it lacks."""
        lacking = [
            _counted(n, what) for n, what in ((self.waits, "training"), (self.lacks, "measurement")) if n
        ]
        if not self.known:
            return f"waits for {' and '.join(lacking)}" if lacking else "has no rows at this scale"
        held, of = self.cases
        parts = [f"**{self.word}**" + (f" ({held} of {of})" if 0 < held < of else "")]
        if self.waits:
            parts.append(f"{self.rows[0]} of {self.rows[1]} rows")
        if self.lacks:
            parts.append(f"waits for {lacking[-1]}")
        if self.seeds:
            parts.append(_lacking(self.seeds))
        parts += [f"within the spread of {what}" for what in self.faint]
        if self.lags:
            parts.append("against a row that lags")
        if self.behind:
            parts.append("further off than the paper's rows")
        return ", ".join(parts)


def verdicts(collected: Collected, spread: Mapping[str, float] | None = None) -> list[Verdict]:
    """Each claim of the recipe, judged on the rows that have results.

    `spread` is the standard deviation over seeds of a column, where it is known.
    """
    return [_judge(claim, collected, spread or {}) for claim in collected.recipe.claims]


def _judge(claim: Mapping[str, Any], collected: Collected, spread: Mapping[str, float]) -> Verdict:
    tests = claim["tests"]
    columns = {_subject(test) for test in tests}
    outcomes: list[Outcome] = []
    grounds: list[str] = []
    rows: dict[str, Entry] = {}
    compared: list[Entry] = []
    waits: dict[str, None] = {}  # names of rows
    lacks: dict[str, None] = {}  # names of rows, and what of them; or what else a test wants
    faint: dict[str, None] = {}
    lags = behind = False
    for test in tests:
        about = rows_of(collected, test)
        rows |= {collected.name(entry): entry for entry in about}
        if test["kind"] == "no_loss":
            compared += [other for entry in about if (other := collected.reference(entry)) is not None]
        waiting = [collected.name(entry) for entry in waiting_rows(collected, test)]
        lacking = unmeasured(collected, test)
        waits |= dict.fromkeys(waiting)
        lacks |= dict.fromkeys(lacking)
        try:
            outcome = TESTS[test["kind"]](collected, test)
        except NotAtThisScale:
            continue
        except NotMeasured as missing:
            lacks |= {} if waiting or lacking else {str(missing): None}
            continue
        outcomes.append(outcome)
        text = f"{_subject(test)} {outcome.text}" if len(columns) > 1 else outcome.text
        deviation = _deviation(outcome.column or test.get("column", ""), spread)
        near = outcome.distance is not None and outcome.distance < DEVIATIONS * deviation
        for what in ["seeds"] * near + ["label draws"] * outcome.drawn:
            text += f", within the spread of {what}"
            faint[what] = None
        lags |= bool(outcome.held) and outcome.excess is not None and outcome.excess > LAG
        behind |= not outcome.held and outcome.excess is not None and outcome.excess < -LAG
        grounds.append(f"{outcome.word}: {text}" if len(tests) > 1 else text)
    seeds = _seeds_to_come(collected, [*rows.values(), *compared]) if outcomes else ()
    if waits:
        grounds.append(f"waits for {_few(list(waits), 'training')}")
    if lacks:
        grounds.append(f"waits for {_few(list(lacks), 'measurement')}")
    if not grounds:
        grounds.append("has no rows at this scale")
    if seeds:
        grounds.append(_lacking(seeds))
    word, held, of = UNKNOWN, sum(one.held for one in outcomes), sum(one.of for one in outcomes)
    if outcomes:
        some = "does not hold" if claim.get("every") else "partly"
        word = "holds" if held == of else some if held else "does not hold"
        word += " so far" if waits or lacks or seeds else ""
    count = (sum(bool(entry.results) for entry in rows.values()), len(rows))
    return Verdict(
        claim["claim"], word, tuple(grounds), (held, of), count, len(waits), len(lacks), seeds,
        tuple(faint), lags, behind,
    )  # fmt: skip


def _subject(test: Mapping[str, Any]) -> str:
    """The column that a test is about; of two in which rows are compared at once, the second."""
    return str(test["column"] if "column" in test else test["columns"][-1])


def _deviation(column: str, spread: Mapping[str, float]) -> float:
    """Over seeds; that of transfer is not known, and taken to be no less than on the images trained on."""
    if column.startswith("transfer/"):
        column = f"{column.split('/')[2]}_frozen"
    return spread.get(AS_FROZEN.get(column, column), 0.0)


def _seeds_to_come(collected: Collected, rows: Sequence[Entry]) -> tuple[int, ...]:
    """The seeds that the recipe wants and that one of the rows with results has not."""
    trained = [{result["seed"] for result in entry.results} for entry in rows if entry.results]
    wanted = collected.recipe.seeds_at(collected.scale)
    return tuple(seed for seed in wanted if any(seed not in seeds for seeds in trained))


def _lacking(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))} to come"


def _few(names: Sequence[str], what: str) -> str:
    """Up to two names, which may have commas, or their number."""
    return " and ".join(names) if len(names) < 3 else _counted(len(names), what)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
