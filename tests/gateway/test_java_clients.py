"""Kafka's own clients at a gateway: consumers of both releases, and the tool for groups."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.testing.waiting import eventually

from .conftest import Front
from .java_peers import JavaConsumer, JavaProducer, consumer_groups
from .test_librdkafka import member, offsets

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("gateway"), pytest.mark.timeout(1000)]

LONGEST = 120.0
STALLED_MS = 25_000
"""A consumer whose last request is never answered waits 30 s before it ends."""


def test_java_and_librdkafka_share_a_group(front: Front, make_topic: Callable[..., str]) -> None:
    topic, bootstrap = make_topic(4, messages=2), front.gateway.bootstrap
    group, release = f"here-{topic}", front.broker.release
    with JavaConsumer(release, bootstrap, group, topic, config={"client.id": "java"}) as java:
        assert eventually(lambda: len(java.read) == 8, timeout=LONGEST), java.lines()
        assert eventually(lambda: offsets(bootstrap, group, topic) == dict.fromkeys(range(4), 2), timeout=LONGEST)
        with member(bootstrap, group, topic) as other:
            assert eventually(
                lambda: other.poll() or len(other.partitions) == len(java.partitions) == 2, timeout=LONGEST
            ), java.lines()
            shown = consumer_groups(release, bootstrap, "--describe", "--group", group)
            rows = [line.split() for line in shown.splitlines() if topic in line]
            assert len(rows) == 4, shown
            assert sorted("java" in " ".join(row) for row in rows) == [False, False, True, True], shown
            assert consumer_groups(release, bootstrap, "--list").split().count(group) == 1
            assert java.leave() < STALLED_MS
            assert eventually(lambda: other.poll() or len(other.partitions) == 4, timeout=LONGEST)
        assert other.read == []


def test_kafkas_tool_lists_resets_and_deletes(front: Front, make_topic: Callable[..., str]) -> None:
    topic, bootstrap = make_topic(2, messages=3), front.gateway.bootstrap
    group, release = f"here-{topic}", front.broker.release
    to_end = ("--reset-offsets", "--to-latest", "--execute", "--group", group, "--topic", topic)
    shown = consumer_groups(release, bootstrap, *to_end)
    assert offsets(bootstrap, group, topic) == {0: 3, 1: 3}, shown
    assert group in consumer_groups(release, bootstrap, "--list")
    shown = consumer_groups(release, bootstrap, "--delete", "--group", group)
    assert offsets(bootstrap, group, topic) == {}, shown


@pytest.mark.parametrize("front", ["kafka_broker"], indirect=True)
def test_a_client_of_the_next_generation_of_groups_is_told_the_cure(
    front: Front, make_topic: Callable[..., str]
) -> None:
    settings = {"group.protocol": "consumer", "session.timeout.ms": "", "heartbeat.interval.ms": ""}
    topic = make_topic()
    with JavaConsumer(front.broker.release, front.gateway.bootstrap, f"here-{topic}", topic, config=settings) as java:
        assert eventually(lambda: any("group.protocol=classic" in line for line in java.lines()), timeout=LONGEST)


@pytest.mark.parametrize("front", ["kafka_broker"], indirect=True)
def test_a_transaction_is_committed_but_not_with_offsets(front: Front, make_topic: Callable[..., str]) -> None:
    with JavaProducer(front.broker.release, front.gateway.bootstrap, make_topic()) as producer:
        found = producer.wait()
    assert found[:2] == ["committed", "committed"], found
    assert "UnsupportedVersionException" in found[2], found


@pytest.mark.parametrize("front", ["kafka_broker"], indirect=True)
def test_the_partitions_of_a_killed_member_go_to_another(front: Front, make_topic: Callable[..., str]) -> None:
    topic, bootstrap = make_topic(2), front.gateway.bootstrap
    group, quick = f"here-{topic}", {"session.timeout.ms": "2000"}
    with (
        member(bootstrap, group, topic) as other,
        JavaConsumer(front.broker.release, bootstrap, group, topic, config=quick) as java,
    ):
        assert eventually(
            lambda: other.poll() or len(other.partitions) == len(java.partitions) == 1, timeout=LONGEST
        ), java.lines()
        java.kill()
        assert eventually(lambda: other.poll() or len(other.partitions) == 2, timeout=LONGEST)
