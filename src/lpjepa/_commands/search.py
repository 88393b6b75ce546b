"""`lpjepa search`: the images of an index that are most like a given one."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

if TYPE_CHECKING:
    from PIL import Image

    from lpjepa.inference.index import Hits, SparseIndex


DRAWN = 16  # neighbours in the picture, which is one row


@dataclass
class Arguments:
    """Print the nearest images of an index, and draw them."""

    index: Annotated[Path, tyro.conf.arg(metavar="INDEX")]
    """What lpjepa embed wrote: .index, or .npz, .parquet or .npy (indexed in memory)."""
    image: Annotated[str, tyro.conf.arg(metavar="IMAGE")]
    """The image to search for: a path."""
    k: int = 8
    """Number of neighbours."""
    metric: Literal["cosine", "dot"] = "cosine"
    """Similarity."""
    model: str | None = None
    """The model; by default the one with which the index was made."""
    out: Path = Path("neighbours.png")
    """The picture."""
    device: str = "auto"
    """auto, cpu or cuda."""


def run(arguments: list[str]) -> int:
    """the nearest images of an index: INDEX IMAGE [--k 8] [--out neighbours.png]"""
    from lpjepa._commands.target import _check_writable
    from lpjepa.inference import load
    from lpjepa.inference.index import open_index

    chosen = tyro.cli(
        Arguments, prog="lpjepa search", args=arguments, config=(tyro.conf.PositionalRequiredArgs,)
    )
    _check_writable(chosen.out)
    index = open_index(chosen.index)
    source = chosen.model or index.info.get("model", {}).get("source")
    if not source:
        raise ValueError("the index does not say where its model is; name it with --model.")
    try:
        model = load(source, chosen.device)
    except ValueError as error:
        if chosen.model is not None:
            raise
        reason = str(error).rstrip(".")
        raise ValueError(
            f"the model of the index cannot be loaded ({reason}); name it with --model."
        ) from None
    kind = index.require_model(model)
    hits = index.search(model.embed(chosen.image, features=kind), chosen.k, chosen.metric)
    classes = index.info.get("classes")
    for rank, (document, score) in enumerate(zip(hits.ids[0], hits.scores[0]), start=1):
        label = index.label(document)
        shown = "" if label < 0 else f"  {classes[label] if classes else label}"
        print(f"{rank:3}  {score:.4f}  {index.name(document)}{shown}")
    blank = _draw(chosen, index, hits)
    only = f", the first {DRAWN} of them" if len(hits.ids[0]) > DRAWN else ""
    print(f"drawn to {chosen.out}{only}")
    if blank:
        print(f"{blank} of the images are no longer where they were; their places in the picture are grey")
    return 0


def _draw(chosen: Arguments, index: SparseIndex, hits: Hits) -> int:
    """Query and neighbours in a row; the number of neighbours whose image has gone, which are left grey."""
    import numpy as np

    from lpjepa.inference.inputs import Files, open_image
    from lpjepa.report.figures.samples import NeighbourRow, neighbour_grid
    from lpjepa.report.figures.style import LIGHT, render

    def shown(image: Image.Image) -> np.ndarray:
        image.thumbnail((256, 256))
        return np.asarray(image)

    names = [index.name(document) for document in hits.ids[0][:DRAWN]]
    found = [None if image is None else shown(image) for image in _images(names, index.info)]
    pictures = [np.full((8, 8, 3), 235, np.uint8) if image is None else image for image in found]
    query = shown(open_image(Files([chosen.image]), 0))
    row = NeighbourRow("", query, pictures, None, [float(score) for score in hits.scores[0][:DRAWN]])
    kind = chosen.out.suffix.lower().removeprefix(".")
    chosen.out.write_bytes(render(lambda: neighbour_grid([row]), LIGHT, kind))
    return sum(image is None for image in found)


def _images(names: list[str], info: dict[str, Any]) -> list[Image.Image | None]:
    """Images of an index by name: files as they are, others from the archive or source they came from."""
    from lpjepa.inference.inputs import Files, open_image, open_items

    request = info.get("images", {})
    folder = Path(request.get("folder", ""))  # relative paths start where the images were embedded
    paths, places = [folder / name for name in names], {}
    if not all(path.is_file() for path in paths):
        source = request.get("source", "")
        source = str(folder / source) if (folder / source).exists() else source
        with contextlib.suppress(KeyError, ValueError, OSError):
            # Names are the same with and without a part; an index of before parts says "train" of any set.
            items = open_items(source, None if Path(source).exists() else request["split"])
            places = {folder / name: place for place, name in enumerate(items.names)}
    images: list[Image.Image | None] = []
    for path in paths:
        try:
            one = (items, places[path]) if path in places else (Files([str(path)]), 0)
            images.append(open_image(*one))
        except Exception:  # Pillow raises almost anything on damaged files
            images.append(None)
    return images
