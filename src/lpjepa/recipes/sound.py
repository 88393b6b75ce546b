"""Whether a recipe names only what there is, said before anything is trained for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from lpjepa._names import suggestion
from lpjepa.recipes.cases import SCALES, config_of
from lpjepa.recipes.catalog import Recipe
from lpjepa.recipes.claim_rows import ONE_ROW
from lpjepa.recipes.claim_tests import TESTS
from lpjepa.recipes.collected import matches
from lpjepa.recipes.pieces import PIECES
from lpjepa.recipes.values import METRICS, metric

SEVERAL_ROWS = ("rows", "against")


def check_recipe(recipe: Recipe) -> None:
    """Refuses a recipe that could not be trained, rendered or judged; the sentence names its file."""
    try:
        _check(recipe)
    except ValueError as error:
        raise ValueError(f"recipe {recipe.kind}s/{recipe.name}.yaml: {error}") from None


def _check(recipe: Recipe) -> None:
    for case in recipe.cases("paper"):
        config_of(case, "paper", seed=0)  # its method, its base and its keys
    for piece in recipe.pieces:
        _known("piece", piece, PIECES)
    for column in recipe.columns_at("paper"):
        _check_column(column)
    from lpjepa.recipes.plots import AXES, WHOLE

    for panel in recipe.panels:
        _known("plot", panel.get("plot"), [*AXES, *WHOLE])
    for claim in recipe.claims:
        for test in claim["tests"]:
            _check_test(recipe, test)


def _check_test(recipe: Recipe, test: Mapping[str, Any]) -> None:
    _known("kind of claim", test.get("kind"), TESTS)
    for column in [test["column"]] if "column" in test else test.get("columns", ()):
        _check_column(column)
    for key in (*ONE_ROW, *SEVERAL_ROWS):
        condition = test.get(key)
        if isinstance(condition, Mapping):
            found = any(matches(case, condition) for scale in SCALES for case in recipe.cases(scale))
            if not found:
                raise ValueError(f"a claim is about a row {dict(condition)}, and there is none")


def _check_column(name: str) -> None:
    try:
        metric(name)
    except ValueError:
        _known("column", name, METRICS)


def _known(what: str, name: Any, names: Collection[str]) -> None:
    if name not in names:
        raise ValueError(f"there is no {what} {name!r}; {suggestion(name, names)}")
