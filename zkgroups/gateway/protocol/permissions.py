"""The permission that a client needs for a group, and the request by which the gateway asks the broker about it.

The broker does not see requests that are answered here, so it cannot refuse them. Before the gateway answers, it sends
a request without effect on the client's own connection to the broker, where the client has logged in. The broker checks
the permission first, whether or not it is the coordinator:

    | permission | needed for                                          | asked by                          |
    |------------|-----------------------------------------------------|-----------------------------------|
    | READ       | join, sync, heartbeat, leave, commit                | Heartbeat of an unknown member    |
    | DESCRIBE   | find the coordinator, fetch offsets, describe, list | DescribeGroups                    |
    | DELETE     | delete groups and offsets                           | OffsetDelete without partitions   |

Brokers before 2.4 do not have OffsetDelete. There, READ is the permission to delete.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, Final

from ...kafka.wire import codec
from ...kafka.wire.error_codes import Code

_PROBE: Final = "zkgroups-gateway-probe"


class Permission(Enum):
    """A permission of a client for a group."""

    READ = auto()
    DESCRIBE = auto()
    DELETE = auto()


NEEDED: Final = {
    codec.JOIN_GROUP: Permission.READ,
    codec.SYNC_GROUP: Permission.READ,
    codec.HEARTBEAT: Permission.READ,
    codec.LEAVE_GROUP: Permission.READ,
    codec.OFFSET_COMMIT: Permission.READ,
    codec.FIND_COORDINATOR: Permission.DESCRIBE,
    codec.OFFSET_FETCH: Permission.DESCRIBE,
    codec.DESCRIBE_GROUPS: Permission.DESCRIBE,
    codec.LIST_GROUPS: Permission.DESCRIBE,
    codec.DELETE_GROUPS: Permission.DELETE,
    codec.OFFSET_DELETE: Permission.DELETE,
}
"""By Kafka's number of the request."""

WRITES: Final = {
    codec.JOIN_GROUP,
    codec.SYNC_GROUP,
    codec.HEARTBEAT,
    codec.LEAVE_GROUP,
    codec.OFFSET_COMMIT,
    codec.DELETE_GROUPS,
    codec.OFFSET_DELETE,
}
"""Requests that a read-only gateway refuses."""


def probes(permission: Permission, groups: Sequence[str], *, deletes_offsets: bool) -> list[tuple[Any, list[str]]]:
    """Return the requests that ask about a permission, each with the groups that it asks about."""
    if permission is Permission.DESCRIBE:
        return [(codec.DescribeGroupsRequest(groups=list(groups)), list(groups))]
    if permission is Permission.DELETE and deletes_offsets:
        return [(codec.OffsetDeleteRequest(group_id=group, topics=[]), [group]) for group in groups]
    return [(codec.HeartbeatRequest(group_id=group, generation_id=-1, member_id=_PROBE), [group]) for group in groups]


def refused_groups(answer: Any, asked: Sequence[str]) -> set[str]:
    """Return the groups that the answer to a probe refuses."""
    if answer.API_KEY == codec.DESCRIBE_GROUPS:
        return {each.group_id for each in answer.groups if each.error_code == Code.GROUP_AUTHORIZATION_FAILED}
    return set(asked) if answer.error_code == Code.GROUP_AUTHORIZATION_FAILED else set()
