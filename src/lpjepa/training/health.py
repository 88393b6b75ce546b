"""The search for NaN: noted on the device at every step, read by the host once in a while."""

from __future__ import annotations

import torch
from torch import Tensor


class Diverged(RuntimeError):
    """Training met a value that is not finite; the message names the step and the part."""


class Health:
    """Remembers the first step at which something was not finite, and what.

    `parts` are in the order in which they are computed, so the first one found is where the trouble began.
    """

    def __init__(self, device: torch.device):
        self.parts: list[str] = []
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.first_bad_step = torch.full((), -1, dtype=torch.int64, device=device)
        self.first_bad_parts = torch.zeros(0, dtype=torch.bool, device=device)

    def expect(self, parts: list[str]) -> None:
        """Name the parts that every step will report."""
        self.parts = parts
        self.first_bad_parts = torch.zeros(len(parts), dtype=torch.bool, device=self.step.device)

    @torch.no_grad()
    def close_step(self, found_P: Tensor) -> None:
        """Keep what this step found, a number for each part, if it is the first bad one; count the step."""
        bad = ~found_P.isfinite()
        first = bad.any() & (self.first_bad_step < 0)
        self.first_bad_parts.copy_(torch.where(first, bad, self.first_bad_parts))
        self.first_bad_step.copy_(torch.where(first, self.step, self.first_bad_step))
        self.step.add_(1)

    @torch.no_grad()
    def stop_midway(self, found: dict[str, Tensor]) -> None:
        """Note what was there when the step stopped: a loss on the CPU refuses NaN by itself."""
        bad = torch.stack([~value.isfinite().all() for value in found.values()])
        if bool(bad.any()) and int(self.first_bad_step) < 0:
            self.expect(list(found))
            self.first_bad_parts.copy_(bad)
            self.first_bad_step.copy_(self.step)

    def verdict(self) -> tuple[int, str] | None:
        """(step, part) of the first value that was not finite, or None. Waits for the device."""
        step = int(self.first_bad_step)
        if step < 0:
            return None
        return step, next(part for part, bad in zip(self.parts, self.first_bad_parts.tolist()) if bad)
