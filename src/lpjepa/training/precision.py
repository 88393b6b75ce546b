"""Mixed precision: autocast by name, and a loss scale for fp16 that lives on the device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """torch's autocast for "bf16" and "fp16", nothing for "fp32"."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=_DTYPES[precision])


class LossScale(nn.Module):
    """Multiplies the loss so that small fp16 gradients do not vanish; halves when one overflows.

    The same rule as torch's GradScaler (halve on overflow and skip the step, double after `interval` good
    steps), but without its look at the result from the host, which would break a captured step.
    """

    scale: Tensor
    good_steps: Tensor

    def __init__(self, device: torch.device, start: float = 2.0**16, interval: int = 2000):
        super().__init__()
        self.interval = interval
        self.register_buffer("scale", torch.tensor(start, device=device))
        self.register_buffer("good_steps", torch.tensor(0, device=device))

    def forward(self, loss: Tensor) -> Tensor:
        return loss * self.scale

    def unscale(self, norms: Tensor) -> tuple[Tensor, Tensor]:
        """The true norms of gradients of the scaled loss (0 if not finite), and 1.0 where one was not."""
        finite = norms.isfinite()
        return torch.where(finite, norms / self.scale, 0.0), (~finite).any().float()

    def update(self, found_inf: Tensor) -> None:
        overflow = found_inf > 0
        good = torch.where(overflow, 0, self.good_steps + 1)
        grow = good >= self.interval
        self.scale.copy_(
            torch.where(overflow, self.scale * 0.5, torch.where(grow, self.scale * 2, self.scale))
        )
        self.good_steps.copy_(torch.where(grow, 0, good))
