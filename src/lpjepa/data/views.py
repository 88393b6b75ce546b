"""Views of images: the augmentations of self-supervised training, batched on the device that trains.

    views = Views(ViewConfig(size=32))
    x_VNCHW = views(images_u8, generator)              # or a seed tensor: lpjepa._random

Drawing and applying are apart: ``draw_parameters`` makes a ``ViewParameters`` of tensors, one row per view,
``apply_views`` is a fixed function of images and parameters. Every image has its own parameters, nothing is
asked back from the device, and shapes are fixed, so a step with views inside compiles and can be captured.
What is computed stands here, in torch; on GPUs the kernels of ``_fused_views`` compute the same.

Order and distributions are those of the authors' recipe (the paper, "Data augmentation"): random resized
crop, colour jitter in random order, grey, blur, solarisation. The flip, which they do last, is part of the
crop here: every operation between commutes with it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lpjepa.data import _colour, _fused_views
from lpjepa.data._separable import apply_separable, blur_weights, resize_weights
from lpjepa.data.view_parameters import ViewConfig, ViewParameters, draw_parameters


def apply_views(images_NCHW: Tensor, parameters: ViewParameters, config: ViewConfig) -> Tensor:
    """Views (V, N, 3, S, S) in [0, 1], not normalised, of uint8 (or float in [0, 1]) images."""
    if _fused_views.applies(images_NCHW):
        return _fused_views.fused_views(images_NCHW, parameters, config)
    count = images_NCHW.shape[0]
    if not images_NCHW.is_cpu or torch.compiler.is_compiling():
        return _apply(images_NCHW, parameters, config)
    # On the CPU a few megabytes at a time stay in the cache through all operations.
    side = max(config.size, *images_NCHW.shape[2:])
    chunk = max(1, (1 << 19) // (3 * side * side))
    parts = [slice(start, start + chunk) for start in range(0, count, chunk)]
    return torch.cat([_apply(images_NCHW[part], parameters.select(part), config) for part in parts], 1)


def _apply(images_NCHW: Tensor, p: ViewParameters, config: ViewConfig) -> Tensor:
    images = images_NCHW.float()
    images = images / 255 if images_NCHW.dtype == torch.uint8 else images
    # Each view resamples the same pixels; from there on all views are one batch.
    views = [_resample(images, p.view(view), config) for view in range(config.num_views)]
    x, p = torch.cat(views), p.flatten()
    # Python conditions below depend on the configuration only: an operation that is off costs nothing.
    if config.jitter_prob > 0:
        x = _colour.jitter(x, p.jitter, p.order, p.factors)
    if config.grey > 0:
        x = torch.where(p.grey[:, None, None, None], _colour.grey(x), x)
    if config.blur > 0:
        x = _blur(x, p, config)
    if config.solarize > 0:
        x = _colour.solarise(x, p.solarize, config.solarize_threshold)
    return x.view(config.num_views, -1, *x.shape[1:])


def _resample(images: Tensor, p: ViewParameters, config: ViewConfig) -> Tensor:
    height, width = images.shape[2:]
    rows = resize_weights(p.top, p.height, height, config.size, config.interpolation)
    columns = resize_weights(p.left, p.width, width, config.size, config.interpolation, p.flip)
    return apply_separable(images, rows, columns).clamp_(0, 1)


def _blur(x: Tensor, p: ViewParameters, config: ViewConfig) -> Tensor:
    if x.is_cpu and not torch.compiler.is_compiling():
        chosen = p.blur.nonzero().flatten()
        weights = blur_weights(p.sigma[chosen], config.size, config.blur_radius)
        return x.index_copy(0, chosen, apply_separable(x[chosen], weights, weights))
    weights = blur_weights(p.sigma, config.size, config.blur_radius)
    return torch.where(p.blur[:, None, None, None], apply_separable(x, weights, weights), x)


class Views(nn.Module):
    """Random views of a batch, normalised.

    >>> views = Views(ViewConfig(size=32, num_views=2))
    >>> views(torch.zeros(5, 3, 40, 48, dtype=torch.uint8), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 5, 3, 32, 32])
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, config: ViewConfig) -> None:
        super().__init__()
        self.config = config
        std = torch.tensor(config.std).view(3, 1, 1)
        self.register_buffer("scale", 1 / std, persistent=False)
        self.register_buffer("shift", -torch.tensor(config.mean).view(3, 1, 1) / std, persistent=False)

    @torch.no_grad()
    def forward(
        self,
        images_NCHW: Tensor,
        source: Tensor | torch.Generator,
        sizes: Tensor | None = None,
        part: tuple[int, int] = (0, 1),
    ) -> Tensor:
        """float32 (V, N, 3, S, S) of uint8 (N, 3, H, W); see ``draw_parameters`` for the rest."""
        device = images_NCHW.device
        if self.scale.device != device:
            self.to(device)
        # 16-bit products would leave only eight bits of the weights.
        with torch.autocast(device.type, enabled=False):
            shape = (images_NCHW.shape[2], images_NCHW.shape[3])
            parameters = draw_parameters(
                images_NCHW.shape[0], self.config, shape, source, device, sizes, part
            )
            if _fused_views.applies(images_NCHW):
                config = self.config
                return _fused_views.fused_views(images_NCHW, parameters, config, config.mean, config.std)
            views = apply_views(images_NCHW, parameters, self.config)
            return torch.addcmul(self.shift, views, self.scale)
