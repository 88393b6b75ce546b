"""Separable linear maps of images as two small matrices per image.

Cropping, resizing with an antialiasing kernel, flipping and blurring are all of the form

    out_c = R · in_c · Cᵀ,        R (S_out, H), C (S_out, W)

for every channel c. With one R and one C per image, a batch whose images each have their own crop, flip and
blur is two batched matrix products: nothing is gathered, shapes are fixed, the device is never asked.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Interpolation = Literal["bilinear", "bicubic"]


def apply_separable(images_NCHW: Tensor, rows_NSH: Tensor, columns_NTW: Tensor) -> Tensor:
    """(N, C, S, T): ``rows`` acts on height, ``columns`` on width."""
    n, channels, height, width = images_NCHW.shape
    columns_NWT = columns_NTW.transpose(1, 2)
    wide = torch.bmm(images_NCHW.reshape(n, channels * height, width), columns_NWT)
    wide = wide.view(n, channels, height, columns_NTW.shape[1])
    return torch.matmul(rows_NSH[:, None], wide)


def resize_weights(
    start_N: Tensor,
    length_N: Tensor,
    size_in: int,
    size_out: int,
    interpolation: Interpolation,
    flip_N: Tensor | None = None,
    cut: bool = True,
) -> Tensor:
    """Weights (N, size_out, size_in) that resize the interval [start, start + length) to ``size_out`` pixels.

    The antialiased kernel of Pillow (and of torchvision with ``antialias=True``): output pixel o is centred
    at start + (o + ½)·s with s = length / size_out; input pixel x weighs k((x + ½ − centre) / max(s, 1)),
    normalised to sum one, with k the triangle or Keys' cubic with a = −½.

    Args:
        start_N, length_N: in pixels, possibly fractional.
        flip_N: where true, the output is mirrored.
        cut: whether the image was cut to the interval before resizing, so that pixels outside of it do not
            count; otherwise the interval is a window into the resized whole.
    """
    device = start_N.device
    place = torch.arange(size_out, device=device, dtype=torch.float32) + 0.5
    if flip_N is None:
        place_NS = place.expand(start_N.shape[0], size_out)
    else:
        place_NS = torch.where(flip_N[:, None], size_out - place, place)
    step_N = length_N / size_out
    centre_NS = start_N[:, None] + place_NS * step_N[:, None]
    pixel = torch.arange(size_in, device=device, dtype=torch.float32)
    distance = ((pixel + 0.5) - centre_NS[..., None]).abs_() / step_N.clamp(min=1.0)[:, None, None]
    weights = _kernel(distance, interpolation)
    if not cut:
        return weights / weights.sum(-1, keepdim=True)
    inside_NW = (pixel >= start_N.floor()[:, None]) & (pixel < (start_N + length_N).ceil()[:, None])
    weights = weights * inside_NW[:, None, :]
    return weights / weights.sum(-1, keepdim=True)


def _kernel(x: Tensor, interpolation: Interpolation) -> Tensor:
    """The kernel at non-negative distances ``x``."""
    if interpolation == "bilinear":
        return (1 - x).clamp(min=0)
    # Keys' cubic with a = -1/2: (3x³ - 5x² + 2) / 2 below 1, (2 - x)² (1 - x) / 2 from 1 to 2. Both pieces
    # vanish at 1, so that each may be held there beyond its range, and no branch is needed.
    inner, outer = x.clamp(max=1), x.clamp(1, 2)
    near = (1.5 * inner - 2.5).mul_(inner).mul_(inner).add_(1)
    return near.add_((2 - outer).square_().mul_(1 - outer), alpha=0.5)


def blur_weights(sigma_N: Tensor, size: int, radius: int) -> Tensor:
    """Weights (N, size, size) of a Gaussian blur; beyond a border its pixel goes on, as in Pillow.

    The kernel exp(−d² / 2σ²) at |d| ≤ ``radius``, normalised to sum one.
    """
    tap = torch.arange(-radius, radius + 1, device=sigma_N.device)
    kernel_NT = (tap.square() * (-0.5 / sigma_N.square())[:, None]).exp()
    kernel_NT = kernel_NT / kernel_NT.sum(-1, keepdim=True)
    place = torch.arange(size, device=sigma_N.device)
    read_ST = (place[:, None] + tap).clamp(0, size - 1)
    reads_STX = (read_ST[..., None] == place).to(kernel_NT.dtype)
    return torch.einsum("nt,stx->nsx", kernel_NT, reads_STX)
