"""Our encoders under names that timm knows; importing this module registers them.

    import timm, lpjepa.inference.timm_models
    timm.create_model("lpjepa_resnet18", checkpoint_path="export/model.safetensors")

`lpjepa_NAME` is timm's NAME with the stem for small images (3×3, stride 1, no pooling), without classifier;
`lpjepa_narrow` is the narrow encoder. ResNets and ConvNeXts are registered here, others by `register_small`.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from lpjepa._torchvision_shim import declare_missing_ops
from lpjepa.models.encoders import SMALL_IMAGE, build_encoder

declare_missing_ops()
import timm  # noqa: E402 - needs the operators declared above
from timm.models import load_pretrained, register_model  # noqa: E402

__all__: list[str] = ["register_small"]  # timm adds the names it registers


def register_small(name: str) -> str:
    """Register the small-image form of a timm model (or of `narrow`), and give the name it has in timm."""
    own = f"lpjepa_{name}"
    if timm.is_model(own):
        return own

    def create(
        pretrained: bool = False,
        pretrained_cfg: Any = None,
        num_classes: int = 0,
        in_chans: int = 3,
        **_timm_settings: Any,
    ) -> nn.Module:
        if num_classes:
            raise ValueError(f"{own} has no classifier; create it with num_classes=0.")
        encoder = build_encoder(name, SMALL_IMAGE, in_chans)
        if pretrained:
            if pretrained_cfg is None:
                raise ValueError(
                    f"{own} has no weights of its own; give checkpoint_path or local-dir:FOLDER."
                )
            load_pretrained(encoder, pretrained_cfg, num_classes=0, in_chans=in_chans)
        return encoder

    create.__name__ = create.__qualname__ = own
    register_model(create)
    return own


for _name in ["narrow", *timm.list_models(module=["resnet", "convnext"])]:
    register_small(_name)
