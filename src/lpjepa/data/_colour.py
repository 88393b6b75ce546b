"""Colour operations on float images in [0, 1], each image with its own parameter.

Definitions are torchvision's (``torchvision.transforms.v2.functional`` on float tensors): brightness,
contrast and saturation blend with black, with the mean grey and with the image's own grey; hue turns the
angle in HSV; results are clamped to [0, 1].
"""

from __future__ import annotations

import torch
from torch import Tensor

# ITU-R 601-2 luma, with the digits torchvision uses.
_RED, _GREEN, _BLUE = 0.2989, 0.587, 0.114
# Numbers of the jitter operations in `order`.
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def grey(images_NCHW: Tensor) -> Tensor:
    """Luma, (N, 1, H, W)."""
    red, green, blue = images_NCHW.unbind(1)
    return (red * _RED).add_(green, alpha=_GREEN).add_(blue, alpha=_BLUE)[:, None]


def blend(images_NCHW: Tensor, factor_N: Tensor, operation_N: Tensor) -> Tensor:
    """clamp(f · image + (1 − f) · other), with ``other`` chosen per image by its operation."""
    luma = grey(images_NCHW)
    mean = luma.mean(dim=(2, 3), keepdim=True)
    operation = operation_N[:, None, None, None]
    factor = factor_N[:, None, None, None]
    own, average = (operation == SATURATION) * (1 - factor), (operation == CONTRAST) * (1 - factor)
    other = (luma * own).add_(mean * average)
    return (images_NCHW * factor).add_(other).clamp_(0, 1)


def turn_hue(images_NCHW: Tensor, shift_N: Tensor) -> Tensor:
    """Add ``shift`` (in turns) to the hue.

    The largest and smallest channel stay, the one between moves: with the hue h in sixths of a turn, red
    becomes min + (max − min) · clamp(|h − 3| − 1, 0, 1), green the same with 2 − |h − 2|, blue 2 − |h − 4|.

    Written without ``where``: on random pixels its branches cost more than all the arithmetic. The channel
    that is the largest, and it alone or tied, has relative height exactly 1, so ``floor`` marks it.
    """
    red, green, blue = images_NCHW.unbind(1)
    low = torch.minimum(torch.minimum(red, green), blue)
    chroma = torch.maximum(torch.maximum(red, green), blue).sub_(low)
    safe = chroma.clamp(min=torch.finfo(chroma.dtype).tiny)
    red, green, blue = ((channel - low).div_(safe) for channel in (red, green, blue))
    hue = torch.lerp((red - green).add_(4), (blue - red).add_(2), green.floor())
    hue = torch.lerp(hue, green - blue, red.floor()).add_(6 * shift_N[:, None, None])
    hue = hue.sub_((hue * (1 / 6)).floor_(), alpha=6)
    red = (hue - 3).abs_().sub_(1).clamp_(0, 1)
    green = (hue - 2).abs_().neg_().add_(2).clamp_(0, 1)
    blue = hue.sub_(4).abs_().neg_().add_(2).clamp_(0, 1)
    return torch.stack([channel.mul_(chroma).add_(low) for channel in (red, green, blue)], 1)


def jitter(images_NCHW: Tensor, apply_N: Tensor, order_N4: Tensor, factors_N4: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue in each image's own order.

    Args:
        apply_N: bool, which images are jittered at all.
        order_N4: a permutation of the four operations per image.
        factors_N4: the parameter of each operation (indexed by operation, not by place).
    """
    if images_NCHW.is_cpu and not torch.compiler.is_compiling():
        return _jitter_by_groups(images_NCHW, apply_N, order_N4, factors_N4)
    out = images_NCHW
    for place in range(4):
        operation_N = order_N4[:, place]
        factor_N = factors_N4.gather(1, operation_N[:, None])[:, 0]
        blended = blend(out, factor_N, operation_N)
        turned = turn_hue(out, factors_N4[:, HUE])
        out = torch.where((operation_N == HUE)[:, None, None, None], turned, blended)
    return torch.where(apply_N[:, None, None, None], out, images_NCHW)


def _jitter_by_groups(images_NCHW: Tensor, apply_N: Tensor, order_N4: Tensor, factors_N4: Tensor) -> Tensor:
    """The same for eager mode on the CPU, where asking for sizes is free.

    Images are grouped by when their hue comes, so that the hue (the dearest operation) is computed once
    per image instead of once per place.
    """
    out = images_NCHW.clone()
    hue_place_N = (order_N4 == HUE).int().argmax(1)
    for hue_place in range(4):
        group = (apply_N & (hue_place_N == hue_place)).nonzero().flatten()
        if len(group) == 0:
            continue
        part, order, factors = images_NCHW[group], order_N4[group], factors_N4[group]
        for place in range(4):
            if place == hue_place:
                part = turn_hue(part, factors[:, HUE])
            else:
                part = blend(part, factors.gather(1, order[:, place, None])[:, 0], order[:, place])
        out[group] = part
    return out


def solarise(images_NCHW: Tensor, apply_N: Tensor, threshold: float) -> Tensor:
    """Invert the pixels at or above ``threshold`` of the chosen images."""
    chosen = apply_N[:, None, None, None] & (images_NCHW >= threshold)
    return torch.where(chosen, 1 - images_NCHW, images_NCHW)
