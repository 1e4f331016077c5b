"""One gateway coordinates a group. The others send its clients there, until it has lost its session."""

from __future__ import annotations

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
from zkgroups.gateway import NodePorts
from zkgroups.gateway.protocol.node_ports import GatewayAddress
from zkgroups.gateway.zookeeper_storage import GroupSettings
from zkgroups.testing import TcpProxy, expire_session

from .conftest import Connect, Join, Serve
from .kafka_member import KafkaMember
from .old_members import ALL, owners
from .served import Served

pytestmark = pytest.mark.zookeeper

AT = TopicPartition("orders", 0)
NODE = "/zkgroups/coordinators/billing"
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


def test_a_new_group_has_one_coordinator_although_both_gateways_were_asked_at_once(
    group: Consumergroup, gateway: Any, join: Join
) -> None:
    """The group does not exist before its first generation, so both load it."""
    both = (
        gateway("one", config={"initial_rebalance_delay": 1.0}),
        gateway("two", config={"initial_rebalance_delay": 1.0}),
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
    own = connect(proxy.address + "/" + zookeeper_hosts.partition("/")[2], session_timeout=4.0, timeout=1.0)
    first, second = gateway("one", own), gateway("two")
    member = join(served=first)
    assert eventually(lambda: member.assigned == ALL)
    member.kill()
    proxy.refuse()
    proxy.cut()
    assert eventually(lambda: first.coordinator.group("billing") is None)
    assert registry.client.exists(NODE)
    assert joined(first) in ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE")
    other = join(served=second)
    assert eventually(lambda: other.assigned == ALL)
    proxy.accept()
    assert eventually(lambda: joined(first) == "NOT_COORDINATOR")


def test_a_suspended_gateway_answers_no_heartbeat_after_its_session(
    gateway: Any, connect: Connect, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has told the coordinator: the monitor of the sessions has not run yet."""
    own = connect()
    first = gateway("one", own)
    member = join(served=first)
    assert eventually(lambda: member.assigned == ALL)
    member.kill()
    heartbeat = HeartbeatRequest("billing", member.member_id, member.generation)
    assert first.ask(heartbeat).error.name == "NONE"
    monkeypatch.setattr(first.storage._monitor, "_check", lambda: None)
    expire_session(own.client)
    assert eventually(lambda: first.storage.may_be_lost("billing"))
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
