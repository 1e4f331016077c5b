"""One gateway coordinates a group. The others send its clients there, until it has lost its session."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.testing.waiting import eventually
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
    Subscription,
    encode_subscription,
    refusal,
)
from zkgroups.coordinator.values.requests import SyncRequest
from zkgroups.core.znodes.coordinator_node import CoordinatorNode, decode_coordinator, encode_coordinator
from zkgroups.exceptions import OutcomeUnknownError
from zkgroups.gateway import NodePorts
from zkgroups.gateway.protocol.node_ports import GatewayAddress
from zkgroups.gateway.zookeeper_storage import GroupSettings, storage
from zkgroups.testing import TcpProxy, expire_session
from zkgroups.zookeeper.requests.transaction import Delete
from zkgroups.zookeeper.session.session import Session

from .conftest import Connect, Join, Serve
from .kafka_member import KafkaMember
from .old_members import ALL, owners
from .served import Served

pytestmark = pytest.mark.zookeeper

AT = TopicPartition("orders", 0)
NODE = "/zkgroups/coordinators/billing"
SESSION = 10.0
"""In seconds: long enough for a machine that stands still before the connection is cut."""
QUICK = GroupSettings(release_after=0.3, reconcile_every=0.2)


@pytest.fixture
def gateway(connect: Connect, serve: Serve, orders: None) -> Any:
    """Start a coordinator that takes part in elections, with a session of its own by default."""

    def start(name: str, own: Registry | None = None, **options: Any) -> Served:
        return serve(connect() if own is None else own, address=GatewayAddress(name, NodePorts(1, 9)), **options)

    return start


def coordinator(served: Served) -> str:
    """The host of the other gateway that coordinates the group; empty if there is none."""
    answer = served.ask(LocateRequest(("billing",)))
    assert answer.error.name == "NONE"
    return answer.groups["billing"].host if "billing" in answer.groups else ""


def joined(served: Served, client_id: str = "") -> str:
    """The error of a first join request."""
    protocol = GroupProtocol("range", encode_subscription(Subscription(frozenset({"orders"}))))
    return str(served.ask(JoinRequest("billing", "", (protocol,), 10.0, 10.0, client_id=client_id)).error.name)


def test_only_the_coordinator_answers_for_a_group(gateway: Any, join: Join) -> None:
    first, second = gateway("one"), gateway("two")
    member = join(served=first)
    assert eventually(lambda: member.assigned == ALL)
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
    """The group does not exist before its first generation, so both load it."""
    own = connect() if share_a_session else None
    both = (
        gateway("one", own, config={"initial_rebalance_delay": 1.0}),
        gateway("two", own, config={"initial_rebalance_delay": 1.0}),
    )
    members = [join(served=each) for each in both]
    assert eventually(lambda: ALL in [each.assigned for each in members])
    assert eventually(lambda: any("NOT_COORDINATOR" in each.errors for each in members))
    assert sorted(map(coordinator, both))[0] == ""
    [owner] = [each for each in members if each.history]
    assert {id[:-2] for id in owners(group).values()} == {owner.member_id}


def test_an_unused_group_without_members_is_released(registry: Registry, gateway: Any, join: Join) -> None:
    first, second = gateway("one", settings=QUICK), gateway("two")
    member = join(served=first)
    assert eventually(lambda: member.assigned == ALL)
    assert not eventually(lambda: coordinator(second) == "", timeout=1.0)
    member.leave()
    assert eventually(lambda: coordinator(second) == "")
    assert registry.client.exists(NODE) is None
    other = join(served=second)
    assert eventually(lambda: other.assigned == ALL)
    assert (coordinator(first), joined(first)) == ("two", "NOT_COORDINATOR")


@pytest.fixture
def lose_replies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each deletion of the node is carried out without a reply. The list grows with each."""
    transact, deleted = Session.transact, list[str]()

    def lose_reply(self: Session, operations: Any, **options: Any) -> Any:
        found = transact(self, operations, **options)
        if operations == [Delete(NODE, 0)]:
            deleted.append(NODE)
            raise OutcomeUnknownError("the reply was lost")
        return found

    monkeypatch.setattr(Session, "transact", lose_reply)
    return deleted


def test_rule_2_a_release_with_an_unknown_outcome_is_repeated_without_deleting_the_node_of_another_gateway(
    registry: Registry, gateway: Any, join: Join, lose_replies: list[str]
) -> None:
    """It was carried out, and another gateway has won the group since."""
    first, second = gateway("one"), gateway("two")
    member = join(served=first)
    assert eventually(lambda: member.assigned == ALL)
    member.leave()
    elections = first.storage._elections
    with pytest.raises(OutcomeUnknownError):
        elections.release("billing")
    other = join(served=second)
    assert eventually(lambda: other.assigned == ALL)
    elections.release("billing")
    assert (elections.won(), lose_replies) == ([], [NODE])
    assert decode_coordinator(registry.client.get(NODE)[0]).host == "two"


def test_after_a_release_with_an_unknown_outcome_a_gateway_has_no_members_beside_those_of_another(
    group: Consumergroup, gateway: Any, join: Join, lose_replies: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = gateway("one"), gateway("two")
    monkeypatch.setattr(first.storage, "_give_up_replaced", lambda: None)
    member = join(served=first)
    assert eventually(lambda: member.assigned == ALL)
    member.leave()
    with pytest.raises(OutcomeUnknownError):
        first.storage._elections.release("billing")
    other = join(served=second)
    assert eventually(lambda: other.assigned == ALL)
    late = join(served=first, client_id="late")
    assert eventually(lambda: "NOT_COORDINATOR" in late.errors or late.assigned)
    assert [each.id for each in group.instances()] == [other.member_id]


def test_a_gateway_that_closes_lets_others_coordinate_at_once(gateway: Any, join: Join) -> None:
    first, second = gateway("one"), gateway("two")
    member = join(served=first)
    assert eventually(lambda: member.assigned == ALL)
    member.kill()
    first.storage.close()
    assert coordinator(second) == ""
    other = join(served=second)
    assert eventually(lambda: other.assigned == ALL)


def test_a_gateway_gives_up_its_groups_before_another_can_take_them(
    registry: Registry, gateway: Any, proxy: TcpProxy, zookeeper_hosts: str, connect: Connect, join: Join
) -> None:
    """Without a connection nobody reports the expired session: the clock of the gateway ends its answers first."""
    own = connect(proxy.address + "/" + zookeeper_hosts.partition("/")[2], session_timeout=SESSION, timeout=5.0)
    first, second = gateway("one", own), gateway("two")
    member = join(served=first)
    assert eventually(lambda: member.assigned == ALL)
    member.kill()
    began = time.monotonic()
    own.client.exists(NODE)  # from here on, the session lives for as long as it was granted
    proxy.refuse()
    proxy.cut()
    assert eventually(lambda: first.coordinator.group("billing") is None)
    # A slow machine may look too late.
    assert registry.client.exists(NODE) or time.monotonic() - began > SESSION - 0.5
    assert joined(first) in ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE")
    other = join(served=second)
    assert eventually(lambda: other.assigned == ALL)
    proxy.accept()
    assert eventually(lambda: joined(first) == "NOT_COORDINATOR")


@pytest.mark.parametrize("monitor_has_run", [False, True])
def test_a_suspended_gateway_answers_no_heartbeat_after_its_session(
    monitor_has_run: bool, gateway: Any, connect: Connect, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has told the coordinator: the monitor of the sessions has not run yet, or its event was not processed."""
    own = connect()
    first = gateway("one", own, settings=GroupSettings(reconcile_every=600.0))  # which would give up the group, too
    member = join(served=first)
    assert eventually(lambda: member.assigned == ALL)
    member.kill()
    heartbeat = HeartbeatRequest("billing", member.member_id, member.generation)
    assert first.ask(heartbeat).error.name == "NONE"
    monkeypatch.setattr(first.storage._monitor, "_check", lambda: None)
    expire_session(own.client)
    assert eventually(lambda: first.storage.may_be_lost("billing"))
    if monitor_has_run:
        assert first.storage._elections.take_lost() == ["billing"]
    assert first.ask(heartbeat).error.name != "NONE"


@pytest.fixture
def believe(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function after which a gateway believes for ever that it coordinates the group."""

    def start(served: Served) -> None:
        elections = served.storage._elections
        won = dict(elections._won)
        answers = {"win": None, "elsewhere": {}, "take_lost": [], "take_replaced": [], "may_be_lost": False}
        for name, answer in answers.items():
            monkeypatch.setattr(elections, name, lambda *_args, _answer=answer: _answer)
        monkeypatch.setattr(elections, "_won", won)

    return start


def test_a_former_coordinator_registers_nobody(
    group: Consumergroup, connect: Connect, gateway: Any, join: Join, believe: Any
) -> None:
    """It was suspended after it had made sure that the group is its own, and before it wrote."""
    own = connect()
    first, second = gateway("one", own), gateway("two")
    member = join(served=first)
    assert eventually(lambda: member.assigned == ALL)
    member.kill()
    believe(first)
    expire_session(own.client)
    other = join(served=second, client_id="other")
    assert eventually(lambda: other.assigned == ALL)
    late = join(served=first, client_id="late")
    assert eventually(lambda: "COORDINATOR_NOT_AVAILABLE" in late.errors)
    assert [each.id for each in group.instances()] == [other.member_id]


def test_a_former_coordinator_commits_nothing_for_simple_consumers(
    group: Consumergroup, connect: Connect, gateway: Any, believe: Any
) -> None:
    own = connect()
    first, second = gateway("one", own), gateway("two")
    assert first.ask(commit(5)).errors == {AT: 0}
    believe(first)
    expire_session(own.client)
    assert eventually(lambda: second.ask(commit(7)).errors == {AT: 0})
    assert eventually(lambda: own.session_id)
    assert first.ask(commit(3)).errors[AT].name == "COORDINATOR_NOT_AVAILABLE"
    assert group.offsets.fetch(AT).offset == 7  # type: ignore[union-attr]


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


def test_of_two_gateways_with_one_session_only_one_coordinates(connect: Connect, gateway: Any, join: Join) -> None:
    """A process may run several gateways. Their nodes differ by their addresses."""
    own = connect()
    quick = GroupSettings(reconcile_every=0.2)
    first, second = gateway("one", own, settings=quick), gateway("two", own, settings=quick)
    member = join(served=first)
    assert eventually(lambda: member.assigned == ALL)
    assert (coordinator(first), coordinator(second)) == ("", "one")
    assert joined(second) == "NOT_COORDINATOR"
    assert second.ask(commit(5)).errors[AT].name == "NOT_COORDINATOR"
    assert member.commit(5, AT) == {AT: "NONE"}


@pytest.mark.parametrize("address", ["one", "two"])
def test_a_node_that_another_gateway_of_the_session_has_written_is_not_its_own(
    address: str, registry: Registry, connect: Connect, gateway: Any, join: Join
) -> None:
    own = connect()
    first = gateway("one", own, settings=GroupSettings(reconcile_every=0.2))
    member = join(served=first)
    assert eventually(lambda: member.assigned == ALL)
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
    group: Consumergroup,
    connect: Connect,
    gateway: Any,
    join: Join,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The numbers of generations begin at the clock, so they may have been used before. The member ids have not."""
    own = connect()
    first, second = gateway("one", own), gateway("two")
    member = join(served=first, instance_id=instance_id)
    assert eventually(lambda: member.assigned == ALL)
    member.kill()
    monkeypatch.setattr(storage, "_FIRST_SECOND", storage._FIRST_SECOND + 3600)
    expire_session(own.client)
    other = join(served=second, client_id="other", instance_id=instance_id)
    assert eventually(lambda: other.assigned == ALL)
    assert other.generation < member.generation
    id = member.member_id
    protocol = GroupProtocol("range", encode_subscription(Subscription(frozenset({"orders"}))))
    for generation in (member.generation, other.generation):
        late = CommitRequest("billing", {AT: CommittedValue(5)}, id, generation, instance_id)
        assert second.ask(late).errors[AT].name == error
        assert second.ask(HeartbeatRequest("billing", id, generation, instance_id)).error.name == error
        assert second.ask(SyncRequest("billing", id, generation, {}, instance_id)).error.name == error
    again = JoinRequest("billing", id, (protocol,), 10.0, 10.0, instance_id=instance_id)
    assert second.ask(again).error.name == error
    assert group.offsets.fetch(AT) is None
    assert other.history == [ALL]


def commit(offset: int) -> CommitRequest:
    return CommitRequest("billing", {AT: CommittedValue(offset)})


def test_another_coordinator_is_elected_if_the_node_is_deleted(registry: Registry, gateway: Any, join: Join) -> None:
    first = gateway("one", settings=GroupSettings(reconcile_every=0.2))
    member = join(served=first)
    assert eventually(lambda: member.assigned == ALL)
    registry.client.delete(NODE)
    assert eventually(lambda: "UNKNOWN_MEMBER_ID" in member.errors)
    assert eventually(lambda: member.assigned == ALL and registry.client.exists(NODE))


def test_a_node_without_a_session_does_not_block_the_group(registry: Registry, gateway: Any, join: Join) -> None:
    registry.client.create(NODE, b"restored from a backup", makepath=True)
    member: KafkaMember = join(served=gateway("one"))
    assert eventually(lambda: member.assigned == ALL)
    assert registry.client.exists(NODE).ephemeralOwner
