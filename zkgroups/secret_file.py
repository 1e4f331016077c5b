"""Read small files that may contain secrets, such as passwords and properties."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

LONGEST_SECRET: Final = 64 * 1024
"""In bytes. Files of passwords or properties are shorter."""


def read_secret_file(path: str | Path) -> bytes:
    """Return the contents of a file or pipe. Raise OSError if they are too long, because a device may never end."""
    with Path(path).open("rb") as file:
        data = file.read(LONGEST_SECRET + 1)
    if len(data) > LONGEST_SECRET:
        raise OSError(errno.EFBIG, f"it is longer than {LONGEST_SECRET} bytes", str(path))
    return data
