"""`zkgroups members`, `owners` and `release`, also with real Scala and kazoo-go members."""

from __future__ import annotations

import shlex
from base64 import b64decode
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.consumer.kazoo_go_member import KazooGoMember
from tests.consumer.scala import ScalaConsumer, await_members, await_owners, await_stillness
from tests.waiting import eventually
from zkgroups import Consumergroup, Owner, Registry, TopicPartition
from zkgroups.core.times import to_ms
from zkgroups.core.znodes.registrations import encode_registration
from zkgroups.core.znodes.values import Dialect, Registration
from zkgroups.exceptions import OffsetConflictError
from zkgroups.testing import KafkaBroker

from ..zookeeper.sick import OURS, POISON, SCALA, Tree
from ..zookeeper.tree import dump
from .conftest import Zkgroups
from .running import run

pytestmark = pytest.mark.zookeeper

HEADERS = ["GROUP", "INSTANCE", "STATE", "OWNED", "SUBSCRIPTION", "DIALECT", "SESSION", "SINCE"]


@pytest.fixture
def tree(kazoo: KazooClient) -> Tree:
    return Tree(kazoo)


# list


def test_a_listing_has_every_instance_of_every_group_also_without_a_session(
    zkgroups: Zkgroups, kazoo: KazooClient, billing: Any
) -> None:
    of_gateway = Registration({"orders": 1}, dialect=Dialect.GATEWAY, client_id="app", client_host="/10.0.0.7")
    for id, data in ("audit_h-1-ab", SCALA), ("one", encode_registration(of_gateway)):
        kazoo.create(f"/consumers/audit/ids/{id}", data, ephemeral=True, makepath=True)
    kazoo.create("/consumers/audit/ids/gone", SCALA)
    ended = zkgroups("members", "list")
    session = f"{billing.instances()[0].session:#x}"
    [header, audit, gone, one, anna, ben] = [line.split() for line in ended.lines]
    assert (ended.code, ended.err, header) == (0, "", HEADERS)
    assert audit[:6] == ["audit", "audit_h-1-ab", "Joining", "0", "orders", "scala"]
    assert gone[:7] == ["audit", "gone", "Dead", "0", "orders", "scala", "-"]
    assert one[:6] == ["audit", "one", "Joining", "0", "orders", "gateway"]
    assert anna[:7] == ["billing", "anna", "AwaitingSync", "1", "orders", "zkgroups", session]
    assert ben[:6] == ["billing", "ben", "Joining", "0", "orders", "x2"]
    wide = [line.split()[5:8] for line in zkgroups("members", "list", "audit", "-o", "wide").lines]
    assert [wide[0], wide[1], wide[3]] == [
        ["DIALECT", "CLIENT-ID", "HOST"],
        ["scala", "-", "-"],
        ["gateway", "app", "/10.0.0.7"],
    ]
    shown = zkgroups("members", "show", "audit", "gone")
    assert (shown.code, "Dead" in shown.out, "/consumers/audit/ids/gone" in shown.out) == (0, True, True)


# show


def test_one_instance_is_shown_with_its_partitions_and_its_registration(
    zkgroups: Zkgroups, tree: Tree, registry: Registry
) -> None:
    tree.member("billing", "anna", SCALA)
    owned = [tree.owner("billing", "orders", partition, "anna-0") for partition in ("0", "10", "2")]
    tree.owner("billing", "orders", "3", "ben-0")
    registry.client.create("/consumers/billing/owners/orders/4", b"anna-0", ephemeral=True)  # of another session
    ended = zkgroups("members", "show", "billing", "anna")
    [summary, partitions, registration] = [block.splitlines() for block in ended.out.split("\n\n")]
    assert (ended.code, ended.err) == (0, "")
    assert summary[0].split() == HEADERS
    assert summary[1].split()[:6] == ["billing", "anna", "AwaitingSync", "3", "orders", "scala"]
    assert partitions[0].split() == ["TOPIC", "PARTITION", "CLAIMED", "OWNER-NODE"]
    assert [line.split()[-1] for line in partitions[1:]] == [owned[0], owned[2], owned[1]]
    assert registration[1].split() == ["/consumers/billing/ids/anna", SCALA.decode(), "-", "reads", "it"]


def test_one_instance_in_json_has_all_fields(zkgroups: Zkgroups, tree: Tree, registry: Registry) -> None:
    path = tree.member("billing", "anna", OURS)
    owned = tree.owner("billing", "b'orders'", "1001-0", "anna")
    [instance] = registry.group("billing").instances()
    [owner] = registry.group("billing").owners()
    [member] = zkgroups("members", "show", "billing", "anna", "-o", "json").json["members"]
    [node] = member.pop("nodes")
    assert b64decode(node.pop("data_base64")) == OURS
    assert node == {"path": path, "data": OURS.decode(), "reason": None, "to_scala": "reads it"}
    assert member == {
        "group": "billing",
        "instance": "anna",
        "state": "AwaitingSync",
        "owned": 1,
        "subscription": {"pattern": "static", "streams": {"orders": 1}},
        "dialect": "zkgroups",
        "client_id": None,
        "client_host": None,
        "session": f"{instance.session:#x}",
        "registered_ms": to_ms(instance.registered_at),
        "timestamp_ms": 1795255543000,
        "partitions": [{"topic": "orders", "partition": 0, "claimed_ms": to_ms(owner.claimed_at), "path": owned}],
    }


@pytest.mark.parametrize("kind", ["empty", "no-expression"])
def test_an_unreadable_registration_is_shown_and_exit_code_10(zkgroups: Zkgroups, tree: Tree, kind: str) -> None:
    path = tree.member("billing", "anna", POISON[kind])
    ended = zkgroups("members", "show", "billing", "anna", "-o", "json")
    [member] = ended.json["members"]
    [node] = member["nodes"]
    assert ended.code == 10
    assert ended.err.startswith(f"zkgroups: {path} is malformed: {node['reason']}")
    assert b64decode(node["data_base64"]) == POISON[kind]
    assert node["to_scala"].startswith("stops every Scala member: ")
    assert (member["state"], member["dialect"]) == ("Unknown", None)


AT = TopicPartition("orders", 0)
LONG_SESSION = {"zookeeper.session.timeout.ms": "40000", "rebalance.max.retries": "2"}
STILL = 5.0
"""Seconds without a change of owners after which Scala members are taken to have ended their rebalances. A member may
stand still meanwhile for as long as its machine does."""


def test_only_the_nodes_of_the_expected_instance_are_evicted(
    zkgroups: Zkgroups, kazoo: KazooClient, billing: Consumergroup
) -> None:
    """An owner node with `anna-1` may be the second stream of `anna`, or the instance `anna-1`."""
    before = dump(kazoo)
    for execute in ((), ("--execute",)):
        refused = zkgroups("members", "evict", "billing", "anna", "--expect-session", "0x1", *execute)
        assert (refused.code, refused.out, dump(kazoo)) == (4, "", before)
        assert "not 0x1; nothing was changed" in refused.err
    kazoo.create("/consumers/billing/owners/orders/2", b"gone-0", ephemeral=True)
    with billing.instance("anna-1") as other:
        other.register(["orders"])
        other.claim(TopicPartition("orders", 1))
        done = zkgroups("members", "evict", "billing", "gone-0", "--execute")
        assert (done.code, [str(each.at) for each in billing.owners()]) == (0, ["orders/0", "orders/1"])
        assert "Its client is unknown." in done.err
        assert zkgroups("members", "evict", "billing", "anna", "--execute").code == 0
        assert [str(each.at) for each in billing.owners()] == ["orders/1"]


def evicted(broker: KafkaBroker, group: str, id: str) -> Any:
    return run("members", "evict", group, id, "--execute", env={"ZKGROUPS_ZOOKEEPER": broker.zookeeper})


def test_the_others_take_all_partitions_of_a_stuck_scala_member_and_it_holds_nothing_when_it_wakes_up(
    legacy_kafka: KafkaBroker,
) -> None:
    topic = name = "evicted-scala"
    legacy_kafka.create_topic(topic, 4)
    with (
        Registry.connect(legacy_kafka.zookeeper) as registry,
        ScalaConsumer(legacy_kafka, name, "stuck", {topic: 1}, config=LONG_SESSION) as stuck,
        ScalaConsumer(legacy_kafka, name, "well", {topic: 1}) as well,
    ):
        group = registry.group(name)
        ats = [TopicPartition(topic, number) for number in range(4)]
        await_members(group, [stuck.id, well.id])
        shares = dict(zip(ats, [f"{stuck.id}-0"] * 2 + [f"{well.id}-0"] * 2, strict=True))
        await_owners(group, shares)
        # In the middle of a rebalance it would delete the owner nodes of its partitions when it wakes up.
        await_stillness(group, STILL)
        explained = run(
            "groups", "explain", name, "--without", stuck.id, env={"ZKGROUPS_ZOOKEEPER": legacy_kafka.zookeeper}
        )
        assert explained.lines[0] == f"Group {name} is Stable. 2 members share 4 partitions; all are as planned."
        assert f"  {well.id} gets {topic} 0-1" in explained.lines
        stuck.suspend()
        done = evicted(legacy_kafka, name, stuck.id)
        assert (done.code, "A Scala member that wakes up" in done.err) == (0, True)
        await_owners(group, dict.fromkeys(ats, f"{well.id}-0"))
        await_stillness(group, STILL)
        before = set(group.owners())
        stuck.resume()
        assert eventually(lambda: "can't rebalance after 2 retries" in stuck.log_tail(200))
        assert [each.id for each in group.instances()] == [well.id]
        assert set(group.owners()) == before


@pytest.mark.timeout(1000)  # it may have to wait until the Go programs are built
def test_a_stuck_kazoo_go_member_loses_its_partition_and_a_commit_after_it_wakes_up_is_noticed(
    zkgroups: Zkgroups, kazoo: KazooClient, registry: Registry, zookeeper_hosts: str
) -> None:
    """Its commits cannot be refused, because kazoo-go does not check who owns the partition."""
    kazoo.create("/brokers/topics/orders", b'{"version":1,"partitions":{"0":[0]}}', makepath=True)
    group = registry.group("evicted-go")
    with KazooGoMember(zookeeper_hosts, group.name, "orders", busy=True) as stuck, group.instance("me") as me:
        assert eventually(lambda: stuck.committed), stuck.lines()
        stuck.suspend()
        done = zkgroups("members", "evict", group.name, stuck.id, "--execute")
        assert (done.code, "A kazoo-go member that wakes up may go on committing" in done.err) == (0, True)
        me.register(["orders"])
        claim = me.claim(AT)
        claim.commit(1_000_000)
        stuck.resume()
        assert eventually(lambda: group.offsets.fetch(AT).offset < 1_000_000)  # type: ignore[union-attr]
        with pytest.raises(OffsetConflictError):
            claim.commit(1_000_001)
        assert [each.id for each in group.instances()] == ["me"]
        assert [each.id for each in group.owners() if isinstance(each, Owner)] == ["me"]


def test_a_scala_member_takes_a_released_partition_in_the_rebalance_that_was_triggered(
    legacy_kafka: KafkaBroker,
) -> None:
    topic = name = "released-scala"
    legacy_kafka.create_topic(topic, 2)
    with (
        Registry.connect(legacy_kafka.zookeeper) as registry,
        ScalaConsumer(legacy_kafka, name, "a", {topic: 1}) as scala,
    ):
        group = registry.group(name)
        owners = {TopicPartition(topic, number): f"{scala.id}-0" for number in range(2)}
        await_owners(group, owners)
        count = scala.rebalances
        arguments = ("release", name, topic, "0", "--expect-owner", scala.id, "--rebalance")
        assert run(*arguments, env={"ZKGROUPS_ZOOKEEPER": legacy_kafka.zookeeper}).code == 0
        assert eventually(lambda: scala.rebalances > count)
        await_owners(group, owners)
        assert [each.id for each in group.instances()] == [scala.id]


# owners and release


def owner_of(group: Consumergroup, at: TopicPartition = AT) -> Owner:
    owner = group.owner(at)
    assert isinstance(owner, Owner)
    return owner


def test_owners_are_shown_with_session_and_state(
    zkgroups: Zkgroups, kazoo: KazooClient, billing: Consumergroup
) -> None:
    for partition, data, ephemeral in ("1", b"gone-0", True), ("2", b"\xff", True), ("3", b"gone-0", False):
        kazoo.create(f"/consumers/billing/owners/orders/{partition}", data, ephemeral=ephemeral)
    owner = owner_of(billing)
    session = f"{owner.session:#x}"
    lines = [line.split() for line in zkgroups("owners", "list").lines]
    assert lines[0] == ["GROUP", "TOPIC", "PARTITION", "OWNER", "SESSION", "SINCE", "STATE"]
    assert [line[2:4] + line[-1:] for line in lines[1:]] == [
        ["0", "anna", "live"],
        ["1", "gone-0", "orphan"],
        ["2", "-", "malformed"],
        ["3", "gone-0", "dead"],
    ]
    good, _, bad, dead = zkgroups("owners", "list", "billing", "-o", "json").json["owners"]
    assert good == {
        "group": "billing",
        "topic": "orders",
        "partition": 0,
        "owner": "anna",
        "session": session,
        "claimed_ms": to_ms(owner.claimed_at),
        "state": "live",
        "path": "/consumers/billing/owners/orders/0",
        "reason": None,
        "release": f"zkgroups release --expect-owner=anna --expect-session={session} billing orders 0",
    }
    unknown = {"owner": None, "session": f"{kazoo.client_id[0]:#x}", "claimed_ms": None, "release": None}
    assert bad.items() >= unknown.items()
    assert bad["reason"]
    assert (dead["session"], dead["reason"].startswith("it belongs to no session")) == (None, True)
    assert zkgroups("doctor", "--repair", "--execute").code in (0, 10)
    assert sorted(kazoo.get_children("/consumers/billing/owners/orders")) == ["0", "1", "2"]


def test_the_suggested_release_command_works_unchanged(
    zkgroups: Zkgroups, zookeeper_hosts: str, registry: Registry
) -> None:
    """Even if names have a meaning for the shell or the command line."""
    group = registry.group("-my group")
    with group.instance("--id $(boom) 'x'") as instance:
        instance.register(["--a;b"])
        instance.claim(TopicPartition("--a;b", 3))
        line = zkgroups("owners", "list", "-o", "wide", "-z", zookeeper_hosts, "--no-headers").lines[0]
        words = shlex.split(line[line.index("zkgroups ") :])
        assert words[1:3] == ["-z", zookeeper_hosts]
        assert run(*words[1:]).code == 0
        assert list(group.owners()) == []


def test_only_a_partition_of_the_expected_owner_is_released_and_a_refusal_does_not_stop_the_others(
    zkgroups: Zkgroups, billing: Consumergroup
) -> None:
    owner = owner_of(billing)
    for guards, said in (
        (("--expect-owner", "ben"), "not by 'ben'"),
        (("--expect-owner", "anna", "--expect-session", "0x1"), "not by session 0x1"),
        (("--expect-owner", "anna", "--expect-session", "0xffffffffffffffff"), "not by session "),
    ):
        refused = zkgroups("release", "billing", "orders", "0", *guards)
        assert (refused.code, refused.out, said in refused.err) == (4, "", True)
        assert owner_of(billing) == owner
    done = zkgroups("release", "billing", "orders", "1", "0", "--expect-owner", "anna")
    assert (done.code, done.out) == (9, "")
    assert done.err.splitlines()[1] == f"released orders/0, which was claimed by {owner.holder}"
    assert [list(billing.owners()), [instance.id for instance in billing.instances()]] == [[], ["anna", "ben"]]
