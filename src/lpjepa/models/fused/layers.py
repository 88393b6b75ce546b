"""What a residual network is made of, as the fused way sees it."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn


class Layer(NamedTuple):
    """A convolution and the normalisation of its output."""

    conv: nn.Conv2d
    bn: nn.BatchNorm2d


class Unit(NamedTuple):
    """Layers whose output is added to the input, or to a layer of it."""

    branch: tuple[Layer, ...]
    shortcut: Layer | None

    @property
    def layers(self) -> tuple[Layer, ...]:
        return self.branch if self.shortcut is None else (*self.branch, self.shortcut)

    @property
    def stride(self) -> int:
        """Of the pixels of the input that the shortcut sees."""
        return 1 if self.shortcut is None else self.shortcut.conv.stride[0]
