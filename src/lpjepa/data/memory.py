"""How much memory images may take."""

from __future__ import annotations

import os
import re
from pathlib import Path

from lpjepa.data.errors import DataError

_UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def parse_bytes(amount: int | float | str) -> int:
    """A number of bytes from a number or a string.

    >>> parse_bytes("1.5 GB"), parse_bytes("64MiB"), parse_bytes(1000)
    (1500000000, 67108864, 1000)
    """
    if isinstance(amount, str):
        match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?i?b?)\s*", amount.lower())
        unit = match.group(2) if match else ""
        unit = unit if unit.endswith("b") or not unit else unit + "b"
        if match is None or unit not in _UNITS | {"b": 1}:
            raise DataError(f"max_memory must be bytes or something like '8GB', not {amount!r}.")
        amount = float(match.group(1)) * (_UNITS | {"b": 1})[unit]
    if amount < 0:
        raise DataError(f"max_memory must not be negative, not {amount}.")
    return int(amount)


def available_bytes() -> int:
    """Memory this process may still take: what the machine has free, or less if its container allows less."""
    return min([_free_on_machine(), *_free_in_containers()])


def _free_in_containers(root: str = "/sys/fs/cgroup") -> list[int]:
    """What the limit of a container (control group, version 2 or 1) leaves; nothing where there is none.

    Files in memory that the kernel may drop count as used there, and as free here.
    """
    free = []
    for folder, limit, used, cached in (
        (root, "memory.max", "memory.current", "inactive_file"),
        (f"{root}/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            numbers = [Path(folder, name).read_text().strip() for name in (limit, used)]
            statistics = dict(line.split() for line in Path(folder, "memory.stat").read_text().splitlines())
            free.append(int(numbers[0]) - int(numbers[1]) + int(statistics.get(cached, 0)))
        except (OSError, ValueError):  # no such group, or its limit is the word "max"
            continue
    return [max(0, amount) for amount in free]


def _free_on_machine() -> int:
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 * 2**30


def human(count: int) -> str:
    """A number of bytes for reading: ``human(1_500_000_000) == '1.5 GB'``."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
