"""A znode as it was read: its data and the used fields of its stat."""

from __future__ import annotations

from typing import Any, NamedTuple, Self


class Node(NamedTuple):
    """One znode, with its fields in the order of a stat. `session` is 0 for a persistent node."""

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
        """Create a node from a result of kazoo. Null data become empty."""
        return cls(path, data or b"", stat.czxid, stat.mzxid, stat.ctime, stat.mtime, stat.version, stat.ephemeralOwner)
