"""A page's figures: drawn in both themes for the page, and as PNG and SVG files for papers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from lpjepa.report.figures.style import DARK, in_the_dark, render, save
from lpjepa.report.markup import picture


def hang(
    folder: Path,
    name: str,
    build: Callable[[], Figure],
    alt: str,
    caption: str,
    photographs: bool = False,
) -> str:
    """The HTML of one figure; its files are ``folder/name.svg`` and ``.png``. ``caption`` is HTML.

    Pictures made of photographs (``photographs=True``) are embedded as PNG: as SVG they would be larger and
    no sharper.
    """
    svg, png = save(build, folder, name)
    if photographs:
        return picture(png.read_bytes(), render(build, DARK, "png"), alt, caption, "png")
    day = _trim(svg.read_bytes())
    return picture(day, in_the_dark(day), alt, caption)


def _trim(svg: bytes) -> bytes:
    """Without comments, metadata and needless digits: half the size, the same picture."""
    drawn = re.sub(rb"<metadata>.*?</metadata>|<!--.*?-->", b"", svg, flags=re.DOTALL)
    drawn = re.sub(rb' d="[^"]*"', lambda path: re.sub(rb"(\.\d\d)\d+", rb"\1", path.group()), drawn)
    return re.sub(rb"\s*\n\s*", b" ", drawn)
