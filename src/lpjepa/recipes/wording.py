"""Symbols in text: recipes are written in plain ASCII (l0, mu, sigma_GN), pages show ℓ0, μ and σ_GN."""

from __future__ import annotations

import re

SYMBOLS = (
    (re.compile(r"(?<![\w-])l([01])(?![\w-])"), r"ℓ\1"),
    (re.compile(r"(?<![\w-])l_p(?![\w-])"), "ℓ_p"),
    (re.compile(r"(?<![\w-])mu(?![\w-])"), "μ"),
    (re.compile(r"(?<![\w-])sigma(?=_R?GN\b|(?![\w-]))"), "σ"),
)


def typeset(text: str) -> str:
    """`text` with symbols in the place of their names, except between backticks."""
    parts = text.split("`")
    for position in range(0, len(parts), 2):
        for name, symbol in SYMBOLS:
            parts[position] = name.sub(symbol, parts[position])
    return "`".join(parts)
