"""A recipe with what was measured for it: its cases at a scale and the results of their seeds.

A row that has no result of the recipe's own seeds shows that of another seed which other recipes train, until
its own is there; such a result counts as none of those that the recipe wants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lpjepa.recipes.cases import Case, config_of
from lpjepa.recipes.catalog import Recipe, catalog
from lpjepa.recipes.store import Result, Store
from lpjepa.recipes.values import measured

SHORT = {"model.projector_dim": "D", "loss.num_slices": "N", "train.epochs": "epochs", "sigma": "σ"}


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
        """The trainings that the recipe wants and that there are; other seeds in their place do not count."""
        wanted = self.recipe.seeds_at(self.scale)
        return sum(result["seed"] in wanted for result in self.results())

    @property
    def rows(self) -> int:
        """The rows that have any result."""
        return sum(bool(entry.results) for entry in self.entries)

    def name(self, entry: Entry) -> str:
        """An entry's label, with what tells it from others of that label: its group, or its own keys."""
        same = [other for other in self.entries if other.case.label == entry.case.label]
        if len(same) == 1:
            return entry.case.label
        if len({other.case.group for other in same}) == len(same):
            return f"{entry.case.label}, {entry.case.group}"
        keys = {key for other in same for key in other.case.values}
        telling: dict[tuple[int, ...], str] = {}  # one key for each way in which they differ
        for key in sorted(keys - {"base"}):
            values = [str(other.case[key]) for other in same]
            if len(set(values)) > 1:
                telling.setdefault(tuple(map(values.index, values)), key)
        said = [f"{SHORT.get(key, key)} = {entry.case[key]}" for key in telling.values()]
        return ", ".join([entry.case.label, *said])

    def where(self, condition: Mapping[str, Any] | None) -> list[Entry]:
        """The entries whose fields are as stated; a field stated as null must not be set."""
        return [entry for entry in self.entries if matches(entry.case, condition or {})]

    def series(
        self, fields: Sequence[str], condition: Mapping[str, Any] | None = None
    ) -> dict[str, list[Entry]]:
        """Entries by the values of some fields, such as `p = 1.0`, in the order of the rows."""
        grouped: dict[str, list[Entry]] = {}
        for entry in self.where(condition):
            words = [
                str(entry.case.group) if key == "group" else f"{SHORT.get(key, key)} = {entry.case[key]}"
                for key in fields
            ]
            label = ", ".join(words).replace("σ = rgn", "σ_RGN").replace("σ = gn", "σ_GN")
            grouped.setdefault(label, []).append(entry)
        return grouped

    def lines(self) -> dict[str, list[Entry]]:
        """The rows of each line of a figure or group of a table; a row without a group is its own."""
        found: dict[str, list[Entry]] = {}
        for panel in self.recipe.panels or ({"series": ["group"]},):
            fields = ["group"] if "lines" in panel else panel.get("series", ())
            for label, entries in self.series(fields, panel.get("where")).items():
                for entry in entries if fields else ():
                    rows = found.setdefault(label or entry.case.label, [])
                    if all(row is not entry for row in rows):  # several panels show it
                        rows.append(entry)
        return found

    def results(self) -> list[Result]:
        return [result for entry in self.entries for result in entry.results]

    def trained_epochs(self) -> list[int]:
        """The lengths of the trainings that there are."""
        return sorted({result["config"]["train"]["epochs"] for result in self.results()})

    def identities(self) -> frozenset[str]:
        return frozenset(result["identity"] for result in self.results())

    def reference(self, entry: Entry) -> Entry | None:
        """The recipe's `against` row with the same mu; None for that row itself."""
        others = self.where({**self.recipe.against, "mu": entry.case["mu"]}) if self.recipe.against else []
        return others[0] if others and others[0] is not entry else None

    def change(self, entry: Entry, name: str) -> float | None:
        """`name` of an entry less that of its reference, over the seeds that both have."""
        other = self.reference(entry)
        if other is None:
            return None
        seeds = {result["seed"] for result in entry.results} & {result["seed"] for result in other.results}
        means = [
            measured(name, row.case, [result for result in row.results if result["seed"] in seeds])
            for row in (entry, other)
        ]
        return None if means[0] is None or means[1] is None else means[0][0] - means[1][0]


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
    others = sorted({seed for other in catalog().values() for seed in other.seeds_at(scale)} - set(seeds))
    epochs = recipe.epochs_at(scale) if epochs is None else epochs

    def of(case: Case, seed: int) -> tuple[Result, ...]:
        result = store.get(config_of(case, scale, seed, epochs, changes))
        return () if result is None or not _serves(result, recipe) else (result,)

    for case in recipe.cases(scale):
        results = tuple(result for seed in seeds for result in of(case, seed))
        if not results and not recipe.alone:  # times are those of the recipe's own trainings
            results = next((found for seed in others if (found := of(case, seed))), ())
        entries.append(Entry(case, results))
    return Collected(recipe, scale, tuple(entries), len(entries) * len(seeds), epochs)
