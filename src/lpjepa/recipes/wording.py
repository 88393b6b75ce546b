"""Symbols in text: recipes are written in plain ASCII (l0, mu, sigma_GN), pages show ℓ0, μ and σ_GN."""

from __future__ import annotations

import re

_BEFORE, _AFTER = r"(?<![\w.-])", r"(?![\w-]|\.\w)"  # no part of a word, a key (target.mu) or a file's name
SYMBOLS = (
    (re.compile(rf"{_BEFORE}l([01]){_AFTER}"), r"ℓ\1"),
    (re.compile(rf"{_BEFORE}l_p{_AFTER}"), "ℓ_p"),
    (re.compile(rf"{_BEFORE}mu{_AFTER}"), "μ"),
    (re.compile(rf"{_BEFORE}sigma(?=_R?GN\b|{_AFTER})"), "σ"),
)


def typeset(text: str) -> str:
    """`text` with symbols in the place of their names, except between backticks."""
    parts = text.split("`")
    for position in range(0, len(parts), 2):
        for name, symbol in SYMBOLS:
            parts[position] = name.sub(symbol, parts[position])
    return "`".join(parts)
