"""Requests of members: what each is answered in each situation, and when joins and syncs wait for others."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from zkgroups.coordinator import (
    CommitRequest,
    CommittedValue,
    CoordinatorConfig,
    GroupMoved,
    HeartbeatRequest,
    KafkaError,
    LeaveRequest,
    MemberIdentity,
    MembershipLost,
    RebalanceNeeded,
    Request,
    SyncRequest,
)
from zkgroups.coordinator.storage import LoadGroup, ReleaseMembers, StoreGeneration, WorkFailed

from .clients import AT_ONCE, DELAY, GROUP, OLD, ORDERS, Clients, SlowStorage, join_request, protocols, subscribed

PAYMENTS_ONLY = protocols("range", metadata=subscribed("payments"))
CAREFUL = CoordinatorConfig(initial_rebalance_delay=0, max_members=2)

# Every request in every situation


class Asked:
    """The clients, and who asks: a member id, a generation, an instance id, and a group."""

    def __init__(
        self, clients: Clients, member: str, generation: int, instance: str | None = None, group: str = GROUP
    ) -> None:
        self.clients = clients
        offsets = {ORDERS: CommittedValue(17)}
        self.requests: dict[str, Request] = {
            "join": join_request(member, instance_id=instance, group=group),
            "sync": SyncRequest(group, member, generation, {}, instance),
            "beat": HeartbeatRequest(group, member, generation, instance),
            "commit": CommitRequest(group, offsets, member, generation, instance),
            "leave": LeaveRequest(group, (MemberIdentity(member, instance),)),
        }

    def error(self, kind: str) -> str:
        id = self.clients.send(self.requests[kind])
        if self.clients.is_parked(id):
            return "parked"
        answer = self.clients.answer(id)
        if kind == "commit":
            return str(answer.errors[ORDERS].name)
        return str((answer.error or (answer.members[0] if kind == "leave" else answer.error)).name)


def pair(*, synced: bool = True) -> tuple[Clients, str, str]:
    """Two members in generation 2. The first one leads."""
    clients = Clients()
    first, second = clients.stable("a", "b") if synced else clients.joined("a", "b")
    return clients, first, second


def static_pair(clients: Clients, **fields: Any) -> tuple[str, str]:
    """A stable group of two static members: `i` leads, `j` follows."""
    first = clients.ask(join_request(instance_id="i", **fields)).member_id
    second = clients.join(instance_id="j", **fields)
    rejoined = clients.join(first, instance_id="i", **fields)
    members = clients.answer(rejoined).member_id, clients.answer(second).member_id
    clients.settle(list(members))
    return members


def after(*events: Any, synced: bool = True) -> Callable[[], Asked]:
    def build() -> Asked:
        clients, _first, second = pair(synced=synced)
        for event in events:
            clients.receive(event)
        return Asked(clients, second, 2)

    return build


def of_pair(member: str = "", *, generation: int = 2) -> Callable[[], Asked]:
    """Ask as the follower of a stable pair, or with another id."""

    def build() -> Asked:
        clients, _first, second = pair()
        return Asked(clients, member or second, generation)

    return build


def that_left() -> Asked:
    clients, _first, second = pair()
    clients.leave(second)
    return Asked(clients, second, 2)


def the_leader() -> Asked:
    clients, first, _second = pair()
    return Asked(clients, first, 2)


def with_an_unused_id() -> Asked:
    clients, _first, _second = pair()
    return Asked(clients, clients.new_id(), 2)


def in_a_rebalance() -> Asked:
    clients, _first, second = pair()
    clients.join(client_id="c", **OLD)
    return Asked(clients, second, 2)


def fenced(member: str | None = None) -> Callable[[], Asked]:
    """Ask as the static member before its restart, or as a stranger that uses its instance id."""

    def build() -> Asked:
        clients = Clients()
        _first, second = static_pair(clients)
        clients.ask(join_request(instance_id="j"))
        return Asked(clients, member or second, 2, "j")

    return build


def with_another_instance_id() -> Asked:
    clients = Clients()
    _first, second = static_pair(clients)
    return Asked(clients, second, 2, "k")


def static_with_a_dynamic_id() -> Asked:
    clients, _first, _second = pair()
    return Asked(clients, clients.new_id(), 2, "i")


UNKNOWN, ILLEGAL, FENCED = "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "FENCED_INSTANCE_ID"
REBALANCE, INVALID = "REBALANCE_IN_PROGRESS", "INVALID_GROUP_ID"
KINDS = ("join", "sync", "beat", "commit", "leave")
SITUATIONS: dict[str, tuple[Callable[[], Asked], tuple[str, str, str, str, str]]] = {
    "no group": (lambda: Asked(Clients(), "x", 1), (UNKNOWN, UNKNOWN, UNKNOWN, ILLEGAL, UNKNOWN)),
    # Old clients may commit to the group with the empty name.
    "the group without a name": (
        lambda: Asked(Clients(), "x", -1, group=""),
        (INVALID, INVALID, INVALID, "NONE", INVALID),
    ),
    "a stranger": (of_pair("x"), (UNKNOWN,) * 5),
    "a member that left": (that_left, (UNKNOWN,) * 5),
    "a follower": (of_pair(), ("NONE",) * 5),
    "a leader": (the_leader, ("parked", "NONE", "NONE", "NONE", "NONE")),
    "before the assignment": (after(synced=False), ("NONE", "parked", "NONE", REBALANCE, "NONE")),
    "an earlier generation": (of_pair(generation=1), ("NONE", ILLEGAL, ILLEGAL, ILLEGAL, "NONE")),
    "a later generation": (of_pair(generation=3), ("NONE", ILLEGAL, ILLEGAL, ILLEGAL, "NONE")),
    "no generation": (of_pair(generation=-1), ("NONE", ILLEGAL, ILLEGAL, ILLEGAL, "NONE")),
    "during a rebalance": (in_a_rebalance, ("parked", REBALANCE, REBALANCE, "NONE", "NONE")),
    "after a change outside": (after(RebalanceNeeded(GROUP)), ("parked", REBALANCE, REBALANCE, "NONE", "NONE")),
    "after a change of another group": (after(RebalanceNeeded("x"), MembershipLost("x")), ("NONE",) * 5),
    "an unused id": (with_an_unused_id, ("parked", UNKNOWN, UNKNOWN, UNKNOWN, "NONE")),
    "members that the storage lost": (after(MembershipLost()), (UNKNOWN,) * 5),
    "a group that moved": (after(GroupMoved(GROUP)), (UNKNOWN, UNKNOWN, UNKNOWN, ILLEGAL, UNKNOWN)),
    "the id before a restart": (fenced(), (FENCED,) * 5),
    "a stranger with an instance id": (fenced("stranger"), (FENCED,) * 5),
    "another instance id": (with_another_instance_id, (UNKNOWN,) * 5),
    "an instance id with the unused id of another client": (static_with_a_dynamic_id, (UNKNOWN,) * 4 + ("NONE",)),
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_request_is_answered(situation: str) -> None:
    build, expected = SITUATIONS[situation]
    assert tuple(build().error(kind) for kind in KINDS) == expected


# Joining


def test_a_new_client_is_given_an_id_and_must_join_with_it() -> None:
    clients = Clients()
    answer = clients.ask(join_request(client_id="app"))
    assert (answer.error, answer.member_id, answer.generation) == (KafkaError.MEMBER_ID_REQUIRED, "app-1", -1)
    assert [member.state for member in clients.group.members] == ["Pending"]
    assert clients.new_id(client_id="app") == "app-2"
    old = Clients().ask(join_request(**OLD))
    assert (old.error, old.member_id, old.generation, old.leader) == (0, "app-1", 1, "app-1")


@pytest.mark.parametrize(
    ("config", "fields", "error"),
    [
        *((AT_ONCE, {"session_timeout": each}, "INVALID_SESSION_TIMEOUT") for each in (5.999, 300.001, 0, -1)),
        *((AT_ONCE, {"session_timeout": each}, "MEMBER_ID_REQUIRED") for each in (6, 300)),
        (AT_ONCE, {"protocols": ()}, "INCONSISTENT_GROUP_PROTOCOL"),
        (AT_ONCE, {"protocol_type": ""}, "INCONSISTENT_GROUP_PROTOCOL"),
        (CoordinatorConfig(only_consumers=True), {"protocol_type": "connect"}, "INCONSISTENT_GROUP_PROTOCOL"),
        (CoordinatorConfig(only_consumers=True), {}, "MEMBER_ID_REQUIRED"),
    ],
)
def test_a_join_is_checked_before_the_group_exists(config: CoordinatorConfig, fields: dict, error: str) -> None:
    clients = Clients(config)
    assert clients.ask(join_request(**fields)).error.name == error
    assert clients.coordinator.groups() == ([GROUP] if error == "MEMBER_ID_REQUIRED" else [])


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"protocols": protocols("roundrobin")}, "INCONSISTENT_GROUP_PROTOCOL"),
        ({"protocols": protocols("roundrobin", "sticky")}, "MEMBER_ID_REQUIRED"),
        ({"protocol_type": "connect"}, "INCONSISTENT_GROUP_PROTOCOL"),
    ],
)
def test_a_member_without_a_common_protocol_is_refused(fields: dict, error: str) -> None:
    clients = Clients()
    clients.stable("a", protocols=protocols("range", "sticky"))
    assert clients.ask(join_request(**fields)).error.name == error


def test_all_members_meet_at_a_barrier_and_only_the_leader_gets_the_members() -> None:
    clients, first, second = pair()
    third = clients.join(client_id="c", protocols=protocols("range", metadata=b"mine"), **OLD)
    leader = clients.join(first)
    assert clients.is_parked(third)
    assert clients.is_parked(leader)
    assert clients.state == "PreparingRebalance"
    answers = [clients.answer(id) for id in (leader, clients.join(second), third)]
    assert {(answer.generation, answer.leader) for answer in answers} == {(3, first)}
    assert clients.state == "CompletingRebalance"
    assert [len(answer.members) for answer in answers] == [3, 0, 0]
    members = [(each.member_id, each.metadata) for each in answers[0].members]
    assert members == [(first, subscribed("orders")), (second, subscribed("orders")), ("c-3", b"mine")]
    clients.leave(first)
    clients.join("c-3")
    assert clients.answer(clients.join(second)).leader == second


def test_a_rebalance_waits_for_a_client_that_was_given_an_id_unless_it_leaves() -> None:
    for uses in (True, False):
        clients = Clients()
        [first] = clients.stable("a")
        given = clients.new_id(client_id="b")
        join = clients.join(first)
        assert clients.is_parked(join)
        if uses:
            clients.join(given)
        else:
            assert clients.leave(given) == ["NONE"]
        assert clients.answer(join).generation == 2
        assert len(clients.group.members) == 1 + uses


@pytest.mark.parametrize(
    ("synced", "who", "fields", "state"),
    [
        (True, 1, {}, "Stable"),
        (True, 0, {}, "PreparingRebalance"),
        (True, 1, {"protocols": PAYMENTS_ONLY}, "PreparingRebalance"),
        (False, 0, {}, "CompletingRebalance"),
        (False, 1, {}, "CompletingRebalance"),
        (False, 0, {"protocols": PAYMENTS_ONLY}, "PreparingRebalance"),
    ],
)
def test_a_repeated_join_is_answered_again_unless_the_leader_or_another_subscription_needs_a_rebalance(
    synced: bool, who: int, fields: dict, state: str
) -> None:
    clients, *members = pair(synced=synced)
    sync = clients.sync(members[1])
    join = clients.join(members[who], **fields)
    assert clients.state == state
    if state == "PreparingRebalance":
        assert clients.is_parked(join)
        assert synced or clients.answer(sync).error == KafkaError.REBALANCE_IN_PROGRESS
    else:
        answer = clients.answer(join)
        assert (answer.generation, len(answer.members)) == (2, 0 if who else 2)


def test_a_second_join_or_sync_of_a_member_takes_the_place_of_the_first() -> None:
    clients, first, second = pair()
    old, new = clients.join(first), clients.join(first, session_timeout=20.0, rebalance_timeout=30.0)
    assert clients.answer(old).error == KafkaError.REBALANCE_IN_PROGRESS
    clients.join(second)
    assert clients.answer(new).generation == 3
    leader = clients.group.members[0]
    assert (leader.session_timeout, leader.rebalance_timeout) == (20.0, 30.0), "new time-outs are adopted"
    old, new = clients.sync(second), clients.sync(second)
    assert clients.answer(old).error == KafkaError.REBALANCE_IN_PROGRESS
    clients.sync(first, {second: b"two"})
    assert clients.answer(new).assignment == b"two"


def test_the_protocol_with_the_most_votes_among_the_common_ones_is_chosen_or_a_preferred_one() -> None:
    clients = Clients()
    offers = [protocols(*offer) for offer in (("a", "b", "c"), ("c", "b"), ("d", "b", "c"))]
    joins = [clients.join(protocols=offer, **OLD) for offer in offers]
    joins[0] = clients.join(clients.answer(joins[0]).member_id, protocols=offers[0])
    assert [clients.answer(id).protocol for id in joins] == ["b", "b", "b"]

    clients = Clients(CoordinatorConfig(initial_rebalance_delay=0, preferred_protocols=("x", "range")))
    clients.stable("a", "b", protocols=protocols("sticky", "range"))
    assert clients.group.protocol == "range"

    clients = Clients()
    first, second = clients.stable("a", "b", protocols=protocols("range", "sticky"))
    clients.leave(first)
    clients.ask(join_request(second, protocols=protocols("sticky", "range")))
    assert clients.group.protocol == "sticky", "the member that left no longer counts"
    clients.leave(second)
    clients.stable("c", protocol_type="connect")
    assert clients.group.protocol_type == "connect", "an empty group may change its type"


# The size of a group


def test_a_full_group_refuses_new_members() -> None:
    clients = Clients(CAREFUL)
    first, second = clients.stable("a", "b")
    answer = clients.ask(join_request())
    assert (answer.error, answer.member_id) == (KafkaError.GROUP_MAX_SIZE_REACHED, "")
    assert clients.ask(join_request(second)).error == 0
    assert clients.is_parked(clients.join(first))


def test_the_members_that_join_first_get_the_places_and_the_others_are_not_waited_for() -> None:
    clients = Clients(CAREFUL)
    first, second = clients.stable("a", "b", session_timeout=300)
    clients.receive(RebalanceNeeded(GROUP))
    given = clients.new_id()
    joins = [clients.join(first), clients.join(given)]
    assert clients.ask(join_request(second)).error == KafkaError.GROUP_MAX_SIZE_REACHED
    assert {clients.answer(id).generation for id in joins} == {3}
    assert clients.members == [first, given]

    clients = Clients(CoordinatorConfig(initial_rebalance_delay=DELAY, max_members=2))
    joins = [clients.join(client_id=name, **OLD) for name in "abc"]
    refused = clients.answer(joins[2])
    assert (refused.error, refused.member_id) == (KafkaError.GROUP_MAX_SIZE_REACHED, "")
    clients.wait(2 * DELAY)
    assert {clients.answer(id).error for id in joins[:2]} == {0}


def test_clients_that_join_again_or_get_ids_and_do_not_join_take_no_more_memory() -> None:
    """A client may ask for ids with a long name again and again. A session may take five minutes to end."""
    clients = Clients()
    [member] = clients.stable("a")
    few = Clients(CoordinatorConfig(initial_rebalance_delay=0, max_members=10))
    tracemalloc.start()
    try:
        for number in range(50):
            names = ["range", *(f"{number}-{each}-{'x' * 10_000}" for each in range(10))]
            assert clients.ask(join_request(member, protocols=protocols(*names))).error is KafkaError.NONE
        assert tracemalloc.get_traced_memory()[0] < 1_000_000
        for _ in range(5000):
            last = few.new_id(client_id="x" * 5000, session_timeout=300)
        assert tracemalloc.get_traced_memory()[0] < 8_000_000
    finally:
        tracemalloc.stop()
    assert len(few.group.members) == 10
    assert few.ask(join_request(last)).error == 0


# Syncs


def test_syncs_are_parked_until_the_leader_brings_the_assignments() -> None:
    clients, first, second = pair(synced=False)
    sync = clients.sync(second)
    assert clients.is_parked(sync)
    assert [member.state for member in clients.group.members] == ["AwaitingSync", "AwaitingSync"]
    leader = clients.sync(first, {first: b"one", second: b"two", "stranger": b"x"})
    assert [clients.answer(id).assignment for id in (leader, sync)] == [b"one", b"two"]
    assert clients.state == "Stable"
    assert [member.state for member in clients.group.members] == ["Stable", "Stable"]
    later = clients.answer(clients.sync(second))
    assert (later.error, later.assignment, later.protocol_type, later.protocol) == (0, b"two", "consumer", "range")


def test_a_member_that_the_leader_forgot_gets_an_empty_assignment() -> None:
    clients, first, second = pair(synced=False)
    sync = clients.sync(second)
    clients.sync(first, {first: b"all"})
    assert clients.answer(sync).assignment == b""


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"protocol_type": "connect"}, "INCONSISTENT_GROUP_PROTOCOL"),
        ({"protocol": "sticky"}, "INCONSISTENT_GROUP_PROTOCOL"),
        ({"protocol_type": "consumer", "protocol": "range"}, "NONE"),
    ],
)
def test_a_sync_must_name_the_protocol_of_the_generation_if_any(fields: dict, error: str) -> None:
    clients = Clients()
    [member] = clients.joined("a")
    assert clients.answer(clients.sync(member, **fields)).error.name == error


# Leaving


def test_members_that_leave_make_room_at_once() -> None:
    clients = Clients()
    first, second, third = clients.stable("a", "b", "c")
    assert clients.leave(first, "stranger", third) == ["NONE", "UNKNOWN_MEMBER_ID", "NONE"]
    assert (clients.state, clients.members) == ("PreparingRebalance", [second])
    assert clients.ask(join_request(second)).generation == 3
    clients.leave(second)
    assert (clients.state, clients.group.generation, clients.group.protocol) == ("Empty", 4, None)


def test_parked_requests_are_answered_when_a_member_leaves() -> None:
    clients, first, _second = pair()
    join = clients.join(first)
    clients.leave(first)
    assert clients.answer(join).error == KafkaError.UNKNOWN_MEMBER_ID
    for who, error in ((1, KafkaError.UNKNOWN_MEMBER_ID), (0, KafkaError.REBALANCE_IN_PROGRESS)):
        clients, *members = pair(synced=False)
        sync = clients.sync(members[1])
        clients.leave(members[who])
        assert clients.answer(sync).error == error


# Changes from outside


def test_a_change_outside_means_nothing_to_a_group_without_members() -> None:
    clients = Clients()
    clients.leave(*clients.stable("a"))
    clients.receive(RebalanceNeeded(GROUP))
    assert clients.state == "Empty"


def test_all_members_join_anew_when_the_storage_lost_them_and_need_no_release() -> None:
    storage = SlowStorage()
    clients = Clients(AT_ONCE, storage)
    first, second = clients.joined("a", "b")
    sync, given = clients.sync(second), clients.new_id()
    clients.receive(MembershipLost())
    assert clients.answer(sync).error == KafkaError.UNKNOWN_MEMBER_ID
    assert (clients.state, clients.members, clients.group.generation) == ("Empty", [], 3)
    assert clients.ask(join_request(given)).error == KafkaError.UNKNOWN_MEMBER_ID
    assert clients.beat(first) == UNKNOWN
    assert not [work for work in storage.done if isinstance(work, ReleaseMembers)]


def test_a_group_that_moved_or_may_have_moved_answers_its_parked_requests() -> None:
    """The coordinator may have been suspended, and not have heard yet that another one has taken over."""
    clients, first, _second = pair()
    join = clients.join(first)
    clients.receive(GroupMoved(GROUP))
    assert clients.answer(join).error == KafkaError.NOT_COORDINATOR
    assert clients.coordinator.group(GROUP) is None

    storage = SlowStorage()
    clients = Clients(storage=storage)
    first, second = clients.stable("a", "b")
    join = clients.join(first)
    storage.lost.add(GROUP)
    storage.slow = (LoadGroup,)
    beat = clients.send(HeartbeatRequest(GROUP, second, 2))
    assert clients.answer(join).error == KafkaError.NOT_COORDINATOR
    clients.receive_work(storage.take()[0], WorkFailed(KafkaError.NOT_COORDINATOR))
    assert clients.answer(beat).error == KafkaError.NOT_COORDINATOR


# Static members: they restart without a rebalance, and the client with the older member id is fenced


def test_a_restarted_static_member_keeps_its_assignment_without_a_rebalance() -> None:
    clients = Clients()
    assert clients.ask(join_request(instance_id="x", group="other")).member_id == "x-1", "admitted at once"
    _first, second = static_pair(clients)
    before = clients.answer(clients.sync(second)).assignment
    answer = clients.ask(join_request(instance_id="j"))
    assert (answer.error, answer.generation, clients.state) == (0, 2, "Stable")
    assert answer.member_id != second
    assert before
    assert clients.answer(clients.sync(answer.member_id)).assignment == before


def test_a_restarted_static_leader_is_told_to_skip_the_assignment() -> None:
    clients = Clients()
    first, second = static_pair(clients)
    follower = clients.ask(join_request(instance_id="j"))
    assert (follower.leader, follower.skip_assignment, follower.members) == (first, False, ())
    old = clients.ask(join_request(instance_id="i", supports_skipping_assignment=False))
    assert (old.leader, old.skip_assignment, old.members) == (first, False, ()), "it sees its old id as the leader"
    assert clients.group.leader == old.member_id != first
    answer = clients.ask(join_request(instance_id="i"))
    assert (answer.leader, answer.skip_assignment) == (answer.member_id, True)
    assert [(each.member_id, each.instance_id) for each in answer.members] == [
        (answer.member_id, "i"),
        (follower.member_id, "j"),
    ]
    assert second not in clients.members


def test_a_parked_join_or_sync_is_fenced_when_the_member_restarts() -> None:
    clients = Clients()
    first, second = static_pair(clients)
    old, new = clients.join(first, instance_id="i"), clients.join(instance_id="i")
    assert clients.answer(old).error == KafkaError.FENCED_INSTANCE_ID
    assert clients.is_parked(new)
    clients.join(second, instance_id="j")
    assert clients.answer(new).generation == 3
    sync = clients.sync(second, instance_id="j")
    new = clients.join(instance_id="j")
    assert clients.answer(sync).error == KafkaError.FENCED_INSTANCE_ID
    assert clients.is_parked(new)
    assert clients.state == "PreparingRebalance"


def test_a_restart_with_other_topics_or_that_changes_the_protocol_begins_a_rebalance() -> None:
    clients = Clients()
    static_pair(clients)
    clients.join(instance_id="j", protocols=PAYMENTS_ONLY)
    assert clients.state == "PreparingRebalance"
    clients = Clients()
    clients.settle(clients.joined("a", instance_id="i", protocols=protocols("range", "sticky")))
    clients.join(instance_id="i", protocols=protocols("sticky", "range"))
    assert clients.group.generation == 2


def test_a_static_member_leaves_with_both_ids_or_is_removed_by_its_instance_id_and_is_new_again() -> None:
    for id in (None, ""):
        clients = Clients()
        first, second = static_pair(clients)
        leaving = MemberIdentity(second if id is None else id, "j")
        assert clients.leave(leaving, MemberIdentity("", "k")) == ["NONE", "UNKNOWN_MEMBER_ID"]
        assert clients.members == [first]
        new = clients.join(instance_id="j")
        clients.answer(clients.join(first, instance_id="i"))
        answer = clients.answer(new)
        assert (answer.error, answer.generation) == (0, 3)
        assert clients.members == [first, answer.member_id]


def slow_static_pair() -> tuple[Clients, SlowStorage, str]:
    """A static pair whose new ids are stored slowly from now on, and the id of the leader."""
    storage = SlowStorage()
    clients = Clients(AT_ONCE, storage)
    first, _second = static_pair(clients)
    storage.slow = (StoreGeneration,)
    return clients, storage, first


def test_the_new_member_id_is_stored_before_the_answer_or_refused() -> None:
    clients, storage, _first = slow_static_pair()
    join = clients.join(instance_id="j")
    assert clients.is_parked(join)
    clients.receive_work(*storage.take())
    stored = storage.done[-1]
    assert isinstance(stored, StoreGeneration)
    assert stored.members[clients.answer(join).member_id].static_id == "j"

    join = clients.join(instance_id="j")
    clients.receive_work(storage.open.pop()[0], WorkFailed(KafkaError.COORDINATOR_NOT_AVAILABLE))
    answer = clients.answer(join)
    assert (answer.error, answer.member_id) == (KafkaError.COORDINATOR_NOT_AVAILABLE, "")
    storage.slow = ()
    assert clients.ask(join_request(instance_id="j")).error == 0


def test_a_static_member_that_restarts_twice_is_fenced_once_and_a_rebalance_answers_the_second() -> None:
    clients, storage, first = slow_static_pair()
    joins = [clients.join(instance_id="j") for _ in range(2)]
    assert clients.answer(joins[0]).error == KafkaError.FENCED_INSTANCE_ID
    clients.receive_work(*storage.take())
    assert clients.is_parked(joins[1])
    clients.receive_work(*storage.take())
    assert clients.answer(joins[1]).error == 0
    join, leader = clients.join(instance_id="j"), clients.join(first, instance_id="i")
    assert clients.answer(join).generation == clients.answer(leader).generation == 3
    clients.receive_work(*storage.take())
    assert clients.state == "CompletingRebalance"
