"""Partitions pass between Scala members and consumers of zkgroups, and no message is left out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.messages.looping import LoopProcess, Topic, read_by, written
from tests.waiting import LONGEST, eventually
from zkgroups import Consumergroup, EventKind, Registry, TopicPartition
from zkgroups.core.rebalance.assignors import range_assignor
from zkgroups.testing import expire_session

from ..scala import AS_IT_COMES, STILL, settle, whose
from .conftest import SHORT, OffsetLog, Ours, Scala


def assert_nothing_is_left_out(topic: Topic, offsets: OffsetLog, *members: Any) -> None:
    assert eventually(lambda: read_by(*members).keys() == topic.texts)
    assert eventually(lambda: sum(offsets.last.values()) == len(topic.texts))
    assert offsets.fallen == {}


def first_offsets(reader: Any, owners: dict[TopicPartition, str], *, of: Any) -> set[int]:
    """Where the reader began in the partitions that another member had."""
    first = {at: offset for at, offset, _text in reversed(reader.messages)}
    return {first[at] for at, id in owners.items() if whose(id) == of.id}


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("who", ["theirs", "ours"])
def test_the_other_one_takes_over_when_a_scala_member_or_a_consumer_leaves(
    who: str,
    how: str,
    registry: Registry,
    group: Consumergroup,
    topic: Topic,
    scala: Scala,
    loop: Ours,
    process: Callable[[str], LoopProcess],
    offsets: OffsetLog,
) -> None:
    config = {"zookeeper.session.timeout.ms": f"{SHORT * 1000:.0f}"} if how == "kill" else {}
    theirs = scala("s", {topic.name: 1}, config=config)
    mine: Any = loop(topic, id="ours:1") if who == "theirs" else process("ours:1")
    owners = settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL)
    topic.write(10)
    assert eventually(lambda: offsets.last == dict.fromkeys(owners, 10))
    leaves, stays = (theirs, mine) if who == "theirs" else (mine, theirs)
    with written(topic):
        getattr(leaves, how)()
        settle(registry, group, range_assignor, {stays.id})
    topic.write(1)
    assert_nothing_is_left_out(topic, offsets, theirs, mine)
    assert min(first_offsets(stays, owners, of=leaves)) >= 10


def test_a_consumer_gets_its_share_again_after_its_session_expired(
    registry: Registry, group: Consumergroup, topic: Topic, scala: Scala, loop: Ours, offsets: OffsetLog
) -> None:
    theirs, mine = scala("s", {topic.name: 1}), loop(topic, id="ours:1")
    owners = settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL)
    with written(topic):
        expire_session(mine.client)
        mine.until(lambda: mine.told(EventKind.LOST), "the loss")
        assert settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL) == owners
    assert_nothing_is_left_out(topic, offsets, theirs, mine)
    share = {at for at, id in owners.items() if whose(id) == mine.id}
    assert [event.at for event in mine.told(EventKind.LOST)] == [share]


def test_a_suspended_consumer_moves_no_offset_back_after_a_scala_member_took_over(
    registry: Registry,
    group: Consumergroup,
    topic: Topic,
    scala: Scala,
    process: Callable[[str], LoopProcess],
    offsets: OffsetLog,
) -> None:
    theirs, mine = scala("s", {topic.name: 1}), process("ours:1")
    owners = settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL)
    with written(topic):
        assert eventually(lambda: mine.texts)
        mine.suspend()
        settle(registry, group, range_assignor, {theirs.id})
        mine.resume()
        assert settle(registry, group, range_assignor, {theirs.id, mine.id}, still=STILL) == owners
    assert_nothing_is_left_out(topic, offsets, theirs, mine)


@pytest.mark.parametrize("pause", [2.0, 12.0], ids=["in time", "too late"])
def test_a_joining_scala_member_gets_its_share_while_the_body_of_a_consumer_takes_long(
    registry: Registry, group: Consumergroup, topic: Topic, scala: Scala, loop: Ours, pause: float
) -> None:
    """A Scala member tries four times within eight seconds, and then owns nothing. Consumers release before."""
    begun, asked = threading.Event(), threading.Event()

    def body(_message: object) -> None:
        begun.set()
        assert asked.wait(LONGEST)
        time.sleep(pause)

    mine = loop(topic, id="ours:1", body=body)
    settle(registry, group, range_assignor, {mine.id})
    topic.write(1, 0)
    assert begun.wait(LONGEST)
    theirs = scala("s", {topic.name: 1}, config=AS_IT_COMES)
    mine.until(lambda: mine.consumer._reading.is_revoking, "the revocation")
    asked.set()
    settle(registry, group, range_assignor, {theirs.id, mine.id})
    assert not theirs.gave_up
