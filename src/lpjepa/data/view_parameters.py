"""What a view is, and the random parameters of views: one row per image and view."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from lpjepa._random import rand
from lpjepa.data._separable import Interpolation
from lpjepa.data.errors import DataError
from lpjepa.data.normalisation import STATISTICS, Channels, checked

# The stream of a step's seed that views draw from; directions and targets use others.
VIEWS_STREAM = 1 << 41
_ATTEMPTS = 10  # torchvision's number of tries to place a crop
_ROWS = 2 * _ATTEMPTS + 2 + 1 + 1 + 4 + 4 + 1 + 2 + 1  # uniform numbers per view


@dataclass(frozen=True)
class ViewConfig:
    """What a view is; the class's own defaults are the paper's for CIFAR (ImageNet: size 224, blur 0.5)."""

    size: int = 32
    """Side of a view in pixels."""
    num_views: int = 2
    """Views of each image, two or more."""
    crop_scale: tuple[float, float] = (0.2, 1.0)
    """Range of the crop's share of the image's area."""
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Range of the crop's width / height."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    jitter_prob: float = 0.8
    """Probability of colour jitter; its strengths are those of torchvision's ColorJitter."""
    brightness: float = 0.4
    """Strength of the jitter of brightness."""
    contrast: float = 0.4
    """Strength of the jitter of contrast."""
    saturation: float = 0.2
    """Strength of the jitter of saturation."""
    hue: float = 0.1
    """Strength of the jitter of hue, up to 0.5."""
    grey: float = 0.2
    """Probability of a view without colour."""
    blur: float = 0.0
    """Probability of Gaussian blur."""
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    """Range of the blur's standard deviation in pixels."""
    solarize: float = 0.1
    """Probability of solarisation."""
    solarize_threshold: float = 128 / 255
    """Pixels at or above it are inverted (1 is white)."""
    interpolation: Interpolation = "bicubic"
    """Of the crop's resizing, antialiased."""
    mean: Channels = STATISTICS["imagenet"][0]
    """Subtracted from red, green and blue."""
    std: Channels = STATISTICS["imagenet"][1]
    """Red, green and blue are divided by it."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.num_views < 1:
            raise DataError(f"views need a positive size and number, not {self.size} and {self.num_views}.")
        for name in ("flip", "jitter_prob", "grey", "blur", "solarize"):
            if not 0 <= getattr(self, name) <= 1:
                raise DataError(f"{name} is a probability, not {getattr(self, name)}.")
        for name in ("crop_scale", "crop_ratio", "blur_sigma"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise DataError(f"{name} must be a range 0 < low <= high, not {low} to {high}.")
        if self.crop_scale[1] > 1:
            raise DataError(f"crop_scale must not exceed 1, not {self.crop_scale[1]}.")
        if min(self.brightness, self.contrast, self.saturation) < 0 or not 0 <= self.hue <= 0.5:
            raise DataError("brightness, contrast and saturation must not be negative, hue lie in [0, 0.5].")
        if self.interpolation not in ("bicubic", "bilinear"):
            raise DataError(f"interpolation must be 'bicubic' or 'bilinear', not {self.interpolation!r}.")
        checked(self.mean, self.std)

    @property
    def blur_radius(self) -> int:
        # The authors blur with Pillow, which does not cut the kernel at a share of the size.
        return math.ceil(3 * self.blur_sigma[1])


@dataclass(frozen=True)
class ViewParameters:
    """Parameters of V views of N images: every tensor is (V, N) or (V, N, 4).

    ``top, left, height, width`` is the crop in pixels of the stored image (fractional where images were
    squeezed into their frame); ``order`` and ``factors`` are those of ``_colour.jitter``.
    """

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor
    flip: Tensor
    jitter: Tensor
    order: Tensor
    factors: Tensor
    grey: Tensor
    blur: Tensor
    sigma: Tensor
    solarize: Tensor

    def select(self, images: slice) -> ViewParameters:
        """Those of some of the images."""
        return self._each(lambda x: x[:, images])

    def view(self, number: int) -> ViewParameters:
        """Those of one view: tensors (N,) or (N, 4)."""
        return self._each(lambda x: x[number])

    def flatten(self) -> ViewParameters:
        """All views as one batch: tensors (V · N,) or (V · N, 4)."""
        return self._each(lambda x: x.flatten(0, 1))

    def _each(self, function: Callable[[Tensor], Tensor]) -> ViewParameters:
        return ViewParameters(*(function(getattr(self, field.name)) for field in fields(self)))


def draw_parameters(
    count: int,
    config: ViewConfig,
    shape: tuple[int, int],
    source: Tensor | torch.Generator,
    device: torch.device | str | None = None,
    sizes: Tensor | None = None,
    part: tuple[int, int] = (0, 1),
) -> ViewParameters:
    """Random parameters for ``count`` images of ``shape`` (height, width).

    Args:
        source: an int64 seed tensor (see ``lpjepa._random``) or a generator.
        device: where the parameters go; that of the seed or generator if not given.
        sizes: int64 (count, 2), true sizes of images that were squeezed into ``shape``.
        part: (rank, world). Numbers are drawn for the global batch and this process takes its rows, so
            that K processes make together the views that one process makes.
    """
    rank, world = part
    wanted = (_ROWS, config.num_views, count * world)
    if isinstance(source, torch.Generator):
        uniform = torch.rand(wanted, generator=source, device=source.device)
    else:
        uniform = rand(source, wanted, VIEWS_STREAM)
    uniform = uniform[..., rank * count : (rank + 1) * count].to(
        device if device is not None else source.device
    )
    rows = iter(uniform.split((_ATTEMPTS, _ATTEMPTS, 1, 1, 1, 1, 4, 4, 1, 1, 1, 1)))
    full_height, full_width = float(shape[0]), float(shape[1])
    if sizes is None:
        true_height = uniform.new_full((), full_height)
        true_width = uniform.new_full((), full_width)
    else:
        true_height, true_width = sizes.to(uniform.device, torch.float32).unbind(1)
    top, left, height, width = _draw_crop(
        next(rows), next(rows), next(rows)[0], next(rows)[0], true_height, true_width, config
    )
    down, across = full_height / true_height, full_width / true_width
    strengths = [(max(0.0, 1 - x), 1 + x) for x in (config.brightness, config.contrast, config.saturation)]
    flip, jitter = next(rows)[0] < config.flip, next(rows)[0] < config.jitter_prob
    ranges = [*strengths, (-config.hue, config.hue)]
    factors = torch.stack([low + (high - low) * u for u, (low, high) in zip(next(rows), ranges)], -1)
    order = next(rows).movedim(0, -1).argsort(-1)
    grey, blur = next(rows)[0] < config.grey, next(rows)[0] < config.blur
    low, high = config.blur_sigma
    sigma = low + (high - low) * next(rows)[0]
    solarize = next(rows)[0] < config.solarize
    crop = (top * down, left * across, height * down, width * across)
    return ViewParameters(*crop, flip, jitter, order, factors, grey, blur, sigma, solarize)


def _draw_crop(
    area_u: Tensor,
    ratio_u: Tensor,
    top_u: Tensor,
    left_u: Tensor,
    full_h: Tensor,
    full_w: Tensor,
    config: ViewConfig,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """torchvision's RandomResizedCrop: the first of ten tries that fits, else the largest central crop."""
    (scale_low, scale_high), (ratio_low, ratio_high) = config.crop_scale, config.crop_ratio
    area = full_h * full_w * (scale_low + (scale_high - scale_low) * area_u)
    log_low, log_high = math.log(ratio_low), math.log(ratio_high)
    ratio = torch.exp(log_low + (log_high - log_low) * ratio_u)
    width, height = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    fits = (width > 0) & (width <= full_w) & (height > 0) & (height <= full_h)
    first = fits.int().argmax(0, keepdim=True)
    width, height = width.gather(0, first)[0], height.gather(0, first)[0]
    # Python rounds the fallback's side down to even on ties, as torch.round does.
    none = ~fits.any(0)
    spare_w = torch.minimum(full_w, (full_h * ratio_high).round())
    spare_h = torch.minimum(full_h, (full_w / ratio_low).round())
    width, height = torch.where(none, spare_w, width), torch.where(none, spare_h, height)
    # u may round up to one when scaled: the last place is the largest.
    top = torch.minimum((top_u * (full_h - height + 1)).floor(), full_h - height)
    left = torch.minimum((left_u * (full_w - width + 1)).floor(), full_w - width)
    top = torch.where(none, ((full_h - height) / 2).floor(), top)
    left = torch.where(none, ((full_w - width) / 2).floor(), left)
    return top, left, height, width
