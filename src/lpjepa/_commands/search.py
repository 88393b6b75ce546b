"""`lpjepa search`: the images of an index that are most like a given one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from lpjepa.inference.index import Hits, SparseIndex


@dataclass
class Arguments:
    """Print the nearest images of an index, and draw them."""

    index: Path
    """What lpjepa embed wrote: .index, or .npz, .parquet or .npy (indexed in memory)."""
    image: str
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
    import tyro

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
        raise ValueError(f"the model of the index cannot be loaded ({error}) name it with --model.") from None
    kind: Any = index.require_model(model)
    hits = index.search(model.embed(chosen.image, features=kind), chosen.k, chosen.metric)
    classes = index.info.get("classes")
    for rank, (document, score) in enumerate(zip(hits.ids[0], hits.scores[0]), start=1):
        label = index.label(document)
        shown = "" if label < 0 else f"  {classes[label] if classes else label}"
        print(f"{rank:3}  {score:.4f}  {index.name(document)}{shown}")
    _draw(chosen, index, hits)
    print(f"drawn to {chosen.out}")
    return 0


def _draw(chosen: Arguments, index: SparseIndex, hits: Hits) -> None:
    """Query and neighbours in a row; a neighbour whose image has gone is left blank."""
    import numpy as np
    from PIL import Image

    from lpjepa.inference.inputs import Files, open_image, open_items
    from lpjepa.report.figures.samples import NeighbourRow, neighbour_grid
    from lpjepa.report.figures.style import LIGHT, render

    def shown(image: Image.Image) -> np.ndarray:
        image.thumbnail((256, 256))
        return np.asarray(image)

    request = index.info.get("images", {})
    try:
        items = open_items(request["source"], request["split"])
        places = {name: place for place, name in enumerate(items.names)}
    except (KeyError, ValueError, OSError):
        places = {}
    pictures = []
    for document in hits.ids[0]:
        try:
            pictures.append(shown(open_image(items, places[index.name(document)])))
        except (KeyError, ValueError, OSError):
            pictures.append(np.full((8, 8, 3), 235, np.uint8))
    row = NeighbourRow(
        "", shown(open_image(Files([chosen.image]), 0)), pictures, None, [float(s) for s in hits.scores[0]]
    )
    kind = chosen.out.suffix.lower().removeprefix(".")
    chosen.out.write_bytes(render(lambda: neighbour_grid([row]), LIGHT, kind))
