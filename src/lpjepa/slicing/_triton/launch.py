"""Launching kernels without Triton's look at every argument.

Triton's launcher inspects types, alignments and values of all arguments each time, which takes longer than
the kernels here run. A `Launch` is a kernel with all that follows from shapes and types: its grid, numbers
and constants. Only its first call goes through Triton; the others hand the addresses of their tensors to the
kernel that was compiled then. Functions keep launches with `functools.lru_cache(KEPT)`, by whatever the types
and alignments of the tensors depend on, the device included. They hold no device memory.
"""

from __future__ import annotations

from typing import Any

import torch
from triton.runtime import driver

from lpjepa.slicing._triton.buffers import Buffer, Place

try:
    from triton import knobs
except ImportError:  # before version 3.4
    knobs = None

KEPT = 256  # launches or plans of them, for as many shapes
_direct = True


class Launch:
    """`kernel` with the numbers that follow its tensors, and then its constants, all in order."""

    __slots__ = ("compiled", "constants", "grid", "kernel", "numbers", "options", "tail")

    def __init__(
        self, kernel: Any, grid: tuple[int, int, int], numbers: tuple[float, ...], constants: dict[str, Any],
        **options: int,
    ) -> None:  # fmt: skip
        self.kernel, self.grid, self.numbers = kernel, grid, numbers
        self.constants, self.options = constants, options
        self.tail = (*numbers, *constants.values())
        self.compiled: Any = None

    def __call__(self, stream: int | None, *places: Place) -> None:
        """Launches the kernel on tensors or buffers, on `current_stream` of their device."""
        global _direct
        compiled = self.compiled
        if compiled is not None and _direct:
            addresses = [place.data_ptr() for place in places]
            try:
                if stream is None:
                    compiled[self.grid](*addresses, *self.tail)
                else:
                    compiled.run(
                        *self.grid, stream, compiled.function, compiled.packed_metadata, None, None, None,
                        *addresses, *self.tail,
                    )  # fmt: skip
                return
            except TypeError:
                # A version of Triton with another calling convention; nothing has been launched.
                _direct = False
        tensors = [place.tensor() if isinstance(place, Buffer) else place for place in places]
        # The interpreter, and whoever only notes launches, return nothing.
        self.compiled = self.kernel[self.grid](*tensors, *self.numbers, **self.constants, **self.options)


def current_stream(device: torch.device) -> int | None:
    """The stream of the next launches; None where Triton itself must make them."""
    if device.type != "cuda" or knobs is None:  # the interpreter, or a version before 3.4
        return None
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
        return None  # a profiler wants to hear of them, by one hook or a chain
    active = driver.active
    return active.get_current_stream(active.get_current_device())
