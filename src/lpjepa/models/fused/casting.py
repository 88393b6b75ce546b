"""All weights in 16 bits by one kernel, and their gradients back in float32 by another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def lowered(weights: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The weights in `dtype`, as autocast would cast them one by one."""
    return _Lowered.apply(dtype, *weights)


class _Lowered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.like = [(w.dtype, w.stride()) for w in weights]
        low = tuple(torch.empty_like(w, dtype=dtype) for w in weights)
        # From the end: what an optimizer has moved last may still be in the cache.
        torch._foreach_copy_(low[::-1], weights[::-1])
        return low

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # In the layout of the weights, so that optimizers find both in one order.
        full = [
            torch.empty_strided(g.shape, stride, dtype=dtype, device=g.device)
            for g, (dtype, stride) in zip(gradients, ctx.like)
        ]
        torch._foreach_copy_(full, gradients)
        return None, *full
