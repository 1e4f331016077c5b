"""Session ids as text. Connecting needs this, but not the values, which take much longer to import."""

from __future__ import annotations


def session_hex(session: int) -> str:
    """Format a session id like ZooKeeper's own tools. As a Java long it may be negative.

    >>> session_hex(-1)
    '0xffffffffffffffff'
    """
    return f"{session & 0xFFFF_FFFF_FFFF_FFFF:#x}"
