"""A recipe's files: NAME.md always, with NAME.tex for a table, NAME.png and NAME.svg for a figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lpjepa.recipes import tables
from lpjepa.recipes.claims import Verdict, verdicts
from lpjepa.recipes.collected import Collected
from lpjepa.recipes.places import Places
from lpjepa.recipes.setting import provenance, setting, untrained
from lpjepa.recipes.wording import typeset


def render(collected: Collected, places: Places, folder: Path) -> list[Path]:
    """Write a recipe's files into `folder`; rows and panels without results show that they are missing."""
    from lpjepa.recipes.plots import draw
    from lpjepa.report.figures import save

    folder.mkdir(parents=True, exist_ok=True)
    recipe = collected.recipe
    paths = []
    if recipe.kind == "table":
        paths.append(folder / f"{recipe.name}.tex")
        paths[-1].write_text(tables.latex(collected), encoding="utf-8")
    else:
        paths += save(lambda: draw(collected, places), folder, recipe.name)
    page = folder / f"{recipe.name}.md"
    page.write_text(
        f"# {typeset(recipe.title)}\n\n{section(collected, f'{recipe.name}.png')}", encoding="utf-8"
    )
    return [page, *paths]


def section(collected: Collected, picture: str, spread: Mapping[str, float] | None = None) -> str:
    """Caption, both settings, table or picture, values of the paper's text, verdicts, where it comes from."""
    recipe = collected.recipe
    parts = [typeset(recipe.caption.strip())]
    if recipe.label:
        parts[0] += f" (The paper's `{recipe.label[0]}`.)"
    if recipe.trains:
        parts.append(f"{setting(collected)} {untrained(collected)}".strip())
    if note := recipe.notes.get(collected.scale):
        parts[-1] = f"{parts[-1]} {typeset(note.strip())}".strip()
    if recipe.kind == "table":
        parts.append(tables.markdown(collected).strip())
    else:
        parts.append(f"![{typeset(recipe.title)}]({picture})")
        if recipe.trains and any(panel["plot"] == "bars" for panel in recipe.panels):
            parts.append(_figure_values(collected))
    if recipe.reported:
        parts.append(_reported(recipe.reported))
    if found := verdicts(collected, spread):
        parts.append(verdict_table(found))
    if recipe.trains:
        parts.append(provenance(collected))
    if recipe.trains and collected.scale == "smoke":
        parts.append("The smoke scale proves that the machinery runs, and nothing about the method.")
    return "\n\n".join(part for part in parts if part) + "\n"


def verdict_table(found: list[Verdict]) -> str:
    lines = ["| claim | verdict | found |", "| --- | --- | --- |"]
    for verdict in found:
        grounds = typeset("; ".join(verdict.grounds).replace("|", "\\|"))
        lines.append(f"| {typeset(verdict.claim)} | **{verdict.word}** | {grounds} |")
    return "\n".join(lines)


def _figure_values(collected: Collected) -> str:
    """The numbers behind bars, as a table."""
    from lpjepa.recipes.values import heading, metric

    names = [name for panel in collected.recipe.panels if panel["plot"] == "bars" for name in panel["y"]]
    lines = ["| | " + " | ".join(heading(name) for name in names) + " |", "| --- " * (len(names) + 1) + "|"]
    for entry in collected.entries:
        values = [entry.mean(name) for name in names]
        cells = [tables.MISSING if v is None else f"{v:.{metric(n).digits}f}" for n, v in zip(names, values)]
        lines.append(f"| {entry.case.label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _reported(reported: tuple[Mapping[str, Any], ...]) -> str:
    """Numbers that the paper's text states, beside ours from the closed forms."""
    lines = ["| | ours | paper |", "| --- | --- | --- |"]
    lines += [f"| {typeset(item['what'])} | {closed_form(item):.5g} | {item['paper']} |" for item in reported]
    return "\n".join(lines)


def closed_form(item: Mapping[str, Any]) -> float:
    """A quantity of a target by name: variance, sigma, l0, or the bisections until an error of 1e-10."""
    from lpjepa.distributions import RectifiedGeneralizedGaussian, sigma_gn, sigma_rgn
    from lpjepa.recipes.plots.mathematics import bisection_errors, variances

    p, mu = float(item["p"]), float(item["mu"])
    if item["quantity"] == "variance":
        one = lambda value: torch.full((1, 1), value, dtype=torch.float64)
        return float(variances(one(mu), one(p), item["sigma"], item["rectified"], False))
    if item["quantity"] == "sigma":
        return sigma_gn(p) if item["sigma"] == "gn" else sigma_rgn(p, mu)
    if item["quantity"] == "l0":
        target = RectifiedGeneralizedGaussian.from_location(mu, p, item["sigma"], dtype=torch.float64)
        return float(target.active_probability)
    return 1.0 + next(i for i, error in enumerate(bisection_errors(p, mu)) if error < 1e-10)
