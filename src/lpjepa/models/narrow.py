"""A narrow residual encoder for tiny images (8 to 32 pixels) that trains on a laptop's CPU."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = (32, 64, 128)  # channels of the three stages
GRID = 2  # the last map is averaged to 2 × 2 places and not to one: where a stroke is tells a 6 from a 9


class Block(nn.Module):
    """Two 3×3 convolutions with BatchNorm and a shortcut; the first may halve the resolution."""

    def __init__(self, channels_in: int, channels_out: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.act = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
            )

    def forward(self, x_NCHW: Tensor) -> Tensor:
        y_NCHW = self.act(self.norm1(self.conv1(x_NCHW)))
        return self.act(self.norm2(self.conv2(y_NCHW)) + self.shortcut(x_NCHW))


class NarrowEncoder(nn.Module):
    """(N, C, S, S) -> (N, `num_features`): a stem without stride, three stages, averages over four quarters.

    Follows timm's protocol: `num_features`, `forward_features` (the last feature map) and `forward`.
    """

    def __init__(self, in_channels: int = 3):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, WIDTHS[0], 3, padding=1, bias=False),
            nn.BatchNorm2d(WIDTHS[0]),
            nn.ReLU(inplace=True),
        )
        self.stages = nn.Sequential(
            Block(WIDTHS[0], WIDTHS[0], stride=1),
            Block(WIDTHS[0], WIDTHS[1], stride=2),
            Block(WIDTHS[1], WIDTHS[2], stride=2),
        )
        self.num_features = WIDTHS[2] * GRID * GRID

    def forward_features(self, x_NCHW: Tensor) -> Tensor:
        return self.stages(self.stem(x_NCHW))

    def forward(self, x_NCHW: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(self.forward_features(x_NCHW), GRID).flatten(1)
