"""The time from which `offsets reset --by-duration` counts back.

With --execute, it is the time of the server, because the clock of this machine may be wrong. A dry run uses the clock
of this machine: a server reports its time only in the answer to a write, and a dry run writes nothing.
"""

from __future__ import annotations

import time
from typing import Final

from zkgroups.exceptions import NoPermissionError
from zkgroups.zookeeper.admin.server_clock import server_time_ms
from zkgroups.zookeeper.session.registry_context import context_of

from ..shared.arguments import chosen_groups
from ..shared.connect import connected
from ..shared.messages import say
from ..shared.options import Options
from .from_parquet import OffsetSelection
from .reset_request import ResetRequest

_NOTABLE_MS: Final = 60_000
"""A larger difference between the clocks is reported."""


def with_time(options: Options, request: ResetRequest, *, execute: bool) -> ResetRequest:
    """Return a request whose duration is replaced by a time. A request without a duration is not changed."""
    if not request.has_duration:
        return request
    here_ms = int(time.time() * 1000)
    there_ms = _server_time_ms(options, request.selection) if execute else None
    if there_ms is None:
        return request.at_time_before(here_ms)
    if abs(here_ms - there_ms) > _NOTABLE_MS:
        seconds = abs(here_ms - there_ms) // 1000
        say(options, f"The clock of this machine differs from ZooKeeper's by {seconds} s. ZooKeeper's time is used.")
    return request.at_time_before(there_ms)


def _server_time_ms(options: Options, selection: OffsetSelection) -> int | None:
    """Return the time of the server; None if no chosen group exists, or nodes may not be created in it."""
    with connected(options, writes=True) as registry:
        for name in chosen_groups(registry, selection.names, selection.matching):
            group = registry.group(name)
            if not group.exists():
                continue
            try:
                return server_time_ms(context_of(group), group.paths.root)
            except NoPermissionError as error:
                say(options, f"The clock of this machine is used, because ZooKeeper's time cannot be read: {error}.")
                return None
    return None
