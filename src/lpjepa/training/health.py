"""The search for NaN: noted on the device at every step, read by the host once in a while."""

from __future__ import annotations

import torch
from torch import Tensor


class Diverged(RuntimeError):
    """Training met a value that is not finite; the message names the step and the part."""


class Health:
    """Remembers the first step at which something was not finite, and what.

    `look` is called for the parts in the order in which they are computed, so the first one found is
    where the trouble began.
    """

    def __init__(self, device: torch.device):
        self.parts: list[str] = []
        self._now: dict[str, Tensor] = {}
        self._gradients: Tensor | None = None
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.first_bad_step = torch.full((), -1, dtype=torch.int64, device=device)
        self.first_bad_parts = torch.zeros(0, dtype=torch.bool, device=device)

    @torch.no_grad()
    def look(self, part: str, value: Tensor) -> None:
        # One reduction: a sum is finite where all is, and float32 holds the sum of anything float16 holds.
        total = value.detach().sum(dtype=torch.float32)
        self._now[part] = self._now[part] + total if part in self._now else total

    def look_at_gradients(self, norms: Tensor) -> None:
        self._gradients = norms

    def close_step(self, gradient_parts: list[str]) -> None:
        """Keep this step's findings if they are the first bad ones; count the step."""
        # All at once: on a GPU, a dozen small questions take longer than their answers are worth.
        found = torch.stack(list(self._now.values()))
        if self._gradients is not None:
            found = torch.cat([found, self._gradients])
        bad = ~found.isfinite()
        if not self.parts:
            self.parts = [*self._now, *gradient_parts]
            self.first_bad_parts = torch.zeros_like(bad)
        self._now, self._gradients = {}, None
        first = bad.any() & (self.first_bad_step < 0)
        self.first_bad_parts.copy_(torch.where(first, bad, self.first_bad_parts))
        self.first_bad_step.copy_(torch.where(first, self.step, self.first_bad_step))
        self.step += 1

    def verdict(self) -> tuple[int, str] | None:
        """(step, part) of the first value that was not finite, or None. Waits for the device."""
        if self._now:  # the step stopped midway: a loss on the CPU refuses NaN by itself
            bad = [part for part, total in self._now.items() if not bool(total.isfinite())]
            return (int(self.step), bad[0]) if bad else None
        step = int(self.first_bad_step)
        if step < 0:
            return None
        return step, next(part for part, bad in zip(self.parts, self.first_bad_parts.tolist()) if bad)
