"""`lpjepa embed`: the features of many images in a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass
class Arguments:
    """Features of a folder, an archive, a list of paths or a source by name; resumes where it was stopped."""

    run: Annotated[str, tyro.conf.arg(metavar="RUN")]
    """A run, an export, a file of weights, or a Hugging Face repository."""
    images: Annotated[str, tyro.conf.arg(metavar="IMAGES")]
    """A folder, a .zip or plain .tar, a .txt of paths, or a source: NAME or NAME=PATH."""
    out: Path | None = None
    """.npz (CSR), .parquet, .npy (dense), .jsonl (for a vector database) or .index (for lpjepa search)."""
    features: Literal["projector", "encoder"] = "projector"
    """Which features."""
    split: Literal["train", "val", "test"] | None = None
    """Which part, where there are several; by default train of a source by name, else every image."""
    engine: Literal["qdrant", "milvus", "opensearch"] = "qdrant"
    """For which database .jsonl is written."""
    batch_size: int = 256
    """Images the model takes at a time."""
    device: str = "auto"
    """auto, cpu or cuda."""


SHOWN = 20  # unreadable files that are named on the screen


def run(arguments: list[str]) -> int:
    """features of images in a file: RUN IMAGES --out F.npz|.parquet|.npy|.jsonl|.index"""
    from lpjepa.inference import load
    from lpjepa.inference.embedding import embed_images, writer_for
    from lpjepa.inference.embeddings_file import info_path
    from lpjepa.training.processes import is_first

    chosen = tyro.cli(
        Arguments, prog="lpjepa embed", args=arguments, config=(tyro.conf.PositionalRequiredArgs,)
    )
    if chosen.out is None:
        raise ValueError("say where the features go: --out F.npz, .parquet, .npy, .jsonl or .index.")
    writer_for(chosen.out)
    if chosen.batch_size < 1:
        raise ValueError(f"--batch-size must be 1 or more, not {chosen.batch_size}.")
    source = Path(chosen.run)
    done = embed_images(
        load(chosen.run, chosen.device),
        chosen.images,
        chosen.out,
        source=str(source.resolve()) if source.exists() else chosen.run,
        split=chosen.split,
        features=chosen.features,
        engine=chosen.engine,
        batch_size=chosen.batch_size,
    )
    if is_first():
        print(f"{done.rows} image{'' if done.rows == 1 else 's'} in {done.path}")
        if done.unreadable:
            print(f"{len(done.unreadable)} could not be read:")
            print("\n".join(f"  {path} ({reason})" for path, reason in done.unreadable[:SHOWN]))
        if (more := len(done.unreadable) - SHOWN) > 0:
            print(f"  and {more} more, all of them listed in {info_path(done.path)}")
    return 0
