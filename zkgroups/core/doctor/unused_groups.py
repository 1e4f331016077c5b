"""Which groups nobody uses any more, as far as their znodes tell."""

from __future__ import annotations

import re
from typing import Final

from ...exceptions import InvalidOptionError
from ..znodes.group_description import GroupDescription
from ..znodes.paths import GroupPaths
from ..znodes.states import InstanceState
from ..znodes.values import UnreadableNode

_SECONDS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def duration_seconds(text: str) -> int:
    """A stretch of time in seconds.

    >>> duration_seconds("90d"), duration_seconds("12h"), duration_seconds("30m"), duration_seconds("3600s")
    (7776000, 43200, 1800, 3600)
    """
    found = re.fullmatch("([0-9]{1,9})([dhms])", text)
    if found is None:
        raise InvalidOptionError("duration", text, "it must be a number with d, h, m or s, e.g. 90d")
    return int(found[1]) * _SECONDS[found[2]]


def in_use(group: GroupDescription) -> bool:
    """True if a registered instance may be alive, or if there is any owner, registered or not."""
    alive = any(instance.state is not InstanceState.DEAD for instance in group.instances)
    return alive or any(partition.owners for partition in group.partitions)


def unreadable(group: GroupDescription) -> tuple[UnreadableNode, ...]:
    """The group's own nodes that cannot be read: nobody knows what they are, and they cannot be exported."""
    root = GroupPaths(group.group).root
    return tuple(node for node in group.malformed if f"{node.path}/".startswith(f"{root}/"))
