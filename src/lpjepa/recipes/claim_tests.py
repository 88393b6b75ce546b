"""The kinds of tests that claims are made of: each looks at some rows and says how many are as it says.

| kind | holds when |
|---|---|
| order | `higher` is above `lower` in `column` by more than `margin` (negative: is at most that much below) |
| order, `equal: true` | `higher` is above `lower` by `margin` or more |
| best | the best row of `of` is above the best of `against` by `margin` |
| undominated | no row of `against` (else: no other) is above a row of `of` in both `columns` |
| close | a row is within `tolerance` of the number, or of the row, `to` |
| at_least | a row's value is `value` or more |
| published | no row is more than `tolerance` below the paper's value |
| theory | all rows are within `tolerance` of what their targets predict, or off by `factor` at most |
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

from lpjepa.recipes.catalog import catalog
from lpjepa.recipes.claim_rows import (
    DEVIATIONS,
    NotAtThisScale,
    NotMeasured,
    Outcome,
    Test,
    held_against,
    measured_rows,
    one,
    shown,
    value_of,
)
from lpjepa.recipes.collected import Collected, Entry
from lpjepa.recipes.values import label_draws, number

ROUNDING = 1e-6  # of differences: at a bound the last bits must not decide


def _pair(
    collected: Collected,
    column: str,
    entries: Sequence[Entry],
    papers: Sequence[float | None],
    margin: float,
    equal: bool,
) -> Outcome:
    """Whether the first of two rows is above the second by `margin`, or just at it where `equal` will do.

    `papers` are the values that the paper has in their place.
    """
    a, b = (value_of(entry, column) for entry in entries)
    names = [collected.name(entry) for entry in entries]
    text = f"{names[0]} {shown(a, column)} against {names[1]} {shown(b, column)}"
    text += f" ({'+' if a >= b else ''}{shown(a - b, column)}"
    text += f"; the bound is {margin:+g}" if margin else ""
    excess = None
    if papers[0] is not None and papers[1] is not None:
        theirs = papers[0] - papers[1]
        text += f"; in the paper {'+' if theirs >= 0 else ''}{shown(theirs, column)}"
        in_points = column in ("encoder", "projector") or column.startswith("transfer/")
        excess = a - b - theirs if in_points else None
    single = sum(1 / len(entry.results) for entry in entries) ** 0.5
    above = a - b - margin
    held = above > ROUNDING or (equal and above >= -ROUNDING)
    draws = sum(label_draws(column, entry.results) ** 2 for entry in entries) ** 0.5
    return Outcome(held, 1, f"{text})", abs(above) / single, excess, abs(above) < DEVIATIONS * draws)


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
    high, low = one(collected, test["higher"]), one(collected, test["lower"])
    column, margin = test["column"], test.get("margin", 0.0)
    papers = [_paper(collected, entry, column) for entry in (high, low)]
    return _pair(collected, column, (high, low), papers, margin, equal=margin < 0 or test.get("equal", False))


def _best(collected: Collected, test: Test) -> Outcome:
    column = test["column"]
    sides = ("of", "against")
    of_each = (measured_rows(collected, test[key], column) for key in sides)
    tops = [max(rows, key=lambda entry: value_of(entry, column)) for rows in of_each]
    # The paper's best rows, which may be others than ours.
    known = ((_paper(collected, entry, column) for entry in collected.where(test[key])) for key in sides)
    papers = [max((value for value in values if value is not None), default=None) for values in known]
    return _pair(collected, column, tops, papers, test.get("margin", 0.0), equal=True)


def _undominated(collected: Collected, test: Test) -> Outcome:
    first, second = test["columns"]
    rows = measured_rows(collected, test["of"], first, second)
    values = {
        id(entry): (value_of(entry, first), value_of(entry, second))
        for entry in [*rows, *held_against(collected, test)]
        if entry.mean(first) is not None and entry.mean(second) is not None
    }
    others = [entry for entry in held_against(collected, test) if id(entry) in values]
    if not others:
        raise NotMeasured("rows to be held against")
    above = lambda a, b: all(x > y for x, y in zip(values[id(a)], values[id(b)]))
    beaten = [(row, other) for row in rows for other in others if above(other, row)]
    free = len(rows) - len({id(row) for row, _ in beaten})
    text = f"{free} of {len(rows)} rows"
    if beaten:
        said = [
            f"{collected.name(entry)} ({', '.join(shown(value_of(entry, c), c) for c in (first, second))})"
            for entry in beaten[0]
        ]
        text += f"; {said[1]} is above {said[0]} in both"
    return Outcome(free, len(rows), text)


def _close(collected: Collected, test: Test) -> Outcome:
    column, entry, to = test["column"], one(collected, test["row"]), test["to"]
    value = value_of(entry, column)
    wanted = value_of(one(collected, to), column) if isinstance(to, Mapping) else float(to)
    text = f"{collected.name(entry)} {shown(value, column)} for {shown(wanted, column)}"
    within = abs(value - wanted) <= test["tolerance"] + ROUNDING
    return Outcome(within, 1, f"{text} ± {test['tolerance']:g}")


def _at_least(collected: Collected, test: Test) -> Outcome:
    column, entry = test["column"], one(collected, test["row"])
    value = value_of(entry, column)
    text = f"{collected.name(entry)} {shown(value, column)} for {test['value']:g} or more"
    distance = abs(value - test["value"]) * len(entry.results) ** 0.5
    return Outcome(value >= test["value"] - ROUNDING, 1, text, distance)


def _published(collected: Collected, test: Test) -> Outcome:
    below: list[tuple[float, str]] = []
    near: list[tuple[float, str]] = []
    for column in test["columns"]:
        for entry in measured_rows(collected, None, column):
            paper = number(collected.recipe.published(entry.case, column))
            if paper is not None:
                value = value_of(entry, column)
                text = f"{collected.name(entry)}, {column}: {shown(value, column)} for {shown(paper, column)}"
                below.append((paper - value, text))
                near.append((abs(paper - value - test["tolerance"]) * len(entry.results) ** 0.5, column))
    if not below:
        raise NotMeasured("rows with published values")
    held = sum(gap <= test["tolerance"] + ROUNDING for gap, _ in below)
    text = f"{held} of {len(below)} values; furthest below {max(below)[1]}"
    distance, column = min(near)
    return Outcome(held, len(below), text, distance, column=column)


def _theory(collected: Collected, test: Test) -> Outcome:
    column, factor = test["column"], test.get("factor")
    rows = measured_rows(collected, test.get("rows"), column, f"{column}_theory")

    def off(entry: Entry) -> float:
        found, wanted = value_of(entry, column), value_of(entry, f"{column}_theory")
        return max(found / wanted, wanted / found) if factor else abs(found - wanted)

    worst, bound = max(rows, key=off), factor or test["tolerance"]
    within = sum(off(entry) <= bound + ROUNDING for entry in rows)
    how = f"at most {factor:g} times off" if factor else f"within {bound:g}"
    text = (
        f"{within} of {len(rows)} {how}; furthest {collected.name(worst)}: "
        f"{shown(value_of(worst, column), column)} for {shown(value_of(worst, f'{column}_theory'), column)}"
    )
    return Outcome(within, len(rows), text)


def _above_theory(collected: Collected, test: Test) -> Outcome:
    column = test["column"]
    rows = measured_rows(collected, test.get("rows"), column, f"{column}_theory")
    above = [e for e in rows if value_of(e, column) > value_of(e, f"{column}_theory") + test["by"]]
    return Outcome(len(above), len(rows), f"{len(above)} of {len(rows)} rows")


def _rising(collected: Collected, test: Test) -> Outcome:
    column, along = test["column"], test["along"]
    rows = measured_rows(collected, test.get("rows"), column)
    rows.sort(key=lambda entry: float(entry.case[along]))
    if len(rows) < 2:
        raise NotMeasured(f"more of the rows than {collected.name(rows[0])}")
    values = [value_of(entry, column) for entry in rows]
    fixed = "".join(f"{k} = {v:g}, " for k, v in test.get("rows", {}).items() if isinstance(v, float))
    ends = f"{along} {float(rows[0].case[along]):g} to {float(rows[-1].case[along]):g}"
    text = f"{fixed}{ends}: " + ", ".join(shown(value, column) for value in values)
    return Outcome(all(a < b for a, b in itertools.pairwise(values)), 1, text)


def _ratio(collected: Collected, test: Test) -> Outcome:
    column = test["column"]
    a, b = (value_of(one(collected, test[key]), column) for key in ("of", "to"))
    text = f"{shown(a, column)} against {shown(b, column)}, ratio {a / b:.3f} for {test['at_most']:g} at most"
    return Outcome(a <= test["at_most"] * b, 1, text)


def _correlation(collected: Collected, test: Test) -> Outcome:
    first, second = test["columns"]
    rows = measured_rows(collected, test.get("rows"), first, second)
    if len(rows) < 3:
        raise NotMeasured("three rows at least")
    found = _pearson([value_of(e, first) for e in rows], [value_of(e, second) for e in rows])
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
    a, b, c = (value_of(one(collected, {**rows, **test[key]}), column) for key in ("from", "through", "to"))
    text = f"{shown(a, column)}, then {shown(b, column)}, then {shown(c, column)}"
    return Outcome(b - c > a - b, 1, text)


TESTS: dict[str, Callable[[Collected, Test], Outcome]] = {
    "order": _order,
    "best": _best,
    "undominated": _undominated,
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
