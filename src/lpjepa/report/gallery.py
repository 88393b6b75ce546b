"""A page's figures: drawn in both themes for the page, and as PNG and SVG files for papers."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from lpjepa.report.figures.style import DARK, LIGHT, render, save
from lpjepa.report.markup import picture


class Gallery:
    """Draws figures, embeds them and writes their files.

    Pictures made of photographs (``photographs=True``) are embedded as PNG: as SVG they would be larger and
    no sharper.
    """

    def __init__(self) -> None:
        self.files: list[Path] = []

    def hang(
        self,
        folder: Path,
        name: str,
        build: Callable[[], Figure],
        alt: str,
        caption: str,
        photographs: bool = False,
    ) -> str:
        """The HTML of one figure; its files are ``folder/name.svg`` and ``.png``. ``caption`` is HTML."""
        svg, png = save(build, folder, name)
        self.files += [svg, png]
        if photographs:
            day, night = (render(build, theme, "png", 150) for theme in (LIGHT, DARK))
            return picture(day, night, alt, caption, "png")
        return picture(_trim(svg.read_bytes()), _trim(render(build, DARK, "svg")), alt, caption)


def _trim(svg: bytes) -> bytes:
    """Without comments, metadata and needless digits: half the size, the same picture."""
    drawn = re.sub(rb"<metadata>.*?</metadata>|<!--.*?-->", b"", svg, flags=re.DOTALL)
    drawn = re.sub(rb' d="[^"]*"', lambda path: re.sub(rb"(\.\d\d)\d+", rb"\1", path.group()), drawn)
    return re.sub(rb"\s*\n\s*", b" ", drawn)
