"""One sweep at a time in a folder of trainings: two would take up the same trainings."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone_in(work: Path) -> Iterator[None]:
    """Holds `work` for this process; a ValueError names the process that has it.

    The system lets go of a lock when its holder ends, however that is. Where it has no locks (Windows, some
    network disks) sweeps are not kept apart.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    new = [place for place in (work, *work.parents) if not place.exists()]
    work.mkdir(parents=True, exist_ok=True)
    path = work / "at-work"
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise ValueError(
                f"{work}: {holder} is training there; wait for it to end, name another folder with --work, "
                "or see with --render-only what there is"
            ) from None
        except OSError:
            yield
            return
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                file.truncate(0)
                if new and list(work.iterdir()) == [path]:  # nothing came of it
                    path.unlink()
                    for place in new:
                        place.rmdir()
