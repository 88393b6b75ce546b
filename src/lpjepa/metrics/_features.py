"""What every measure asks of its input: a floating-point tensor (..., N, D) with enough samples."""

import torch
from torch import Tensor


def features(z: Tensor, name: str, minimum: int = 1) -> Tensor:
    """`z` without its graph, in float32 or better, after one check of its shape.

    Values are never checked here (that would stall a GPU): a measure gives NaN where a feature is not finite.
    """
    if not isinstance(z, Tensor):
        raise TypeError(f"{name} takes a torch tensor of features (..., N, D), not {type(z).__name__}.")
    if z.ndim < 2:
        raise ValueError(f"{name} takes features of shape (..., N, D), not {tuple(z.shape)}.")
    if z.shape[-2] < minimum or z.shape[-1] == 0:
        raise ValueError(
            f"{name} needs at least {minimum} sample(s) of at least one feature, but the features have shape "
            f"{tuple(z.shape)} = (..., N, D); give it a larger batch."
        )
    z = z.detach()
    return z if z.dtype in (torch.float32, torch.float64) else z.float()


def nan_where_not_finite(value: Tensor, finite: Tensor) -> Tensor:
    """`value`, or NaN where the features behind it were not all finite."""
    return torch.where(finite, value, torch.full_like(value, torch.nan))
