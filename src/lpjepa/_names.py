"""What to say of a name that is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(name: object, known: Iterable[str], otherwise: str | None = None) -> str:
    """`did you mean NEAREST?` where one is near; else `otherwise`, or all that there are."""
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {near[0]}?" if near else otherwise or f"there are {', '.join(known)}"
