"""From a file to pixels: Pillow decoding into a fixed frame of uint8 RGB pixels.

A set of images is one tensor, so every image must come to one size. Two ways to get there:

``keep="centre"``  scale so that the image covers the frame, cut the centre: what evaluation protocols do.
``keep="whole"``   squeeze the whole image into the frame and remember its true height and width; random
                   crops are then drawn in the true geometry (``Views`` takes the sizes), so that nothing at
                   the sides of a wide image is lost to training.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from lpjepa.data.errors import BrokenImage, DataError

Keep = Literal["centre", "whole"]


class Reader(Protocol):
    """Random access to encoded images; picklable, so that worker processes can use it."""

    def __len__(self) -> int: ...

    def path(self, index: int) -> str:
        """A name for messages: the file's path where there is one."""

    def open(self, index: int) -> Image.Image:
        """The image, possibly not yet decoded; may raise anything for a broken one."""


@dataclass(frozen=True)
class Frame:
    """The fixed size into which every image of a set is decoded."""

    height: int
    width: int
    keep: Keep = "centre"

    def __post_init__(self) -> None:
        if self.keep not in ("centre", "whole"):
            raise DataError(f"keep must be 'centre' or 'whole', not {self.keep!r}.")
        if self.height < 1 or self.width < 1:
            raise DataError(f"images need a positive size, not {self.height} by {self.width}.")

    @property
    def bytes(self) -> int:
        return 3 * self.height * self.width

    def box(self, height: int, width: int) -> tuple[float, float, float, float]:
        """The part (left, top, right, bottom) of a ``height`` by ``width`` image that fills the frame."""
        if self.keep == "whole":
            return (0.0, 0.0, float(width), float(height))
        scale = min(height / self.height, width / self.width)
        left, top = (width - scale * self.width) / 2, (height - scale * self.height) / 2
        return (left, top, left + scale * self.width, top + scale * self.height)


def to_rgb(image: Image.Image) -> Image.Image:
    """RGB, upright as the EXIF orientation says; transparency is laid on white, 16-bit grey is scaled."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        pixels = np.asarray(image, np.float64)
        top = 65535.0 if image.mode == "I" else max(float(pixels.max(initial=0.0)), 1.0)
        image = Image.fromarray((pixels.clip(0, top) * (255.0 / top)).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image if image.mode == "RGB" else image.convert("RGB")


def decode_into(image: Image.Image, frame: Frame) -> tuple[np.ndarray, tuple[int, int]]:
    """Decode one image into ``frame``.

    Returns its pixels (uint8, (3, height, width)) and its true (height, width).
    """
    # JPEG can be decoded at 1/2, 1/4 or 1/8 directly from its frequencies; twice the frame leaves the
    # final antialiased resampling enough to work with, and large photographs open several times faster.
    full_width, full_height = image.size
    image.draft("RGB", (2 * frame.width, 2 * frame.height))
    drafted = image.size != (full_width, full_height)
    image = to_rgb(image)
    width, height = image.size
    if (height, width) != (frame.height, frame.width):
        image = image.resize(
            (frame.width, frame.height), Image.Resampling.BICUBIC, box=frame.box(height, width)
        )
    pixels = np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))
    if drafted:  # the size before the draft, turned if the orientation turned the image
        turned = (width > height) != (full_width > full_height)
        height, width = (full_width, full_height) if turned else (full_height, full_width)
    return pixels, (height, width)


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Pillow warns about odd metadata; the pixels are what matters here.

    Entered once around many images: Python's warning filters belong to the process, not to a thread.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def read_frame(reader: Reader, index: int, frame: Frame) -> tuple[np.ndarray, tuple[int, int]]:
    """Image ``index`` of ``reader`` in ``frame``; whatever is wrong with it becomes ``BrokenImage``."""
    try:
        with reader.open(index) as image:
            return decode_into(image, frame)
    # Pillow raises almost anything on damaged files: OSError, SyntaxError, ValueError, struct.error, ...
    except Exception as error:
        raise BrokenImage(reader.path(index), why_unreadable(error)) from None


def why_unreadable(error: Exception) -> str:
    """What an exception of Pillow's says of an image, in a few words for the user."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image in a form that Pillow knows"
    if isinstance(error, Image.DecompressionBombError) and Image.MAX_IMAGE_PIXELS is not None:
        # Pillow warns from this number of pixels on, and refuses from twice as many.
        return f"larger than {2 * Image.MAX_IMAGE_PIXELS / 1e6:.3g} megapixels"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def common_frame(reader: Reader, store_size: int | None, keep: Keep, probes: int = 128) -> Frame:
    """The frame for a set, from the header of up to ``probes`` of its images, evenly spaced.

    Where these agree in size and are no larger than ``store_size``, that size. Otherwise a square of
    ``store_size`` (256 if not given: what the paper's evaluation resizes to), or of the largest short side
    among them if that is smaller, since enlarging images only costs memory.
    """
    if store_size is not None and store_size < 1:
        raise DataError(f"store_size must be a positive number of pixels, not {store_size}.")
    count = len(reader)
    shapes = set()
    looked_at = min(probes, count)
    for index in sorted({round(i * (count - 1) / max(looked_at - 1, 1)) for i in range(looked_at)}):
        try:
            with quiet_pillow(), reader.open(index) as image:
                shapes.add((image.size[1], image.size[0]))
        except Exception:
            continue  # counted and reported when it is decoded
    if not shapes:
        raise DataError(
            f"none of the {looked_at} images looked at can be read (the first: {reader.path(0)}); "
            "check that these are image files."
        )
    size = 256 if store_size is None else store_size
    if len(shapes) == 1:
        height, width = next(iter(shapes))
        if min(height, width) <= size:
            return Frame(height, width, keep)
    size = min(size, max(min(shape) for shape in shapes))
    return Frame(size, size, keep)


@dataclass(frozen=True)
class FileReader:
    """Images as files on disk."""

    paths: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, index: int) -> str:
        return self.paths[index]

    def open(self, index: int) -> Image.Image:
        # Read at once: the file is closed whatever Pillow does with a damaged one.
        return Image.open(io.BytesIO(Path(self.paths[index]).read_bytes()))
