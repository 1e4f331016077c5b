"""How long brokers keep the offsets of an unused group: a setting of each broker."""

from __future__ import annotations

import re
from typing import Final

from ...deadline import Deadline
from ..errors import is_temporary_of_leader
from ..wire import codec
from ..wire.cluster import Cluster
from ..wire.error_codes import Code
from ..wire.errors import WireError
from .lanes import send_all
from .metadata import metadata
from .retry import tries

_SETTING: Final = "offsets.retention.minutes"
_NUMBER: Final = re.compile("[0-9]{1,18}")
_BROKER: Final = 4
"""The type of the resource in requests about settings."""


async def offsets_retention(cluster: Cluster, deadline: Deadline) -> float | None:
    """Return the shortest retention of all brokers in seconds; None if no broker reports it.

    Brokers before 0.11 do not report settings, and others only to users with permission.
    """
    left = set((await metadata(cluster, [], deadline)).brokers)
    answers: dict[int, int | None] = {}

    async def send(node: int, timeout: float) -> None:
        code, minutes = await _ask(cluster, node, timeout)
        if not is_temporary_of_leader(code):
            answers[node] = minutes

    async for timeout in tries(deadline):
        failed = await send_all({node: [timeout] for node in left}, send)
        # A broker that does not report settings answers with a permanent error.
        left -= answers.keys() | {node for node, error in failed.items() if not isinstance(error, WireError)}
        if not left:
            break
    found = [minutes for minutes in answers.values() if minutes is not None]
    return min(found) * 60.0 if found else None


async def _ask(cluster: Cluster, node: int, timeout: float) -> tuple[int, int | None]:
    """Ask one broker, because each knows only its own settings. Return the error code, and the minutes."""
    kind = codec.DescribeConfigsRequest
    resource = kind.DescribeConfigsResource(
        resource_type=_BROKER, resource_name=str(node), configuration_keys=[_SETTING]
    )
    answer = await cluster.ask(node, kind(resources=[resource]), timeout=timeout)
    for result in answer.results:
        for setting in result.configs:
            if setting.name == _SETTING and _NUMBER.fullmatch(setting.value or ""):
                return Code.NONE, int(setting.value)
        return result.error_code, None
    return Code.NONE, None
