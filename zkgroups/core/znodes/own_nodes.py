"""The nodes that only zkgroups writes: details of commits, coordinators, routes and marks of migrations."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, TypeGuard

from ..times import from_ms
from .codecs import is_int, is_text
from .values import MalformedNode, Side

# Details of a commit for which an offset node has no place: a client's text, and the epoch of the partition's leader.
#
# A gateway writes them to a node of its own, in the transaction that writes the offset. Old clients know nothing of
# that node, and change only the offset. So the details name the offset and the version of its node. If one of them
# differs, the offset was committed again since, and the details are ignored.


@dataclass(frozen=True, slots=True)
class CommitDetails:
    """The details of one commit.

    - `metadata`: a free text of the client.
    - `leader_epoch`: the epoch of the partition's leader; -1 if it is unknown.
    """

    metadata: str = ""
    leader_epoch: int = -1


def encode_details(details: CommitDetails, *, offset: int, version: int) -> bytes:
    """Encode the details of an offset that is committed with this version of its node.

    >>> encode_details(CommitDetails("half of the file", 3), offset=17, version=2)
    b'{"offset":17,"version":2,"metadata":"half of the file","leader_epoch":3}'
    """
    fields = {
        "offset": offset,
        "version": version,
        "metadata": details.metadata,
        "leader_epoch": details.leader_epoch,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_details(data: bytes, *, offset: int, version: int) -> CommitDetails:
    """Decode the details of this offset. They are empty if they belong to another commit, or are malformed.

    >>> data = encode_details(CommitDetails("half of the file", 3), offset=17, version=2)
    >>> decode_details(data, offset=17, version=2)
    CommitDetails(metadata='half of the file', leader_epoch=3)
    >>> decode_details(data, offset=17, version=3)
    CommitDetails(metadata='', leader_epoch=-1)
    >>> decode_details(b'{"offset":17,"version":2,"metadata":7,"leader_epoch":"3"}', offset=17, version=2)
    CommitDetails(metadata='', leader_epoch=-1)
    """
    try:
        fields: Any = json.loads(data)
    except (ValueError, RecursionError):
        return CommitDetails()
    if not isinstance(fields, dict) or (fields.get("offset"), fields.get("version")) != (offset, version):
        return CommitDetails()
    metadata, epoch = fields.get("metadata"), fields.get("leader_epoch")
    return CommitDetails(metadata if isinstance(metadata, str) else "", epoch if is_int(epoch) else -1)


# The node of the gateway that coordinates a group. Other gateways tell clients the address in it.
#
#     /zkgroups/coordinators/<group>    {"version":1,"id":"6f1c…","host":"gateway-1","ports":[19093,19192]}
#
# The node is ephemeral, so it ends with the session of the gateway. The gateway has a port for each broker.


_VERSION: Final = 1
_LAST_PORT: Final = 65535
_LONGEST_HOST: Final = 255
"""The names of hosts in the DNS are shorter."""


@dataclass(frozen=True, slots=True)
class CoordinatorNode:
    """The gateway that coordinates a group.

    - `id`: differs between all gateways, also between those with the same session.
    - `host`: the name or address at which clients reach it. Empty if the node is malformed.
    - `first_port`, `last_port`: the ports for the brokers.
    """

    id: str
    host: str = ""
    first_port: int = 0
    last_port: int = 0


def encode_coordinator(node: CoordinatorNode) -> bytes:
    """Encode the node.

    >>> encode_coordinator(CoordinatorNode("6f1c", "gateway-1", 19093, 19192))
    b'{"version":1,"id":"6f1c","host":"gateway-1","ports":[19093,19192]}'
    """
    fields = {"version": _VERSION, "id": node.id, "host": node.host, "ports": [node.first_port, node.last_port]}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_coordinator(data: bytes) -> CoordinatorNode:
    """Decode the node. A malformed node, or one of a later version, has no host: clients must try again later.

    >>> decode_coordinator(encode_coordinator(CoordinatorNode("6f1c", "gateway-1", 19093, 19192)))
    CoordinatorNode(id='6f1c', host='gateway-1', first_port=19093, last_port=19192)
    >>> decode_coordinator(b'{"version":1,"id":"6f1c","host":"gateway-1","ports":[19093,-1]}')
    CoordinatorNode(id='6f1c', host='', first_port=0, last_port=0)
    >>> decode_coordinator(b'{"version":1,"id":"6f1c","host":"gateway-\\\\ud800","ports":[19093,19192]}').host
    ''
    """
    try:
        fields: Any = json.loads(data)
    except (ValueError, RecursionError):
        return CoordinatorNode("")
    if not isinstance(fields, dict):
        return CoordinatorNode("")
    id, host, ports = fields.get("id"), fields.get("host"), fields.get("ports")
    id = id if isinstance(id, str) else ""
    if fields.get("version") != _VERSION or not _is_host(host) or not _is_range(ports):
        return CoordinatorNode(id)
    first, last = ports
    return CoordinatorNode(id, host, first, last)


def _is_host(host: Any) -> TypeGuard[str]:
    """Return whether an answer to a client can contain this name or address."""
    return isinstance(host, str) and len(host) <= _LONGEST_HOST and host.isprintable()


def _is_range(ports: Any) -> TypeGuard[list[int]]:
    match ports:
        case [first, last] if is_int(first) and is_int(last):
            return bool(0 < first <= last <= _LAST_PORT)
    return False


# The migration mark: a node in a group that is being migrated to Kafka-native offsets, or was.
#
#     /consumers/<group>/migration
#     {"version":1,"plan":"p1","target":"billing","state":"moving","since":1795255543000}
#
# zkgroups members do not join a marked group: a group with members on both sides would read messages twice or skip
# them. Other clients ignore the mark.


_HALVES = re.compile("[\ud800-\udfff]")
"""JSON can contain unpaired surrogates, which cannot be encoded."""


class MarkState(StrEnum):
    """The progress of a group's migration."""

    MOVING = "moving"
    MOVED = "moved"


@dataclass(frozen=True, slots=True)
class Mark:
    """The plan that migrates a group, the name of the target group, and the state of the migration."""

    group: str
    plan: str
    target: str
    state: MarkState
    since_ms: int

    @property
    def since(self) -> datetime | None:
        """When the migration entered this state."""
        return from_ms(self.since_ms)

    @property
    def is_moved(self) -> bool:
        """Whether the consumers of the group use the offsets on the brokers."""
        return self.state is MarkState.MOVED

    @property
    def shown(self) -> str:
        """Describe the migration for a message.

        >>> Mark("billing", "p1", "accounts", MarkState.MOVED, 0).shown
        "was moved to Kafka's own offsets as 'accounts', by plan p1"
        """
        verb = "was moved" if self.is_moved else "is being moved"
        return f"{verb} to Kafka's own offsets as {self.target!r}, by plan {self.plan}"


def encode_mark(mark: Mark) -> bytes:
    """Return the data of the mark's node, as JSON."""
    fields = {
        "version": 1,
        "plan": mark.plan,
        "target": mark.target,
        "state": mark.state.value,
        "since": mark.since_ms,
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def decode_mark(path: str, group: str, data: bytes, *, version: int = 0) -> Mark | MalformedNode:
    """Decode a mark. A malformed mark also keeps members out: its plan is unknown.

    >>> mark = Mark("billing", "p1", "billing", MarkState.MOVING, 7)
    >>> decode_mark("/m", "billing", encode_mark(mark)) == mark, decode_mark("/m", "billing", b"{}").reason
    (True, 'not a migration mark')
    """
    try:
        fields: Any = json.loads(data)
        found = Mark(
            group, _text(fields["plan"]), _text(fields["target"]), MarkState(fields["state"]), _number(fields["since"])
        )
        if fields["version"] == 1:
            return found
    except (ValueError, TypeError, LookupError, RecursionError):
        pass
    return MalformedNode(path, data, "not a migration mark", version=version)


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or _HALVES.search(value):
        raise ValueError(value)
    return value


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(value)
    return value


# The route of a group that was moved live to the brokers, or back. Consumers and gateways follow it.
#
#     /zkgroups/routes/<group>              persistent
#     {"version":1,"plan":"p1","state":"kafka","since":1795255543000}
#     /zkgroups/routes/<group>/<permit>     ephemeral    a consumer or gateway that uses the brokers for the group
#
# A group without a route is in ZooKeeper. Each step of a move is one transaction, which also changes the mark of the
# group:
#
#     | state                 | mark   | commits go to | consumers | gateways                                         |
#     |-----------------------|--------|---------------|-----------|--------------------------------------------------|
#     | (no node)             | none   | ZooKeeper     | join      | answer requests                                  |
#     | `moving-to-kafka`     | moving | ZooKeeper     | leave     | let their members leave; joins wait              |
#     | `kafka`               | moved  | the brokers   | join      | forward requests, each while its own node exists |
#     | `moving-to-zookeeper` | moved  | the brokers   | leave     | let the members of the brokers leave; joins wait |
#
# The mark fences ZooKeeper: nobody can register in a marked group, so no commit of a member is accepted once all have
# left. Permits fence the brokers: a gateway creates its permit in a transaction that checks the version of the route,
# deletes it when the state is no longer `kafka`, and stops to forward before its session can expire. A consumer does
# the same, and deletes its permit when it has left the group on the brokers. The route cannot be deleted before the
# permits.


class RouteState(StrEnum):
    """Where a group with a route is."""

    MOVING_TO_KAFKA = "moving-to-kafka"
    KAFKA = "kafka"
    MOVING_TO_ZOOKEEPER = "moving-to-zookeeper"

    @property
    def mark(self) -> MarkState:
        """The state of the mark that the group has meanwhile."""
        return MarkState.MOVING if self is RouteState.MOVING_TO_KAFKA else MarkState.MOVED


@dataclass(frozen=True, slots=True)
class GroupRoute:
    """The state of a group, since when, and the id of its move, which its mark also has.

    `truth`: where the members read their offsets before they moved to the brokers. If it is the brokers, nothing has to
    be copied there.
    """

    plan: str
    state: RouteState
    since_ms: int
    truth: Side = Side.ZOOKEEPER


def encode_route(route: GroupRoute) -> bytes:
    """Encode the node.

    >>> encode_route(GroupRoute("p1", RouteState.KAFKA, 7))
    b'{"version":1,"plan":"p1","state":"kafka","since":7}'
    """
    fields = {"version": 1, "plan": route.plan, "state": route.state.value, "since": route.since_ms}
    if route.truth is not Side.ZOOKEEPER:
        fields["truth"] = route.truth.value
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_route(path: str, data: bytes) -> GroupRoute | MalformedNode:
    """Decode the node.

    >>> decode_route("/r", encode_route(GroupRoute("p1", RouteState.KAFKA, 7)))
    GroupRoute(plan='p1', state=<RouteState.KAFKA: 'kafka'>, since_ms=7, truth=<Side.ZOOKEEPER: 'zookeeper'>)
    >>> decode_route("/r", b"{}").reason
    'not the route of a group'
    """
    try:
        fields: Any = json.loads(data)
        plan, since = fields["plan"], fields["since"]
        if fields["version"] == 1 and is_text(plan) and is_int(since):
            return GroupRoute(plan, RouteState(fields["state"]), since, Side(fields.get("truth", Side.ZOOKEEPER)))
    except (ValueError, TypeError, LookupError, RecursionError):
        pass
    return MalformedNode(path, data, "not the route of a group")
