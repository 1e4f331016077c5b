"""What endpoints need to know about a request, and about now."""

from __future__ import annotations

import time

from starlette.requests import Request


def now_ms() -> int:
    """Return the time, for ages."""
    return time.time_ns() // 1_000_000


def raw_path(request: Request) -> str:
    """Return the path as it was sent, still encoded: a name in it may contain encoded slashes."""
    return str(request.scope.get("raw_path", b"").decode("ascii", "replace").partition("?")[0])
