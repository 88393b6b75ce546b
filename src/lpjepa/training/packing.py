"""Small tensors in one piece of memory: one copy takes all of them to the device, or to their place there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Kernels are compiled for addresses that divide by 16, and torch's own allocations do.
ALIGNMENT = 16


def packed(like: Sequence[Tensor], device: torch.device) -> tuple[Tensor, list[Tensor]]:
    """A buffer of zero bytes on `device`, and in it contiguous tensors of the shapes and types of `like`."""
    sizes = [-(-t.numel() * t.element_size() // ALIGNMENT) * ALIGNMENT for t in like]
    buffer = torch.zeros(sum(sizes), dtype=torch.uint8, device=device)
    pieces = buffer.split(sizes)
    return buffer, [
        piece[: t.numel() * t.element_size()].view(t.dtype).view(t.shape) for piece, t in zip(pieces, like)
    ]
