"""`zkgroups members evict` and `zkgroups release --rebalance`, with zkgroups members and real Scala members."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.consumer.kazoo_go_member import KazooGoMember
from tests.consumer.scala import ScalaConsumer, await_members, await_owners, await_stillness
from tests.printing_consumer import LONGEST
from tests.testing.waiting import eventually
from zkgroups import Consumergroup, Member, Owner, Registry, TopicPartition
from zkgroups.exceptions import NotClaimedError, NotRegisteredError, OffsetConflictError
from zkgroups.testing import KafkaBroker

from .conftest import Zkgroups
from .running import run
from .test_groups import tree

pytestmark = pytest.mark.zookeeper

AT = TopicPartition("orders", 0)
LONG_SESSION = {"zookeeper.session.timeout.ms": "40000", "rebalance.max.retries": "2"}
STILL = 5.0
"""Seconds without a change of owners after which Scala members are taken to have ended their rebalances. A member may
stand still meanwhile for as long as its machine does."""


def test_without_execute_the_partitions_are_shown_and_nothing_is_changed(
    zkgroups: Zkgroups, kazoo: KazooClient, billing: Consumergroup
) -> None:
    before = tree(kazoo, "/consumers")
    shown = zkgroups("members", "evict", "billing", "anna", "-o", "json")
    assert (shown.code, tree(kazoo, "/consumers")) == (0, before)
    [row] = json.loads(shown.out)["partitions"]
    assert (row["topic"], row["partition"], row["instance"]) == ("orders", 0, "anna")
    first, *_, last = shown.err.splitlines()
    assert first.startswith("Would evict zkgroups member anna of group billing, session 0x")
    assert last == "Nothing was changed: add --execute to apply."


def test_the_registration_and_the_owner_nodes_are_deleted(zkgroups: Zkgroups, billing: Consumergroup) -> None:
    done = zkgroups("members", "evict", "billing", "anna", "--execute", "-o", "name")
    assert (done.code, done.lines) == (0, ["0"])
    assert [each.id for each in billing.instances()] == ["ben"]
    assert list(billing.owners()) == []


def test_commits_of_an_evicted_instance_are_refused(zkgroups: Zkgroups, registry: Registry) -> None:
    group = registry.group("invoices")
    with group.instance("me") as me:
        me.register(["orders"])
        claim = me.claim(AT)
        assert zkgroups("members", "evict", "invoices", "me", "--execute").code == 0
        with pytest.raises((NotClaimedError, NotRegisteredError)):
            claim.commit(5)
    assert group.offsets.fetch(AT) is None


@pytest.mark.parametrize("execute", [(), ("--execute",)])
def test_an_instance_with_another_session_than_expected_is_not_evicted(
    zkgroups: Zkgroups, kazoo: KazooClient, billing: Consumergroup, execute: tuple[str, ...]
) -> None:
    before = tree(kazoo, "/consumers")
    refused = zkgroups("members", "evict", "billing", "anna", "--expect-session", "0x1", *execute)
    assert (refused.code, refused.out, tree(kazoo, "/consumers")) == (4, "", before)
    assert "not 0x1; nothing was changed" in refused.err


def test_an_unknown_instance_or_group_is_exit_code_3(zkgroups: Zkgroups, billing: Consumergroup) -> None:
    assert zkgroups("members", "evict", "billing", "nobody").code == 3
    assert zkgroups("members", "evict", "nobody", "anna", "--execute").code == 3


def test_owner_nodes_without_a_registration_are_deleted(
    zkgroups: Zkgroups, kazoo: KazooClient, billing: Consumergroup
) -> None:
    kazoo.create("/consumers/billing/owners/orders/1", b"gone-0", ephemeral=True)
    done = zkgroups("members", "evict", "billing", "gone-0", "--execute")
    assert (done.code, [str(each.at) for each in billing.owners()]) == (0, ["orders/0"])
    assert "Its client is unknown." in done.err


def test_an_instance_whose_id_only_begins_with_the_same_letters_keeps_its_partitions(
    zkgroups: Zkgroups, billing: Consumergroup
) -> None:
    """An owner node with `anna-1` may be the second stream of `anna`, or the instance `anna-1`."""
    with billing.instance("anna-1") as other:
        other.register(["orders"])
        other.claim(TopicPartition("orders", 1))
        assert zkgroups("members", "evict", "billing", "anna", "--execute").code == 0
        assert [str(each.at) for each in billing.owners()] == ["orders/1"]


def await_partitions(member: Member) -> None:
    """Wait for a generation with partitions."""
    while not (member.next_generation(60) or pytest.fail("no generation")).partitions:
        pass


def test_a_running_member_joins_again(zkgroups: Zkgroups, kazoo: KazooClient, registry: Registry) -> None:
    kazoo.create("/brokers/topics/orders", b'{"version":1,"partitions":{"0":[0]}}', makepath=True)
    group = registry.group("shipping")
    with Member(group, ["orders"], id="slow") as member:
        await_partitions(member)
        [before] = group.instances()
        assert zkgroups("members", "evict", "shipping", "slow", "--execute").code == 0
        await_partitions(member)
        [after] = group.instances()
        assert (after.id, after.registered_at != before.registered_at) == ("slow", True)


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
        assert eventually(lambda: "can't rebalance after 2 retries" in stuck.log_tail(200), timeout=60)
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
        assert eventually(lambda: stuck.committed, timeout=LONGEST), stuck.lines()
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
        assert eventually(lambda: scala.rebalances > count, timeout=60)
        await_owners(group, owners)
        assert [each.id for each in group.instances()] == [scala.id]
