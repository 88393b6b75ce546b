"""Views by the kernels of `_view_kernels`: which views these make, and in how many launches.

They compute what `views._apply` computes, with the same parameters, and normalise. Every image and view has
its own parameters on the device, nothing is read back, and the number of launches (two for small views, up
to five) depends on shapes and configuration only. The result is channels last.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

from lpjepa.data.view_parameters import ViewConfig, ViewParameters

# The plan of a view is one number. Five of its bits say what to do, ...
BITS = (1, 2, 4, 8, 16)
_FLIP, _JITTER, _GREY, _BLUR, _SOLARIZE = BITS
ORDER = 5  # ... and from this one on, two bits each are the four jitter operations in their order.
_HAS_TRITON = find_spec("triton") is not None
_PIXELS = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
_BLOCK = 32  # side of a tile: divides the usual sizes, 32, 64, 96, 224
_WARPS, _BLUR_WARPS = 4, 2  # of a program, that is of a tile


def applies(images_NCHW: Tensor) -> bool:
    """Whether kernels make views of these images: in colour, and without a gradient."""
    wants_gradient = images_NCHW.requires_grad and torch.is_grad_enabled()
    pixels = images_NCHW.dtype in _PIXELS and images_NCHW.shape[1] == 3
    return _HAS_TRITON and images_NCHW.is_cuda and pixels and not wants_gradient


def fused_views(
    images_NCHW: Tensor,
    p: ViewParameters,
    config: ViewConfig,
    mean: tuple[float, ...] = (0.0, 0.0, 0.0),
    std: tuple[float, ...] = (1.0, 1.0, 1.0),
) -> Tensor:
    """float32 (V, N, 3, S, S), of which V · N images are channels last: (view − mean) / std."""
    if p.top.shape[1] != images_NCHW.shape[0]:
        raise ValueError(
            f"parameters of {p.top.shape[1]} images do not go with {images_NCHW.shape[0]}; draw as many"
        )
    plan_VN = _FLIP * p.flip + _JITTER * p.jitter + _GREY * p.grey + _BLUR * p.blur + _SOLARIZE * p.solarize
    for place in range(4):
        plan_VN = plan_VN + (p.order[..., place] << (ORDER + 2 * place))
    chances = (config.jitter_prob, config.grey, config.blur, config.solarize)
    operations = sum(bit for bit, chance in zip(BITS[1:], chances) if chance > 0)
    return torch.ops.lpjepa.fused_views(
        images_NCHW,
        [p.top, p.left, p.height, p.width, plan_VN, p.factors, p.sigma],
        config.size,
        config.interpolation == "bicubic",
        operations,
        config.blur_radius,
        config.solarize_threshold,
        [1 / s for s in std] + [-m / s for m, s in zip(mean, std)],
    )


@torch.library.custom_op(
    "lpjepa::fused_views",
    mutates_args=(),
    schema="(Tensor images_NCHW, Tensor[] parameters, int size, bool cubic, int operations, int radius, "
    "float threshold, float[] normalisation) -> Tensor",
)
def _make_views(
    images_NCHW: Tensor,
    parameters: list[Tensor],
    size: int,
    cubic: bool,
    operations: int,
    radius: int,
    threshold: float,
    normalisation: list[float],
) -> Tensor:
    from triton import cdiv, next_power_of_2

    from lpjepa.data import _view_kernels as kernels

    top, left, height, width, plan, factors, sigma = (x.contiguous() for x in parameters)
    count, _, rows, columns = images_NCHW.shape
    out_VNSSC = _new_views(images_NCHW, top, size)
    views = top.numel()
    lines = max(rows, size)  # of wide maps: enough for any crop, and for a view that is blurred
    wide = out_VNSSC.new_empty((views, 3, lines, size))
    tiles = cdiv(size, _BLOCK) ** 2
    unit = 1 / 255 if images_NCHW.dtype == torch.uint8 else 1.0
    resized = {
        "H": rows, "S": size, "LINES": lines, "CUBIC": cubic, "BLOCK": _BLOCK,
        "num_warps": _WARPS, "num_stages": 1,
    }  # fmt: skip
    with torch.cuda.device_of(images_NCHW):
        # The largest power of two that is neither above the block nor above the image's height.
        block_r = min(_BLOCK, next_power_of_2(rows + 1) // 2)
        kernels.columns_kernel[(views * cdiv(rows, block_r) * cdiv(size, _BLOCK),)](
            images_NCHW, top, left, height, width, plan, wide, count,
            *images_NCHW.stride(), W=columns, BLOCK_R=block_r, **resized,
        )  # fmt: skip
        given = (wide, top, height, plan, factors)
        sums = out_VNSSC.new_empty((views, tiles))
        if operations & _JITTER and tiles > 1:
            kernels.grey_kernel[(views * tiles,)](*given, sums, unit, **resized)
        kernels.rows_kernel[(views * tiles,)](
            *given, sums, out_VNSSC, unit, threshold, *normalisation,
            OPERATIONS=operations, TILES=tiles, BLOCK_T=next_power_of_2(tiles), **resized,
        )  # fmt: skip
        if operations & _BLUR:
            grid = (views * cdiv(size, _BLOCK) * cdiv(3 * size, _BLOCK),)
            for last, source, target in ((False, out_VNSSC, wide), (True, wide, out_VNSSC)):
                kernels.blur_kernel[grid](
                    source, plan, sigma, target, threshold, *normalisation,
                    S=size, RADIUS=radius, LAST=last, OPERATIONS=operations, BLOCK=_BLOCK,
                    num_warps=_BLUR_WARPS, num_stages=1,
                )  # fmt: skip
    return out_VNSSC.permute(0, 1, 4, 2, 3)


@_make_views.register_fake
def _(
    images_NCHW: Tensor,
    parameters: list[Tensor],
    size: int,
    cubic: bool,
    operations: int,
    radius: int,
    threshold: float,
    normalisation: list[float],
) -> Tensor:
    return _new_views(images_NCHW, parameters[0], size).permute(0, 1, 4, 2, 3)


def _new_views(images_NCHW: Tensor, top_VN: Tensor, size: int) -> Tensor:
    return images_NCHW.new_empty((*top_VN.shape, size, size, 3), dtype=torch.float32)
