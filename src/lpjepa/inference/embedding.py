"""`lpjepa embed`: the features of a set of any size in a file, in bounded memory, by one process or many."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpjepa.evaluation.progress import Progress, Silent
from lpjepa.inference import writers
from lpjepa.inference.embeddings_file import INFO_FORMAT, info_path, read_info
from lpjepa.inference.inputs import open_items
from lpjepa.inference.model import Model
from lpjepa.inference.parts import PART, PartStore, compute, items_digest, write_json
from lpjepa.training.processes import any_rank, is_first, join_group

# The ending of a result's name says its form.
WRITERS: dict[str, Callable[..., None]] = {
    ".npz": writers.write_csr,
    ".parquet": writers.write_parquet,
    ".npy": writers.write_dense,
    ".jsonl": writers.write_engine,
    ".index": writers.write_index,
}


@dataclass(frozen=True)
class Embedded:
    """What `embed_images` did."""

    path: Path
    rows: int | None  # None on processes other than the first, which do not wait for the result
    unreadable: list[tuple[str, str]]
    computed: int  # images whose features were computed by this call and process, not by an earlier one


def embed_images(
    model: Model,
    images: str,
    out: str | Path,
    *,
    source: str = "",
    split: str | None = None,
    features: str = "projector",
    engine: str = "qdrant",
    batch_size: int = 256,
    part_size: int = PART,
    progress: Progress | None = None,
) -> Embedded:
    """Features of every readable image that `images` names, in the file (or index folder) `out`.

    Args:
        images, split: see `inputs.open_items`.
        out: ends in .npz (CSR), .parquet, .npy (dense), .jsonl (for `engine`) or .index.
        source: where the model came from, noted in the result for `lpjepa search`.
        part_size: images that are computed, and after a kill repeated, together.
    """
    out, progress = Path(out), progress or (Progress() if is_first() else Silent())
    write = writer_for(out)
    writers.check_installed(out.suffix, engine)
    width, items = model.width(features), open_items(images, split)
    manifest = {
        "features": features,
        "model": model.fingerprint(features),
        "images": items_digest(items),
        "count": len(items),
        "form": out.suffix + (f" for {engine}" if out.suffix == ".jsonl" else ""),
        "part size": part_size,
    }
    store = PartStore(out.with_name(out.name + ".parts"), len(items), part_size)
    if (done := _finished(out, manifest)) is not None:
        progress.say(f"{out} is complete already")
        return done
    rank, world = join_group(model.device)
    if rank == 0:
        try:
            store.open(manifest)
        except OSError as error:
            raise ValueError(
                f"--out {out}: its folder cannot be written ({error.strerror}); choose another."
            ) from None
    any_rank(False)  # nobody goes on before the folder is there
    mine = store.missing()[rank::world]
    any_rank(False)  # nor writes a part before all have seen which are missing
    computed = 0
    threads = max(1, min(8, os.cpu_count() or 1))
    with progress.task(f"{len(items)} images to {out}") as task, ThreadPoolExecutor(threads) as pool:
        for number in mine:
            places = store.ranges[number]
            part = compute(model, items, places, features, out.suffix != ".npy", batch_size, pool)
            store.save(number, part)
            computed += len(places)
            task(computed * world, len(items))
    if rank > 0:
        return Embedded(out, None, [], computed)
    # Waiting by looking: the others may take longer than a collective operation is allowed to.
    while store.missing():
        time.sleep(0.2)
    info: dict[str, Any] = {
        "format": INFO_FORMAT,
        "job": manifest,
        "model": {"source": source, "fingerprint": model.fingerprint(features)},
        "features": features,
        "width": width,
        "rows": sum(len(part) for part in store),
        "images": {"source": images, "split": split, "folder": os.getcwd()},  # where relative paths start
        "classes": items.classes,
        "unreadable": [pair for part in store for pair in part.unreadable],
    }
    if not info["rows"]:
        path, reason = info["unreadable"][0]
        store.remove()
        raise ValueError(f"none of the {len(items)} images of {images} can be read ({path}: {reason}).")
    write(out, store, items, info, engine)
    if out.suffix != ".index":  # an index has its own inside
        write_json(info_path(out), info)
    os.replace(writers.partial_path(out), out)  # last: a result that bears its name is complete
    store.remove()
    return Embedded(out, info["rows"], info["unreadable"], computed)


def writer_for(out: Path) -> Callable[..., None]:
    if out.suffix not in WRITERS:
        raise ValueError(f"--out {out}: its name must end in one of {', '.join(WRITERS)}, which is its form.")
    return WRITERS[out.suffix]


def _finished(out: Path, manifest: dict[str, Any]) -> Embedded | None:
    """The result of this very job, if it is there; a result of another one is an error."""
    if not out.exists():
        return None
    try:
        info = read_info(out)
    except ValueError:
        info = {}
    if info.get("job") != manifest:
        raise ValueError(
            f"--out {out} exists and is not the result of this job; remove it or choose another name."
        )
    PartStore(out.with_name(out.name + ".parts"), 0).remove()
    return Embedded(out, info["rows"], [(p, r) for p, r in info["unreadable"]], 0)
