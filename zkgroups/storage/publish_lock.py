"""A lock for the moment in which files are moved into a folder, on any file system.

    DEST/_unfinished/publishing-<random>-<process>-<host>

Each run creates its file before it looks for those of other runs. So of two runs at least one sees the other, deletes
its own file, and tries again. A run that was killed leaves its file. Runs on the same host see that its process has
ended, and delete it. A run on another host cannot see this, and refuses to go on after some time.
"""

from __future__ import annotations

import os
import random
import re
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from ..exceptions import RefusedError
from ..input_errors import ZkgroupsException
from .atomic_folder import UNFINISHED, AtomicFolder

_PATIENCE: Final = 30.0
"""In seconds. Moving files takes milliseconds on a disk, and seconds on an object store."""

_NAME: Final = re.compile("publishing-[0-9a-f]{8}-([0-9]+)-(.*)", re.DOTALL)


@contextmanager
def publishing(folder: AtomicFolder, patience: float = _PATIENCE) -> Iterator[None]:
    """Run the block while no other run is in such a block for this folder."""
    own = f"publishing-{uuid.uuid4().hex[:8]}-{os.getpid()}-{socket.gethostname()}"
    _take(folder, own, time.monotonic() + patience)
    try:
        yield
    finally:
        with suppress(ZkgroupsException), folder.translated(f"{folder} cannot be written to"):
            folder.delete(UNFINISHED, own)


def _take(folder: AtomicFolder, own: str, until: float) -> None:
    while True:
        with folder.translated(f"{folder} cannot be written to"):
            folder.write_text("", UNFINISHED, own)
            others = [name for name in folder.children(UNFINISHED) if _NAME.fullmatch(name) and name != own]
            living = [name for name in others if not _has_ended(name)]
            if not living:
                for name in others:
                    folder.delete(UNFINISHED, name)
                return
            folder.delete(UNFINISHED, own)
        if time.monotonic() > until:
            raise RefusedError(
                f"another run is moving its files into {folder}: wait until it has ended. If no run is active, it was "
                f"killed: delete {folder.path(UNFINISHED, living[0])}"
            )
        time.sleep(random.uniform(0.01, 0.2))  # noqa: S311 -- not a secret


def _has_ended(name: str) -> bool:
    """Return whether the run of this name was a process on this host that has ended."""
    found = _NAME.fullmatch(name)
    if found is None or found[2] != socket.gethostname():
        return False
    try:
        os.kill(int(found[1]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass
    return False
