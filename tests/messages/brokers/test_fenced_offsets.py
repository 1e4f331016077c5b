"""Consumers that have lost their claims change no offset on the brokers."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from confluent_kafka import Consumer as NativeConsumer

from tests.waiting import eventually
from zkgroups import Claims, EventKind
from zkgroups.consumer.membership import Membership
from zkgroups.deadline import uptime
from zkgroups.exceptions import (
    NotClaimedError,
    NotConnectedError,
    RefusedError,
    SessionLostError,
)
from zkgroups.testing import KafkaBroker, expire_session

from ..looping import LONGEST, QUICK, LoopProcess, Topic
from .conftest import Loops
from .offsets_elsewhere import BOTH, KAFKA, details, finished, of, put
from .sides import Sides


@pytest.mark.parametrize("options", [KAFKA, *BOTH], ids=of)
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
        process.process.suspend()
        other = loop(topic, **KAFKA)
        other.until_holding(*topic.ats)
        topic.write(5)
        other.until(lambda: sides.kafka == {0: 10, 1: 10, 2: 10}, "the commits of the successor")
        process.process.resume()
        assert eventually(lambda: len(sides.group.instances()) == 2), process.process.tail()
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
        assert process.process.wait(LONGEST) == 128 + signal.SIGKILL
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
