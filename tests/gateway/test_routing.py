"""Which requests are offered, who answers for which group, and under which broker's address."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from zkgroups.coordinator import KafkaError
from zkgroups.core.znodes.own_nodes import RouteState
from zkgroups.exceptions import InvalidOptionError
from zkgroups.gateway.groups.group_service import LAST_COMMITS, MovedGroups
from zkgroups.gateway.protocol.offered_apis import (
    FETCH,
    NEEDED,
    OFFERED,
    PRODUCE,
    WRITES,
    GroupRouting,
    Handling,
    Route,
    coordinator_node,
    layout,
    limit_versions,
    offered,
    unknown_version,
)
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.codec import ReceivedRequest, RequestKind


def test_groups_whose_whole_name_matches_are_answered_here() -> None:
    routing = GroupRouting("billing-.*|audit")
    assert {name: routing.route(name) for name in ("billing-1", "audit", "audit-2", "a billing-1", "")} == {
        "billing-1": Route.HERE,
        "audit": Route.HERE,
        "audit-2": Route.KAFKA,
        "a billing-1": Route.KAFKA,
        "": Route.KAFKA,
    }


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "größe", "x" * 250])
def test_without_an_expression_a_name_that_no_node_can_have_goes_nowhere(name: str) -> None:
    assert GroupRouting().route(name) is Route.REFUSED
    assert GroupRouting().route("x" * 249) is Route.HERE


@pytest.mark.parametrize("pattern", ["(", "a(?=b)c", "(((a{900}){900}){900})"])
def test_an_expression_that_cannot_be_evaluated_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidOptionError, match="group"):
        GroupRouting(pattern)


def test_a_group_keeps_its_coordinator_when_another_broker_disappears() -> None:
    groups = [f"group-{number}" for number in range(300)]
    before = {group: coordinator_node(group, {1, 2, 3}) for group in groups}
    after = {group: coordinator_node(group, {1, 2}) for group in groups}
    assert all(after[group] == node for group, node in before.items() if node != 3)
    assert all(60 < list(before.values()).count(node) < 140 for node in (1, 2, 3))
    assert coordinator_node("group", set()) is None


# Who answers requests about a group that was moved live


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


def request(message: Any, version: int = 2) -> ReceivedRequest:
    return ReceivedRequest(RequestKind(message.API_KEY, version, 1), "client", message)


def join(member_id: str = "") -> ReceivedRequest:
    return request(codec.JoinGroupRequest(group_id="g", member_id=member_id, protocols=[]))


def commit(generation: int) -> ReceivedRequest:
    fields = {"group_id": "g", "member_id": "m", "generation_id_or_member_epoch": generation, "topics": []}
    return request(codec.OffsetCommitRequest(**fields))


HEARTBEAT = request(codec.HeartbeatRequest(group_id="g", generation_id=3, member_id="m"))
LEAVE = request(codec.LeaveGroupRequest(group_id="g", member_id="m"))
FETCH_OFFSETS = request(codec.OffsetFetchRequest(group_id="g", topics=[]))
DESCRIBE = request(codec.DescribeGroupsRequest(groups=["g"]))
DELETE = request(codec.DeleteGroupsRequest(groups_names=["g"]))

TABLE = [
    # request, moving to kafka, kafka, kafka without a permit, moving to zookeeper
    (DESCRIBE, HERE, KAFKA, KAFKA, KAFKA),
    (FETCH_OFFSETS, HERE, KAFKA, WAIT, WAIT),
    (HEARTBEAT, HERE, KAFKA, WAIT, REJOIN),
    (commit(3), HERE, KAFKA, WAIT, KAFKA),
    (commit(-1), HERE, KAFKA, WAIT, WAIT),
    (join(), HERE, KAFKA, WAIT, WAIT),
    (join("m"), HERE, KAFKA, WAIT, UNKNOWN),
    (LEAVE, HERE, KAFKA, WAIT, KAFKA),
    (DELETE, WAIT, KAFKA, WAIT, WAIT),
    (request(commit(-1).message, 0), HERE, WAIT, WAIT, WAIT),
    (request(FETCH_OFFSETS.message, 0), HERE, WAIT, WAIT, WAIT),
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
    found = [asyncio.run(moved.decide(each, "g", Connection())) for each in (DESCRIBE, FETCH_OFFSETS, HEARTBEAT)]
    assert found == [KAFKA, KAFKA, HERE]  # it refuses the heartbeat itself


# The offer to clients


NEXT_GENERATION = [68, 69, *range(76, 81), *range(88, 93)]
OF_BROKERS = [4, 5, 6, 7, 27, 52, 53, 54, 56, 58, 59, 62, 63, 64, 67, 70, 73, 81, 82]


def reported(*ranges: tuple[int, int, int], transactions: int | None = None) -> object:
    api, feature = codec.ApiVersionsResponse.ApiVersion, codec.ApiVersionsResponse.FinalizedFeatureKey
    found = [
        feature(name=name, max_version_level=level, min_version_level=level)
        for name, level in (("metadata.version", 25), ("transaction.version", transactions))
        if level is not None
    ]
    keys = [api(api_key=key, min_version=first, max_version=last) for key, first, last in ranges]
    return codec.ApiVersionsResponse(error_code=0, api_keys=keys, finalized_features=found)


def limited(*ranges: tuple[int, int, int]) -> dict[int, tuple[int, int]]:
    answer = reported(*ranges)
    limit_versions(answer)
    return {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}


@pytest.mark.parametrize("key", [*NEXT_GENERATION, *OF_BROKERS, 25, 28, 38, 71, 72, 1000, -1])
def test_requests_that_are_not_understood_are_hidden(key: int) -> None:
    assert offered(key, 0) is None
    assert limited((key, 0, 3)) == {}


def test_versions_with_addresses_of_new_leaders_are_hidden() -> None:
    assert limited((PRODUCE, 0, 13), (FETCH, 4, 18), (55, 0, 2)) == {PRODUCE: (0, 9), FETCH: (4, 15), 55: (0, 1)}


def test_a_request_of_which_the_broker_has_only_newer_versions_is_hidden() -> None:
    assert limited((FETCH, 16, 18), (3, 0, 9)) == {3: (0, 9)}


def test_versions_that_the_broker_does_not_have_are_not_added() -> None:
    assert limited((codec.JOIN_GROUP, 0, 2)) == {codec.JOIN_GROUP: (0, 2)}


@pytest.mark.parametrize(("level", "left"), [(2, 1), (1, 1), (0, 0)])
def test_transactions_that_need_later_versions_of_produce_are_hidden(level: int, left: int) -> None:
    answer = reported(transactions=level)
    limit_versions(answer)
    levels = {each.name: (each.min_version_level, each.max_version_level) for each in answer.finalized_features}
    assert levels == {"metadata.version": (25, 25), "transaction.version": (left, left)}


def test_an_answer_with_an_error_is_written_in_version_0() -> None:
    assert layout(unknown_version(), 4) == 0
    assert layout(codec.ApiVersionsResponse(error_code=0, api_keys=[]), 4) == 4
    assert [(each.api_key, each.max_version) for each in unknown_version().api_keys] == [(codec.API_VERSIONS, 4)]


def test_every_request_that_is_read_can_be_decoded_in_every_version() -> None:
    read = {key: each for key, each in OFFERED.items() if each.handling in (Handling.GROUPS, Handling.CHANGE_ANSWER)}
    assert read.keys() == codec.SERVED.keys()
    for key, each in read.items():
        assert (codec.SERVED[key].first, codec.SERVED[key].last) == (each.first, each.last)


def test_every_request_about_groups_needs_a_permission() -> None:
    assert {key for key, each in OFFERED.items() if each.handling is Handling.GROUPS} == NEEDED.keys()
    assert NEEDED.keys() >= WRITES
