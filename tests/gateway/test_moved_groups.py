"""Who answers requests about a group that was moved live."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from zkgroups.coordinator import KafkaError
from zkgroups.core.znodes.group_route import RouteState
from zkgroups.gateway.groups.moved_groups import LAST_COMMITS, MovedGroups
from zkgroups.gateway.protocol.group_routing import Route
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.codec import ReceivedRequest, RequestKind

WAIT = KafkaError.NOT_COORDINATOR
REJOIN = KafkaError.REBALANCE_IN_PROGRESS
UNKNOWN = KafkaError.UNKNOWN_MEMBER_ID
HERE, KAFKA = Route.HERE, Route.KAFKA


class FixedRoutes:
    """One state for all groups."""

    def __init__(self, state: RouteState | None, *, age: float = 0.0, permit: bool = True) -> None:
        self._state, self._age, self._permit = state, age, permit

    def state(self, _group: str) -> RouteState | None:
        return self._state

    def age(self, _group: str) -> float:
        return self._age

    def may_forward(self, _group: str) -> bool:
        return self._permit

    def begin_use(self, _group: str) -> bool:
        return self._permit

    def end_use(self, _group: str) -> None:
        """Nothing waits for it."""


class Connection:
    """Notes the requests to the broker."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def ask(self, message: Any, _version: int) -> Any:
        self.asked.append(message)


def request(message: Any) -> ReceivedRequest:
    return ReceivedRequest(RequestKind(message.API_KEY, 2, 1), "client", message)


def join(member_id: str = "") -> ReceivedRequest:
    return request(codec.JoinGroupRequest(group_id="g", member_id=member_id, protocols=[]))


def commit(generation: int) -> ReceivedRequest:
    fields = {"group_id": "g", "member_id": "m", "generation_id_or_member_epoch": generation, "topics": []}
    return request(codec.OffsetCommitRequest(**fields))


HEARTBEAT = request(codec.HeartbeatRequest(group_id="g", generation_id=3, member_id="m"))
LEAVE = request(codec.LeaveGroupRequest(group_id="g", member_id="m"))
FETCH = request(codec.OffsetFetchRequest(group_id="g", topics=[]))
DESCRIBE = request(codec.DescribeGroupsRequest(groups=["g"]))
DELETE = request(codec.DeleteGroupsRequest(groups_names=["g"]))

TABLE = [
    # request, moving to kafka, kafka, kafka without a permit, moving to zookeeper
    (DESCRIBE, HERE, KAFKA, KAFKA, KAFKA),
    (FETCH, HERE, KAFKA, WAIT, WAIT),
    (HEARTBEAT, HERE, KAFKA, WAIT, REJOIN),
    (commit(3), HERE, KAFKA, WAIT, KAFKA),
    (commit(-1), HERE, KAFKA, WAIT, WAIT),
    (join(), HERE, KAFKA, WAIT, WAIT),
    (join("m"), HERE, KAFKA, WAIT, UNKNOWN),
    (LEAVE, HERE, KAFKA, WAIT, KAFKA),
    (DELETE, WAIT, KAFKA, WAIT, WAIT),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: codec.SERVED[row[0].kind.key].name)
def test_the_state_of_the_route_decides_who_answers(row: Any) -> None:
    received, *expected = row
    routes = (
        FixedRoutes(RouteState.MOVING_TO_KAFKA),
        FixedRoutes(RouteState.KAFKA),
        FixedRoutes(RouteState.KAFKA, permit=False),
        FixedRoutes(RouteState.MOVING_TO_ZOOKEEPER),
    )

    async def decided() -> list[Any]:
        return [await MovedGroups(each, read_only=False).decide(received, "g", Connection()) for each in routes]

    assert asyncio.run(decided()) == expected


def test_late_members_of_the_brokers_are_removed_before_the_group_is_moved_back() -> None:
    moved = MovedGroups(FixedRoutes(RouteState.MOVING_TO_ZOOKEEPER, age=LAST_COMMITS + 1), read_only=False)
    for received in (HEARTBEAT, join("m")):
        connection = Connection()
        assert asyncio.run(moved.decide(received, "g", connection)) is UNKNOWN
        assert [(each.API_KEY, each.member_id) for each in connection.asked] == [(codec.LEAVE_GROUP, "m")]


def test_a_read_only_gateway_reads_where_the_group_is_and_needs_no_permit() -> None:
    moved = MovedGroups(FixedRoutes(RouteState.KAFKA, permit=False), read_only=True)
    found = [asyncio.run(moved.decide(each, "g", Connection())) for each in (DESCRIBE, FETCH, HEARTBEAT)]
    assert found == [KAFKA, KAFKA, HERE]  # it refuses the heartbeat itself
