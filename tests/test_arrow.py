"""Packages import in the direction in which data flow, and no module waits for itself at import."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import lpjepa

ROOT = Path(lpjepa.__file__).parent
# Each imports from those before it: a loss is then usable without what trains, training without what
# measures, and a change is felt in one direction only. `inference` loads runs and reads their evaluations,
# a report looks at features through it, recipes are made of all these, `bench` measures them, and commands
# start everything.
ORDER = (
    "distributions", "slicing", "losses", "metrics", "models", "data", "training", "evaluation", "inference",
    "report", "recipes", "bench", "_commands", "cli", "__main__",
)  # fmt: skip


def imports(node, functions):
    """The modules that a module imports: at import time, or also when its `functions` are called."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are written in full"
            yield from (found(f"{child.module}.{alias.name}", child.module) for alias in child.names)
        elif functions or not later(child):
            yield from imports(child, functions)


def later(node):
    typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    return typing or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def found(name, otherwise):
    path = ROOT.parent.joinpath(*name.split("."))
    return name if path.is_dir() or path.with_suffix(".py").is_file() else otherwise


def graph(functions):
    result = {}
    for path in ROOT.rglob("*.py"):
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        result[name] = {other for other in imports(tree, functions) if other.split(".")[0] == "lpjepa"}
    return result


def rank(module):
    """Modules that lie beside the packages serve them all and come first."""
    part = (*module.split("."), "")[1]
    return ORDER.index(part) + 1 if part in ORDER else 0


def test_packages_import_from_those_before_them():
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} <= set(ORDER)
    at_import, ever = graph(functions=False), graph(functions=True)
    for module in ever:
        # `lpjepa.load` and draws of a target look further down, but only when they are called.
        others = at_import[module] if rank(module) == 0 else ever[module]
        assert {other for other in others if rank(other) > rank(module)} == set(), module


def test_no_module_waits_for_itself():
    TopologicalSorter(graph(functions=False)).prepare()
