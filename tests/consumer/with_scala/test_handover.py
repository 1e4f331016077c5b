"""Partitions pass between Scala members and members of zkgroups, and no message is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.waiting import eventually
from zkgroups import Consumergroup, Registry
from zkgroups.consumer.events import EventKind
from zkgroups.core.rebalance.assignors import range_assignor
from zkgroups.testing import expire_session

from ..reader import ReaderProcess
from ..scala import settle, whose
from .conftest import Ours, Scala
from .mixed_group import AS_IT_COMES, STILL, Feed, OffsetLog, first_offsets, texts

KILLED = {"zookeeper.session.timeout.ms": "10000"}
"""Settings of a member that is killed. Its session ends soon, and outlives a machine that stands still for a moment."""

# Leaving and joining


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_zkgroups_member_takes_over_from_a_scala_member_that_leaves(
    how: str,
    registry: Registry,
    group: Consumergroup,
    topic: str,
    scala: Scala,
    ours: Ours,
    feed: Feed,
    offsets: OffsetLog,
) -> None:
    theirs = scala("s", {topic: 1}, config=KILLED if how == "kill" else {})
    mine = ours("ours:1", {topic: 1})
    owners = settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL)
    feed.some(10)
    assert eventually(lambda: offsets.last == dict.fromkeys(owners, 10))

    with feed:
        getattr(theirs, how)()
        settle(registry, group, range_assignor, {mine.id})

    assert eventually(lambda: texts(theirs, mine).keys() == set(feed.texts))
    assert eventually(lambda: sum(offsets.last.values()) == len(feed.texts))
    assert min(first_offsets(mine, owners, of=theirs)) >= 10
    assert offsets.fallen == {}
    assert eventually(lambda: len(mine.member.assignment) == 7)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_scala_member_takes_over_from_a_zkgroups_member_that_leaves(
    how: str,
    registry: Registry,
    group: Consumergroup,
    topic: str,
    scala: Scala,
    process: Callable[..., ReaderProcess],
    feed: Feed,
    offsets: OffsetLog,
) -> None:
    theirs, mine = scala("s", {topic: 1}), process("ours:1", {topic: 1})
    owners = settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL)
    feed.some(10)
    assert eventually(lambda: offsets.last == dict.fromkeys(owners, 10))

    with feed:
        getattr(mine, how)()
        settle(registry, group, range_assignor, {theirs.id})

    assert eventually(lambda: texts(theirs, mine).keys() == set(feed.texts))
    assert eventually(lambda: sum(offsets.last.values()) == len(feed.texts))
    assert min(first_offsets(theirs, owners, of=mine)) >= 10
    assert offsets.fallen == {}


def test_a_zkgroups_member_gets_its_share_again_after_its_session_expired(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours, feed: Feed, offsets: OffsetLog
) -> None:
    theirs, mine = scala("s", {topic: 1}), ours("ours:1", {topic: 1})
    owners = settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL)
    session = mine.registry.session_id

    with feed:
        expire_session(mine.registry.client)
        assert eventually(lambda: mine.registry.session_id not in (session, None))
        assert settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL) == owners

    assert eventually(lambda: texts(theirs, mine).keys() == set(feed.texts))
    assert eventually(lambda: sum(offsets.last.values()) == len(feed.texts))
    assert offsets.fallen == {}
    share = {at for at, id in owners.items() if whose(id) == mine.id}
    assert [event.at for event in mine.events if event.kind is EventKind.LOST] == [share]


def test_a_suspended_zkgroups_member_moves_no_offset_back_after_a_scala_member_took_over(
    registry: Registry,
    group: Consumergroup,
    topic: str,
    scala: Scala,
    process: Callable[..., ReaderProcess],
    feed: Feed,
    offsets: OffsetLog,
) -> None:
    theirs, mine = scala("s", {topic: 1}), process("ours:1", {topic: 1})
    owners = settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL)

    with feed:
        assert eventually(lambda: mine.messages)
        mine.suspend()
        settle(registry, group, range_assignor, {theirs.id})
        mine.resume()
        assert settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL) == owners

    assert eventually(lambda: texts(theirs, mine).keys() == set(feed.texts))
    assert eventually(lambda: sum(offsets.last.values()) == len(feed.texts))
    assert offsets.fallen == {}


def test_a_joining_zkgroups_member_gets_its_share_from_a_scala_member_with_default_settings(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours
) -> None:
    theirs = scala("s", {topic: 1}, config=AS_IT_COMES)
    settle(registry, group, range_assignor, {theirs.id})

    mine = ours("ours:1", {topic: 1})

    settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL)


def test_a_joining_scala_member_waits_until_a_zkgroups_member_has_finished_its_work(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours
) -> None:
    """A Scala member tries four times within eight seconds, and then owns nothing. zkgroups members must release
    before."""
    mine = ours("ours:1", {topic: 1}, pause=2.0)
    settle(registry, group, range_assignor, {mine.id})

    theirs = scala("s", {topic: 1}, config=AS_IT_COMES)

    settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL)
    assert not theirs.gave_up


def test_a_worker_that_does_not_end_is_left_behind_in_time_for_a_scala_member(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours
) -> None:
    mine = ours("ours:1", {topic: 1}, pause=12.0)
    settle(registry, group, range_assignor, {mine.id})

    theirs = scala("s", {topic: 1}, config=AS_IT_COMES)

    settle(registry, group, range_assignor, {theirs.id, mine.id})
    assert theirs.rebalances > 1
    assert not theirs.gave_up


# Messages and offsets


def test_each_message_is_read_once_by_the_owner_of_its_partition(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours, feed: Feed, offsets: OffsetLog
) -> None:
    theirs, mine = scala("s", {topic: 1}), ours("ours:1", {topic: 1})
    owners = settle(registry, group, range_assignor, {theirs.id, mine.id}, still=2 * STILL)

    feed.some(20)

    assert eventually(lambda: texts(theirs, mine) == Counter(feed.texts))
    for reader in (theirs, mine):
        assert {message.at for message in reader.messages} == {at for at in owners if owners[at] == f"{reader.id}-0"}
    assert eventually(lambda: offsets.last == dict.fromkeys(owners, 20))
    assert offsets.fallen == {}


def test_no_message_is_skipped_while_members_join_and_leave(
    registry: Registry, group: Consumergroup, topic: str, scala: Scala, ours: Ours, feed: Feed, offsets: OffsetLog
) -> None:
    theirs, mine = scala("s1", {topic: 1}), ours("ours:1", {topic: 1})
    everybody: list[Any] = [theirs, mine]
    settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL)
    with feed:
        # It reads the offsets before it claims, so it may begin at an offset from before our last commit. To commit
        # even that, it would have to be very quick.
        everybody.append(scala("s2", {topic: 2}, config={"auto.commit.interval.ms": "3000"}))
        settle(registry, group, range_assignor, {member.id for member in everybody})
        everybody.append(ours("zz:1", {topic: 1}))
        settle(registry, group, range_assignor, {member.id for member in everybody})
        mine.stop()
        theirs.stop()
        settle(registry, group, range_assignor, {member.id for member in everybody[2:]})

    assert eventually(lambda: texts(*everybody).keys() == set(feed.texts))
    assert eventually(lambda: sum(offsets.last.values()) == len(feed.texts))
    assert offsets.fallen == {}
