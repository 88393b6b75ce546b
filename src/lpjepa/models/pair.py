"""Encoder and projector as one model: h = encoder(x), z = projector(h)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from lpjepa.models.encoders import build_encoder
from lpjepa.models.projector import build_projector


@dataclass
class ModelConfig:
    """The encoder and projector."""

    encoder: str = "narrow"
    """narrow, resnet18, resnet50, vit_small, convnext_tiny or any other name timm knows."""
    projector_hidden: int = 512
    """Width of the projector's hidden layers."""
    projector_dim: int = 256
    """Dimension of the projected features z, on which the loss acts."""
    projector_layers: int = 3
    """Linear layers in the projector."""
    activation: Literal["auto", "relu", "calibrated", "top", "soft_top", "rep_relu", "none"] = "auto"
    """Last activation of the projector; auto: relu for methods with rectified features, none for others.
    calibrated: relu with thresholds that keep each feature active as often as the target says; top: as many
    of the largest features of each image as the target says; soft_top: these less the next largest one."""


class SparseModel(nn.Module):
    """The pair; `forward(x_NCHW)` gives (h_NE, z_ND)."""

    def __init__(self, encoder: nn.Module, projector: nn.Module, encoder_dim: int, projector_dim: int):
        super().__init__()
        self.encoder = encoder
        self.projector = projector
        self.encoder_dim = encoder_dim
        self.projector_dim = projector_dim

    def encode(self, x_NCHW: Tensor) -> Tensor:
        return self.encoder(x_NCHW)

    def project(self, h_NE: Tensor) -> Tensor:
        return self.projector(h_NE)

    def forward(self, x_NCHW: Tensor) -> tuple[Tensor, Tensor]:
        h_NE = self.encode(x_NCHW)
        return h_NE, self.project(h_NE)


def build(config: ModelConfig, image_size: int, in_channels: int = 3) -> SparseModel:
    """The pair that `config` describes, for square images of `image_size` pixels.

    `activation="auto"` stands for "relu" here; training resolves it by method before it calls this.
    """
    encoder = build_encoder(config.encoder, image_size, in_channels)
    encoder_dim = int(encoder.num_features)  # type: ignore[arg-type]
    activation = "relu" if config.activation == "auto" else config.activation
    projector = build_projector(
        encoder_dim, config.projector_hidden, config.projector_dim, config.projector_layers, activation
    )
    return SparseModel(encoder, projector, encoder_dim, config.projector_dim)
