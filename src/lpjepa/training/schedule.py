"""The learning rate at every step: linear warmup, then a cosine."""

from __future__ import annotations

import math


def warmup_cosine(
    step: int, total: int, warmup: int, peak: float, start: float = 0.0, final: float = 0.0
) -> float:
    """Rate at `step` of `total`: from `start` up to `peak` in `warmup` steps, then down to `final`.

    Up: start + (peak − start) · step / (warmup − 1), so that step warmup − 1 is at the peak, as in the
    authors' schedule. Down: final + (peak − final) · ½ (1 + cos(π (step − warmup) / (total − warmup))).
    """
    warmup = min(warmup, total)
    if step < warmup:
        return start + (peak - start) * (step / (warmup - 1) if warmup > 1 else 1.0)
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return final + (peak - final) * 0.5 * (1.0 + math.cos(math.pi * progress))


def scaled_by_batch(rate: float, global_batch: int) -> float:
    """The linear scaling rule of the authors' configs: rate · global batch / 256."""
    return rate * global_batch / 256


def step_at(share: float, steps: int) -> int:
    """The number of steps after a share of `steps`: none for 0, else at least one."""
    return max(1, round(share * steps)) if share > 0 else 0
