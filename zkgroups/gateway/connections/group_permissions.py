"""The permissions of one client for groups. The gateway asks its broker, and remembers permissions for some time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from ..protocol.permissions import Permission, probes, refused_groups

_VALID: Final = 60.0
"""In seconds: how long a permission is remembered. A refusal is not remembered."""
_MOST: Final = 10_000
_AT_A_TIME: Final = 1000

Ask = Callable[[Any], Awaitable[Any]]
"""Sends a request on the client's own connection to its broker, and returns the answer."""


class GroupPermissions:
    """Asks the broker of a client for its permissions."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._valid_until: dict[tuple[Permission, str], float] = {}

    async def allowed(self, permission: Permission, groups: Sequence[str], *, deletes_offsets: bool) -> set[str]:
        """Return the groups for which the client has a permission."""
        now = asyncio.get_running_loop().time()
        unknown = [group for group in groups if self._valid_until.get((permission, group), 0.0) <= now]
        refused: set[str] = set()
        for first in range(0, len(unknown), _AT_A_TIME):
            some = unknown[first : first + _AT_A_TIME]
            for request, asked in probes(permission, some, deletes_offsets=deletes_offsets):
                refused |= refused_groups(await self._ask(request), asked)
        if len(self._valid_until) > _MOST:
            self._valid_until.clear()
        self._valid_until |= {(permission, group): now + _VALID for group in unknown if group not in refused}
        return set(groups) - refused
