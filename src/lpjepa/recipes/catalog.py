"""Every table and figure of the paper as data: `tables/*.yaml` and `figures/*.yaml`, one recipe a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from importlib import resources
from typing import Any

from lpjepa._names import suggestion
from lpjepa.recipes.cases import Case, averaged, expand, read_yaml, scale_of

# Columns that the paper has not: predictions, distances from them, changes, probes fitted to the end, speeds.
OURS = re.compile(r"_theory$|_gap$|_frozen$|_chosen$|_train$|^dead$|^images_per_second$|^change/")


@dataclass(frozen=True)
class Recipe:
    """What a table or figure shows, what it needs, and what the paper says.

    Attributes:
        label: the paper's own labels, `tab:...` or `fig:...`; none for studies of ours.
        rows: trainings (see `cases`); none where the figure is mathematics.
        columns: of a table, names of `values.METRICS`.
        panels: of a figure, each with `plot` (see `plots`) and its options.
        pieces: what must be computed on the trained models besides the training's own numbers.
        seeds: by scale, where they differ from those of the scale.
        epochs: likewise; a sweep over many trainings may do with fewer than a table of accuracies.
        against: the rows that `change/COLUMN` is counted from, each for those with its mu.
        alone: time is measured, so nothing else may run on the device.
        claims: see `claims`.
        notes: by scale, what a reader of the numbers must know besides.
        reported: numbers that the paper gives in its text.
        beside: whose values stand beside ours in a table.
    """

    name: str
    kind: str
    title: str
    order: int
    label: tuple[str, ...] = ()
    caption: str = ""
    base: str = "cifar100"
    rows: tuple[Mapping[str, Any], ...] = ()
    columns: tuple[str, ...] = ()
    panels: tuple[Mapping[str, Any], ...] = ()
    pieces: tuple[str, ...] = ()
    seeds: Mapping[str, list[int]] = field(default_factory=dict)
    epochs: Mapping[str, int] = field(default_factory=dict)
    against: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False
    transpose: bool = False
    claims: tuple[Mapping[str, Any], ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    reported: tuple[Mapping[str, Any], ...] = ()
    across: int = 3
    beside: str = "paper"

    def cases(self, scale: str) -> list[Case]:
        return [case for row in self.rows for case in expand(row, self.base, scale)]

    def seeds_at(self, scale: str) -> list[int]:
        return list(self.seeds.get(scale, scale_of(scale)["seeds"]))

    def epochs_at(self, scale: str) -> int | None:
        """Epochs in place of those of the base, or None; rows that set their own keep them."""
        return self.epochs.get(scale)

    def columns_at(self, scale: str) -> list[str]:
        """The columns; `transfer/*/...` stands for one a data set of the scale, then their mean."""
        found: list[str] = []
        for column in self.columns:
            if "/*/" not in column:
                found.append(column)
                continue
            found += [column.replace("*", source) for source in [*scale_of(scale)["transfer"], "avg."]]
        return found

    def paper_columns(self) -> list[str]:
        """The columns that `paper` in a row counts, which are those of the paper's scale."""
        return [column for column in self.columns_at("paper") if not OURS.search(column)]

    def published(self, case: Case, column: str, scale: str = "paper") -> Any:
        """The paper's value of a case in a column, or None; `avg.` over the data sets of the scale's."""
        known = dict(zip(self.paper_columns(), case.paper))
        if "/avg./" not in column or scale == "paper":
            return known.get(column)
        shared = [known.get(column.replace("avg.", source)) for source in averaged(scale)]
        values = [value for value in shared if value is not None]
        return sum(values) / len(values) if values else None

    @property
    def trains(self) -> bool:
        return bool(self.rows)


@lru_cache
def catalog() -> dict[str, Recipe]:
    """All recipes by name, in the order of the paper."""
    found = []
    for folder in ("tables", "figures"):
        for entry in sorted((resources.files("lpjepa.recipes") / folder).iterdir(), key=lambda e: e.name):
            if entry.name.endswith(".yaml"):
                found.append(_read(folder[:-1], entry.name.removesuffix(".yaml"), f"{folder}/{entry.name}"))
    return {recipe.name: recipe for recipe in sorted(found, key=lambda r: r.order)}


def _read(kind: str, name: str, path: str) -> Recipe:
    data = dict(read_yaml(path))
    label = data.pop("label", ())
    data["label"] = (label,) if isinstance(label, str) else tuple(label)
    for key in ("rows", "columns", "panels", "pieces", "claims", "reported"):
        data[key] = tuple(data.get(key, ()))
    own = {one.name for one in fields(Recipe)} - {"name", "kind"}
    for key in data:
        if key not in own:
            raise ValueError(f"recipe {path}: there is no key {key!r}; {suggestion(key, sorted(own))}")
    for key in ("title", "order"):
        if key not in data:
            raise ValueError(f"recipe {path}: the key {key!r} is missing")
    return Recipe(name=name, kind=kind, **data)


def select(names: Iterable[str]) -> list[Recipe]:
    """Recipes by name or the paper's label; `tables`, `figures` and `all` stand for many."""
    recipes = catalog()
    chosen: dict[str, Recipe] = {}
    for name in names:
        if name in ("tables", "figures", "all"):
            chosen |= {n: r for n, r in recipes.items() if name == "all" or r.kind == name[:-1]}
        elif name in recipes:
            chosen[name] = recipes[name]
        elif labelled := {n: r for n, r in recipes.items() if name in r.label}:
            chosen |= labelled
        else:
            hint = suggestion(name, recipes, "`lpjepa reproduce` lists what there is")
            raise ValueError(f"there is no recipe {name!r}; {hint}")
    return list(chosen.values())


__all__ = ["Recipe", "catalog", "select"]
