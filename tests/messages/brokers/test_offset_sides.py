"""Consumers in ZooKeeper that commit their offsets on the brokers, or on both sides."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Consumer as NativeConsumer

from tests.waiting import eventually
from zkgroups import Claims, Consumer, Consumergroup, EventKind, Registry, TopicPartition
from zkgroups.consumer.membership import Membership
from zkgroups.core.znodes.values import Side
from zkgroups.deadline import uptime
from zkgroups.exceptions import (
    InvalidOptionError,
    NotClaimedError,
    NotConnectedError,
    OutcomeUnknownError,
    RefusedError,
    SessionLostError,
)
from zkgroups.kafka import Brokers
from zkgroups.messages import offsets_on_brokers
from zkgroups.messages.broker_offsets import BrokerOffsets
from zkgroups.messages.offsets_on_brokers import OffsetsOnBrokers
from zkgroups.migration.live_move import MoveOutcome, MoveStep
from zkgroups.testing import KafkaBroker, expire_session

from ..looping import LONGEST, QUICK, Loop, LoopProcess, Topic, topic_on
from .conftest import Loops
from .sides import Sides

BOTH: list[dict[str, Any]] = [{"offsets": "both", "truth": "zookeeper"}, {"offsets": "both", "truth": "kafka"}]
KAFKA: dict[str, Any] = {"offsets": "kafka"}
BRIEF = 7.0
"""A session that makes commits give up before the session of a suspended broker ends, and outlives a still machine."""
OTHER = {"zookeeper": "kafka", "kafka": "zookeeper"}


def of(options: dict[str, Any]) -> str:
    return ",".join(options.values())


def details(loop: Loop, kind: EventKind) -> list[str]:
    return [event.detail for event in loop.told(kind)]


def put(sides: Sides, at: TopicPartition, *, zookeeper: int | None = None, kafka: int | None = None) -> None:
    """Set the committed offsets of a stopped group."""
    if zookeeper is not None:
        sides.group.offsets.set(at, zookeeper)
    if kafka is not None:
        assert sides.brokers.commit({sides.group.name: {at: kafka}}) == {sides.group.name: {at: None}}


def finished(loop: Loop, topic: Topic) -> Loop:
    """Wait until the loop has asked for a message after the last one."""
    loop.until_read(topic.texts)
    return loop.until(lambda: sum(loop.consumer._reading.positions().values()) == len(topic.texts), "the last message")


# Where offsets are


@pytest.mark.parametrize("options", [*BOTH, KAFKA], ids=of)
def test_offsets_are_committed_where_the_option_says_and_the_next_consumer_begins_there(
    topic: Topic, sides: Sides, loop: Loops, options: dict[str, Any]
) -> None:
    topic.write(20)
    first = loop(topic, **options).until_read(topic.texts)
    first.stop()
    committed = {0: 20, 1: 20, 2: 20}
    assert (sides.zookeeper, sides.kafka) == ({} if options is KAFKA else committed, committed)
    known = set(topic.texts)
    topic.write(5)
    second = loop(topic, **options).until_read(topic.texts - known)
    assert not known & second.texts.keys()
    assert details(second, EventKind.DIFFER) == []


def test_on_brokers_without_zookeeper_offsets_are_committed_too(
    kafka_broker: KafkaBroker, zookeeper_hosts: str, registry: Registry
) -> None:
    topic = topic_on(kafka_broker, f"sides-{zookeeper_hosts.rpartition('/')[2]}", 1)
    topic.write(3)
    group = registry.group(topic.name)
    settings = QUICK | {"bootstrap.servers": kafka_broker.address}
    with Consumer(group, [topic.name], kafka=settings, partitions=lambda _topic: [0], **BOTH[1]) as consumer:
        for _ in range(3):
            assert consumer.poll(LONGEST) is not None
        consumer.commit()
    with Brokers.connect(kafka_broker.address) as brokers:
        sides = Sides(group, registry, brokers)
        assert (sides.zookeeper, sides.kafka) == ({0: 3}, {0: 3})


@pytest.mark.parametrize("options", BOTH, ids=of)
def test_the_truth_is_read_both_numbers_are_reported_and_a_copy_that_is_ahead_does_not_go_back(
    topic: Topic, sides: Sides, loop: Loops, options: dict[str, Any]
) -> None:
    truth, other = options["truth"], OTHER[options["truth"]]
    at = topic.ats[0]
    topic.write(8, 0)
    put(sides, at, **{truth: 4, other: 10})
    mine = loop(topic, **options)
    mine.until(lambda: len(mine.messages) == 4, "the messages from the truth on")
    mine.until(lambda: sides.offsets(Side(truth)) == {0: 8}, "the commit")
    mine.until(lambda: details(mine, EventKind.DIFFER), "the report")  # copies are compared on another thread
    numbers = {truth: 4, other: 10}
    text = f"{at}: {numbers['zookeeper']} in ZooKeeper, {numbers['kafka']} on the brokers"
    [detail] = details(mine, EventKind.DIFFER)
    assert detail == f"{text}; reading those of {'the brokers' if truth == 'kafka' else 'ZooKeeper'}"
    mine.stop()
    assert sides.offsets(Side(other)) == {0: 10}
    topic.write(4, 0)
    again = loop(topic, **options)
    again.until(lambda: len(again.messages) == 4, "the rest")
    again.stop()
    assert (sides.zookeeper, sides.kafka) == ({0: 12}, {0: 12})


@pytest.mark.parametrize("options", BOTH, ids=of)
def test_a_copy_that_is_behind_is_reported_and_brought_up_to_date_without_a_message(
    topic: Topic, sides: Sides, loop: Loops, options: dict[str, Any]
) -> None:
    """It is behind after a crash between the two writes."""
    truth, other = options["truth"], OTHER[options["truth"]]
    topic.write(6)
    for at in topic.ats:
        put(sides, at, **{truth: 6})
    put(sides, topic.ats[1], **{other: 5})
    mine = loop(topic, **options)
    mine.until(lambda: sides.offsets(Side(other)) == {0: 6, 1: 6, 2: 6}, "the copies")
    mine.until(lambda: details(mine, EventKind.DIFFER), "the report")
    [detail] = details(mine, EventKind.DIFFER)
    assert detail.startswith(f"{topic.ats[1]}: ")
    assert mine.messages == []


@pytest.mark.parametrize("options", BOTH, ids=of)
def test_an_offset_outside_of_the_log_goes_back_on_both_sides(
    topic: Topic, sides: Sides, loop: Loops, options: dict[str, Any]
) -> None:
    topic.write(3, 0)
    put(sides, topic.ats[0], **{options["truth"]: 5_000, OTHER[options["truth"]]: 6_000})
    mine = loop(topic, out_of_range="earliest", **options).until_read(topic.texts)
    mine.until(lambda: (sides.zookeeper, sides.kafka) == ({0: 3}, {0: 3}), "the commits")


# The first start on the brokers


@pytest.mark.parametrize("options", [KAFKA, BOTH[1]], ids=of)
def test_the_first_start_on_the_brokers_begins_at_the_offsets_in_zookeeper_and_copies_them(
    topic: Topic, sides: Sides, loop: Loops, options: dict[str, Any]
) -> None:
    topic.write(5)
    put(sides, topic.ats[0], zookeeper=5)
    put(sides, topic.ats[1], zookeeper=2, kafka=4)
    first = loop(topic, initial="zookeeper", **options)
    first.until(lambda: len(first.messages) == 6, "the rest")
    assert sorted(offset for at, offset, _text in first.messages if at == topic.ats[1]) == [4]
    assert sides.kafka[0] == 5
    first.stop()
    assert sides.kafka == {0: 5, 1: 5, 2: 5}


def test_an_offset_in_zookeeper_that_cannot_be_read_is_left_alone_until_it_is_repaired(
    topic: Topic, sides: Sides, loop: Loops, registry: Registry
) -> None:
    topic.write(3)
    registry.client.create(f"/consumers/{sides.group.name}/offsets/{topic.name}/1", b"many", makepath=True)
    mine = loop(topic, initial="zookeeper", reconcile_every=0.2, **KAFKA)
    mine.until(lambda: len(mine.messages) == 6, "the other partitions")
    assert list(mine.consumer.stats().unreadable) == [topic.ats[1]]
    registry.client.set(f"/consumers/{sides.group.name}/offsets/{topic.name}/1", b"2")
    mine.until(lambda: len(mine.messages) == 7, "the repaired partition")
    assert mine.messages[-1][:2] == (topic.ats[1], 2)


def test_without_commits_nothing_is_written_on_either_side(topic: Topic, sides: Sides, loop: Loops) -> None:
    topic.write(3)
    put(sides, topic.ats[0], zookeeper=1)
    put(sides, topic.ats[1], kafka=1)
    before = sides.zookeeper, sides.kafka
    for options in (*BOTH, {**KAFKA, "initial": "zookeeper"}):
        looking = loop(topic, commits=False, **options)
        looking.until(lambda: len(looking.messages) >= 7, "the messages")  # noqa: B023
        looking.stop()
    assert (sides.zookeeper, sides.kafka) == before


# Brokers that do not answer


def test_while_brokers_do_not_answer_commits_in_zookeeper_count_and_their_copies_follow_later(
    topic: Topic, sides: Sides, loop: Loops, legacy_kafka: KafkaBroker
) -> None:
    topic.write(4, 0)
    mine = finished(loop(topic, session=BRIEF, auto_commit_every=None, **BOTH[0]), topic)
    legacy_kafka.suspend()
    try:
        mine.consumer.commit()
        assert sides.zookeeper == {0: 4}
        mine.until(lambda: details(mine, EventKind.FAILED), "the report")
    finally:
        legacy_kafka.resume()
    mine.until(lambda: sides.kafka == {0: 4}, "the copy")


def test_without_the_answer_of_a_broker_a_commit_does_not_count_if_the_truth_is_there(
    topic: Topic, sides: Sides, loop: Loops, legacy_kafka: KafkaBroker
) -> None:
    topic.write(4, 0)
    mine = finished(loop(topic, session=BRIEF, auto_commit_every=None, **BOTH[1]), topic)
    legacy_kafka.suspend()
    try:
        with pytest.raises(OutcomeUnknownError, match="the brokers have not confirmed a commit"):
            mine.consumer.commit()
        assert sides.zookeeper == {0: 4}
    finally:
        legacy_kafka.resume()
    assert eventually(lambda: commits(mine))
    assert sides.kafka == {0: 4}


def commits(loop: Loop) -> bool:
    """Whether the broker answers a commit: it may still be busy with what came while it was suspended.

    If this process stands still for long, its claims are not certain for a moment.
    """
    with suppress(OutcomeUnknownError, NotConnectedError):
        loop.consumer.commit()
        return True
    return False


def test_a_request_that_was_given_up_is_not_sent_later_and_a_late_answer_does_not_end_the_process(
    topic: Topic, sides: Sides, legacy_kafka: KafkaBroker
) -> None:
    """librdkafka itself aborts the process then: an assertion about `eonce->refcnt` fails."""
    at = topic.ats[0]
    brokers = BrokerOffsets({"bootstrap.servers": legacy_kafka.address}, sides.group.name, 1.0)

    def read() -> dict[TopicPartition, int | None] | None:
        with suppress(NotConnectedError):
            return brokers.committed([at])
        return None

    def while_suspended(request: Callable[[], object], error: type[Exception]) -> None:
        legacy_kafka.suspend()
        try:
            with pytest.raises(error):
                request()
        finally:
            legacy_kafka.resume()

    while_suspended(lambda: brokers.commit({at: 4}), OutcomeUnknownError)  # nothing is connected, so it was not sent
    for _ in range(3):
        assert eventually(lambda: read() == {at: None})
        while_suspended(lambda: brokers.committed([at]), NotConnectedError)
    assert eventually(lambda: read() == {at: None})
    brokers.close()


# Options


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"offsets": "brokers"}, "offsets is 'brokers', but it must be one of kafka, zookeeper, both"),
        ({"offsets": "both"}, "truth is not given, but with offsets="),
        ({"offsets": "kafka", "truth": "kafka"}, "truth is 'kafka', but it is only for"),
        ({"initial": "zookeeper"}, "initial is 'zookeeper', but it is only for"),
        ({"offsets": "kafka", "initial": "kafka"}, "initial is 'kafka', but it must be zookeeper"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    group: Consumergroup, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidOptionError, match=text):
        Consumer(group, ["orders"], kafka="127.0.0.1:1", **options)


@pytest.mark.parametrize("options", [KAFKA, BOTH[1]], ids=of)
def test_a_consumer_that_has_lost_its_claims_commits_nothing_on_the_brokers(
    topic: Topic, sides: Sides, loop: Loops, options: dict[str, Any]
) -> None:
    topic.write(4)
    mine = finished(loop(topic, auto_commit_every=None, **options), topic)
    membership = mine.consumer._reading.member._membership
    assert isinstance(membership, Membership)
    taken, write = topic.ats[0], membership.writer(frozenset(topic.ats))
    sides.group.release(taken, expected_owner=mine.consumer.id)
    with pytest.raises(NotClaimedError):
        write({taken: 4}, {})
    mine.until(lambda: taken in membership._instance.claims, "another claim")
    write = membership.writer(frozenset(topic.ats))
    expire_session(mine.client)
    with pytest.raises((NotClaimedError, SessionLostError)):
        write({topic.ats[1]: 4}, {})
    mine.stop()
    assert (sides.zookeeper, sides.kafka) == ({}, {})


def test_a_copy_that_is_ahead_does_not_hide_that_the_claims_were_lost(topic: Topic, sides: Sides, loop: Loops) -> None:
    """Nothing is written to ZooKeeper then, so the claims are checked instead."""
    topic.write(4)
    put(sides, topic.ats[0], zookeeper=10)
    mine = finished(loop(topic, auto_commit_every=None, **BOTH[1]), topic)
    write = mine.consumer._reading.member._membership.writer(frozenset(topic.ats))
    write({topic.ats[0]: 2}, {})
    assert (sides.zookeeper, sides.kafka) == ({0: 10}, {0: 2})
    sides.group.release(topic.ats[0], expected_owner=mine.consumer.id)
    with pytest.raises(NotClaimedError):
        write({topic.ats[0]: 4}, {})
    assert sides.kafka == {0: 2}


@pytest.mark.parametrize("options", [KAFKA, BOTH[1]], ids=of)
def test_no_commit_is_sent_to_the_brokers_when_the_session_may_have_expired_since_the_check(
    topic: Topic, sides: Sides, loop: Loops, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    topic.write(4)
    mine = finished(loop(topic, auto_commit_every=None, **options), topic)
    write = mine.consumer._reading.member._membership.writer(frozenset(topic.ats))
    monkeypatch.setattr(Claims, "certain_until", property(lambda _claims: uptime() - 0.1))
    with pytest.raises(NotConnectedError, match="not certain to be held"):
        write({topic.ats[0]: 4}, {})
    assert sides.kafka == {}


def test_a_process_that_was_suspended_for_longer_than_its_session_changes_no_offset_when_it_wakes_up(
    topic: Topic, sides: Sides, loop: Loops, legacy_kafka: KafkaBroker
) -> None:
    topic.write(5)
    with LoopProcess(legacy_kafka, sides.group.name, topic.name, "asleep", every=3.0, **KAFKA) as process:
        assert eventually(lambda: process.texts.keys() == topic.texts)
        process.suspend()
        other = loop(topic, **KAFKA)
        other.until_holding(*topic.ats)
        topic.write(5)
        other.until(lambda: sides.kafka == {0: 10, 1: 10, 2: 10}, "the commits of the successor")
        process.resume()
        assert eventually(lambda: len(sides.group.instances()) == 2), process._process.tail()
        assert sides.kafka == {0: 10, 1: 10, 2: 10}
        topic.write(5)
        assert eventually(lambda: sides.kafka == {0: 15, 1: 15, 2: 15})


def test_a_group_with_members_on_the_brokers_accepts_no_offsets_and_that_is_an_error(
    topic: Topic, sides: Sides, loop: Loops, legacy_kafka: KafkaBroker
) -> None:
    settings = QUICK | {"bootstrap.servers": legacy_kafka.address, "group.id": sides.group.name}
    native = NativeConsumer(settings | {"enable.auto.commit": False})
    native.subscribe([topic.name])
    try:
        assert eventually(lambda: native.poll(0.1) is not None or native.assignment())
        topic.write(2, 0)
        copying = finished(loop(topic, **BOTH[0]), topic)
        copying.until(lambda: any("has members on the brokers" in each for each in details(copying, EventKind.FAILED)))
        copying.stop()
        assert (sides.zookeeper, sides.kafka) == ({0: 2}, {})
        mine = loop(topic, auto_commit_every=None, **KAFKA)
        mine.until_read(topic.texts)
        with pytest.raises(RefusedError, match="has members on the brokers"):
            mine.consumer._reading.member._membership.writer(frozenset(topic.ats))({topic.ats[0]: 2}, {})
    finally:
        native.close()


@pytest.mark.parametrize("options", BOTH, ids=of)
def test_a_process_that_is_killed_between_the_two_writes_loses_no_message(
    topic: Topic, sides: Sides, loop: Loops, legacy_kafka: KafkaBroker, options: dict[str, Any]
) -> None:
    topic.write(4)
    with LoopProcess(
        legacy_kafka, sides.group.name, topic.name, "dies", dies_between_writes=True, **options
    ) as process:
        assert process._process.wait(LONGEST) == 128 + signal.SIGKILL
        first = process.texts
    committed = sides.zookeeper
    assert committed != {}
    assert sides.kafka == {}
    second = loop(topic, **options)
    second.until(lambda: topic.texts <= (first + second.texts).keys(), "all messages")
    second.until(lambda: (sides.zookeeper, sides.kafka) == ({0: 4, 1: 4, 2: 4},) * 2, "the commits")
    again = sum(times - 1 for times in (first + second.texts).values())
    # The loop has gone on while the commit was under way.
    assert again <= sum(first.values()) - (0 if options["truth"] == "kafka" else sum(committed.values()))


def test_unchanged_offsets_are_committed_again_because_brokers_forget_old_ones(
    topic: Topic, sides: Sides, loop: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets_on_brokers, "RENEWAL", 0.3)
    topic.write(3)
    mine = finished(loop(topic, reconcile_every=0.1, **KAFKA), topic)
    mine.until(lambda: sides.kafka == {0: 3, 1: 3, 2: 3}, "the commits")
    assert sides.brokers.delete_groups([sides.group.name]) == {sides.group.name: None}
    mine.until(lambda: sides.kafka == {0: 3, 1: 3, 2: 3}, "the renewal")


def test_offsets_that_others_have_changed_are_not_committed_again(topic: Topic, sides: Sides, loop: Loops) -> None:
    """Nor are those of which the consumer knows that they were deleted."""
    topic.write(3)
    mine = finished(loop(topic, auto_commit_every=None, **KAFKA), topic)
    mine.consumer.commit()
    membership = mine.consumer._reading.member._membership
    assert isinstance(membership, Membership)
    offsets, (changed, deleted, unchanged) = membership._offsets, topic.ats
    assert isinstance(offsets, OffsetsOnBrokers)
    assert sides.brokers.delete_groups([sides.group.name]) == {sides.group.name: None}
    put(sides, changed, kafka=1)
    offsets.read(frozenset({deleted}))
    offsets._renew_at = -1.0
    offsets.look()
    assert sides.kafka == {changed.partition: 1, unchanged.partition: 3}


def test_a_partition_is_not_released_while_a_commit_on_the_brokers_is_under_way(
    topic: Topic, sides: Sides, loop: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late request would put back an offset of the next owner."""
    topic.write(4, 0)
    mine = finished(loop(topic, auto_commit_every=None, release_timeout=0.1, **KAFKA), topic)
    begun, may_send, send = threading.Event(), threading.Event(), BrokerOffsets.commit

    def send_late(brokers: BrokerOffsets, *arguments: Any) -> None:
        begun.set()
        assert may_send.wait(LONGEST)
        send(brokers, *arguments)

    monkeypatch.setattr(BrokerOffsets, "commit", send_late)
    committing, stopping = threading.Thread(target=mine.consumer.commit), threading.Thread(target=mine.stop)
    committing.start()
    assert begun.wait(LONGEST)
    stopping.start()
    stopping.join(0.5)  # time enough for a release
    assert sides.group.owner(topic.ats[0]) is not None
    may_send.set()
    committing.join(LONGEST)
    stopping.join(LONGEST)
    assert (sides.group.owner(topic.ats[0]), sides.kafka) == (None, {0: 4})


def test_members_that_would_not_find_the_offsets_of_each_other_are_reported(
    topic: Topic, sides: Sides, loop: Loops
) -> None:
    first = loop(topic, id="a")
    first.until_holding(*topic.ats)
    suits = loop(topic, id="b", **BOTH[0])
    suits.until(lambda: len(suits.consumer.assignment) == 1, "a share")
    assert details(first, EventKind.DIFFER) == []
    other = loop(topic, id="c", **KAFKA)
    first.until(lambda: details(first, EventKind.DIFFER), "the report")
    assert details(first, EventKind.DIFFER) == ["this member commits to zookeeper, others elsewhere: c (kafka)"]
    other.until(lambda: details(other, EventKind.DIFFER), "the report")
    assert details(other, EventKind.DIFFER) == [
        "this member commits to kafka, others elsewhere: a (zookeeper), b (both, zookeeper is the truth)"
    ]


def test_a_group_whose_truth_is_on_the_brokers_moves_there_with_these_offsets_and_back(
    topic: Topic, sides: Sides, loop: Loops
) -> None:
    """The lower offsets in ZooKeeper are old, and do not matter."""
    put(sides, topic.ats[0], zookeeper=1, kafka=3)
    topic.write(6, 0)
    mine = loop(topic, **KAFKA)
    mine.until(lambda: sides.kafka == {0: 6}, "the commits")
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    topic.write(2, 0)
    mine.until(lambda: sides.kafka == {0: 8}, "commits of a member of the brokers")
    assert sides.move(Side.ZOOKEEPER) is MoveOutcome.MOVED
    assert sides.zookeeper == {0: 8}
    topic.write(2, 0)
    mine.until(lambda: sides.kafka == {0: 10}, "commits of a member in ZooKeeper")
    assert [offset for _at, offset, _text in mine.messages] == [*range(3, 10)]


def test_a_move_that_was_killed_remembers_where_the_truth_is(topic: Topic, sides: Sides, loop: Loops) -> None:
    class Killed(BaseException):
        pass

    def kill(step: MoveStep) -> None:
        if step is MoveStep.LEFT:
            raise Killed

    put(sides, topic.ats[0], zookeeper=1, kafka=3)
    topic.write(6, 0)
    mine = loop(topic, **KAFKA)
    mine.until(lambda: sides.kafka == {0: 6}, "the commits")
    with pytest.raises(Killed):
        sides.move(Side.KAFKA, kill)
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    topic.write(1, 0)
    mine.until(lambda: sides.kafka == {0: 7}, "the commits")
    assert [offset for _at, offset, _text in mine.messages] == [*range(3, 7)]


def test_a_group_whose_members_read_different_sides_is_not_moved(topic: Topic, sides: Sides, loop: Loops) -> None:
    loop(topic, id="a").until_holding(*topic.ats)
    other = loop(topic, id="b", **KAFKA)
    other.until(lambda: len(other.consumer.assignment) == 1, "a share")
    with pytest.raises(RefusedError, match=r"these members read others: b \(kafka\)"):
        sides.move(Side.KAFKA)
    assert sides.state is None
