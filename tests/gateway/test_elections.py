"""One gateway coordinates a group. The others send its clients there, until it may have lost its session.

A lost connection makes work wait. A lost session makes all members join again, and refuses their old commits.
`tests/simulation/test_gateways.py` has any order of such events.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.world import World
from tests.waiting import eventually
from zkgroups import Consumergroup, Registry, TopicPartition
from zkgroups.coordinator import (
    CommitRequest,
    CommittedValue,
    DeleteGroupsRequest,
    DescribeRequest,
    FetchRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinRequest,
    LocateRequest,
    MembershipLost,
    Subscription,
    SyncRequest,
    encode_subscription,
    refusal,
)
from zkgroups.core.znodes.own_nodes import CoordinatorNode, decode_coordinator, encode_coordinator
from zkgroups.exceptions import OutcomeUnknownError
from zkgroups.gateway import NodePorts
from zkgroups.gateway.protocol.addresses import GatewayAddress
from zkgroups.gateway.zookeeper_storage import GroupSettings, storage
from zkgroups.zookeeper.requests.transaction import Delete
from zkgroups.zookeeper.session.session import Session

from .conftest import Connect, Join, LoseReplies, Serve
from .old_members import ALL, owners
from .served import Served

AT = TopicPartition("orders", 0)
NODE = "/zkgroups/coordinators/billing"
SESSION = 10.0
RANGE = GroupProtocol("range", encode_subscription(Subscription(frozenset({"orders"}))))


@pytest.fixture
def own(connect: Connect) -> Registry:
    """The registry of the first gateway, in a process of its own."""
    return connect("one", session_timeout=SESSION, timeout=5.0)


@pytest.fixture
def gateway(connect: Connect, serve: Serve, orders: None) -> Any:
    """Start a coordinator that takes part in elections."""

    def start(name: str, own: Registry | None = None, **options: Any) -> Served:
        return serve(own, address=GatewayAddress(name, NodePorts(1, 9)), **options)

    return start


def coordinator(served: Served) -> str:
    """The host of the other gateway that coordinates the group; empty if there is none."""
    answer = served.ask(LocateRequest(("billing",)))
    assert answer.error.name == "NONE"
    return answer.groups["billing"].host if "billing" in answer.groups else ""


def joined(served: Served) -> str:
    """The error of a first join request."""
    return str(served.ask(JoinRequest("billing", "", (RANGE,), 10.0, 10.0)).error.name)


def commit(offset: int) -> CommitRequest:
    return CommitRequest("billing", {AT: CommittedValue(offset)})


def test_only_the_coordinator_answers_for_a_group(registry: Registry, gateway: Any, alone: Join) -> None:
    """A node without a session, as after a backup was restored, makes no gateway the coordinator."""
    registry.client.create(NODE, b"restored from a backup", makepath=True)
    first, second = gateway("one"), gateway("two")
    member = alone(served=first)
    assert registry.client.exists(NODE).ephemeralOwner
    assert (coordinator(first), coordinator(second)) == ("", "one")
    requests = [
        HeartbeatRequest("billing", member.member_id, member.generation),
        CommitRequest("billing", commit(5).offsets, member.member_id, member.generation),
        commit(5),
        FetchRequest({"billing": (AT,)}),
        DescribeRequest(("billing",)),
        DeleteGroupsRequest(("billing",)),
    ]
    for request in requests:
        assert second.ask(request) == refusal(request, second_error := second.ask(requests[0]).error), request
        assert second_error.name == "NOT_COORDINATOR"
    assert joined(second) == "NOT_COORDINATOR"
    assert second.list() == {"billing": "Stable"}
    assert member.commit(5, AT) == {AT: "NONE"}
    assert first.fetch("billing", AT)[AT].offset == 5


@pytest.mark.parametrize("share_a_session", [False, True])
def test_a_new_group_has_one_coordinator_although_both_gateways_were_asked_at_once(
    share_a_session: bool, group: Consumergroup, connect: Connect, gateway: Any, join: Join
) -> None:
    """The group does not exist before its first generation, so both load it. A process may run several gateways."""
    own = connect() if share_a_session else None
    both = [gateway(name, own, config={"initial_rebalance_delay": 1.0}) for name in ("one", "two")]
    members = [join(served=each) for each in both]
    assert eventually(lambda: ALL in [each.assigned for each in members])
    assert eventually(lambda: any("NOT_COORDINATOR" in each.errors for each in members))
    assert sorted(map(coordinator, both))[0] == ""
    [owner] = [each for each in members if each.history]
    assert {id[:-2] for id in owners(group).values()} == {owner.member_id}
    [other] = [each for each in both if coordinator(each)]
    assert joined(other) == other.ask(commit(5)).errors[AT].name == "NOT_COORDINATOR"
    assert owner.commit(5, AT) == {AT: "NONE"}


def test_an_unused_group_without_members_is_released(
    world: World, registry: Registry, gateway: Any, alone: Join
) -> None:
    first, second = gateway("one", settings=GroupSettings(release_after=20.0)), gateway("two")
    member = alone(served=first)
    world.machine.sleep(60)
    assert coordinator(second) == "one"
    member.leave()
    assert eventually(lambda: coordinator(second) == "")
    assert registry.client.exists(NODE) is None
    alone(served=second)
    assert (coordinator(first), joined(first)) == ("two", "NOT_COORDINATOR")


def test_rule_2_a_release_with_an_unknown_outcome_is_repeated_without_deleting_the_node_of_another_gateway(
    registry: Registry, group: Consumergroup, gateway: Any, join: Join, alone: Join, lose_replies: LoseReplies
) -> None:
    """It was carried out, and another gateway has won the group since. The first one has no members beside it."""
    first, second = gateway("one"), gateway("two")
    member = alone(served=first)
    member.leave()
    elections = first.storage._elections
    with lose_replies([Delete(NODE, 0)].__eq__) as lost:
        with pytest.raises(OutcomeUnknownError):
            elections.release("billing")
        other = alone(served=second)
        elections.release("billing")
    assert (elections.won(), len(lost)) == ([], 1)
    assert decode_coordinator(registry.client.get(NODE)[0]).host == "two"
    late = join(served=first, client_id="late")
    assert eventually(lambda: "NOT_COORDINATOR" in late.errors or late.assigned)
    assert [each.id for each in group.instances()] == [other.member_id]


# Sessions


def test_work_waits_for_a_lost_connection(world: World, own: Registry, gateway: Any, join: Join, alone: Join) -> None:
    served = gateway("one", own)
    member = alone(served=served)
    world.stop()
    committed = member.send_use(5, AT)
    joining = join(served=served, client_id="b")
    world.machine.sleep(3)
    assert not committed.done()
    assert not joining.assigned
    world.start()
    assert committed.result(30).errors == {AT: 0}
    assert eventually(lambda: (len(member.assigned), len(joining.assigned)) == (3, 3))
    assert not any(isinstance(event, MembershipLost) for event in served.events)


def test_a_gateway_gives_up_its_groups_and_members_before_others_can_take_them(
    world: World, own: Registry, group: Consumergroup, gateway: Any, alone: Join
) -> None:
    """Without a connection nobody reports the expired session: the clock of the gateway ends its answers first."""
    first, second = gateway("one", own), gateway("two")
    member = alone(served=first)
    world.cut("one")
    assert eventually(lambda: first.coordinator.group("billing") is None)
    assert len(owners(group)) == 6
    assert coordinator(second) == "one"
    assert joined(first) in ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE")
    assert eventually(lambda: member.assigned == frozenset())
    member.kill()
    alone(served=second)
    world.heal("one")
    assert eventually(lambda: joined(first) == "NOT_COORDINATOR")


def test_nodes_of_a_session_that_lived_on_are_removed(
    own: Registry, group: Consumergroup, serve: Serve, orders: None, alone: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock ended the membership, but the session survived: its old registrations must not block partitions."""
    served = serve(own)
    member = alone(served=served)
    [before] = group.instances()
    with monkeypatch.context() as patched:
        patched.setattr(Session, "alive", lambda *_: False)
        assert eventually(lambda: any(isinstance(event, MembershipLost) for event in served.events))
    assert eventually(lambda: [after.id != before.id for after in group.instances()] == [True])
    assert eventually(
        lambda: member.assigned == ALL and {id[:-2] for id in owners(group).values()} == {member.member_id}
    )
    [after] = group.instances()
    assert (after.id == before.id, after.session) == (False, before.session)


@pytest.fixture
def believe(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function after which a gateway believes for ever that it coordinates the group.

    As if it had been suspended after it had made sure of that, and before it wrote.
    """

    def start(served: Served) -> None:
        elections = served.storage._elections
        won = dict(elections._won)
        answers = {"win": None, "elsewhere": {}, "take_lost": [], "take_replaced": [], "may_be_lost": False}
        for name, answer in answers.items():
            monkeypatch.setattr(elections, name, lambda *_args, _answer=answer: _answer)
        monkeypatch.setattr(elections, "_won", won)

    return start


def test_a_former_coordinator_registers_nobody_and_commits_nothing_for_simple_consumers(
    world: World, own: Registry, group: Consumergroup, gateway: Any, join: Join, alone: Join, believe: Any
) -> None:
    first, second = gateway("one", own), gateway("two")
    assert first.ask(commit(5)).errors == {AT: 0}
    believe(first)
    world.expire(own)
    assert eventually(lambda: second.ask(commit(7)).errors == {AT: 0})
    assert first.ask(commit(3)).errors[AT].name == "COORDINATOR_NOT_AVAILABLE"
    assert group.offsets.fetch(AT).offset == 7  # type: ignore[union-attr]
    other = alone(served=second, client_id="other")
    late = join(served=first, client_id="late")
    assert eventually(lambda: "COORDINATOR_NOT_AVAILABLE" in late.errors)
    assert [each.id for each in group.instances()] == [other.member_id]


def test_a_gateway_without_its_node_registers_nobody_and_commits_nothing(
    registry: Registry, group: Consumergroup, gateway: Any, join: Join, believe: Any
) -> None:
    """Its session lives, but another client has deleted the node: another gateway can be elected at any moment."""
    served = gateway("one")
    assert served.ask(commit(5)).errors == {AT: 0}
    believe(served)
    registry.client.delete(NODE)
    assert served.ask(commit(7)).errors[AT].name != "NONE"
    late = join(served=served)
    assert eventually(lambda: late.errors)
    assert group.instances() == []
    assert group.offsets.fetch(AT).offset == 5  # type: ignore[union-attr]


@pytest.mark.parametrize("address", ["one", "two"])
def test_a_node_that_another_gateway_of_the_session_has_written_is_not_its_own(
    address: str, registry: Registry, own: Registry, gateway: Any, alone: Join
) -> None:
    first = gateway("one", own)
    member = alone(served=first)
    other = encode_coordinator(CoordinatorNode("another", address, 1, 9))
    change = own.client.transaction()
    change.delete(NODE)
    change.create(NODE, other, ephemeral=True)
    change.commit()
    assert eventually(lambda: "NOT_COORDINATOR" in member.errors)
    assert joined(first) == "NOT_COORDINATOR"
    assert registry.client.get(NODE)[0] == other


@pytest.mark.parametrize(("instance_id", "error"), [(None, "UNKNOWN_MEMBER_ID"), ("one", "FENCED_INSTANCE_ID")])
def test_a_coordinator_whose_clock_is_behind_accepts_nothing_of_the_members_of_the_former_one(
    instance_id: str | None,
    error: str,
    world: World,
    own: Registry,
    group: Consumergroup,
    gateway: Any,
    alone: Join,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The numbers of generations begin at the clock, so they may have been used before. The member ids have not."""
    first, second = gateway("one", own), gateway("two")
    member = alone(served=first, instance_id=instance_id)
    member.kill()
    monkeypatch.setattr(storage, "_FIRST_SECOND", storage._FIRST_SECOND + 3600)
    world.expire(own)
    other = alone(served=second, client_id="other", instance_id=instance_id)
    assert other.generation < member.generation
    id = member.member_id
    for generation in (member.generation, other.generation):
        late = CommitRequest("billing", {AT: CommittedValue(5)}, id, generation, instance_id)
        assert second.ask(late).errors[AT].name == error
        assert second.ask(HeartbeatRequest("billing", id, generation, instance_id)).error.name == error
        assert second.ask(SyncRequest("billing", id, generation, {}, instance_id)).error.name == error
    again = JoinRequest("billing", id, (RANGE,), 10.0, 10.0, instance_id=instance_id)
    assert second.ask(again).error.name == error
    assert group.offsets.fetch(AT) is None
    assert other.history == [ALL]
