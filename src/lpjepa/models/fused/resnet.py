"""timm's ResNets, trained on a GPU in 16 bits with fewer passes over memory; the same everywhere else.

What is computed is what timm computes under autocast, up to rounding: sums and normalisation are in float32
and rounded once where torch rounds after every operation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lpjepa._torchvision_shim import declare_missing_ops
from lpjepa.models.fused.layers import Layer, Unit
from lpjepa.models.stem_conv import StemConv

declare_missing_ops()
from timm.layers.adaptive_avgmax_pool import SelectAdaptivePool2d  # noqa: E402
from timm.models.resnet import BasicBlock, Bottleneck, ResNet  # noqa: E402


class FusedResNet(ResNet):
    """A timm ResNet whose training step on a GPU runs on the kernels of this package where they apply."""

    def forward(self, x: Tensor) -> Tensor:
        units, dtype = _fused_way(self, x) if pools_by_mean(self) else (None, None)
        if units is None:
            return super().forward(x)
        pooled_NC = fused_features(self, units, x, dtype, pooled=True)
        return self.fc(pooled_NC)

    def forward_features(self, x: Tensor) -> Tensor:
        units, dtype = _fused_way(self, x)
        if units is None:
            return super().forward_features(x)
        return fused_features(self, units, x, dtype)


def fuse(encoder: nn.Module) -> None:
    """Let a timm ResNet of plain blocks take the fused way. Parameters, buffers and names stay."""
    if type(encoder) is ResNet and plan(encoder) is not None:
        encoder.__class__ = FusedResNet


def _fused_way(encoder: Any, x: Tensor) -> tuple[list[Unit] | None, Any]:
    """The units and the type for `fused_features`; no units where these images must go timm's way."""
    dtype = _dtype_of_training(encoder, x)
    units = None if dtype is None or _is_watched(encoder) else plan(encoder)
    if units is None or not _normalises_by_batch(encoder, units):
        return None, None
    return units, dtype


def pools_by_mean(encoder: Any) -> bool:
    """Whether features are the mean of the last map's pixels, (N, C), and nothing else."""
    pool = encoder.global_pool
    return (
        type(pool) is SelectAdaptivePool2d
        and type(pool.pool) is nn.AdaptiveAvgPool2d
        and pool.pool.output_size in (1, (1, 1))
        and type(pool.flatten) is nn.Flatten
        and not encoder.drop_rate
    )


def _dtype_of_training(encoder: nn.Module, x: Tensor) -> torch.dtype | None:
    """The 16-bit type of autocast, where the fused way is open."""
    if x.device.type != "cuda" or x.requires_grad or not (encoder.training and torch.is_grad_enabled()):
        return None
    if not torch.is_autocast_enabled("cuda"):
        return None
    dtype = torch.get_autocast_dtype("cuda")
    return dtype if dtype in (torch.float16, torch.bfloat16) and _triton_is_there() else None


def _is_watched(encoder: nn.Module) -> bool:
    """Whether somebody has hooks on its parts, which the fused way would not call."""
    return any(
        part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
        for part in encoder.modules()
        if part is not encoder
    )


def _normalises_by_batch(encoder: Any, units: list[Unit]) -> bool:
    """Not so where some normalisation was put into evaluation mode, to keep its running statistics."""
    return encoder.bn1.training and all(layer.bn.training for unit in units for layer in unit.layers)


def _triton_is_there() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def plan(encoder: Any) -> list[Unit] | None:
    """The residual units of a ResNet, or None where one has parts that are not fused."""
    stages = (encoder.layer1, encoder.layer2, encoder.layer3, encoder.layer4)
    found = [_unit(block) for stage in stages for block in stage]
    units = [unit for unit in found if unit is not None]
    stem = _is_plain_convolution(encoder.conv1) and _is_plain(encoder.bn1) and type(encoder.act1) is nn.ReLU
    if not stem or encoder.grad_checkpointing or len(units) < len(found):
        return None
    return units if units[0].stride == 1 else None  # what comes before units gives all of its pixels


def _unit(block: Any) -> Unit | None:
    if type(block) is BasicBlock:
        names: tuple[str, ...] = ("1", "2")
    elif type(block) is Bottleneck:
        names = ("1", "2", "3")
    else:
        return None
    branch = tuple(Layer(getattr(block, f"conv{i}"), getattr(block, f"bn{i}")) for i in names)
    extras = (block.se, block.drop_path, block.aa, block.drop_block)
    if any(extra is not None and not isinstance(extra, nn.Identity) for extra in extras):
        return None
    if any(type(getattr(block, f"act{i}")) is not nn.ReLU for i in names):
        return None
    shortcut = None
    if block.downsample is not None:
        parts = list(block.downsample)
        if len(parts) != 2 or not _is_plain_convolution(parts[0]) or not _is_product(parts[0]):
            return None
        shortcut = Layer(*parts)
    layers = branch if shortcut is None else (*branch, shortcut)
    if not all(_is_plain(bn) and _is_plain_convolution(conv) for conv, bn in layers):
        return None
    return Unit(branch, shortcut)


def _is_plain_convolution(conv: nn.Module) -> bool:
    """torch's own, or our stem's; one that changes its weights or its borders is not."""
    return (
        type(conv) in (nn.Conv2d, StemConv)
        and conv.bias is None
        and conv.padding_mode == "zeros"
        and not isinstance(conv.padding, str)
    )


def _is_product(conv: nn.Conv2d) -> bool:
    """Whether it is a matrix product of some of the pixels."""
    square = conv.stride[0] == conv.stride[1]
    return conv.kernel_size == (1, 1) and conv.groups == 1 and conv.padding == (0, 0) and square


def _is_plain(bn: nn.Module) -> bool:
    """torch's own BatchNorm with everything it can have; one that is synchronised is another class."""
    return type(bn) is nn.BatchNorm2d and bn.affine and bn.track_running_stats and bn.momentum is not None


@torch.compiler.disable
def fused_features(
    encoder: Any, units: list[Unit], images: Tensor, dtype: torch.dtype, pooled: bool = False
) -> Tensor:
    """The last feature map of a ResNet or its mean over pixels, in `dtype`, with gradients of parameters."""
    from lpjepa.models.fused.casting import lowered
    from lpjepa.models.fused.residual import pooled_residual, rectified_norm, residual
    from lpjepa.models.fused.stem import applies, stem

    with torch.no_grad():
        norms = [encoder.bn1, *(layer.bn for unit in units for layer in unit.layers)]
        torch._foreach_add_([bn.num_batches_tracked for bn in norms], 1)
    kernels = iter(lowered([layer.conv.weight for unit in units for layer in unit.layers], dtype))
    first = Layer(encoder.conv1, encoder.bn1)
    if applies(first):
        main, skip = stem(first, images, dtype)
    else:
        main = skip = rectified_norm(encoder.bn1, encoder.conv1(images))
    if not isinstance(encoder.maxpool, nn.Identity):
        main = skip = encoder.maxpool(main).contiguous(memory_format=torch.channels_last)
    *others, last = units
    for unit, following in zip(others, units[1:]):
        main, skip = residual(unit, main, skip, [next(kernels) for _ in unit.layers], following.stride)
    ending = (last, main, skip, list(kernels))
    return pooled_residual(*ending) if pooled else residual(*ending)[0]
