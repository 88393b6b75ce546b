"""`evaluation.json`: every evaluation of a run, each finished piece on the disk as soon as it is done.

{"format": 1, "evaluations": [ {"source": "cifar100", "settings": {...}, "checkpoint": {...}, "versions":
{...}, "started": "...", "finished": "..." or null, "pieces": {"measures": {...}, "probe 0.01": {...},
...}}, ...]}

Entries are only ever added. One that was interrupted (no `finished`) is taken up again by an evaluation of
the same source with the same settings, checkpoint and versions, which then computes the missing pieces.
"""

from __future__ import annotations

import json
import math
import platform
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from lpjepa._version import __version__
from lpjepa._whole import write_whole

FORMAT = 1
NAME = "evaluation.json"
_IDENTITY = ("source", "settings", "checkpoint", "versions", "together")


def versions() -> dict[str, str]:
    """What the numbers depend on besides the settings."""
    return {"lpjepa": __version__, "torch": torch.__version__, "python": platform.python_version()}


def read(folder: Path) -> list[dict[str, Any]]:
    """The evaluations in a run's folder, oldest first; none where there is no file."""
    path = folder / NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} is not readable as JSON ({error}); move it away, and an evaluation starts a new one."
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is not an evaluation of format {FORMAT}; move it away to start a new one.")
    return content["evaluations"]


class Entry:
    """One evaluation of one source, written after every piece."""

    def __init__(self, folder: Path, place: int, content: dict[str, Any]):
        self._folder, self._place, self.content = folder, place, content

    def store(self, name: str, piece: dict[str, Any]) -> None:
        """Adds a piece; one that is there already stays, and is an error."""
        if name in self.content["pieces"]:
            raise ValueError(f"The evaluation of {self.content['source']} has its piece {name!r} already.")
        self.content["pieces"][name] = plain(piece)
        self._store()

    def missing(self, names: list[str]) -> list[str]:
        return [name for name in names if name not in self.content["pieces"]]

    def finish(self) -> dict[str, Any]:
        if self.content["finished"] is None:
            self.content["finished"] = _now()
            self._store()
        return self.content

    def _store(self) -> None:
        evaluations = read(self._folder)
        if self._place >= len(evaluations):
            self._place = len(evaluations)
            evaluations.append(self.content)
        evaluations[self._place] = self.content
        content = {"format": FORMAT, "evaluations": evaluations}
        write_whole(self._folder / NAME, json.dumps(content, indent=1, allow_nan=False))


def open_entry(folder: Path, identity: dict[str, Any]) -> Entry:
    """The unfinished entry with this identity, or a new one; nothing is written before its first piece.

    `identity` has the keys source, settings, checkpoint, versions, and together: the sources of one call. The
    place of the source, `root`, is kept beside them.
    """
    root = identity.get("root")
    identity = plain({key: identity[key] for key in _IDENTITY})
    evaluations = read(folder)
    for place, content in enumerate(evaluations):
        if content["finished"] is None and all(content[key] == identity[key] for key in _IDENTITY):
            return Entry(folder, place, content)
    new = {**identity, "root": root, "started": _now(), "finished": None, "pieces": {}}
    return Entry(folder, len(evaluations), new)


def finished(folder: Path, identity: dict[str, Any]) -> list[dict[str, Any]]:
    """The finished entries with this identity, oldest first."""
    wanted = plain(identity)
    return [
        content
        for content in read(folder)
        if content["finished"] is not None and all(content[key] == wanted[key] for key in _IDENTITY)
    ]


def plain(value: Any) -> Any:
    """JSON's own types; a number that is not finite becomes null, which every reader understands."""
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int, bool)):
        return value
    return str(value)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
