"""Every table and figure of the paper, as data, and what runs, collects and renders them.

from lpjepa.recipes import Places, collect, plan, render, select, sweep
places = Places(Path("runs/reproduce"), Path("results"), Path("data"), "smoke")
recipes = select(["cifar100"])
sweep(plan(recipes, "smoke"), places)
render(collect(recipes[0], "smoke", Store(places.results, "smoke")), places, Path("reproduction"))
"""

from lpjepa.recipes.catalog import Recipe, catalog, select
from lpjepa.recipes.collected import Collected, collect
from lpjepa.recipes.places import Places
from lpjepa.recipes.planning import plan
from lpjepa.recipes.render import render
from lpjepa.recipes.store import Store
from lpjepa.recipes.sweep import sweep

__all__ = [
    "Collected",
    "Places",
    "Recipe",
    "Store",
    "catalog",
    "collect",
    "plan",
    "render",
    "select",
    "sweep",
]
