"""``wds:PATTERN``: tar shards in the WebDataset convention, for sets beyond one disk.

A sample is the members of a shard that share a name up to the first dot of the file name: ``00017.jpg``
(the image) and ``00017.cls`` (its class number), which is optional. The headers of all shards are walked
once, seeking over the contents; from then on every image is one seek and one read, evaluation can ask for
any of them, and a run resumes at any step. Training reads shards from front to back (``order.shard_order``).
"""

from __future__ import annotations

import glob
import io
import itertools
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from lpjepa.data.errors import DataError, MissingData
from lpjepa.data.image_set import ImageSet, Storage
from lpjepa.data.order import shard_order
from lpjepa.data.sources._common import no_split
from lpjepa.data.sources.folder import is_image
from lpjepa.data.streamed import build_image_set

_BLOCK = 512


class Member(NamedTuple):
    """A file in a tar archive: its name and where its bytes lie."""

    name: str
    offset: int
    size: int


def tar_members(path: str | Path) -> Iterator[Member]:
    """The regular files of an uncompressed tar archive (ustar, GNU and pax long names)."""
    with open(path, "rb") as file:
        length = os.fstat(file.fileno()).st_size
        long_name = None
        while True:
            header = file.read(_BLOCK)
            if not header.strip(b"\0"):
                return
            if len(header) < _BLOCK:
                raise DataError(f"the shard {path} ends in the middle of a header; copy it again.")
            size, kind = _checked_size(header, path), header[156:157]
            start = file.tell()
            following = start + -(-size // _BLOCK) * _BLOCK
            if following > length:
                raise DataError(f"the shard {path} ends in the middle of a file; copy it again.")
            if kind in (b"L", b"x"):  # the next member's name: GNU's as it is, pax's among other records
                content = file.read(size)
                long_name = (
                    content.rstrip(b"\0").decode() if kind == b"L" else _pax_path(content) or long_name
                )
            elif kind in (b"0", b"\0"):
                yield Member(long_name or _plain_name(header), start, size)
                long_name = None
            file.seek(following)


def _checked_size(header: bytes, path: str | Path) -> int:
    try:
        checksum = int(header[148:156].strip(b"\0 ") or b"0", 8)
        if checksum != sum(header[:148]) + 8 * 32 + sum(header[156:]):
            raise ValueError
        field_ = header[124:136]
        # GNU writes sizes beyond 8 GB in binary, marked by the top bit.
        return int.from_bytes(field_[1:], "big") if field_[0] & 0x80 else int(field_.strip(b"\0 ") or b"0", 8)
    except ValueError:
        raise DataError(
            f"{path} is not an uncompressed tar archive; shards must be plain .tar files."
        ) from None


def _plain_name(header: bytes) -> str:
    name, prefix = (
        part.split(b"\0")[0].decode("utf-8", "replace") for part in (header[:100], header[345:500])
    )
    return f"{prefix}/{name}" if prefix and header[257:262] == b"ustar" else name


def _pax_path(content: bytes) -> str | None:
    while content:
        length, _, _ = content.partition(b" ")
        key, _, value = content[len(length) + 1 : int(length) - 1].partition(b"=")
        if key == b"path":
            return value.decode()
        content = content[int(length) :]
    return None


def expand_braces(pattern: str) -> list[str]:
    """``a-{000..002}.tar`` and ``{train,extra}.tar`` spelled out, zero padding kept."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    inside = match.group(1)
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", inside)
    if numbers:
        first, last = numbers.groups()
        words = [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    else:
        words = inside.split(",")
    head, tail = pattern[: match.start()], pattern[match.end() :]
    return [name for word in words for name in expand_braces(head + word + tail)]


def find_shards(pattern: str, root: Path) -> list[str]:
    """Existing files of a pattern with braces and wildcards; relative patterns start at ``root``."""
    found: list[str] = []
    for name in expand_braces(pattern):
        path = os.path.join(root, os.path.expanduser(name))
        if glob.has_magic(path):
            found += sorted(glob.glob(path, recursive=True))
        elif os.path.isfile(path):
            found.append(path)
        else:
            raise MissingData(f"the shard {path} does not exist; correct the pattern, or copy it there")
    if not found:
        raise MissingData(
            f"no shard matches {pattern} in {root.resolve()}; patterns start at root (--data.root), "
            "which is the working directory unless you name one"
        )
    return found


@dataclass
class ShardReader:
    """Random access to the images in tar shards; each process keeps its own open files."""

    shards: list[str]
    where: Tensor  # int64 (N, 3): shard, offset, size
    names: list[str]
    bounds: list[tuple[int, int]]  # first index and last + 1 of each shard
    buffer: int
    _open: dict[str, BinaryIO] = field(default_factory=dict, repr=False)
    _owner: int = field(default_factory=os.getpid, repr=False)

    def __len__(self) -> int:
        return len(self.names)

    def path(self, index: int) -> str:
        return f"{self.shards[int(self.where[index, 0])]}/{self.names[index]}"

    def open(self, index: int) -> Image.Image:
        shard, offset, size = self.where[index].tolist()
        return Image.open(io.BytesIO(os.pread(self._file(shard).fileno(), size, offset)))

    def order(self, seed: int, epoch: int, batch_size: int, rank: int, world: int) -> Tensor:
        """An epoch's order that keeps the reading sequential."""
        return shard_order(self.bounds, seed, epoch, batch_size, rank, world, self.buffer)

    def _file(self, shard: int) -> BinaryIO:
        if self._owner != os.getpid():
            self._open, self._owner = {}, os.getpid()
        path = self.shards[shard]
        if path not in self._open:
            if len(self._open) >= 64:  # well below the usual limit of open files
                self._open.pop(next(iter(self._open))).close()
            self._open[path] = open(path, "rb")  # noqa: SIM115 - kept open for the next image
        return self._open[path]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_open": {}}

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def __del__(self) -> None:
        self.close()


def load_shards(
    name: str, root: Path, split: str, storage: Storage, val: str | None = None, buffer: int = 4096
) -> ImageSet:
    """Images in the tar shards that ``name`` matches (braces and wildcards; ``{split}`` is replaced).

    Args:
        val: pattern of the validation shards, where ``name`` has no ``{split}``.
        buffer: samples in the shuffle buffer of a lane; see ``order.shard_order``.
    """
    if split != "train" and val is not None:
        name = val
    elif split != "train" and "{split}" not in name:
        raise no_split(f"wds:{name}", split, "name them with the option val, or write {split} in the pattern")
    shards = find_shards(name.replace("{split}", split), root)
    with ThreadPoolExecutor(16) as pool:
        indexed = list(pool.map(index_shard, shards))
    where = [[s, m.offset, m.size] for s, found in enumerate(indexed) for m, _ in found]
    names = [member.name for member, _ in itertools.chain(*indexed)]
    classes = [label for _, label in itertools.chain(*indexed)]
    if not names:
        raise DataError(f"the {len(shards)} shards of {name} hold no images.")
    labels = None if any(c is None for c in classes) else torch.tensor(classes, dtype=torch.int64)
    ends = list(itertools.accumulate(len(found) for found in indexed))
    bounds = [(start, stop) for start, stop in zip([0, *ends], ends) if stop > start]
    reader = ShardReader(shards, torch.tensor(where, dtype=torch.int64), names, bounds, buffer)
    return build_image_set(reader, labels, None, f"wds:{name}", storage)


def index_shard(path: str) -> list[tuple[Member, int | None]]:
    """The images of one shard, in its order, with their labels."""
    images: dict[str, Member] = {}
    labels: dict[str, int] = {}
    with open(path, "rb") as file:
        for member in tar_members(path):
            folder, base = os.path.split(member.name)
            stem, _, extension = base.partition(".")
            key = os.path.join(folder, stem)
            if extension == "cls":
                text = os.pread(file.fileno(), member.size, member.offset)
                try:
                    labels[key] = int(text)
                except ValueError:
                    raise DataError(
                        f"{path}/{member.name} holds {text[:20]!r}, not a class number."
                    ) from None
            elif is_image(base) and key not in images:
                images[key] = member
    return [(member, labels.get(key)) for key, member in images.items()]
