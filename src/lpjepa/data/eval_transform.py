"""The fixed preprocessing of evaluation: resize the shorter side, cut the centre, normalise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lpjepa.data._separable import Interpolation, apply_separable, resize_weights
from lpjepa.data.errors import DataError
from lpjepa.data.normalisation import STATISTICS, Channels, checked


class EvalTransform(nn.Module):
    """Deterministic preprocessing of uint8 images, batched on their device.

    The paper evaluates with the shorter side resized to 256 and a central crop of 224 ("Transfer evaluation
    protocol"); images of up to 64 pixels are used whole.

    Args:
        size: side of the result.
        resize: what the shorter side becomes before the crop; None is 8/7 of ``size`` (256 for 224), and
            ``size`` itself for sizes up to 64.
        mean, std: as for the training views.
    """

    scale: Tensor
    shift: Tensor

    def __init__(
        self,
        size: int,
        resize: int | None = None,
        mean: Channels = STATISTICS["imagenet"][0],
        std: Channels = STATISTICS["imagenet"][1],
        interpolation: Interpolation = "bicubic",
    ) -> None:
        super().__init__()
        self.size = size
        self.resize = resize if resize is not None else size if size <= 64 else round(size * 8 / 7)
        if not 1 <= self.size <= self.resize:
            raise DataError(f"the crop of {size} pixels must fit the resized shorter side of {self.resize}.")
        self.interpolation: Interpolation = interpolation
        mean, std = checked(mean, std)
        deviation = torch.tensor(std).view(3, 1, 1)
        self.register_buffer("scale", 1 / deviation, persistent=False)
        self.register_buffer("shift", -torch.tensor(mean).view(3, 1, 1) / deviation, persistent=False)

    @torch.no_grad()
    def forward(self, images_NCHW: Tensor, sizes: Tensor | None = None) -> Tensor:
        """float32 (N, 3, size, size) of uint8 (N, 3, H, W).

        Args:
            sizes: int64 (N, 2), true sizes of images that were squeezed into their frame.
        """
        device = images_NCHW.device
        if self.scale.device != device:
            self.to(device)
        with torch.autocast(device.type, enabled=False):
            return torch.addcmul(self.shift, self._resample(images_NCHW, sizes), self.scale)

    def _resample(self, images_NCHW: Tensor, sizes: Tensor | None) -> Tensor:
        count, _, height, width = images_NCHW.shape
        images = images_NCHW.float().mul_(1 / 255)
        if sizes is None and height == width == self.size == self.resize:
            return images
        if sizes is None:
            true_h = torch.full((count,), float(height), device=images.device)
            true_w = torch.full((count,), float(width), device=images.device)
        else:
            true_h, true_w = sizes.to(images.device, torch.float32).unbind(1)
        short = torch.minimum(true_h, true_w)
        weights = []
        for true, stored in ((true_h, height), (true_w, width)):
            # The resized side is a whole number of pixels, of which the central ones are kept.
            resized = (self.resize * true / short).floor()
            margin = ((resized - self.size) / 2).round()
            step = stored / resized
            weights.append(
                resize_weights(
                    margin * step, self.size * step, stored, self.size, self.interpolation, cut=False
                )
            )
        return apply_separable(images, weights[0], weights[1]).clamp_(0, 1)
