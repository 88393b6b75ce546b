"""Encoders by name: a narrow one of our own, and everything timm builds, with stems for small images."""

from __future__ import annotations

import difflib
from typing import Any

from torch import nn

from lpjepa._torchvision_shim import declare_missing_ops
from lpjepa.models.narrow import NarrowEncoder
from lpjepa.models.stem_conv import StemConv

# Short names for the encoders of the paper; any other name goes to timm as it is.
ALIASES = {
    "vit_tiny": "vit_tiny_patch16_224",
    "vit_small": "vit_small_patch16_224",
    "vit_base": "vit_base_patch16_224",
}
SMALL_IMAGE = 64  # pixels: at or below, stems keep the resolution


def build_encoder(name: str, image_size: int, in_channels: int = 3) -> nn.Module:
    """An untrained encoder without classifier: images (N, C, S, S) to features (N, `num_features`).

    Images of at most 64 pixels get a stem that keeps their resolution: ResNets and ConvNeXts a 3×3
    convolution of stride 1 without pooling (the authors' padding of 2, which grows the map by two
    pixels, is not copied), vision transformers patches of an eighth of the image.
    """
    if name == "narrow":
        return NarrowEncoder(in_channels)
    declare_missing_ops()
    import timm

    timm_name = ALIASES.get(name, name)
    if not timm.is_model(timm_name):
        known = ["narrow", *ALIASES, *timm.list_models()]
        nearest = difflib.get_close_matches(name, known, n=1)
        hint = f", did you mean {nearest[0]!r}?" if nearest else "; timm.list_models() lists what there is"
        raise ValueError(f"model.encoder: there is no encoder {name!r}{hint}")
    options: dict[str, Any] = {"pretrained": False, "num_classes": 0, "in_chans": in_channels}
    if timm_name.startswith(("resnet", "resnext", "wide_resnet")):
        # timm starts residual branches at zero; the authors, who build on torchvision, do not. Under LARS the
        # norms' weights move at the plain rate, and branches that start at zero are slow to come in.
        options["zero_init_last"] = False
    if "vit_" in timm_name:
        options["img_size"] = image_size
        if image_size <= SMALL_IMAGE:
            options["patch_size"] = max(1, image_size // 8)
    encoder = timm.create_model(timm_name, **options)
    if image_size <= SMALL_IMAGE:
        _keep_resolution(encoder, in_channels)
    if timm_name.startswith("resnet"):
        from lpjepa.models.fused.resnet import fuse

        fuse(encoder)
    return encoder


def _keep_resolution(encoder: nn.Module, in_channels: int) -> None:
    """Replace the stem of a ResNet or ConvNeXt by a 3×3 convolution of stride 1, without pooling."""
    if isinstance(getattr(encoder, "maxpool", None), nn.Module) and hasattr(encoder, "conv1"):
        width: Any = encoder.bn1.num_features  # type: ignore[union-attr,attr-defined]
        encoder.conv1 = StemConv(in_channels, width, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(encoder.conv1.weight, mode="fan_out", nonlinearity="relu")
        encoder.maxpool = nn.Identity()
    elif isinstance(stem := getattr(encoder, "stem", None), nn.Sequential) and isinstance(stem[0], nn.Conv2d):
        stem[0] = nn.Conv2d(in_channels, stem[0].out_channels, 3, padding=1, bias=stem[0].bias is not None)
