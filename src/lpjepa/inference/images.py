"""Images in whatever form a user has them, brought to one square frame of uint8 pixels.

Paths, Pillow images, arrays and tensors of the same picture give the same frame: all of them go through
Pillow, and none through the reduced decoding that JPEG offers to paths alone.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lpjepa.data.decoding import Frame, to_rgb, why_unreadable
from lpjepa.data.errors import BrokenImage

_CHANNELS = (1, 3, 4)
_FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def single_images(images: Any) -> Iterator[Any]:
    """One image at a time from a single one, a batch (an array or tensor of four axes), or any mixture."""
    if isinstance(images, (str, bytes, PathLike, Image.Image)):
        yield images
    elif isinstance(images, (np.ndarray, Tensor)):
        if images.ndim == 4:
            yield from images
        else:
            yield images
    elif isinstance(images, Iterable):
        for item in images:
            yield from single_images(item)
    else:
        raise TypeError(
            f"an image is a path, the bytes of a file, a Pillow image, an array or a tensor, not "
            f"{type(images).__name__}."
        )


def to_frame(item: Any, side: int, interpolation: str = "bicubic") -> np.ndarray:
    """uint8 (3, side, side): upright RGB, the central square of the image resized to `side` pixels.

    An image that has this size already keeps its pixels. Whatever cannot be read is a `BrokenImage`. Callers
    enter `quiet_pillow` once around many images.
    """
    try:
        image = to_rgb(to_pillow(item))
        width, height = image.size
        if not width or not height:
            raise ValueError("it has no pixels")
        if (height, width) != (side, side):
            box = Frame(side, side).box(height, width)
            image = image.resize((side, side), _FILTERS[interpolation], box=box)
        return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))
    # Pillow raises almost anything on damaged files: OSError, SyntaxError, ValueError, struct.error, ...
    except Exception as error:
        raise BrokenImage(_name(item), why_unreadable(error)) from None


def to_pillow(item: Any) -> Image.Image:
    """A path, the bytes of a file, a Pillow image, an array or a tensor as a Pillow image of its own mode."""
    if isinstance(item, Image.Image):
        return item
    if isinstance(item, bytes):
        return Image.open(io.BytesIO(item))
    if isinstance(item, (str, PathLike)):
        path = Path(item)
        if path.is_dir():
            raise ValueError("it is a folder; give the files in it, or use `lpjepa embed`")
        if not path.exists():
            raise ValueError("there is no such file")
        return Image.open(io.BytesIO(path.read_bytes()))
    if isinstance(item, Tensor):
        item = item.detach().cpu()
        item = (item.float() if item.is_floating_point() else item).numpy()  # NumPy has no bfloat16
    return _array_to_pillow(np.asarray(item))


def _array_to_pillow(pixels: np.ndarray) -> Image.Image:
    """From (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels; floats must lie in [0, 1]."""
    shape = pixels.shape
    if pixels.ndim == 3 and not (
        shape[2] in _CHANNELS and (shape[0] not in _CHANNELS or shape[1] > shape[2])
    ):
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in _CHANNELS):
        raise ValueError(f"an image is (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels, not {shape}")
    if np.issubdtype(pixels.dtype, np.floating):
        if pixels.size and not (pixels.min() >= 0 and pixels.max() <= 1):
            low, high = float(pixels.min()), float(pixels.max())
            raise ValueError(f"floating-point pixels must lie in [0, 1], not [{low:g}, {high:g}]")
        pixels = (pixels * 255).round().astype(np.uint8)
    if pixels.dtype != np.uint8 and not (pixels.dtype == np.uint16 and pixels.ndim == 2):
        raise ValueError(f"pixels are uint8, uint16 (grey) or floats in [0, 1], not {pixels.dtype}")
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if not pixels.size:
        raise ValueError("it has no pixels")
    return Image.fromarray(np.ascontiguousarray(pixels))


def _name(item: Any) -> str:
    if isinstance(item, (str, PathLike)):
        return str(item)
    name = getattr(item, "filename", None)
    return str(name) if name else f"given as {type(item).__name__}"


def is_frames(images: Any, side: int) -> bool:
    """Whether `images` is a batch of frames already, which needs no conversion."""
    return (
        isinstance(images, Tensor)
        and images.dtype == torch.uint8
        and images.ndim == 4
        and tuple(images.shape[1:]) == (3, side, side)
    )
