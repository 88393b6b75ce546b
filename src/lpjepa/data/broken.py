"""Broken images: reported by path, skipped, counted; too many of them stop the run."""

from __future__ import annotations

import logging

from lpjepa.data.errors import DataError

log = logging.getLogger("lpjepa.data")

# A handful of unreadable files is normal in a scraped folder of any size; only beyond it a share is judged.
ALWAYS_TOLERATED = 10


class BrokenImages:
    """The images of one set that could not be read.

    Args:
        total: number of images in the set.
        max_fraction: the largest share of broken images that is tolerated (ten are, whatever the share).
    """

    def __init__(self, total: int, max_fraction: float = 0.01) -> None:
        if not 0 <= max_fraction <= 1:
            raise DataError(f"max_broken must lie between 0 and 1, not {max_fraction}.")
        self.total = total
        self.limit = max(ALWAYS_TOLERATED, int(max_fraction * total))
        self.reasons: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.reasons)

    @property
    def paths(self) -> list[str]:
        return list(self.reasons)

    def add(self, path: str, reason: str) -> None:
        """Report one path (once), and raise ``DataError`` when there are more than the limit."""
        if path in self.reasons:
            return
        self.reasons[path] = reason
        log.warning("skipped broken image %s (%s)", path, reason)
        if len(self) > self.limit or len(self) >= self.total:
            raise DataError(
                f"{len(self)} of {self.total} images cannot be read, more than the {self.limit} tolerated "
                f"(the last: {path}, {reason}); repair or remove them, or raise max_broken."
            )
