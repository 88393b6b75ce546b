"""The first convolution of an encoder for small images."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class StemConv(nn.Conv2d):
    """A convolution of a few channels that a GPU's matrix units take.

    They need a multiple of eight channels; with fewer, cuDNN falls back to slow kernels. Channels of zeros
    with weights of zeros change nothing else.
    """

    def forward(self, x_NCHW: Tensor) -> Tensor:
        missing = -self.in_channels % 8
        if missing == 0 or not x_NCHW.is_cuda:
            return super().forward(x_NCHW)
        channels = (0, 0, 0, 0, 0, missing)
        x, weight = F.pad(x_NCHW, channels), F.pad(self.weight, channels)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)
