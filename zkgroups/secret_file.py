"""Reading small files that may hold secrets."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

LONGEST_SECRET: Final = 64 * 1024
"""In bytes. Passwords are shorter, and so are files of properties."""


def read_secret_file(path: str | Path) -> bytes:
    """Return what the file or pipe holds; raise OSError if that is too long, because a device may never end."""
    with Path(path).open("rb") as file:
        data = file.read(LONGEST_SECRET + 1)
    if len(data) > LONGEST_SECRET:
        raise OSError(errno.EFBIG, f"it is longer than {LONGEST_SECRET} bytes", str(path))
    return data
