"""A group of consumers is moved to the brokers and back while it works."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import run
from tests.testing.unique import unique_numbers
from tests.waiting import eventually
from zkgroups import Consumer, EventKind, Registry, TopicPartition
from zkgroups.consumer.followed_group import FollowedGroup
from zkgroups.consumer.membership import Membership
from zkgroups.core.znodes.own_nodes import RouteState
from zkgroups.exceptions import NotClaimedError, ZkgroupsException
from zkgroups.kafka import Brokers
from zkgroups.messages.native_membership import NativeMembership
from zkgroups.migration.live_move import MoveOutcome, MoveStep, Side
from zkgroups.testing import KafkaBroker, expire_session

from ..looping import (
    LASTING,
    LONGEST,
    QUICK,
    QUICK_NATIVE,
    Loop,
    LoopProcess,
    Topic,
    places,
    read_by,
    shares,
    topic_on,
    written,
)
from .conftest import Loops
from .sides import Sides, await_all_committed, await_commits

_numbers = unique_numbers()


def test_a_running_group_is_moved_to_the_brokers_and_back_and_each_message_is_read_once(
    topic: Topic, sides: Sides, loop: Loops
) -> None:
    both = [loop(topic), loop(topic)]
    assert eventually(lambda: shares(*both) == [1, 2])
    with written(topic):
        for side, other in ((Side.KAFKA, Side.ZOOKEEPER), (Side.ZOOKEEPER, Side.KAFKA)):
            assert sides.move(side) is MoveOutcome.MOVED
            left = sides.offsets(other)
            assert eventually(lambda: shares(*both) == [1, 2])
            await_commits(sides, side, 3)
            assert sides.offsets(other) == left
    for each in both:
        assert (places(each), each.errors) == (["brokers", "ZooKeeper"], [])
    assert eventually(lambda: topic.texts <= read_by(*both).keys())
    assert set(read_by(*both).values()) == {1}
    assert sides.permits == []


def test_a_consumer_that_starts_on_the_brokers_joins_there_and_one_that_starts_during_a_move_waits(
    topic: Topic, sides: Sides, loop: Loops
) -> None:
    topic.write(3)
    waiting: list[Loop] = []

    def start(step: MoveStep) -> None:
        if step is MoveStep.LEFT:
            waiting.append(loop(topic))

    sides.group.create()
    assert sides.move(Side.KAFKA, start) is MoveOutcome.MOVED
    both = [*waiting, loop(topic)]
    assert eventually(lambda: shares(*both) == [1, 2])
    assert eventually(lambda: read_by(*both).keys() == topic.texts)
    assert [places(each) for each in both] == [["brokers"], ["brokers"]]
    assert list(sides.group.instances()) == []
    assert eventually(lambda: sides.kafka == {0: 3, 1: 3, 2: 3})
    assert sides.zookeeper == {}


def test_a_consumer_that_hears_late_of_a_move_looks_where_its_group_is_when_it_is_refused(
    topic: Topic, sides: Sides, loop: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Watches come on another thread than answers, so the refusal may come first."""
    sides.group.create()
    register, calls = Membership.register, itertools.count()

    def register_late(membership: Membership) -> None:
        if next(calls) == 0:
            assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
        register(membership)

    monkeypatch.setattr(Membership, "register", register_late)
    monkeypatch.setattr(FollowedGroup, "_changed", lambda _followed: None)
    consumer = loop(topic)
    consumer.until(lambda: len(consumer.consumer.assignment) == 3 or consumer.errors, "all partitions")
    assert (places(consumer), consumer.errors) == (["brokers"], [])


def test_a_consumer_whose_registry_is_closed_during_a_move_raises_an_error_and_does_not_wait_for_ever(
    legacy_kafka: KafkaBroker, topic: Topic, sides: Sides
) -> None:
    class Killed(BaseException):
        pass

    def kill(_step: MoveStep) -> None:
        raise Killed

    sides.group.create()
    with pytest.raises(Killed):
        sides.move(Side.KAFKA, kill)
    assert sides.state is RouteState.MOVING_TO_KAFKA
    settings = QUICK | {"bootstrap.servers": legacy_kafka.address}
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        consumer = Consumer(registry.group(sides.group.name), [topic.name], kafka=settings)
        assert consumer.poll(1.0) is None
        registry.close()
        for _ in range(2):
            with pytest.raises(ZkgroupsException):
                consumer.poll(LONGEST)
        consumer.close()


def test_consumers_that_leave_while_they_join_leave_no_member_behind_on_the_brokers(
    topic: Topic, sides: Sides, loop: Loops
) -> None:
    """Before their first join is answered, clients do not know their member ids, and cannot leave."""
    three = [loop(topic, kafka={"session.timeout.ms": 300_000}) for _ in range(3)]
    assert eventually(lambda: shares(*three) == [1, 1, 1])
    for _ in range(5):
        assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
        assert sides.move(Side.ZOOKEEPER) is MoveOutcome.MOVED
    assert eventually(lambda: shares(*three) == [1, 1, 1])


def test_on_brokers_without_zookeeper_consumers_follow_their_group_too(
    kafka_broker: KafkaBroker, registry: Registry
) -> None:
    """The group is in one cluster's ZooKeeper, its topics are on a broker of Kafka 4."""
    number = next(_numbers)
    topic = topic_on(kafka_broker, f"moves-{number}", 2)
    group = registry.group(f"moves-{number}")
    with Brokers.connect(kafka_broker.address) as brokers:
        sides = Sides(group, registry, brokers)
        settings = QUICK | {"bootstrap.servers": kafka_broker.address}
        options = {"partitions": lambda _topic: [0, 1], "auto_commit_every": 0.2, "join_backoff": 0.2}
        with Consumer(group, [topic.name], kafka=settings, **options) as consumer:
            assert eventually(lambda: [*group.instances()])
            for count, side in enumerate((Side.KAFKA, Side.ZOOKEEPER), 1):
                topic.write(4)
                assert sides.move(side) is MoveOutcome.MOVED
                read_until_committed(consumer, sides, side, {0: 4 * count, 1: 4 * count})


def read_until_committed(consumer: Consumer, sides: Sides, side: Side, expected: dict[int, int]) -> None:
    assert eventually(lambda: consumer.poll(0.05) is None and sides.offsets(side) == expected), (
        sides.offsets(side),
        consumer.stats(),
    )


def test_migrate_status_without_a_plan_shows_who_uses_the_brokers(
    legacy_kafka: KafkaBroker, topic: Topic, sides: Sides, loop: Loops
) -> None:
    consumer = loop(topic)
    consumer.until_holding(*topic.ats)
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    assert eventually(lambda: sides.permits != [])
    shown = run("migrate", "status", "-z", legacy_kafka.zookeeper, "-o", "json")
    [row] = [each for each in json.loads(shown.out)["groups"] if each["group"] == sides.group.name]
    assert (row["state"], row["holders"]) == ("kafka", [f"member {consumer.consumer.id}"])


def test_a_group_goes_back_after_a_consumer_was_killed_on_the_brokers(
    legacy_kafka: KafkaBroker, topic: Topic, sides: Sides, loop: Loops
) -> None:
    """Its permit ends with its session, and its membership with that on the brokers."""
    with LoopProcess(legacy_kafka, sides.group.name, topic.name, "killed", kafka=QUICK_NATIVE) as process:
        other = loop(topic, kafka=QUICK_NATIVE)
        assert eventually(lambda: shares(other) in ([1], [2]))
        with written(topic):
            assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
            assert eventually(lambda: len(sides.permits) == 2 and len(sides.kafka) == 3)
            process.kill()
            assert sides.move(Side.ZOOKEEPER) is MoveOutcome.MOVED
            other.until_holding(*topic.ats)
            await_commits(sides, Side.ZOOKEEPER, 3)
        assert eventually(lambda: topic.texts <= read_by(other, process).keys())


def test_a_consumer_that_resumes_its_session_does_not_keep_the_group_on_the_brokers(
    legacy_kafka: KafkaBroker, topic: Topic, sides: Sides, tmp_path: Path
) -> None:
    """The permit of the killed process lives on in the session."""
    sides.group.create()
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    file, settings = tmp_path / "session", QUICK_NATIVE
    options: dict[str, Any] = {"session": LASTING, "session_file": file, "kafka": settings}
    with LoopProcess(legacy_kafka, sides.group.name, topic.name, "again", **options) as first:
        topic.write(3)
        await_all_committed(topic, sides, 3)
        first.kill()
    assert sides.permits == ["member again"]
    with LoopProcess(legacy_kafka, sides.group.name, topic.name, "again", **options):
        topic.write(3)
        await_all_committed(topic, sides, 6)
        assert sides.move(Side.ZOOKEEPER) is MoveOutcome.MOVED
        topic.write(3)
        assert eventually(lambda: set(sides.zookeeper.values()) == {9})


def test_a_consumer_that_was_suspended_during_the_way_back_commits_nothing_when_it_wakes_up(
    legacy_kafka: KafkaBroker, topic: Topic, sides: Sides, loop: Loops
) -> None:
    sides.group.create()
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    with LoopProcess(legacy_kafka, sides.group.name, topic.name, "asleep", kafka=QUICK_NATIVE) as process:
        topic.write(5)
        await_all_committed(topic, sides, 5)
        process.suspend()
        assert sides.move(Side.ZOOKEEPER) is MoveOutcome.MOVED
        other = loop(topic)
        other.until_holding(*topic.ats)
        topic.write(5)
        assert eventually(lambda: set(sides.zookeeper.values()) == {10})
        process.resume()
        assert eventually(
            lambda: {each.id for each in sides.group.instances()} == {"asleep", other.consumer.id}, timeout=LONGEST
        )
        assert set(sides.kafka.values()) == {5}
        topic.write(5)
        assert eventually(lambda: set(sides.zookeeper.values()) == {15})


def test_an_expired_session_ends_the_membership_on_the_brokers_and_its_commits(
    topic: Topic, sides: Sides, loop: Loops
) -> None:
    """Without its permit, the group might be in ZooKeeper again."""
    sides.group.create()
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    consumer = loop(topic, kafka=QUICK_NATIVE)
    topic.write(5)
    consumer.until_read(topic.texts)
    before = sides.permits
    generation = consumer.consumer._reading._current
    membership = consumer.consumer._reading.member._membership
    assert isinstance(membership, NativeMembership)
    write = membership.writer(frozenset(topic.ats))
    expire_session(consumer.client)
    assert eventually(lambda: EventKind.LOST in [event.kind for event in consumer.events])
    with pytest.raises(NotClaimedError, match="stop working on it"):
        write({topic.ats[0]: 5}, {})
    assert generation is not None
    assert generation.over
    topic.write(5)
    consumer.until_read(topic.texts)
    await_all_committed(topic, sides, 10)
    assert sides.permits == before


def test_a_revocation_waits_for_a_claim_that_has_begun(registry: Registry) -> None:
    """The client's thread asks whether everything is released. A claim says no before it looks at the assignment."""
    released: list[bool] = []

    class Client:
        @property
        def assigned(self) -> frozenset[TopicPartition]:
            released.append(not membership._held)
            return frozenset({TopicPartition("orders", 0)})

    membership = NativeMembership.__new__(NativeMembership)
    membership._held, membership._client = frozenset(), Client()  # type: ignore[assignment]
    both = frozenset({TopicPartition("orders", 0), TopicPartition("orders", 1)})
    assert membership.claim(both) == {TopicPartition("orders", 0)}
    assert released == [False]
    membership.release(both)
    assert membership._held == frozenset()


def test_a_commit_of_an_earlier_assignment_is_refused(topic: Topic, sides: Sides, loop: Loops) -> None:
    """The client would send it with the generation of the present assignment."""
    sides.group.create()
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    first = loop(topic)
    first.until(lambda: len(first.consumer.assignment) == 3, "all partitions")
    membership = first.consumer._reading.member._membership
    assert isinstance(membership, NativeMembership)
    write = membership.writer(frozenset(topic.ats))
    write({topic.ats[0]: 0}, {})
    second = loop(topic)
    assert eventually(lambda: shares(first, second) == [1, 2])
    with pytest.raises(NotClaimedError, match="was given to another member"):
        write({topic.ats[0]: 0}, {})


def test_on_the_brokers_a_handler_that_takes_long_keeps_its_partition(topic: Topic, sides: Sides, loop: Loops) -> None:
    """The client that fetches may stand still for longer than brokers wait for a poll."""
    sides.group.create()
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    go_on, begun = threading.Event(), threading.Event()

    def body(_message: object) -> None:
        begun.set()
        go_on.wait(LONGEST)

    settings = QUICK_NATIVE | {"max.poll.interval.ms": 6000}
    consumer = loop(topic, body=body, kafka=settings)
    topic.write(1, 0)
    assert begun.wait(LONGEST)
    assert not eventually(lambda: EventKind.LOST in [event.kind for event in consumer.events], timeout=8.0)
    go_on.set()
    assert eventually(lambda: sides.kafka == {0: 1}), sides.kafka


def test_a_consumer_whose_topics_do_not_exist_leaves_the_brokers_at_once(
    sides: Sides, legacy_kafka: KafkaBroker
) -> None:
    """It has not joined there, so there is no answer to wait for."""
    sides.group.create()
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    settings = QUICK | {"bootstrap.servers": legacy_kafka.address}
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        with Consumer(registry.group(sides.group.name), ["no-such-topic"], kafka=settings) as consumer:
            assert eventually(lambda: len(sides.permits) == 1)
            membership = consumer._reading.member._membership
            assert isinstance(membership, NativeMembership)
            assert eventually(lambda: membership._client is not None and membership._subscribed is not None)
            client = membership._client
        assert client is not None
        assert client._ended.is_set()
        assert sides.permits == []
