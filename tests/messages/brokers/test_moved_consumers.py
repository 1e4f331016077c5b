"""A group of consumers is moved to the brokers and back while it works."""

from __future__ import annotations

import itertools
import json
import threading

import pytest

from tests.cli.running import run
from tests.testing.unique import unique_numbers
from tests.waiting import eventually
from zkgroups import Consumer, Registry
from zkgroups.consumer.followed_group import FollowedGroup
from zkgroups.consumer.membership import Membership
from zkgroups.core.znodes.own_nodes import RouteState
from zkgroups.exceptions import ZkgroupsException
from zkgroups.kafka import Brokers
from zkgroups.migration.live_move import MoveOutcome, MoveStep, Side
from zkgroups.testing import KafkaBroker

from ..looping import LONGEST, QUICK, QUICK_NATIVE, Loop, Topic, places, read_by, shares, topic_on, written
from .conftest import Loops
from .sides import Sides, await_commits, await_commits_of

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


@pytest.mark.parametrize("takes_too_long", [False, True])
def test_a_handler_under_way_during_a_move_is_waited_for_or_its_message_is_handled_again_on_the_brokers(
    legacy_kafka: KafkaBroker, topic: Topic, sides: Sides, takes_too_long: bool
) -> None:
    may_return, handled = threading.Event(), list[bool]()

    def handle(_message: object) -> None:
        first = not handled
        handled.append(False)
        if first:
            assert may_return.wait(LONGEST)

    def on_step(step: MoveStep) -> None:
        if step is MoveStep.BEGUN and not takes_too_long:
            may_return.set()

    topic.write(1, 0)
    settings = QUICK | QUICK_NATIVE | {"bootstrap.servers": legacy_kafka.address}
    timeouts = {"release_timeout": 0.5 if takes_too_long else LONGEST, "rebalance_timeout": 2 * LONGEST}
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        consumer = Consumer(registry.group(sides.group.name), [topic.name], kafka=settings, **timeouts)
        thread = threading.Thread(target=lambda: consumer.run(handle, workers=2))
        with consumer:
            thread.start()
            try:
                assert eventually(lambda: len(handled) == 1)
                assert sides.move(Side.KAFKA, on_step) is MoveOutcome.MOVED
                assert eventually(lambda: len(handled) == 1 + takes_too_long)
                await_commits_of(sides, {0: 1})
                before = sides.zookeeper
            finally:
                may_return.set()
                consumer.stop()
                thread.join(LONGEST)
    assert (before, sides.zookeeper) == (({}, {}) if takes_too_long else ({0: 1}, {0: 1}))
    assert len(handled) == 1 + takes_too_long


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
