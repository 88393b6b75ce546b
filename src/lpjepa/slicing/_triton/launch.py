"""Launching kernels without Triton's look at every argument.

Triton's launcher inspects types, alignments and values of all arguments each time, which takes longer than
the kernels here run. A call whose shapes and types were seen before takes the kernel compiled then.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

_compiled: dict[Hashable, Any] = {}
_direct = True


def launch(
    seen: Hashable, kernel: Any, grid: tuple[int, int, int], args: tuple[Any, ...],
    constants: dict[str, Any], **options: int,
) -> None:  # fmt: skip
    """Launches `kernel` on `args` and then `constants`, which must be its last parameters, in order.

    seen: whatever the types, alignments and divisibilities of `args` depend on, the device included.
    """
    global _direct
    key = (kernel.fn, seen, *constants.values())
    compiled = _compiled.get(key)
    if compiled is not None and _direct:
        try:
            compiled[grid](*args, *constants.values())
            return
        except TypeError:
            # A version of Triton with another calling convention; nothing has been launched.
            _direct = False
    compiled = kernel[grid](*args, **constants, **options)
    if compiled is not None:  # the interpreter returns nothing
        _compiled[key] = compiled
