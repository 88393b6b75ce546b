"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` at the end, and leaves it as it was if there is none.

    It lies beside `path` under a name that is this thread's, so that two writers do not meet in it, and is on
    the disk before it gets its name.
    """
    path = Path(os.path.realpath(path))  # a link stays one
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    """`text` in UTF-8, as the content of `path`."""
    with whole(path) as file:
        file.write(text.encode())
