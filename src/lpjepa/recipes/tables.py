"""A table in the paper's form with the paper's values beside ours: Markdown and LaTeX.

In each column of ours the best value is bold and, in LaTeX, the second underlined, as the paper does, once
every row has one: the best of those trained so far says nothing. Sweeps over mu beside a plain loss have no
best, and times only those of trainings that ran alone. A cell that waits for results is a dash; one without a
meaning (the l0 of a target that is none), empty. A group with neither results nor values of the paper is left
out once others have results.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lpjepa.recipes.cases import PREDICTED
from lpjepa.recipes.collected import Collected
from lpjepa.recipes.setting import length
from lpjepa.recipes.values import measured, metric

MISSING = "–"
OF_TARGET = re.compile(r"_theory$|_gap$")


def markdown(collected: Collected) -> str:
    """The table as Markdown."""
    rows = _rows(collected, latex=False)
    if collected.recipe.transpose:
        rows = _transposed(rows)
    lines = [_line(rows[0]), _line(["---"] * len(rows[0])), *(_line(row) for row in rows[1:])]
    return "\n".join(lines) + "\n"


def latex(collected: Collected) -> str:
    r"""The table as a LaTeX `table` (booktabs), groups apart by \midrule."""
    recipe = collected.recipe
    rows = _rows(collected, latex=True)
    if recipe.transpose:
        rows = _transposed(rows)
    grouped = not recipe.transpose and any(entry.case.group for entry in collected.entries)
    align = "l" * (2 if grouped else 1) + "c" * (len(rows[0]) - (2 if grouped else 1))
    body = []
    for position, row in enumerate(rows[1:]):
        if grouped and position and row[0]:
            body.append(r"    \midrule")
        body.append("    " + " & ".join(row) + r" \\")
    whose = "the paper's" if recipe.beside == "paper" else recipe.beside
    beside = f"; ours, then {whose}" if any(entry.case.paper for entry in collected.entries) else ""
    trained = f", {length(collected)}" if collected.results() else ""
    caption = f"{recipe.title} ({collected.scale} scale{trained}{beside})"
    return "\n".join(
        [
            r"\begin{table}[ht!]",
            f"  \\caption{{\\textbf{{{_escaped(caption)}.}} {_escaped(recipe.caption)}}}",
            f"  \\label{{tab:{recipe.name}-{collected.scale}}}",
            r"  \centering",
            r"  \small",
            f"  \\begin{{tabular}}{{{align}}}",
            r"    \toprule",
            "    " + " & ".join(rows[0]) + r" \\",
            r"    \midrule",
            *body,
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _rows(collected: Collected, latex: bool) -> list[list[str]]:
    """Header and rows; a column of ours is followed by the paper's where it has one."""
    recipe, scale = collected.recipe, collected.scale
    grouped = not recipe.transpose and any(entry.case.group for entry in collected.entries)
    published = set(recipe.paper_columns()) if any(e.case.paper for e in collected.entries) else set()
    header = ["", *([""] if grouped else [])]
    columns: list[list[str]] = []
    for name in recipe.columns_at(scale):
        header.append(metric(name).latex if latex else metric(name).heading)
        columns.append(
            _changes(collected, name) if name.startswith("change/") else _ours(collected, name, latex)
        )
        paper = [_paper(recipe.published(entry.case, name, scale), name) for entry in collected.entries]
        if name in published and any(paper):
            header.append(_escaped(recipe.beside) if latex else recipe.beside)
            columns.append([cell.replace("±", "$\\pm$") if latex else cell for cell in paper])
    rows, group = [header], ""
    filled = {entry.case.group for entry in collected.entries if entry.results or entry.case.paper}
    for position, entry in enumerate(collected.entries):
        if filled and entry.case.group not in filled:
            continue
        start = [entry.case.latex if latex else entry.case.label]
        if grouped:
            shown = entry.case.group if entry.case.group != group else ""
            start.insert(0, (f"\\textbf{{{_escaped(shown)}}}" if latex and shown else shown))
            group = entry.case.group
        rows.append([*start, *(column[position] for column in columns)])
    return rows


def _ours(collected: Collected, name: str, latex: bool) -> list[str]:
    entries, recipe = collected.entries, collected.recipe
    known = [measured(name, entry.case, entry.results) for entry in entries]
    digits = metric(name).digits
    meant = [not OF_TARGET.search(name) or entry.case["method"] in PREDICTED for entry in entries]
    complete = all(value is not None for value, is_meant in zip(known, meant) if is_meant)
    compared = complete and not recipe.against and (name != "minutes" or recipe.alone)
    better = metric(name).better if compared else 0
    shown = [None if value is None else round(value[0], digits) for value in known]
    ranks = sorted({value for value in shown if value is not None}, reverse=better > 0)
    cells = []
    for entry, value, rounded, is_meant in zip(entries, known, shown, meant):
        if value is None or rounded is None:
            cells.append("" if not is_meant else MISSING if not latex else "--")
            continue
        text = f"{rounded:.{digits}f}"
        if value[1] is not None and not name.endswith("_theory"):
            text += f" ± {value[1]:.{digits}f}" if not latex else f" $\\pm$ {value[1]:.{digits}f}"
        own = [r["seed"] for r in entry.results if measured(name, entry.case, [r]) is not None]
        if len(own) < len(entry.results):
            text += f" (seed {', '.join(map(str, own))})"
        if better and len(ranks) > 1 and rounded == ranks[0]:
            text = f"\\textbf{{{text}}}" if latex else f"**{text}**"
        elif better and latex and len(ranks) > 2 and rounded == ranks[1]:
            text = f"\\underline{{{text}}}"
        cells.append(text)
    return cells


def _changes(collected: Collected, name: str) -> list[str]:
    """Signed differences from the rows that the recipe is held against; empty for these themselves."""
    cells = []
    for entry in collected.entries:
        value = collected.change(entry, name.removeprefix("change/"))
        cells.append("" if value is None else f"{value:+.{metric(name).digits}f}")
    return cells


def _paper(value: object, name: str) -> str:
    if value is None:
        return ""
    return f"{value:.{metric(name).digits}f}" if isinstance(value, (int, float)) else str(value)


def _transposed(rows: list[list[str]]) -> list[list[str]]:
    return [list(column) for column in zip(*rows)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _escaped(text: str) -> str:
    for mark in "&%#_":
        text = text.replace(mark, f"\\{mark}")
    return text
