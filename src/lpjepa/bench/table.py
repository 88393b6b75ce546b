"""Rows of plain values as one table: Markdown that also reads well in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Column(NamedTuple):
    """A heading, and how a row's cell reads: `show(row)`, empty where there is nothing to say."""

    heading: str
    show: Callable[[Mapping[str, Any]], str]
    left: bool = False


def markdown(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> str:
    """The table, its columns padded to one width."""
    cells = [[column.heading for column in columns]]
    cells += [[column.show(row) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    pad = lambda i, text: text.ljust(widths[i]) if columns[i].left else text.rjust(widths[i])
    lines = ["| " + " | ".join(pad(i, text) for i, text in enumerate(line)) + " |" for line in cells]
    rule = "|".join(
        "-" * (width + 2) if column.left else "-" * (width + 1) + ":"
        for column, width in zip(columns, widths)
    )
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


def text(heading: str, key: str) -> Column:
    return Column(heading, lambda row: str(row.get(key, "")), left=True)


def number(heading: str, key: str, form: str = ".3g") -> Column:
    """A number by its format; empty where the row has none."""
    return Column(heading, lambda row: "" if row.get(key) is None else format(row[key], form))


def spread(heading: str, low: str, high: str, form: str = ".3g") -> Column:
    """Two numbers as a range, such as the quartiles."""
    return Column(
        heading,
        lambda row: "" if row.get(low) is None else f"{row[low]:{form}} to {row[high]:{form}}",
    )
