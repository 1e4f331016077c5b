"""Split requests about several groups, and join their answers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from ...kafka.wire import codec
from ...kafka.wire.codec import ReceivedRequest
from .addresses import FIRST_WITH_SEVERAL_KEYS
from .group_requests import FIRST_FETCH_OF_SEVERAL


def only(received: ReceivedRequest, groups: Collection[str]) -> ReceivedRequest:
    """Return the request for only these of its groups. A request that names a single group is not changed."""
    message, version = received.message, received.kind.version
    match received.kind.key:
        case codec.DESCRIBE_GROUPS:
            chosen = codec.DescribeGroupsRequest(
                groups=[name for name in message.groups if name in groups],
                include_authorized_operations=message.include_authorized_operations,
            )
        case codec.DELETE_GROUPS:
            chosen = codec.DeleteGroupsRequest(groups_names=[name for name in message.groups_names if name in groups])
        case codec.OFFSET_FETCH if version >= FIRST_FETCH_OF_SEVERAL:
            chosen = codec.OffsetFetchRequest(
                groups=[each for each in message.groups if each.group_id in groups],
                require_stable=message.require_stable,
            )
        case codec.FIND_COORDINATOR if version >= FIRST_WITH_SEVERAL_KEYS:
            chosen = codec.FindCoordinatorRequest(
                key_type=message.key_type, coordinator_keys=[key for key in message.coordinator_keys if key in groups]
            )
        case _:
            return received
    return replace(received, message=chosen)


def join(first: Any, second: Any) -> Any:
    """Add the groups of the second answer to the first."""
    for name in ("groups", "results", "coordinators"):
        if hasattr(first, name):
            getattr(first, name).extend(getattr(second, name))
    return first
