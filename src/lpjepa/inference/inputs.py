"""Sets of images to embed, as the command line names them: a folder, an archive, a list, a source by name.

A set is an ordered list of items with a name and perhaps a label; images are read when they are needed.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import threading
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lpjepa.data import DataError, ImageSet, StreamedImageSet, load_source
from lpjepa.data.decoding import quiet_pillow, to_rgb, why_unreadable
from lpjepa.data.errors import BrokenImage
from lpjepa.data.sources.folder import find_images, is_image
from lpjepa.data.sources.shards import index_shard
from lpjepa.evaluation.run import Source
from lpjepa.inference.arrangement import PARTS, arrange
from lpjepa.inference.images import to_frame, to_pillow

LISTS, ARCHIVES = (".txt", ".lst"), (".zip", ".tar")
NO_LABEL = -1


class Frames(NamedTuple):
    """Some images of a set: uint8 (n, 3, R, R), their places in the set, and those that cannot be read."""

    pixels: Tensor
    places: list[int]
    unreadable: list[tuple[int, str]]  # place, reason


class Items:
    """An ordered set of images.

    Attributes:
        names: of each image; a path where there is one.
        labels: int64 (N,), or None.
        classes: names of the labels, or None.
    """

    names: Sequence[str]
    labels: np.ndarray | None = None
    classes: list[str] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def image(self, place: int) -> Any:
        """The image in one of the forms that `to_frame` takes; may raise anything for a broken one."""
        raise NotImplementedError

    def frames(self, places: range, side: int, interpolation: str, pool: ThreadPoolExecutor) -> Frames:
        """The readable images at `places`, decoded by the threads of `pool`."""

        def one(place: int) -> np.ndarray | BrokenImage:
            try:
                return to_frame(self.image(place), side, interpolation)
            except BrokenImage as error:
                return error
            except Exception as error:
                return BrokenImage(self.names[place], why_unreadable(error))

        with quiet_pillow():
            found = list(zip(places, pool.map(one, places)))
        good = [(place, pixels) for place, pixels in found if isinstance(pixels, np.ndarray)]
        stacked = np.stack([pixels for _, pixels in good]) if good else np.empty((0, 3, side, side), np.uint8)
        broken = [(place, error.reason) for place, error in found if isinstance(error, BrokenImage)]
        return Frames(torch.from_numpy(stacked), [place for place, _ in good], broken)


class Files(Items):
    """Files on disk."""

    def __init__(self, paths: Sequence[str]):
        self.names = paths

    def image(self, place: int) -> Any:
        return self.names[place]


class Folder(Files):
    """The images below a folder, or below the one of its subfolders that is the part `split`."""

    def __init__(self, path: Path, split: str | None = None):
        files = list(find_images(path))
        inside = [Path(file).relative_to(path).as_posix() for file in files]
        places, self.labels, self.classes = arrange(inside, split, str(path))
        super().__init__([files[place] for place in places])


class Archive(Items):
    """The images in a zip file or an uncompressed tar; of a tar also labels in WebDataset's `.cls` files."""

    def __init__(self, path: Path, split: str | None = None):
        self.path = path
        self._lock = threading.Lock()  # an open zip file has one position
        self._zip = zipfile.ZipFile(path) if path.suffix.lower() == ".zip" else None
        labels: list[int | None] = []
        if self._zip is not None:
            files = (name for name in self._zip.namelist() if not name.endswith("/"))  # these are folders
            members = sorted(name for name in files if is_image(PurePosixPath(name).name))
            self._members: list[Any] = [n for n in members if not n.startswith("__MACOSX/")]
            names = self._members
        else:
            found = index_shard(str(path))
            self._members, labels = [member for member, _ in found], [label for _, label in found]
            names = [member.name for member in self._members]
        arranged = arrange(_without_shared_folder(names), split, str(path))
        self.names = [f"{path}/{names[place]}" for place in arranged.places]
        self._members = [self._members[place] for place in arranged.places]
        if labels and all(label is not None for label in labels):
            self.labels = np.array([labels[place] for place in arranged.places], np.int64)
        else:
            self.labels, self.classes = arranged.labels, arranged.classes

    def image(self, place: int) -> bytes:
        member = self._members[place]
        if self._zip is not None:
            with self._lock:
                return self._zip.read(member)
        with self.path.open("rb") as file:
            return os.pread(file.fileno(), member.size, member.offset)


class Named(Items):
    """A source by name; items without a path are named SOURCE/SPLIT/NUMBER."""

    def __init__(self, images: ImageSet, split: str):
        self.images = images
        self.names = images.paths or _Numbered(f"{images.name}/{split}", len(images))
        self.labels = None if images.labels is None else images.labels.cpu().numpy()
        self.classes = images.classes

    def image(self, place: int) -> Any:
        return self.images.decode(torch.tensor([place]))[0]

    def frames(self, places: range, side: int, interpolation: str, pool: ThreadPoolExecutor) -> Frames:
        if isinstance(self.images, StreamedImageSet) or self.images.shape != (side, side):
            return super().frames(places, side, interpolation, pool)
        return Frames(self.images.read(torch.arange(places.start, places.stop)).images, list(places), [])


class _Numbered(Sequence[str]):
    def __init__(self, stem: str, count: int):
        self.stem, self.length = stem, count

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, place: Any) -> Any:
        if not 0 <= place < self.length:
            raise IndexError(place)
        return f"{self.stem}/{place}"


def open_items(images: str, split: str | None = None) -> Items:
    """The set that `images` names: a folder, .zip or .tar, .txt of paths, image file, NAME or NAME=PATH.

    `split` takes one part of it; without it a source by name gives `train`, anything else all of its images.
    """
    path = Path(images)
    suffix = path.suffix.lower()
    if split is not None and path.is_file() and suffix not in ARCHIVES:
        raise DataError(f"--split {split}: {images} has no parts; leave --split out.")
    if path.is_dir():
        items: Items = Folder(path, split)
    elif path.is_file() and suffix in ARCHIVES:
        try:
            items = Archive(path, split)
        except zipfile.BadZipFile:
            raise DataError(f"{path} is not a zip archive, or it is damaged; pack it again.") from None
    elif path.is_file() and suffix in LISTS:
        items = Files(_read_list(path))
    elif path.is_file() and is_image(path.name):
        items = Files([str(path)])
    elif path.is_file():
        raise DataError(f"{path}: images come in a folder, a .zip or plain .tar, or a .txt list of paths.")
    elif "=" not in images and (os.sep in images or suffix in (*ARCHIVES, *LISTS)):
        raise DataError(f"{images}: there is no such folder or file.")
    else:
        source = Source.parse(images)
        split = split or "train"
        items = Named(load_source(source.name, source.root, split), split)
    if not len(items):
        raise DataError(f"there are no images in {images}.")
    return items


def _without_shared_folder(names: Sequence[str]) -> list[str]:
    """Archives are packed with or without the folder that holds everything, which is no part of a set."""
    plain = [posixpath.normpath(name) for name in names]
    folders = posixpath.commonpath([posixpath.dirname(name) for name in plain]).split("/") if plain else []
    shared = "/".join(itertools.takewhile(lambda name: name not in PARTS, folders))
    return [posixpath.relpath(name, shared) if shared else name for name in plain]


def _read_list(path: Path) -> list[str]:
    """One path a line; relative ones start at the working directory, or beside the list if only there."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        str(path.parent / line) if not os.path.exists(line) and (path.parent / line).exists() else line
        for line in lines
        if line and not line.startswith("#")
    ]


def open_image(items: Items, place: int) -> Image.Image:
    """One image of a set for showing, RGB."""
    with quiet_pillow():
        return to_rgb(to_pillow(items.image(place)))
