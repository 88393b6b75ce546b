"""Verdicts on numbers made up so that the answer is known; what the paper's text states; where data lies."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpjepa.recipes import Places, catalog, tables
from lpjepa.recipes.cases import config_of, expand
from lpjepa.recipes.catalog import Recipe
from lpjepa.recipes.claims import verdicts
from lpjepa.recipes.collected import Collected, Entry
from lpjepa.recipes.render import closed_form
from lpjepa.recipes.store import CURVE_POINTS, thinned
from lpjepa.recipes.values import measured, number

# mu -> encoder accuracy, l0, l0 of the target; mu = 1 has not been trained.
ROWS: dict[float, tuple[float, float, float] | None] = {
    -2: (0.60, 0.05, 0.03),
    -1: (0.66, 0.20, 0.12),
    0: (0.68, 0.51, 0.50),
    1: None,
}


def _collected(tests: list[dict[str, Any]], waiting: bool = False, every: bool = False) -> Collected:
    """The trained rows, or all."""
    claim = {"claim": "c.", "tests": tests, "every": every}
    recipe = Recipe("x", "table", "x", 0, columns=("encoder", "l0"), claims=(claim,))
    entries = []
    for mu, values in ROWS.items():
        if values is None and not waiting:
            continue
        case = expand({"mu": mu, "paper": [68.0, 0.5]}, "cifar100", "small")[0]
        results: tuple[Any, ...] = ()
        if values is not None:
            final = dict(zip(("encoder_accuracy", "l0", "l0_predicted"), values))
            results = ({"final": final, "pieces": {}, "scale": "small", "seed": 5},)
        entries.append(Entry(case, results))
    return Collected(recipe, "small", tuple(entries), 4)


HOLD: list[dict[str, Any]] = [
    {"kind": "order", "column": "encoder", "higher": {"mu": 0}, "lower": {"mu": -2}, "margin": 7.9},
    {"kind": "order", "column": "encoder", "higher": {"mu": -2}, "lower": {"mu": 0}, "margin": -8.1},
    {"kind": "best", "column": "encoder", "of": {"method": "rgn"}, "against": {"mu": -1}, "margin": 1.9},
    {"kind": "undominated", "columns": ["encoder", "l0"], "of": {"mu": 0}},
    {"kind": "undominated", "columns": ["encoder", "l0"], "of": {"mu": -1}, "against": {"mu": -2}},
    {"kind": "theory", "column": "l0", "rows": {}, "factor": 1.67},
    {"kind": "close", "column": "l0", "row": {"mu": 0}, "to": 0.5, "tolerance": 0.011},
    {"kind": "close", "column": "encoder", "row": {"mu": 0}, "to": {"mu": -1}, "tolerance": 2.1},
    {"kind": "at_least", "column": "encoder", "row": {"mu": 0}, "value": 67.9},
    {"kind": "published", "columns": ["encoder"], "tolerance": 8.1},
    {"kind": "theory", "column": "l0", "rows": {"mu": 0}, "tolerance": 0.011},
    {"kind": "above_theory", "column": "l0", "rows": {}, "by": 0.009},
    {"kind": "rising", "column": "l0", "rows": {}, "along": "mu"},
    {"kind": "ratio", "column": "encoder", "of": {"mu": -2}, "to": {"mu": 0}, "at_most": 0.89},
    {"kind": "correlation", "columns": ["l0", "encoder"], "rows": {}, "at_least": 0.85},
    {"kind": "steeper", "column": "encoder", "from": {"mu": 0}, "through": {"mu": -1}, "to": {"mu": -2}},
]
FAIL: list[dict[str, Any]] = [
    {"kind": "order", "column": "encoder", "higher": {"mu": 0}, "lower": {"mu": -2}, "margin": 8.1},
    {"kind": "best", "column": "encoder", "of": {"mu": -1}, "against": {"mu": 0}},
    {"kind": "undominated", "columns": ["encoder", "l0"], "of": {"mu": -1}},
    {"kind": "close", "column": "l0", "row": {"mu": -1}, "to": 0.5, "tolerance": 0.011},
    {"kind": "at_least", "column": "encoder", "row": {"mu": -1}, "value": 67.9},
    {"kind": "published", "columns": ["encoder"], "tolerance": -0.1},
    {"kind": "theory", "column": "l0", "rows": {}, "tolerance": 0.009},
    {"kind": "above_theory", "column": "l0", "rows": {}, "by": 0.09},
    {"kind": "ratio", "column": "encoder", "of": {"mu": -2}, "to": {"mu": 0}, "at_most": 0.88},
    {"kind": "correlation", "columns": ["l0", "encoder"], "rows": {}, "at_least": 0.95},
]


# Tests about several rows, of which some are as they say: (test, how many).
IN_PART: list[tuple[dict[str, Any], str]] = [
    ({"kind": "published", "columns": ["encoder"], "tolerance": 7.9}, "2 of 3"),
    ({"kind": "theory", "column": "l0", "rows": {}, "tolerance": 0.07}, "2 of 3"),
    ({"kind": "theory", "column": "l0", "rows": {}, "factor": 1.6}, "1 of 3"),
    ({"kind": "above_theory", "column": "l0", "rows": {}, "by": 0.03}, "1 of 3"),
]


@pytest.mark.parametrize("test", HOLD, ids=lambda t: t["kind"])
def test_what_holds(test: dict[str, Any]) -> None:
    (verdict,) = verdicts(_collected([test]))
    assert verdict.word == "holds"
    assert len(verdict.grounds) == 1


@pytest.mark.parametrize("test", FAIL, ids=lambda t: t["kind"])
def test_what_does_not_hold(test: dict[str, Any]) -> None:
    (verdict,) = verdicts(_collected([test]))
    assert verdict.word == "does not hold"


@pytest.mark.parametrize(("test", "count"), IN_PART, ids=lambda t: t["kind"] if isinstance(t, dict) else "")
def test_what_holds_for_some_rows_holds_partly(test: dict[str, Any], count: str) -> None:
    (verdict,) = verdicts(_collected([test]))
    assert verdict.word == "partly"
    assert verdict.grounds[0].startswith(count)
    assert verdict.summary().startswith(f"**partly** ({count})")
    (verdict,) = verdicts(_collected([test], every=True))
    assert (verdict.word, verdict.summary()[:26]) == ("does not hold", f"**does not hold** ({count})")


@pytest.mark.parametrize(
    ("test", "word"),
    [
        ({"kind": "order", "higher": {"mu": -2}, "lower": {"mu": 0}, "margin": -8.0}, "holds"),
        ({"kind": "order", "higher": {"mu": 0}, "lower": {"mu": -2}, "margin": 8.0}, "does not hold"),
        ({"kind": "order", "higher": {"mu": 0}, "lower": {"mu": -2}, "margin": 8.0, "equal": True}, "holds"),
        ({"kind": "best", "of": {"mu": 0}, "against": {"mu": -2}, "margin": 8.0}, "holds"),
        ({"kind": "close", "row": {"mu": 0}, "to": {"mu": -2}, "tolerance": 8.0}, "holds"),
        ({"kind": "at_least", "row": {"mu": -2}, "value": 60.0}, "holds"),
        ({"kind": "published", "columns": ["encoder"], "tolerance": 8.0}, "holds"),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else value,
)
@pytest.mark.parametrize("noise", [-1e-12, 0.0, 1e-12])
def test_at_its_bound_the_wording_decides_and_not_the_last_bits(test, word, noise, monkeypatch) -> None:
    """`at most`, `no better` and `within` include the bound; `better by` does not."""
    monkeypatch.setitem(ROWS, -2, (0.60 + noise, 0.05, 0.03))
    test = test if "columns" in test else {**test, "column": "encoder"}
    (verdict,) = verdicts(_collected([test]))
    assert verdict.word == word


def test_a_trained_row_without_the_measurement_is_waited_for() -> None:
    """As a row of the transfer tables that was trained where a set was missing."""
    collected = _collected([{"kind": "best", "column": "encoder", "of": {"mu": 0}, "against": {}}])
    del collected.entries[0].results[0]["final"]["encoder_accuracy"]
    (verdict,) = verdicts(collected)
    assert (verdict.word, verdict.waits, verdict.lacks) == ("holds so far", 0, 1)
    assert verdict.grounds[-1] == "waits for RGN_1.0(-2, σ_GN) (encoder)"
    assert verdict.summary() == "**holds so far**, waits for 1 measurement"
    for entry in collected.entries:
        entry.results[0]["final"].pop("encoder_accuracy", None)
    assert verdicts(collected)[0].summary() == "waits for 3 measurements"


def test_tests_about_rows_that_the_scale_has_not_are_left_out() -> None:
    absent = {"kind": "order", "column": "encoder", "higher": {"mu": 7}, "lower": {"mu": 0}}
    (verdict,) = verdicts(_collected([HOLD[0], absent]))
    assert (verdict.word, len(verdict.grounds)) == ("holds", 1)
    (alone,) = verdicts(_collected([absent]))
    assert (alone.known, alone.summary()) == (False, "has no rows at this scale")


def test_seeds_that_the_reference_lacks_are_waited_for() -> None:
    test = {"kind": "no_loss", "column": "encoder", "rows": {"group": "new"}, "margin": 0.5}
    recipe = Recipe(
        "x", "table", "x", 0, columns=("encoder",), against={"group": "plain"}, seeds={"small": [5, 6]},
        claims=({"claim": "c.", "tests": [test]},),
    )  # fmt: skip
    result = lambda seed: {"final": {"encoder_accuracy": 0.5}, "pieces": {}, "scale": "small", "seed": seed}
    entries = [
        Entry(expand({"mu": 0, "group": group}, "cifar100", "small")[0], tuple(map(result, seeds)))
        for group, seeds in (("plain", [5]), ("new", [5, 6]))
    ]
    (verdict,) = verdicts(Collected(recipe, "small", tuple(entries), 4))
    assert (verdict.word, verdict.seeds) == ("holds so far", (6,))


def test_beside_an_average_stands_the_papers_over_the_same_sets() -> None:
    """Four of the paper's six at the small scale: 77.83 and 58.54 in the all-shot table."""
    recipe = catalog()["transfer-all-encoder"]
    piece = {source: {"probe 1": {"encoder": {"top1": {"mean": 0.5}}}} for source in
             ("DTD", "cifar10", "cifar100", "flowers", "pets")}  # fmt: skip
    result = {"final": {}, "pieces": {"transfer": piece}, "scale": "small", "seed": 5}
    entries = tuple(Entry(case, (result,)) for case in recipe.cases("small"))
    judged = verdicts(Collected(recipe, "small", entries, 13))
    (beats,) = (v for v in judged if any("in the paper +19.28" in text for text in v.grounds))
    assert beats.behind, "equal rows, where the paper's differ by 19 points"


def test_grounds_say_which_test_held_by_how_much_and_what_is_missing() -> None:
    waiting = {"kind": "order", "column": "l0", "higher": {"mu": 1}, "lower": {"mu": 0}}
    (verdict,) = verdicts(_collected([HOLD[0], FAIL[0], waiting], waiting=True))
    assert verdict.word == "partly so far"
    rows = "encoder RGN_1.0(0, σ_GN) 68.00 against RGN_1.0(-2, σ_GN) 60.00 (+8.00; the bound is"
    paper = "; in the paper +0.00)"
    assert verdict.grounds == (
        f"yes: {rows} +7.9{paper}",
        f"no: {rows} +8.1{paper}",
        "waits for RGN_1.0(1, σ_GN)",
    )
    assert (verdict.rows, verdict.waits) == ((2, 3), 1)
    assert verdict.summary() == "**partly so far** (1 of 2), 2 of 3 rows, against a row that lags"
    (alone,) = verdicts(_collected([waiting], waiting=True))
    assert (alone.word, alone.grounds) == ("not measured", ("waits for RGN_1.0(1, σ_GN)",))


def test_a_difference_within_the_spread_of_seeds_is_called_so() -> None:
    """Single rows 8 points apart, the bound 7.9: sure if a training varies by less than 0.1/sqrt(8)."""
    near = [HOLD[0]]
    assert verdicts(_collected(near))[0].faint == (), "nothing is known of seeds"
    for deviation, faint in ((0.034, ()), (0.037, ("seeds",))):
        (verdict,) = verdicts(_collected(near), {"encoder": deviation})
        assert (verdict.word, verdict.faint) == ("holds", faint)
        assert verdict.grounds[0].endswith("within the spread of seeds") is bool(faint)
    assert not verdicts(_collected(near), {"projector": 9.0})[0].faint


@pytest.mark.parametrize(
    "test",
    [
        {"kind": "at_least", "column": "encoder", "row": {"mu": 0}, "value": 67.9},
        {"kind": "at_least", "column": "encoder", "row": {"mu": 0}, "value": 68.1},
        {"kind": "published", "columns": ["encoder"], "tolerance": 8.1},
    ],
)
def test_a_bound_within_the_spread_of_one_rows_seeds_is_called_so(test: dict[str, Any]) -> None:
    """A single row 0.1 points from its bound: sure if a training varies by less than half of that."""
    for deviation, faint in ((0.049, ()), (0.051, ("seeds",))):
        assert verdicts(_collected([test]), {"encoder": deviation})[0].faint == faint


def test_probes_fitted_after_the_training_vary_as_frozen_ones_do() -> None:
    recipe = catalog()["continuous-mapping"]
    top1 = {"rgn": 0.40, "lpjepa": 0.41}
    entries = []
    for case in recipe.cases("small"):
        piece = {"projector": {when: {"top1": top1[case["method"]]} for when in ("before", "after")}}
        result = {"final": {}, "pieces": {"posthoc": piece}, "scale": "small", "seed": 5}
        entries.append(Entry(case, (result,)))
    found = Collected(recipe, "small", tuple(entries), 8)
    for deviation, faint in ((0.35, ()), (0.36, ("seeds",))):  # a point is 2 * sqrt(2) of 0.354
        (verdict,) = (v for v in verdicts(found, {"projector_frozen": deviation}) if "worse than" in v.claim)
        assert (verdict.word, verdict.faint) == ("does not hold", faint)


def test_tests_of_two_columns_say_which_accuracy_they_are_about() -> None:
    tests = [
        {"kind": "undominated", "columns": ["l0", column], "of": {"mu": -1}} for column in ("encoder", "l1")
    ]
    tests[1]["columns"] = ["encoder", "l0"]
    (verdict,) = verdicts(_collected(tests))
    assert verdict.grounds[0].startswith("no: encoder 0 of 1 rows; RGN_1.0(0")
    assert verdict.grounds[1].startswith("no: l0 0 of 1 rows; RGN_1.0(0")


def test_a_difference_within_the_spread_of_label_draws_is_called_so() -> None:
    """Two rows some 0.4 points apart on average over four sets, of which one was drawn three times.

    With a deviation of 1 point the mean of three draws has an error of 1/sqrt(3), the average over four sets
    a fourth of that, and the difference of two rows sqrt(2) times as much: twice that is 0.408 points.
    """
    recipe = Recipe(
        "x", "table", "x", 0, columns=("transfer/*/encoder/0.01",),
        claims=({"claim": "c.", "tests": [{"kind": "best", "column": "transfer/avg./encoder/0.01",
                                           "of": {"mu": 0}, "against": {"mu": -1}}]},),
    )  # fmt: skip

    def collected(spread: float, apart: float) -> Collected:
        entries = []
        for mu, top in ((0, 0.5 + apart), (-1, 0.5)):
            draws = [top - spread, top, top + spread]
            sets = {
                source: {
                    "probe 0.01": {"encoder": {"top1": {"mean": top, "values": draws if i == 0 else [top]}}}
                }
                for i, source in enumerate(("DTD", "cifar10", "flowers", "pets"))
            }
            result = {"final": {}, "pieces": {"transfer": sets}, "scale": "small", "seed": 5}
            entries.append(Entry(expand({"mu": mu}, "cifar100", "small")[0], (result,)))
        return Collected(recipe, "small", tuple(entries), 2)

    for spread, apart, faint in (
        (0.01, 0.0042, ()),
        (0.01, 0.0040, ("label draws",)),
        (0.03, 0.0042, ("label draws",)),
    ):
        (verdict,) = verdicts(collected(spread, apart))
        assert (verdict.word, verdict.faint) == ("holds", faint)


def test_seeds_of_transfer_are_taken_to_differ_as_frozen_probes_do() -> None:
    """Rows 0.5 points apart: other seeds could turn it if one varies by more than 0.5/(2 sqrt(2)) = 0.177."""
    column = "transfer/avg./encoder/1"
    test = {"kind": "best", "column": column, "of": {"mu": 0}, "against": {"mu": -1}}
    recipe = Recipe(
        "x", "table", "x", 0, columns=("transfer/*/encoder/1",), claims=({"claim": "c.", "tests": [test]},)
    )
    entries = []
    for mu, top in ((0, 0.505), (-1, 0.5)):
        sets = {
            name: {"probe 1": {"encoder": {"top1": {"mean": top, "values": [top]}}}}
            for name in ("DTD", "cifar10", "flowers", "pets")
        }
        result = {"final": {}, "pieces": {"transfer": sets}, "scale": "small", "seed": 5}
        entries.append(Entry(expand({"mu": mu}, "cifar100", "small")[0], (result,)))
    collected = Collected(recipe, "small", tuple(entries), 2)
    for deviation, faint in ((0.17, ()), (0.18, ("seeds",))):
        (verdict,) = verdicts(collected, {"encoder_frozen": deviation, "projector_frozen": 9.0})
        assert (verdict.word, verdict.faint) == ("holds", faint)


def test_rows_of_one_label_are_told_apart() -> None:
    """Two dimensions, two numbers of slices, two groups: every name is another, and says what differs."""
    results = ({"final": {"encoder_accuracy": 0.5}, "pieces": {}, "scale": "small", "seed": 5},)

    def names(rows: list[dict[str, Any]]) -> list[str]:
        cases = [case for row in rows for case in expand(row, "cifar100", "small")]
        found = Collected(Recipe("x", "table", "x", 0), "small", tuple(Entry(c, results) for c in cases), 4)
        return [found.name(entry) for entry in found.entries]

    grid = {"model.projector_dim": [512, 2048], "loss.num_slices": [16, 64]}
    assert names([{"grid": grid}])[1:3] == [
        "RGN_1.0(0, σ_GN), N = 64, D = 512",
        "RGN_1.0(0, σ_GN), N = 16, D = 2048",
    ]
    widths = [{"model.projector_dim": d, "model.projector_hidden": 2 * d} for d in (512, 2048)]
    assert names(widths) == ["RGN_1.0(0, σ_GN), D = 512", "RGN_1.0(0, σ_GN), D = 2048"]
    assert names([{"group": "ResNet"}, {"group": "ViT", "base": "cifar100-vit"}, {"mu": 1}]) == [
        "RGN_1.0(0, σ_GN), ResNet",
        "RGN_1.0(0, σ_GN), ViT",
        "RGN_1.0(1, σ_GN)",
    ]


def test_some_of_several_and_what_waits_for_results() -> None:
    waiting = {"kind": "order", "column": "encoder", "higher": {"mu": 1}, "lower": {"mu": 0}}
    assert verdicts(_collected([HOLD[0], FAIL[0]]))[0].word == "partly"
    assert verdicts(_collected([HOLD[0], waiting], waiting=True))[0].word == "holds so far"
    assert verdicts(_collected([waiting], waiting=True))[0].word == "not measured"
    # What is said of all rows holds only so far while one of them waits; what is said of others does hold.
    for test in HOLD:
        about_all = test.get("rows") == {} or test["kind"] in ("best", "published", "correlation")
        about_all |= test["kind"] == "undominated" and "against" not in test
        (verdict,) = verdicts(_collected([test], waiting=True))
        assert verdict.word == ("holds so far" if about_all else "holds"), test
    assert verdicts(_collected([FAIL[0]], waiting=True))[0].word == "does not hold"
    assert verdicts(_collected([FAIL[5]], waiting=True))[0].word == "does not hold so far"


def _beside_the_plain_loss(tests: list[dict[str, Any]], changes: dict[float, float]) -> Collected:
    """Rows of a group `axes` whose encoder differs from the plain one's at its mu by `changes`."""
    recipe = Recipe(
        "x", "table", "x", 0,
        columns=("encoder", "change/encoder", "l0_gap"),
        against={"group": "plain"},
        claims=({"claim": "c.", "tests": tests},),
    )  # fmt: skip
    entries = []
    for group in ("plain", "axes"):
        for mu, change in changes.items():
            case = expand({"mu": mu, "group": group}, "cifar100", "small")[0]
            accuracy = 0.5 + mu / 100 + (change / 100 if group == "axes" else 0)
            final = {"encoder_accuracy": accuracy, "l0": 0.02, "l0_predicted": 0.03}
            entries.append(Entry(case, ({"final": final, "pieces": {}, "scale": "small", "seed": 5},)))
    return Collected(recipe, "small", tuple(entries), len(entries))


def test_changes_are_from_the_row_with_the_same_mu() -> None:
    loss = {"kind": "no_loss", "column": "encoder", "rows": {"group": "axes"}, "margin": 0.5}
    found = _beside_the_plain_loss([loss], {-2: -0.4, 0: 1.25})
    assert found.change(found.entries[2], "encoder") == pytest.approx(-0.4)
    assert found.change(found.entries[0], "encoder") is None
    (verdict,) = verdicts(found)
    assert verdict.word == "holds"
    assert "-0.40" in verdict.grounds[0]
    assert verdicts(_beside_the_plain_loss([loss], {-2: -0.6, 0: 1.25}))[0].word == "partly"
    assert verdicts(_beside_the_plain_loss([loss], {-2: -0.6, 0: -0.7}))[0].word == "does not hold"
    lines = tables.markdown(found).splitlines()
    assert [line.split("|")[4].strip() for line in lines[2:]] == ["", "", "-0.40", "+1.25"]
    assert lines[2].split("|")[5].strip() == "0.0100"


def test_the_best_is_marked_once_all_are_there_and_never_over_a_sweep() -> None:
    bold = lambda collected: [line.count("**") // 2 for line in tables.markdown(collected).splitlines()[2:]]
    assert bold(_collected([])) == [1, 0, 1], "sparsest and most accurate"
    assert bold(_collected([], waiting=True)) == [0, 0, 0, 0]
    assert bold(_beside_the_plain_loss([], {-2: -0.4, 0: 1.25})) == [0, 0, 0, 0]


def test_a_method_without_a_target_has_no_dash_for_its_theory() -> None:
    recipe = Recipe("x", "table", "x", 0, columns=("encoder", "l0_theory"))
    cases = [expand(row, "cifar100", "small")[0] for row in ({"mu": 0}, {"method": "lejepa"})]
    found = Collected(recipe, "small", tuple(Entry(case, ()) for case in cases), 2)
    cells = [line.split("|")[2:4] for line in tables.markdown(found).splitlines()[2:]]
    assert [[cell.strip() for cell in row] for row in cells] == [["–", "–"], ["–", ""]]


def test_correlation_is_pearsons() -> None:
    from lpjepa.recipes.claim_tests import _pearson

    x, y = [0.05, 0.2, 0.51], [60.0, 66.0, 68.0]
    assert _pearson(x, y) == pytest.approx(float(np.corrcoef(x, y)[0, 1]))
    assert _pearson(x, [1.0, 1.0, 1.0]) == 0.0


def test_seeds_are_averaged() -> None:
    case = expand({"mu": 0}, "cifar100", "small")[0]
    results = [{"final": {"encoder_accuracy": a}, "pieces": {}} for a in (0.60, 0.64)]
    found = measured("encoder", case, results)
    assert found == pytest.approx((62.0, np.std([60, 64], ddof=1)))
    assert measured("nhsic", case, results) is None
    assert measured("mu", case, []) == (0.0, None)


def test_an_average_over_some_of_the_sets_is_none() -> None:
    case = expand({"mu": 0}, "cifar100", "smoke")[0]
    of_set = lambda top1: {"probe 1": {"encoder": {"top1": {"mean": top1}}}}
    pieces = {"transfer": {"digits": of_set(0.9), "rotated": of_set(0.5)}}
    result = {"final": {}, "pieces": pieces, "scale": "smoke"}
    assert measured("transfer/digits/encoder/1", case, [result]) == (90.0, None)
    assert measured("transfer/avg./encoder/1", case, [result]) is None
    pieces["transfer"]["inverted"] = of_set(0.1)
    assert measured("transfer/avg./encoder/1", case, [result]) == (pytest.approx(50.0), None)


def test_the_published_average_is_over_the_sets_of_the_scale() -> None:
    recipe = catalog()["transfer-all-encoder"]
    case = next(case for case in recipe.cases("small") if case["method"] == "lejepa")
    column = "transfer/avg./encoder/1"
    assert recipe.published(case, column) == 71.94
    without_food_and_what_encoders_are_trained_on = np.mean([63.19, 83.54, 83.07, 78.30])
    assert recipe.published(case, column, "small") == pytest.approx(
        without_food_and_what_encoders_are_trained_on
    )
    assert recipe.published(case, column, "smoke") is None


def test_what_the_papers_text_states_is_found() -> None:
    checked = 0
    for recipe in catalog().values():
        for item in recipe.reported:
            ours = closed_form(item)
            if isinstance(item["paper"], str):
                assert 25 <= ours <= 40, "around 30 iterations"
            elif item["paper"] < 0.001:  # stated with one digit
                assert ours == pytest.approx(item["paper"], abs=0.5e-4)
            else:
                assert ours == pytest.approx(item["paper"], rel=1e-3)
            checked += 1
    assert checked == 6


def test_curves_are_thinned_with_their_ends() -> None:
    entries = [{"epoch": float(i), "l0": i / 1000} for i in range(1, 1001)]
    curves = thinned(entries)
    assert len(curves["epoch"]) == CURVE_POINTS == len(curves["l0"])
    assert (curves["epoch"][0], curves["epoch"][-1]) == (1.0, 1000.0)
    assert thinned(entries[:3])["l0"] == [0.001, 0.002, 0.003]
    assert thinned([]) == {}


def test_an_official_set_may_lie_there_as_arrays(tmp_path: Path) -> None:
    places = Places(tmp_path / "work", tmp_path / "results", tmp_path, "small")
    config = config_of(expand({"mu": 0}, "cifar100", "small")[0], "small", 5)
    assert (places.located(config).data.source, places.located(config).data.root) == (
        "cifar100",
        str(tmp_path),
    )
    (tmp_path / "cifar100.npz").touch()
    (tmp_path / "pets64").mkdir()
    assert places.located(config).data.root == str(tmp_path / "cifar100.npz")
    assert places.located(config).data.source == "npz"
    assert places.transfer_sources() == {
        "cifar100": f"npz={tmp_path / 'cifar100.npz'}",
        "pets": f"folder={tmp_path / 'pets64'}",
    }
    (tmp_path / "cifar-100-python").mkdir()
    assert places.located(config).data.source == "cifar100"
    assert number("64.88 ± 0.17") == 64.88
    assert number("around") is None
