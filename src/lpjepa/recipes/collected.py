"""A recipe with what was measured for it: its cases at a scale and the results of their seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lpjepa.recipes.cases import Case, config_of
from lpjepa.recipes.catalog import Recipe
from lpjepa.recipes.store import Result, Store
from lpjepa.recipes.values import measured


@dataclass(frozen=True)
class Entry:
    """A case and the results of its seeds that there are."""

    case: Case
    results: tuple[Result, ...]

    def mean(self, name: str) -> float | None:
        found = measured(name, self.case, self.results)
        return None if found is None else found[0]


@dataclass(frozen=True)
class Collected:
    """All entries of a recipe at a scale."""

    recipe: Recipe
    scale: str
    entries: tuple[Entry, ...]
    wanted: int  # trainings, all seeds counted
    epochs: int | None = None  # in place of those of the base

    @property
    def found(self) -> int:
        return sum(len(entry.results) for entry in self.entries)

    def where(self, condition: Mapping[str, Any] | None) -> list[Entry]:
        """The entries whose fields are as stated; a field stated as null must not be set."""
        return [entry for entry in self.entries if matches(entry.case, condition or {})]

    def results(self) -> list[Result]:
        return [result for entry in self.entries for result in entry.results]

    def trained_epochs(self) -> list[int]:
        """The lengths of the trainings that there are."""
        return sorted({result["config"]["train"]["epochs"] for result in self.results()})

    def identities(self) -> frozenset[str]:
        return frozenset(result["identity"] for result in self.results())

    def change(self, entry: Entry, name: str) -> float | None:
        """`name` of an entry less that of the recipe's `against` row with the same mu; None for that row."""
        others = self.where({**self.recipe.against, "mu": entry.case["mu"]})
        if not self.recipe.against or not others or others[0] is entry:
            return None
        ours, theirs = entry.mean(name), others[0].mean(name)
        return None if ours is None or theirs is None else ours - theirs


def matches(case: Case, condition: Mapping[str, Any]) -> bool:
    return all((case.group if key == "group" else case[key]) == value for key, value in condition.items())


def _serves(result: Result, recipe: Recipe) -> bool:
    """Whether a result has the pieces that the recipe shows (of downstream sets, at least one)."""
    return all(result["pieces"].get(name) for name in recipe.pieces)


def collect(
    recipe: Recipe,
    scale: str,
    store: Store,
    epochs: int | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Collected:
    """What `store` holds of a recipe's trainings; `epochs` in place of the recipe's own."""
    entries, seeds = [], recipe.seeds_at(scale)
    epochs = recipe.epochs_at(scale) if epochs is None else epochs
    for case in recipe.cases(scale):
        found = (store.get(config_of(case, scale, seed, epochs, changes)) for seed in seeds)
        entries.append(Entry(case, tuple(r for r in found if r is not None and _serves(r, recipe))))
    return Collected(recipe, scale, tuple(entries), len(entries) * len(seeds), epochs)
