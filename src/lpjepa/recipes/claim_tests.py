"""The kinds of tests that claims are made of: each looks at some rows and says how many are as it says.

| kind | holds when |
|---|---|
| order | `higher` is above `lower` in `column` by more than `margin` (negative: is at most that much below) |
| order, `equal: true` | `higher` is above `lower` by `margin` or more |
| best | the best row of `of` is above the best of `against` by `margin` |
| close | a row is within `tolerance` of the number, or of the row, `to` |
| at_least | a row's value is `value` or more |
| published | no row is more than `tolerance` below the paper's value |
| theory | all rows are within `tolerance` of what their targets predict |
| above_theory | all rows lie above what their targets predict by more than `by` |
| rising | the column rises along a field |
| ratio | the quotient of two rows is `at_most` |
| correlation | of two columns over the rows, `at_least` |
| no_loss | each row's `change` from its row of `against` is -`margin` or more |
| steeper | the fall from `through` to `to` is larger than that from `from` to `through` |
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lpjepa.recipes.catalog import catalog
from lpjepa.recipes.collected import Collected, Entry
from lpjepa.recipes.values import METRICS, number

Test = Mapping[str, Any]
ONE_ROW = ("higher", "lower", "row", "from", "through", "of", "to")  # keys that name a row each
POINTS = ("encoder", "projector")  # columns in points of accuracy
ROUNDING = 1e-6  # of differences: at a bound the last bits must not decide


@dataclass(frozen=True)
class Outcome:
    """How many of the cases that a test is about are as it says, and the numbers.

    Of two rows of n and m seeds, `distance` is how far their difference lies from its bound, over
    sqrt(1/n + 1/m): in the measure of a standard deviation over seeds. `excess` is how much larger, in points
    of accuracy, it is than that of the paper's rows, where these are known.
    """

    held: int
    of: int
    text: str
    distance: float | None = None
    excess: float | None = None

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
    if test["kind"] == "best":
        return [*collected.where(test["of"]), *collected.where(test["against"])]
    named = [test[key] for key in ONE_ROW if isinstance(test.get(key), Mapping)]
    return [row for one in named for row in collected.where({**test.get("rows", {}), **one})[:1]]


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


def _value(entry: Entry, column: str) -> float:
    """The value of a row that has one."""
    value = entry.mean(column)
    assert value is not None
    return value


def _of(collected: Collected, entry: Entry, column: str) -> float:
    """The value of a named row."""
    value = entry.mean(column)
    if value is None:
        raise NotMeasured
    return value


def _one(collected: Collected, condition: Mapping[str, Any]) -> Entry:
    found = collected.where(condition)
    if not found:
        raise NotAtThisScale
    return found[0]


def _known(collected: Collected, condition: Mapping[str, Any] | None, *columns: str) -> list[Entry]:
    """The rows in which all columns were measured, at least one."""
    rows = collected.where(condition)
    if not rows:
        raise NotAtThisScale
    found = [entry for entry in rows if all(entry.mean(column) is not None for column in columns)]
    if not found:
        raise NotMeasured(" and ".join(columns))
    return found


def _shown(value: float, column: str) -> str:
    digits = METRICS[column].digits if column in METRICS else 2
    return f"{value:.{digits}f}"


def _pair(collected: Collected, column: str, entries: Sequence[Entry], margin: float, equal: bool) -> Outcome:
    """Whether the first of two rows is above the second by `margin`, or just at it where `equal` will do."""
    a, b = (_of(collected, entry, column) for entry in entries)
    names = [collected.name(entry) for entry in entries]
    text = f"{names[0]} {_shown(a, column)} against {names[1]} {_shown(b, column)}"
    text += f" ({'+' if a >= b else ''}{_shown(a - b, column)}"
    text += f"; the bound is {margin:+g}" if margin else ""
    papers = [_paper(collected, entry, column) for entry in entries]
    excess = None
    if papers[0] is not None and papers[1] is not None:
        theirs = papers[0] - papers[1]
        text += f"; in the paper {'+' if theirs >= 0 else ''}{_shown(theirs, column)}"
        excess = a - b - theirs if column in POINTS else None
    single = sum(1 / len(entry.results) for entry in entries) ** 0.5
    above = a - b - margin
    held = above > ROUNDING or (equal and above >= -ROUNDING)
    return Outcome(held, 1, f"{text})", abs(above) / single, excess)


def _paper(collected: Collected, entry: Entry, column: str) -> float | None:
    """The paper's value of a row: that of the recipe, or of the same row in the paper's CIFAR-100 table."""
    if collected.recipe.beside != "paper":
        return None
    known = number(collected.recipe.published(entry.case, column, collected.scale))
    if known is not None:
        return known
    table = catalog()["cifar100"]
    same = [case for case in table.cases("paper") if case.values == entry.case.values]
    return number(table.published(same[0], column)) if same else None


def _order(collected: Collected, test: Test) -> Outcome:
    high, low = _one(collected, test["higher"]), _one(collected, test["lower"])
    margin = test.get("margin", 0.0)
    return _pair(collected, test["column"], (high, low), margin, equal=margin < 0 or test.get("equal", False))


def _best(collected: Collected, test: Test) -> Outcome:
    column = test["column"]
    tops = []
    for condition in (test["of"], test["against"]):
        tops.append(max(_known(collected, condition, column), key=lambda entry: _value(entry, column)))
    return _pair(collected, column, tops, test.get("margin", 0.0), equal=True)


def _close(collected: Collected, test: Test) -> Outcome:
    column, entry, to = test["column"], _one(collected, test["row"]), test["to"]
    value = _of(collected, entry, column)
    wanted = _of(collected, _one(collected, to), column) if isinstance(to, Mapping) else float(to)
    text = f"{collected.name(entry)} {_shown(value, column)} for {_shown(wanted, column)}"
    within = abs(value - wanted) <= test["tolerance"] + ROUNDING
    return Outcome(within, 1, f"{text} ± {test['tolerance']:g}")


def _at_least(collected: Collected, test: Test) -> Outcome:
    column = test["column"]
    value = _of(collected, _one(collected, test["row"]), column)
    return Outcome(
        value >= test["value"] - ROUNDING, 1, f"{_shown(value, column)} for {test['value']:g} or more"
    )


def _published(collected: Collected, test: Test) -> Outcome:
    below: list[tuple[float, str]] = []
    for column in test["columns"]:
        for entry in _known(collected, None, column):
            paper = number(collected.recipe.published(entry.case, column))
            if paper is not None:
                value = _value(entry, column)
                text = (
                    f"{collected.name(entry)}, {column}: {_shown(value, column)} for {_shown(paper, column)}"
                )
                below.append((paper - value, text))
    if not below:
        raise NotMeasured("rows with published values")
    held = sum(gap <= test["tolerance"] + ROUNDING for gap, _ in below)
    return Outcome(held, len(below), f"{held} of {len(below)} values; furthest below {max(below)[1]}")


def _theory(collected: Collected, test: Test) -> Outcome:
    column = test["column"]
    rows = _known(collected, test.get("rows"), column, f"{column}_theory")
    gap = lambda entry: abs(_value(entry, column) - _value(entry, f"{column}_theory"))
    worst = max(rows, key=gap)
    within = sum(gap(entry) <= test["tolerance"] + ROUNDING for entry in rows)
    text = (
        f"{within} of {len(rows)} within {test['tolerance']:g}; furthest {collected.name(worst)}: "
        f"{_shown(_value(worst, column), column)} for {_shown(_value(worst, f'{column}_theory'), column)}"
    )
    return Outcome(within, len(rows), text)


def _above_theory(collected: Collected, test: Test) -> Outcome:
    column = test["column"]
    rows = _known(collected, test.get("rows"), column, f"{column}_theory")
    above = [e for e in rows if _value(e, column) > _value(e, f"{column}_theory") + test["by"]]
    return Outcome(len(above), len(rows), f"{len(above)} of {len(rows)} rows")


def _rising(collected: Collected, test: Test) -> Outcome:
    column, along = test["column"], test["along"]
    rows = sorted(_known(collected, test.get("rows"), column), key=lambda entry: float(entry.case[along]))
    if len(rows) < 2:
        raise NotMeasured(f"more of the rows than {collected.name(rows[0])}")
    values = [_value(entry, column) for entry in rows]
    fixed = "".join(f"{k} = {v:g}, " for k, v in test.get("rows", {}).items() if isinstance(v, float))
    ends = f"{along} {float(rows[0].case[along]):g} to {float(rows[-1].case[along]):g}"
    text = f"{fixed}{ends}: " + ", ".join(_shown(value, column) for value in values)
    return Outcome(all(a < b for a, b in itertools.pairwise(values)), 1, text)


def _ratio(collected: Collected, test: Test) -> Outcome:
    column = test["column"]
    a, b = (_of(collected, _one(collected, test[key]), column) for key in ("of", "to"))
    text = (
        f"{_shown(a, column)} against {_shown(b, column)}, ratio {a / b:.3f} for {test['at_most']:g} at most"
    )
    return Outcome(a <= test["at_most"] * b, 1, text)


def _correlation(collected: Collected, test: Test) -> Outcome:
    first, second = test["columns"]
    rows = _known(collected, test.get("rows"), first, second)
    if len(rows) < 3:
        raise NotMeasured("three rows at least")
    found = _pearson([_value(e, first) for e in rows], [_value(e, second) for e in rows])
    return Outcome(found >= test["at_least"], 1, f"correlation {found:.3f} over {len(rows)} trainings")


def _pearson(x: Sequence[float], y: Sequence[float]) -> float:
    from statistics import StatisticsError, correlation

    try:
        return correlation(x, y)
    except StatisticsError:  # one of them is constant
        return 0.0


def _no_loss(collected: Collected, test: Test) -> Outcome:
    column = test["column"]
    rows = collected.where(test.get("rows"))
    if not rows:
        raise NotAtThisScale
    known = [(collected.change(entry, column), entry) for entry in rows]
    changes = [(change, entry) for change, entry in known if change is not None]
    if not changes:
        raise NotMeasured(f"changes of {column}")
    worst, entry = min(changes, key=lambda pair: pair[0])
    held = sum(change >= -test["margin"] - ROUNDING for change, _ in changes)
    text = f"{held} of {len(changes)} row{'s' * (len(changes) != 1)}, worst {entry.case.label} {worst:+.2f}"
    return Outcome(held, len(changes), text)


def _steeper(collected: Collected, test: Test) -> Outcome:
    column, rows = test["column"], test.get("rows", {})
    a, b, c = (
        _of(collected, _one(collected, {**rows, **test[key]}), column) for key in ("from", "through", "to")
    )
    text = f"{_shown(a, column)}, then {_shown(b, column)}, then {_shown(c, column)}"
    return Outcome(b - c > a - b, 1, text)


OVER_ALL = ("published", "theory", "above_theory", "rising", "correlation", "no_loss")
TESTS: dict[str, Callable[[Collected, Test], Outcome]] = {
    "order": _order,
    "best": _best,
    "close": _close,
    "at_least": _at_least,
    "published": _published,
    "theory": _theory,
    "above_theory": _above_theory,
    "rising": _rising,
    "ratio": _ratio,
    "correlation": _correlation,
    "no_loss": _no_loss,
    "steeper": _steeper,
}
