"""Where in an image a feature comes from: Grad-CAM-style maps ("Visual Attribution Maps")."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attribution(NamedTuple):
    """`heat`: (N, H, W) in [0, 1] on the pixels. `raw`: (N, h, w), the signed sums on its layer's grid."""

    heat: Tensor
    raw: Tensor


def attribute(model: nn.Module, x_NCHW: Tensor, layer: nn.Module | None = None) -> Attribution:
    """Backpropagates the score ||z||² of the projector feature to a late layer of the encoder.

    With A the layer's activations (N, C, h, w) and G the score's gradient there,

    raw = sum_c mean_hw(G_c) · A_c,    heat = ReLU(raw), enlarged to the image and divided by its largest
    value.

    `model(x)` gives (h, z). `layer` is found for ResNet, ViT and ConvNeXt (`late_layer`); tokens (N, T, C)
    are put back on their grid, without the class token and registers. An image with no positive raw value
    has heat 0.
    """
    layer = late_layer(model) if layer is None else layer
    kept: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        # A frozen encoder makes no graph: start one here, which also spares the layers before.
        output = output if output.requires_grad else output.detach().requires_grad_()
        kept.append(output)
        return output

    training = model.training
    handle = layer.register_forward_hook(keep)
    try:
        model.eval()
        with torch.enable_grad():
            _, z = model(x_NCHW)
            if not kept:
                raise ValueError(
                    "The model did not use the layer given for attribution; give one of its own."
                )
            (gradient,) = torch.autograd.grad(z.float().square().sum(), kept[-1])
    finally:
        handle.remove()
        model.train(training)

    prefix = int(getattr(getattr(model, "encoder", model), "num_prefix_tokens", 0))
    activation, gradient = (_on_grid(t.detach().float(), prefix, x_NCHW.shape) for t in (kept[-1], gradient))
    raw = (gradient.mean((-2, -1), keepdim=True) * activation).sum(1)
    heat = F.interpolate(
        raw.relu().unsqueeze(1), size=x_NCHW.shape[-2:], mode="bilinear", align_corners=False
    ).squeeze(1)
    largest = heat.amax((-2, -1), keepdim=True)
    return Attribution(heat / torch.where(largest > 0, largest, torch.ones_like(largest)), raw)


def late_layer(model: nn.Module) -> nn.Module:
    """The last layer that still has a place for every part of the image.

    ResNet: `layer4`; ConvNeXt and other staged encoders: the last of `stages`; ViT: the first norm of the
    last of `blocks` (after its attention the patches no longer reach a class token, and their gradient is
    zero).
    """
    encoder = getattr(model, "encoder", model)
    if isinstance(layer4 := getattr(encoder, "layer4", None), nn.Module):
        return layer4
    for name in ("stages", "blocks"):
        members = getattr(encoder, name, None)
        if isinstance(members, (nn.Sequential, nn.ModuleList)) and len(members):
            last = members[-1]
            return getattr(last, "norm1", last) if name == "blocks" else last
    raise ValueError(
        f"There is no known late layer in {type(encoder).__name__}; pass layer=, a module whose output is "
        "(N, C, h, w) or (N, tokens, C)."
    )


def _on_grid(t: Tensor, prefix: int, shape: torch.Size) -> Tensor:
    """Tokens (N, T, C) as (N, C, h, w) with the proportions of the image; maps as they are."""
    if t.ndim == 4:
        return t
    if t.ndim != 3:
        raise ValueError(
            f"A layer for attribution gives (N, C, h, w) or (N, tokens, C), not {tuple(t.shape)}."
        )
    t = t[:, prefix:]
    rows = round(math.sqrt(t.shape[1] * shape[-2] / shape[-1]))
    columns = t.shape[1] // max(rows, 1)
    if rows * columns != t.shape[1]:
        raise ValueError(
            f"{t.shape[1]} tokens do not fill a grid in the proportions of a {tuple(shape[-2:])} image."
        )
    return t.mT.reshape(t.shape[0], t.shape[2], rows, columns)
