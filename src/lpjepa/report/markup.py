"""Small pieces of HTML. Everything that comes from a run passes through :func:`text` and is escaped."""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

# The same shapes as matplotlib's markers in figures/style.py and chart.js: circle, square, triangle, ...
_SHAPES = (
    '<circle cx="7" cy="7" r="5.5"/>',
    '<path d="M2 2H12V12H2Z"/>',
    '<path d="M7 1L13 12.5H1Z"/>',
    '<path d="M7 0.5L13.5 7L7 13.5L0.5 7Z"/>',
    '<path d="M7 13L13 1.5H1Z"/>',
)


@dataclass(frozen=True)
class Cell:
    """A table cell: what is shown, what it is sorted by, and a class (``best``, ``prediction``)."""

    shown: str
    value: float | None = None
    kind: str = ""


def text(value: object) -> str:
    """``value`` as escaped HTML text, also inside attributes."""
    return html.escape(str(value), quote=True)


def template(name: str) -> str:
    return resources.files("lpjepa.report").joinpath(f"templates/{name}").read_text(encoding="utf-8")


def script_data(data: Any) -> str:
    """JSON for a data block: ``<`` and ``&`` are escaped, so that no string can end the element.

    Numbers that are not finite, which JSON lacks, become null.
    """
    dumped = json.dumps(_finite(data), ensure_ascii=True, allow_nan=False)
    return dumped.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {str(key): _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return data


def swatch(index: int) -> str:
    """The coloured marker that stands for a run in tables, figures and the explorer."""
    return (
        f'<svg class="mark dot run-{index % 8}" viewBox="0 0 14 14" aria-hidden="true">'
        f"{_SHAPES[index % len(_SHAPES)]}</svg>"
    )


def table(
    headers: Sequence[str],
    rows: Sequence[tuple[str, Sequence[Cell]]],
    caption: str,
    sortable: bool = False,
) -> str:
    """A table whose first column names its rows. ``headers`` and row names are HTML, cells are plain text.

    It scrolls inside its own region, which can be focused, so that the page never scrolls sideways.
    """

    def head(index: int, name: str) -> str:
        textual = index > 0 and rows and rows[0][1][index - 1].kind == "text"
        kind = _attribute("class", "text" if textual else "")
        if not sortable:
            return f'<th scope="col"{kind}>{name}</th>'
        return f'<th scope="col"{kind} aria-sort="none"><button type="button">{name}</button></th>'

    body = []
    for name, cells in rows:
        body.append(f'<tr><th scope="row">{name}</th>{"".join(_td(cell) for cell in cells)}</tr>')
    return (
        # Not a <caption>: that would be as wide as the table and scroll with it on a phone.
        f'<p class="caption">{text(caption)}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}">'
        f"<table{_attribute('class', 'sortable' if sortable else '')}>"
        f"<thead><tr>{''.join(head(i, name) for i, name in enumerate(headers))}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _td(cell: Cell) -> str:
    value = "" if cell.value is None else _attribute("data-value", repr(float(cell.value)))
    return f"<td{_attribute('class', cell.kind)}{value}>{text(cell.shown)}</td>"


def _attribute(name: str, value: str) -> str:
    return f' {name}="{text(value)}"' if value else ""


def number(value: float | None, digits: int = 3, kind: str = "") -> Cell:
    """A number with fixed decimals; a value that is missing or not finite is an empty cell."""
    if value is None or not math.isfinite(value):
        return Cell("", None, kind)
    return Cell(f"{value:.{digits}f}", value, kind)


def percent(value: float | None, kind: str = "", spread: float | None = None) -> Cell:
    """A fraction as a percentage with two decimals, as in the paper's tables, with ± its deviation."""
    cell = number(None if value is None else 100 * value, 2, kind)
    if cell.value is None or spread is None or not math.isfinite(spread):
        return cell
    return Cell(f"{cell.shown} ± {100 * spread:.2f}", cell.value, kind)


def picture(light: bytes, dark: bytes, alt: str, caption: str, kind: str = "svg") -> str:
    """A figure that follows the reader's colour scheme, both variants embedded; ``caption`` is HTML."""
    mime = {"svg": "image/svg+xml", "png": "image/png"}[kind]
    day, night = (f"data:{mime};base64,{base64.b64encode(data).decode()}" for data in (light, dark))
    return (
        f"<figure><figcaption>{caption}</figcaption><picture>"
        f'<source media="(prefers-color-scheme: dark)" srcset="{night}">'
        f'<img src="{day}" alt="{text(alt)}"></picture></figure>'
    )


def note(message: str) -> str:
    """One line that says what is missing and which command makes it."""
    return f'<p class="note-line">{text(message)}</p>'


def section(identifier: str, title: str, *parts: str) -> str:
    return (
        f'<section id="{identifier}" aria-labelledby="{identifier}-title">'
        f'<h2 id="{identifier}-title">{text(title)}</h2>{"".join(parts)}</section>'
    )
