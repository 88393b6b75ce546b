"""What can go wrong with data, each as one sentence for the user.

All are ``ValueError``s, so that a caller who does not care which part failed catches one type.
"""

from __future__ import annotations


class DataError(ValueError):
    """Images or labels that cannot be used as they are."""


class MissingData(DataError):
    """A set that is not where it was looked for; the message says where to get it and where to put it."""

    def __init__(self, what: str, get: str | None = None, put: str | None = None) -> None:
        super().__init__(f"{what}." if get is None else f"{what}; get it from {get} and put it in {put}.")


class MissingSplit(DataError):
    """A set that exists but has no such split (no validation images, for example)."""


class BrokenImage(Exception):
    """One image that could not be read: raised by readers, caught and counted by whoever reads many."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason
