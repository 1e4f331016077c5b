"""The route of a group that was moved live to the brokers, or back. Consumers and gateways follow it.

    /zkgroups/routes/<group>              persistent   {"version":1,"plan":"p1","state":"kafka","since":1795255543000}
    /zkgroups/routes/<group>/<permit>     ephemeral    a consumer or gateway that uses the brokers for the group

A group without a route is in ZooKeeper. Each step of a move is one transaction, which also changes the mark of the
group (`migration_mark.py`):

    | state                 | mark   | commits go to | consumers | gateways                                         |
    |-----------------------|--------|---------------|-----------|--------------------------------------------------|
    | (no node)             | none   | ZooKeeper     | join      | answer requests                                  |
    | `moving-to-kafka`     | moving | ZooKeeper     | leave     | let their members leave; joins wait              |
    | `kafka`               | moved  | the brokers   | join      | forward requests, each while its own node exists |
    | `moving-to-zookeeper` | moved  | the brokers   | leave     | let the members of the brokers leave; joins wait |

The mark fences ZooKeeper: nobody can register in a marked group, so no commit of a member is accepted once all have
left. Permits fence the brokers: a gateway creates its permit in a transaction that checks the version of the route,
deletes it when the state is no longer `kafka`, and stops to forward before its session can expire. A consumer does the
same, and deletes its permit when it has left the group on the brokers. The route cannot be deleted before the permits.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .decoding import is_int, is_text
from .migration_mark import MarkState
from .offset_sides import Side
from .values import MalformedNode


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
