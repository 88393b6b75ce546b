"""The checksum that tells a damaged file from a whole one."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest(path: Path) -> str:
    """SHA-256 of a file of any size, in hexadecimal digits."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**22):
            found.update(block)
    return found.hexdigest()
