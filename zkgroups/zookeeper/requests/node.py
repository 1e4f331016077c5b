"""A znode as it was read: its bytes and the part of its stat that anything here looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Node:
    """One znode, its fields in the order of a stat. `session` is whose ephemeral it is, 0 for a persistent one."""

    path: str
    data: bytes
    czxid: int
    mzxid: int
    created_ms: int
    modified_ms: int
    version: int
    session: int

    @classmethod
    def of(cls, path: str, data: bytes | None, stat: Any) -> Self:
        """Make one of what kazoo returns; null data is as good as empty."""
        return cls(path, data or b"", stat.czxid, stat.mzxid, stat.ctime, stat.mtime, stat.version, stat.ephemeralOwner)
