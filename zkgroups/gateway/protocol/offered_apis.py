"""What the gateway offers to clients: requests and their versions, who answers them, and which permission they need."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, Final
from zlib import crc32

from ...core.java_regex import ExpressionError
from ...core.topic_filter import TopicFilter, is_topic_of_kafka, topic_filter
from ...input_errors import InvalidOptionError
from ...kafka.wire import codec
from ...kafka.wire.codec import ReceivedRequest
from ...kafka.wire.connection import Code
from .addresses import FIRST_WITH_SEVERAL_KEYS
from .group_messages import FIRST_FETCH_OF_SEVERAL

# The requests that the gateway offers: an allow list of Kafka's API keys and their versions.
#
# Requests and versions that are missing here are hidden from clients. A client that sends one anyway is disconnected.
# So no request of a later Kafka can show clients the address of a broker. The list hides on purpose:
#
# - the newer kinds of groups: consumer groups of KIP-848 (68, 69), share groups (76 to 80, 90 to 92), streams groups
#   (88, 89). A client gets an error that tells it to use `group.protocol=classic`.
# - offsets in transactions (25, 28): groups here cannot take part in a transaction of Kafka.
# - telemetry (71, 72), delegation tokens (38 to 41), and the requests of brokers to each other.


class Handling(Enum):
    """What the gateway does with a request."""

    FORWARD = auto()
    """Pass the request and its answer on, unread."""
    PRODUCE = auto()
    """Pass both on, unread. A request with `acks=0` is not answered."""
    CHANGE_ANSWER = auto()
    """Pass the request on, and replace the addresses of brokers in its answer."""
    GROUPS = auto()
    """Answer it here, or pass it on to the brokers. The names of its groups decide."""


@dataclass(frozen=True, slots=True)
class Offered:
    """A kind of request, with its first and last version."""

    name: str
    first: int
    last: int
    handling: Handling = Handling.FORWARD


PRODUCE: Final = 0
FETCH: Final = 1


def _served(key: int, handling: Handling) -> Offered:
    api = codec.SERVED[key]
    return Offered(api.name, api.first, api.last, handling)


OFFERED: Final = {
    # The answers of later versions contain the addresses of new leaders.
    PRODUCE: Offered("Produce", 0, 9, Handling.PRODUCE),
    FETCH: Offered("Fetch", 0, 15),
    2: Offered("ListOffsets", 0, 10),
    codec.METADATA: _served(codec.METADATA, Handling.CHANGE_ANSWER),
    codec.OFFSET_COMMIT: _served(codec.OFFSET_COMMIT, Handling.GROUPS),
    codec.OFFSET_FETCH: _served(codec.OFFSET_FETCH, Handling.GROUPS),
    codec.FIND_COORDINATOR: _served(codec.FIND_COORDINATOR, Handling.GROUPS),
    codec.JOIN_GROUP: _served(codec.JOIN_GROUP, Handling.GROUPS),
    codec.HEARTBEAT: _served(codec.HEARTBEAT, Handling.GROUPS),
    codec.LEAVE_GROUP: _served(codec.LEAVE_GROUP, Handling.GROUPS),
    codec.SYNC_GROUP: _served(codec.SYNC_GROUP, Handling.GROUPS),
    codec.DESCRIBE_GROUPS: _served(codec.DESCRIBE_GROUPS, Handling.GROUPS),
    codec.LIST_GROUPS: _served(codec.LIST_GROUPS, Handling.GROUPS),
    # Not version 0: the login after it consists of bytes that are not requests.
    codec.SASL_HANDSHAKE: Offered("SaslHandshake", 1, 1),
    codec.API_VERSIONS: _served(codec.API_VERSIONS, Handling.CHANGE_ANSWER),
    19: Offered("CreateTopics", 0, 7),
    20: Offered("DeleteTopics", 0, 6),
    21: Offered("DeleteRecords", 0, 2),
    22: Offered("InitProducerId", 0, 5),
    23: Offered("OffsetForLeaderEpoch", 0, 4),
    # Later versions of these two belong to transaction.version 2: see `limit_versions`.
    24: Offered("AddPartitionsToTxn", 0, 3),
    26: Offered("EndTxn", 0, 4),
    29: Offered("DescribeAcls", 0, 3),
    30: Offered("CreateAcls", 0, 3),
    31: Offered("DeleteAcls", 0, 3),
    codec.DESCRIBE_CONFIGS: _served(codec.DESCRIBE_CONFIGS, Handling.CHANGE_ANSWER),
    33: Offered("AlterConfigs", 0, 2),
    34: Offered("AlterReplicaLogDirs", 0, 2),
    35: Offered("DescribeLogDirs", 0, 4),
    codec.SASL_AUTHENTICATE: Offered("SaslAuthenticate", 0, 2),
    37: Offered("CreatePartitions", 0, 3),
    codec.DELETE_GROUPS: _served(codec.DELETE_GROUPS, Handling.GROUPS),
    43: Offered("ElectLeaders", 0, 2),
    44: Offered("IncrementalAlterConfigs", 0, 1),
    45: Offered("AlterPartitionReassignments", 0, 1),
    46: Offered("ListPartitionReassignments", 0, 0),
    codec.OFFSET_DELETE: _served(codec.OFFSET_DELETE, Handling.GROUPS),
    48: Offered("DescribeClientQuotas", 0, 1),
    49: Offered("AlterClientQuotas", 0, 1),
    50: Offered("DescribeUserScramCredentials", 0, 0),
    51: Offered("AlterUserScramCredentials", 0, 0),
    # Version 2 has the addresses of controllers.
    55: Offered("DescribeQuorum", 0, 1),
    57: Offered("UpdateFeatures", 0, 1),
    codec.DESCRIBE_CLUSTER: _served(codec.DESCRIBE_CLUSTER, Handling.CHANGE_ANSWER),
    61: Offered("DescribeProducers", 0, 0),
    65: Offered("DescribeTransactions", 0, 0),
    66: Offered("ListTransactions", 0, 1),
    75: Offered("DescribeTopicPartitions", 0, 0),
}
"""By Kafka's API key."""


def offered(key: int, version: int) -> Offered | None:
    """Return how to handle a request; None if it is not offered in this version.

    >>> offered(codec.METADATA, 9).handling, offered(FETCH, 16), offered(68, 0)
    (<Handling.CHANGE_ANSWER: 3>, None, None)
    """
    found = OFFERED.get(key)
    return found if found is not None and found.first <= version <= found.last else None


# The versions that the gateway reports to clients: the broker and the gateway must both support a version.
#
# Produce is offered only up to version 9, so the feature `transaction.version` must be 1. With 2, a producer would
# need later versions of Produce to add partitions to its transaction.


_TRANSACTIONS: Final = "transaction.version"
_LAST_TRANSACTION_VERSION: Final = 1


def limit_versions(answer: Any) -> None:
    """Remove everything that is not offered from the answer of a broker to ApiVersions."""
    answer.api_keys = [each for each in answer.api_keys if _limited(each)]
    for feature in answer.finalized_features or ():
        if feature.name == _TRANSACTIONS:
            feature.max_version_level = min(feature.max_version_level, _LAST_TRANSACTION_VERSION)
            feature.min_version_level = min(feature.min_version_level, _LAST_TRANSACTION_VERSION)


def _limited(api: Any) -> bool:
    """Limit the versions of one kind of request. Return False if none is left."""
    found = OFFERED.get(api.api_key)
    if found is None:
        return False
    api.min_version = max(api.min_version, found.first)
    api.max_version = min(api.max_version, found.last)
    return bool(api.min_version <= api.max_version)


def unknown_version() -> Any:
    """Return the answer to ApiVersions in a version that is not offered. It must be encoded in version 0."""
    ours = OFFERED[codec.API_VERSIONS]
    known = codec.ApiVersionsResponse.ApiVersion(
        api_key=codec.API_VERSIONS, min_version=ours.first, max_version=ours.last
    )
    return codec.ApiVersionsResponse(error_code=Code.UNSUPPORTED_VERSION, api_keys=[known])


def layout(answer: Any, version: int) -> int:
    """Return the version in which an answer to ApiVersions is written. Errors have the layout of version 0."""
    return 0 if answer.error_code else version


# Decide which groups the gateway answers for, and which broker clients see as their coordinator.


class Route(Enum):
    """The coordinator of a group."""

    HERE = auto()
    KAFKA = auto()
    """The coordinator on the brokers."""
    REFUSED = auto()
    """Refused: the gateway answers for all groups, and the name is not valid here."""


@dataclass(frozen=True)
class GroupRouting:
    """Routes groups by their names.

    - `pattern`: a regular expression like those of white lists. The gateway answers for the groups whose whole name
      matches. None: it answers for all groups.

    >>> routing = GroupRouting("billing-.*")
    >>> routing.route("billing-eu"), routing.route("orders"), GroupRouting().route("a/b")
    (<Route.HERE: 1>, <Route.KAFKA: 2>, <Route.REFUSED: 3>)
    """

    pattern: str | None = None
    _filter: TopicFilter | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            found = None if self.pattern is None else topic_filter(self.pattern)
        except ExpressionError as error:
            raise InvalidOptionError("group", self.pattern, f"it must be a regular expression: {error}") from error
        object.__setattr__(self, "_filter", found)

    def route(self, group: str) -> Route:
        """Return the coordinator of a group."""
        if self._filter is not None:
            return Route.HERE if self._filter.matches(group) else Route.KAFKA
        return Route.HERE if is_topic_of_kafka(group) and group not in {".", ".."} else Route.REFUSED


def coordinator_node(group: str, nodes: Collection[int]) -> int | None:
    """Return the broker that clients see as the coordinator of a group; None if no broker is known.

    The gateway answers under the address of every broker, so any choice is correct. This choice depends only on the
    name of the group and on the brokers. If the brokers change, it changes for few groups.
    """
    return max(nodes, key=lambda node: (crc32(f"{node}/{group}".encode()), node), default=None)


# The permission that a client needs for a group, and the request by which the gateway asks the broker about it.
#
# The broker does not see requests that are answered here, so it cannot refuse them. Before the gateway answers, it
# sends a request without effect on the client's own connection to the broker, where the client has logged in. The
# broker checks the permission first, whether or not it is the coordinator:
#
#     | permission | needed for                                          | asked by                          |
#     |------------|-----------------------------------------------------|-----------------------------------|
#     | READ       | join, sync, heartbeat, leave, commit                | Heartbeat of an unknown member    |
#     | DESCRIBE   | find the coordinator, fetch offsets, describe, list | DescribeGroups                    |
#     | DELETE     | delete groups and offsets                           | OffsetDelete without partitions   |
#
# Brokers before 2.4 do not have OffsetDelete. There, READ is the permission to delete.


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


# Split requests about several groups, and join their answers.


def only(received: ReceivedRequest, groups: Collection[str]) -> ReceivedRequest:
    """Return the request for only these of its groups, each of them once.

    A request of a kind that can name only a single group is not changed.
    """
    message, version = received.message, received.kind.version
    match received.kind.key:
        case codec.DESCRIBE_GROUPS:
            chosen = codec.DescribeGroupsRequest(
                groups=_chosen(message.groups, groups),
                include_authorized_operations=message.include_authorized_operations,
            )
        case codec.DELETE_GROUPS:
            chosen = codec.DeleteGroupsRequest(groups_names=_chosen(message.groups_names, groups))
        case codec.OFFSET_FETCH if version >= FIRST_FETCH_OF_SEVERAL:
            chosen = codec.OffsetFetchRequest(
                groups=list({each.group_id: each for each in message.groups if each.group_id in groups}.values()),
                require_stable=message.require_stable,
            )
        case codec.FIND_COORDINATOR if version >= FIRST_WITH_SEVERAL_KEYS:
            chosen = codec.FindCoordinatorRequest(
                key_type=message.key_type, coordinator_keys=_chosen(message.coordinator_keys, groups)
            )
        case _:
            return received
    return replace(received, message=chosen)


def _chosen(names: Iterable[str], groups: Collection[str]) -> list[str]:
    return list(dict.fromkeys(name for name in names if name in groups))


def join(first: Any, second: Any) -> Any:
    """Add the groups of the second answer to the first."""
    for name in ("groups", "results", "coordinators"):
        if hasattr(first, name):
            getattr(first, name).extend(getattr(second, name))
    return first
