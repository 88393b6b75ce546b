"""Encoders, the projector, and the pair of both."""

from lpjepa.models.calibration import CalibratedReLU, ShareReLU, SoftTopReLU, TopReLU
from lpjepa.models.encoders import build_encoder
from lpjepa.models.pair import ModelConfig, SparseModel, build
from lpjepa.models.projector import build_projector
from lpjepa.models.synchronised import GlobalBatchNorm, synchronise_batch_norm

__all__ = [
    "CalibratedReLU",
    "GlobalBatchNorm",
    "ModelConfig",
    "ShareReLU",
    "SoftTopReLU",
    "SparseModel",
    "TopReLU",
    "build",
    "build_encoder",
    "build_projector",
    "synchronise_batch_norm",
]
