"""The jobs of an operator on call: the commands, and what they print. Each also runs with the oldest ZooKeeper."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.docs.guides import assert_printed
from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.testing import KafkaBroker

from .conftest import Zkgroups

pytestmark = [pytest.mark.zookeeper, pytest.mark.oldest]

P0, P1 = (TopicPartition("orders", number) for number in range(2))


@pytest.fixture
def dead(registry: Registry) -> Any:
    """A group that nobody uses any more."""
    group = registry.group("invoices")
    group.offsets.set_many({P0: 5, P1: 7})
    return group


def assert_shows(zkgroups: Zkgroups, command: str, shown: str, *, code: int = 0) -> None:
    """Run a command, and compare all that it prints. Three dots stand for any text."""
    ended = zkgroups(*command.split())
    assert ended.code == code, ended.err
    assert_printed(shown, ended.out + ended.err, command)


def offsets(group: Any) -> dict[TopicPartition, int]:
    return {each.at: each.offset for each in group.offsets if isinstance(each, CommittedOffset)}


def test_see_who_holds_what(zkgroups: Zkgroups, billing: Any) -> None:
    shown = """
GROUP    INSTANCE  STATE         OWNED  SUBSCRIPTION  DIALECT   SESSION  SINCE
billing  anna      AwaitingSync      1  orders        zkgroups  ...
billing  ben       Joining           0  orders x2     zkgroups  ...
"""
    assert_shows(zkgroups, "members list billing", shown)


def test_see_why_a_partition_is_not_read(zkgroups: Zkgroups, kazoo: KazooClient, billing: Any) -> None:
    kazoo.create("/consumers/billing/owners/orders/1", b"gone-0", ephemeral=True)
    shown = """
Group billing is CompletingRebalance. 2 members share 2 partitions; not as planned: 1.

Strategy range: the default, as anna, ben cannot announce one. ...
  orders: 2 partitions, for 3 streams (anna-0, ben-0, ben-1): one for each of the first 2, and none for the others

Members, in this order:
  anna  zkgroups  owns orders 0; chooses its partitions itself, whatever the plan is
  ben   zkgroups  owns nothing; should own orders 1; chooses its partitions itself, whatever the plan is

Not as planned:
  orders 1: owned by gone-0, which is not registered, so ben cannot claim it.

What blocks:
  orders/1 is held by 'gone-0' of session ..., which is not registered with that name and session
    if it no longer reads: zkgroups release --expect-owner=gone-0 --expect-session=... billing orders 1
"""
    assert_shows(zkgroups, "groups explain billing", shown)


def test_remove_a_stuck_member(zkgroups: Zkgroups, billing: Any) -> None:
    shown = """
TOPIC   PARTITION  OWNER  CLAIMED
orders          0  anna   ...
{} zkgroups member anna of group billing, session ... Partitions: 1.
ZooKeeper refuses its commits. ...
"""
    dry = shown.format("Would evict") + "Nothing was changed: add --execute to apply.\n"
    assert_shows(zkgroups, "members evict billing anna", dry)
    assert_shows(zkgroups, "members evict billing anna --execute", shown.format("Evicted"))
    assert [each.id for each in billing.instances()] == ["ben"]


def test_move_offsets_back_and_undo_it(zkgroups: Zkgroups, dead: Any, tmp_path: Path) -> None:
    file, reset = tmp_path / "undo.json", "offsets reset invoices --topic orders --shift-by -3"
    shown = """
GROUP     TOPIC   PARTITION  OLD  NEW  DELTA  NOTE
invoices  orders          0    5    2     -3  -
invoices  orders          1    7    4     -3  -
"""
    assert_shows(zkgroups, reset, f"{shown}Nothing was changed: add --execute to apply.\n")
    done = f"{shown}Saved the old offsets to {file}. To restore them: ...\nChanged: 2. Unchanged: 0.\n"
    assert_shows(zkgroups, f"{reset} --undo-file {file} --execute", done)
    assert offsets(dead) == {P0: 2, P1: 4}
    assert_shows(zkgroups, f"offsets import {file} --backward --execute -q -o name", "0\n1\n")
    assert offsets(dead) == {P0: 5, P1: 7}


def test_delete_a_dead_group_and_restore_it(zkgroups: Zkgroups, registry: Registry, dead: Any, tmp_path: Path) -> None:
    file = tmp_path / "deleted.json"
    shown = """
GROUP     TOPICS  OFFSETS  LAST-COMMIT
invoices       1        2  ...
"""
    assert_shows(zkgroups, "groups delete invoices", f"{shown}Nothing was changed: add --execute to apply.\n")
    done = f"{shown}Saved the old offsets to {file}. To restore them: ...\ndeleted invoices\n"
    assert_shows(zkgroups, f"groups delete invoices --undo-file {file} --execute", done)
    assert registry.groups() == []
    assert_shows(zkgroups, f"offsets import {file} --backward --execute -q -o name", "0\n1\n")
    assert offsets(dead) == {P0: 5, P1: 7}


def test_a_group_in_use_is_neither_reset_nor_deleted(zkgroups: Zkgroups, billing: Any) -> None:
    in_use = "zkgroups: group 'billing' is in use by anna, ben: stop its instances first\n"
    assert_shows(zkgroups, "groups delete billing --execute", in_use, code=4)
    assert_shows(zkgroups, "offsets reset billing --all-topics --to-offset 0 --execute", in_use, code=4)
    assert offsets(billing) == {P0: 100}


def test_see_which_group_is_furthest_behind(zkgroups: Zkgroups, registry: Registry, kafka_broker: KafkaBroker) -> None:
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(topic, partitions=1)
    kafka_broker.write(topic, 0, 9)
    registry.group("near").offsets.set(TopicPartition(topic, 0), 8)
    registry.group("far").offsets.set(TopicPartition(topic, 0), 2)
    shown = """
GROUP  PARTITIONS  TOTAL-LAG  MAX-LAG  MAX-TIME-LAG  UNKNOWN  LAST-COMMIT
far             1          7        7  ...
Groups with a lag above 5: far.
"""
    command = f"lag -b {kafka_broker.address} --summary --top 1 --fail-over 5 --time"
    assert_shows(zkgroups, command, shown, code=10)
