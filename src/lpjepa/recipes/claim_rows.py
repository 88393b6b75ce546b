"""What a test of a claim is about: its rows, those that wait, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lpjepa.recipes.collected import Collected, Entry
from lpjepa.recipes.values import METRICS

Test = Mapping[str, Any]
ONE_ROW = ("higher", "lower", "row", "from", "through", "of", "to")  # keys that name a row each
# Kinds that are about `rows`, and about the rows `of`, held against others.
OVER_ALL = ("published", "theory", "above_theory", "rising", "correlation", "no_loss")
OF_AGAINST = ("best", "undominated")
DEVIATIONS = 2.0  # of a difference, below which other seeds, or other draws of labels, could turn it


@dataclass(frozen=True)
class Outcome:
    """How many of the cases that a test is about are as it says, and the numbers.

    Of two rows of n and m seeds, `distance` is how far their difference lies from its bound, over
    sqrt(1/n + 1/m), and of one row its value, over sqrt(1/n): in the measure of a standard deviation over
    seeds, that of `column` where the test names none or several. `excess` is how much larger, in points
    of accuracy, it is than that of the paper's rows, where these are known. `drawn` says that other draws of
    few labels could turn it.
    """

    held: int
    of: int
    text: str
    distance: float | None = None
    excess: float | None = None
    drawn: bool = False
    column: str = ""

    @property
    def word(self) -> str:
        return "yes" if self.held == self.of else "in part" if self.held else "no"


class NotMeasured(Exception):
    """A row that the test needs has no results; the message names it."""


class NotAtThisScale(Exception):
    """The recipe has no row at this scale that the test is about."""


def rows_of(collected: Collected, test: Test) -> list[Entry]:
    """The rows that a test is about."""
    if test["kind"] in OVER_ALL:
        return collected.where(test.get("rows"))
    if test["kind"] in OF_AGAINST:
        return [*collected.where(test["of"]), *held_against(collected, test)]
    named = [test[key] for key in ONE_ROW if isinstance(test.get(key), Mapping)]
    return [row for one in named for row in collected.where({**test.get("rows", {}), **one})[:1]]


def held_against(collected: Collected, test: Test) -> list[Entry]:
    """The rows that those of `of` are held against: all others, if the test does not say."""
    own = collected.where(test["of"])
    return [entry for entry in collected.where(test.get("against")) if not any(entry is row for row in own)]


def waiting_rows(collected: Collected, test: Test) -> list[Entry]:
    """Those of them without results, so that what was found may change.

    Where changes from other rows are judged, also those other rows, if no seed is there of both.
    """
    rows = rows_of(collected, test)
    waiting = [entry for entry in rows if not entry.results]
    if test["kind"] == "no_loss":
        without = [e for e in rows if e.results and collected.change(e, test["column"]) is None]
        waiting += [other for entry in without if (other := collected.reference(entry)) is not None]
    return waiting


def unmeasured(collected: Collected, test: Test) -> list[str]:
    """Names of rows with results, but none of what the test looks at: a downstream set was missing."""
    columns = test["columns"] if "columns" in test else [test["column"]]
    rows = [entry for entry in rows_of(collected, test) if entry.results]
    return [f"{collected.name(e)} ({column})" for column in columns for e in rows if e.mean(column) is None]


def value_of(entry: Entry, column: str) -> float:
    """The value of a row; it must have been measured."""
    value = entry.mean(column)
    if value is None:
        raise NotMeasured
    return value


def one(collected: Collected, condition: Mapping[str, Any]) -> Entry:
    found = collected.where(condition)
    if not found:
        raise NotAtThisScale
    return found[0]


def measured_rows(collected: Collected, condition: Mapping[str, Any] | None, *columns: str) -> list[Entry]:
    """The rows in which all columns were measured, at least one."""
    rows = collected.where(condition)
    if not rows:
        raise NotAtThisScale
    found = [entry for entry in rows if all(entry.mean(column) is not None for column in columns)]
    if not found:
        raise NotMeasured(" and ".join(columns))
    return found


def shown(value: float, column: str) -> str:
    digits = METRICS[column].digits if column in METRICS else 2
    return f"{value:.{digits}f}"
