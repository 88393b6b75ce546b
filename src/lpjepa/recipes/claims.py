"""The paper's claims as tests on what was measured: a verdict each, with the numbers it rests on.

A claim has a sentence and a list of tests; a row is named by its fields, such as {p: 1.0, mu: 0}.

| kind | holds when |
|---|---|
| order | `higher` is above `lower` in `column` by `margin` (negative: may be that much below) |
| best | the best row of `of` is above the best of `against` by `margin` |
| close | a row is within `tolerance` of the number, or of the row, `to` |
| at_least | a row's value is `value` or more |
| published | all rows are within `tolerance` of the paper's values |
| theory | all rows are within `tolerance` of what their targets predict |
| above_theory | all rows lie above what their targets predict by more than `by` |
| rising | the column rises along a field |
| ratio | the quotient of two rows is `at_most` |
| correlation | of two columns over the rows, `at_least` |
| no_loss | each row's `change` from its row of `against` is above -`margin` |
| steeper | the fall from `through` to `to` is larger than that from `from` to `through` |
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lpjepa.recipes.collected import Collected, Entry
from lpjepa.recipes.values import METRICS, number

Test = Mapping[str, Any]
Outcome = tuple[bool, str]


class NotMeasured(Exception):
    """A row that the test needs has no results."""


@dataclass(frozen=True)
class Verdict:
    """`word` is holds, partly, does not hold, or not measured; `grounds` says what was found."""

    claim: str
    word: str
    grounds: tuple[str, ...]


def verdicts(collected: Collected) -> list[Verdict]:
    """Each claim of the recipe, judged on the rows that have results."""
    return [_judge(claim, collected) for claim in collected.recipe.claims]


def _judge(claim: Mapping[str, Any], collected: Collected) -> Verdict:
    outcomes: list[Outcome] = []
    missing = 0
    for test in claim["tests"]:
        try:
            outcomes.append(TESTS[test["kind"]](collected, test))
        except NotMeasured:
            missing += 1
        else:
            missing += _waits(collected, test)
    grounds = tuple(text for _, text in outcomes)
    held = sum(ok for ok, _ in outcomes)
    if not outcomes:
        return Verdict(claim["claim"], "not measured", ())
    if held == len(outcomes):
        word = "holds" if not missing else "holds so far"
    else:
        word = "partly" if held else "does not hold"
    return Verdict(claim["claim"], word, grounds)


def _waits(collected: Collected, test: Test) -> bool:
    """Whether rows that a test is about have no results yet, so that what it found may change."""
    conditions = [test[key] for key in ("rows", "of", "against") if key in test]
    if test["kind"] in OVER_ALL and "rows" not in test:
        conditions.append({})
    return any(not entry.results for condition in conditions for entry in collected.where(condition))


def _value(entry: Entry, column: str) -> float:
    value = entry.mean(column)
    if value is None:
        raise NotMeasured(entry.case.label)
    return value


def _one(collected: Collected, condition: Mapping[str, Any]) -> Entry:
    found = collected.where(condition)
    if not found:
        raise NotMeasured(str(condition))
    return found[0]


def _known(collected: Collected, condition: Mapping[str, Any] | None, *columns: str) -> list[Entry]:
    """The rows in which all columns were measured, at least one."""
    found = [
        entry
        for entry in collected.where(condition)
        if all(entry.mean(column) is not None for column in columns)
    ]
    if not found:
        raise NotMeasured(str(condition))
    return found


def _shown(value: float, column: str) -> str:
    digits = METRICS[column].digits if column in METRICS else 2
    return f"{value:.{digits}f}"


def _order(collected: Collected, test: Test) -> Outcome:
    column, high, low = test["column"], _one(collected, test["higher"]), _one(collected, test["lower"])
    a, b = _value(high, column), _value(low, column)
    text = f"{high.case.label} {_shown(a, column)}, {low.case.label} {_shown(b, column)}"
    return a > b + test.get("margin", 0.0), text


def _best(collected: Collected, test: Test) -> Outcome:
    column = test["column"]
    tops = []
    for condition in (test["of"], test["against"]):
        tops.append(max(_known(collected, condition, column), key=lambda entry: _value(entry, column)))
    a, b = (_value(entry, column) for entry in tops)
    text = f"{tops[0].case.label} {_shown(a, column)}, {tops[1].case.label} {_shown(b, column)}"
    return a >= b + test.get("margin", 0.0), text


def _close(collected: Collected, test: Test) -> Outcome:
    column, entry, to = test["column"], _one(collected, test["row"]), test["to"]
    value = _value(entry, column)
    wanted = _value(_one(collected, to), column) if isinstance(to, Mapping) else float(to)
    text = f"{entry.case.label} {_shown(value, column)} for {_shown(wanted, column)}"
    return abs(value - wanted) <= test["tolerance"], text


def _at_least(collected: Collected, test: Test) -> Outcome:
    entry = _one(collected, test["row"])
    value = _value(entry, test["column"])
    return value >= test["value"], f"{_shown(value, test['column'])} for {test['value']:g} or more"


def _published(collected: Collected, test: Test) -> Outcome:
    worst, text = 0.0, ""
    for column in test["columns"]:
        for entry in _known(collected, None, column):
            paper = number(collected.recipe.published(entry.case, column))
            if paper is None:
                continue
            value = _value(entry, column)
            if not text or paper - value > worst:
                worst = max(worst, paper - value)
                text = f"{entry.case.label}, {column}: {_shown(value, column)} for {_shown(paper, column)}"
    if not text:
        raise NotMeasured("published")
    return worst <= test["tolerance"], f"furthest below: {text}"


def _theory(collected: Collected, test: Test) -> Outcome:
    column = test["column"]
    rows = _known(collected, test.get("rows"), column, f"{column}_theory")
    gap = lambda entry: abs(_value(entry, column) - _value(entry, f"{column}_theory"))
    worst = max(rows, key=gap)
    within = sum(gap(entry) <= test["tolerance"] for entry in rows)
    text = (
        f"{within} of {len(rows)} within {test['tolerance']:g}; furthest {worst.case.label}: "
        f"{_shown(_value(worst, column), column)} for {_shown(_value(worst, f'{column}_theory'), column)}"
    )
    return within == len(rows), text


def _above_theory(collected: Collected, test: Test) -> Outcome:
    column = test["column"]
    rows = _known(collected, test.get("rows"), column, f"{column}_theory")
    above = [e for e in rows if _value(e, column) > _value(e, f"{column}_theory") + test["by"]]
    return len(above) == len(rows), f"{len(above)} of {len(rows)} rows"


def _rising(collected: Collected, test: Test) -> Outcome:
    column, along = test["column"], test["along"]
    rows = sorted(_known(collected, test.get("rows"), column), key=lambda entry: float(entry.case[along]))
    if len(rows) < 2:
        raise NotMeasured(column)
    values = [_value(entry, column) for entry in rows]
    text = f"{along} {float(rows[0].case[along]):g} to {float(rows[-1].case[along]):g}: " + ", ".join(
        _shown(value, column) for value in values
    )
    return all(a < b for a, b in itertools.pairwise(values)), text


def _ratio(collected: Collected, test: Test) -> Outcome:
    column = test["column"]
    a, b = (_value(_one(collected, test[key]), column) for key in ("of", "to"))
    return a <= test["at_most"] * b, f"{_shown(a, column)} against {_shown(b, column)}, ratio {a / b:.3f}"


def _correlation(collected: Collected, test: Test) -> Outcome:
    first, second = test["columns"]
    rows = _known(collected, test.get("rows"), first, second)
    if len(rows) < 3:
        raise NotMeasured(first)
    found = _pearson([_value(e, first) for e in rows], [_value(e, second) for e in rows])
    return found >= test["at_least"], f"correlation {found:.3f} over {len(rows)} trainings"


def _pearson(x: Sequence[float], y: Sequence[float]) -> float:
    from statistics import StatisticsError, correlation

    try:
        return correlation(x, y)
    except StatisticsError:  # one of them is constant
        return 0.0


def _no_loss(collected: Collected, test: Test) -> Outcome:
    column = test["column"]
    known = [(collected.change(entry, column), entry) for entry in collected.where(test.get("rows"))]
    changes = [(change, entry) for change, entry in known if change is not None]
    if not changes:
        raise NotMeasured(column)
    worst, entry = min(changes, key=lambda pair: pair[0])
    text = f"{column}: {len(changes)} rows, worst {entry.case.label} {worst:+.2f}"
    return worst >= -test["margin"], text


def _steeper(collected: Collected, test: Test) -> Outcome:
    column, rows = test["column"], test.get("rows", {})
    a, b, c = (_value(_one(collected, {**rows, **test[key]}), column) for key in ("from", "through", "to"))
    return b - c > a - b, f"{_shown(a, column)}, then {_shown(b, column)}, then {_shown(c, column)}"


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
