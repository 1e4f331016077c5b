"""A group of consumers is moved to the brokers and back while it works."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import run
from tests.testing.waiting import eventually
from zkgroups import Consumer, EventKind, Member, MemberEvent, Registry, TopicPartition
from zkgroups.aio import Member as AsyncMember
from zkgroups.consumer.any_membership import AnyMembership
from zkgroups.consumer.followed_group import FollowedGroup
from zkgroups.consumer.membership import Membership
from zkgroups.core.znodes.group_route import RouteState
from zkgroups.exceptions import GroupMovedError, NotClaimedError, RefusedError, ZkgroupsException
from zkgroups.kafka import Brokers
from zkgroups.messages.native_membership import NativeMembership
from zkgroups.migration.live_move import MoveOutcome, MoveStep, Side
from zkgroups.testing import KafkaBroker, expire_session

from .conftest import Loops, Topic
from .looping import LASTING, LONGEST, QUICK, Loop, LoopProcess
from .sides import Sides, await_commits, written

QUICK_NATIVE = {"session.timeout.ms": 6000}
_numbers = itertools.count()


def places(loop: Loop) -> list[str]:
    """Where a consumer has followed its group to."""
    moves = [event.detail for event in loop.events if event.kind is EventKind.MOVED]
    return ["brokers" if "brokers" in detail else "ZooKeeper" for detail in moves]


def shares(*loops: Loop) -> list[int]:
    return sorted(len(loop.consumer.assignment) for loop in loops)


def read_by(*loops: Loop | LoopProcess) -> dict[str, int]:
    found: dict[str, int] = {}
    for loop in loops:
        for text, count in loop.texts.items():
            found[text] = found.get(text, 0) + count
    return found


def test_a_running_group_is_moved_to_the_brokers_and_back_and_each_message_is_read_once(
    topic: Topic, sides: Sides, loop: Loops
) -> None:
    both = [loop(topic), loop(topic)]
    assert eventually(lambda: shares(*both) == [1, 2], timeout=LONGEST)
    with written(topic):
        for side, other in ((Side.KAFKA, Side.ZOOKEEPER), (Side.ZOOKEEPER, Side.KAFKA)):
            assert sides.move(side) is MoveOutcome.MOVED
            left = sides.offsets(other)
            assert eventually(lambda: shares(*both) == [1, 2], timeout=LONGEST)
            await_commits(sides, side, 3)
            assert sides.offsets(other) == left
    for each in both:
        assert (places(each), each.errors) == (["brokers", "ZooKeeper"], [])
    assert eventually(lambda: topic.texts <= read_by(*both).keys(), timeout=LONGEST)
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
    assert eventually(lambda: shares(*both) == [1, 2], timeout=LONGEST)
    assert eventually(lambda: read_by(*both).keys() == topic.texts, timeout=LONGEST)
    assert [places(each) for each in both] == [["brokers"], ["brokers"]]
    assert list(sides.group.instances()) == []
    assert eventually(lambda: sides.kafka == {0: 3, 1: 3, 2: 3}, timeout=LONGEST)
    assert sides.zookeeper == {}


def test_a_consumer_that_does_not_know_yet_of_a_move_joins_where_the_group_is(
    topic: Topic, sides: Sides, loop: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper refuses its registration. That is no error."""
    sides.group.create()
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    find, looks = FollowedGroup.find, itertools.count()

    def find_late(followed: FollowedGroup, *, anew: bool = False) -> AnyMembership | None:
        return followed._in_zookeeper if next(looks) == 0 else find(followed, anew=anew)

    monkeypatch.setattr(FollowedGroup, "find", find_late)
    consumer = loop(topic)
    consumer.until(lambda: len(consumer.consumer.assignment) == 3, "all partitions")
    assert (places(consumer), consumer.errors) == (["brokers"], [])
    assert EventKind.FAILED not in [event.kind for event in consumer.events]


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


def test_after_the_way_back_members_see_each_other_without_a_periodic_look(
    topic: Topic, sides: Sides, loop: Loops
) -> None:
    first = loop(topic, reconcile_every=600.0)
    first.until_holding(*topic.ats)
    for side in (Side.KAFKA, Side.ZOOKEEPER):
        assert sides.move(side) is MoveOutcome.MOVED
        first.until(lambda: len(first.consumer.assignment) == 3, "all partitions")
    second = loop(topic, reconcile_every=600.0)
    assert eventually(lambda: shares(first, second) == [1, 2], timeout=LONGEST)
    second.stop()
    first.until_holding(*topic.ats)


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
    assert eventually(lambda: shares(*three) == [1, 1, 1], timeout=LONGEST)
    for _ in range(5):
        assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
        assert sides.move(Side.ZOOKEEPER) is MoveOutcome.MOVED
    assert eventually(lambda: shares(*three) == [1, 1, 1], timeout=LONGEST)


@pytest.mark.soak
@pytest.mark.parametrize("side", [Side.KAFKA, Side.ZOOKEEPER])
@pytest.mark.parametrize("at", list(MoveStep))
def test_a_consumer_that_is_killed_at_any_step_of_a_move_changes_nothing_but_its_share(
    legacy_kafka: KafkaBroker, topic: Topic, sides: Sides, loop: Loops, side: Side, at: MoveStep
) -> None:
    """No message is left out, and those that are read again are the ones since its last commit."""
    other = loop(topic, kafka=QUICK_NATIVE)
    with LoopProcess(legacy_kafka, sides.group.name, topic.name, "killed", kafka=QUICK_NATIVE) as process:
        assert eventually(lambda: shares(other) in ([1], [2]), timeout=LONGEST)
        with written(topic):
            if side is Side.ZOOKEEPER:
                assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
                await_commits(sides, Side.KAFKA, 3)
            assert sides.move(side, lambda step: process.kill() if step is at else None) is MoveOutcome.MOVED
            other.until(lambda: len(other.consumer.assignment) == 3, "all partitions")
            await_commits(sides, side, 3)
            assert sides.state is (RouteState.KAFKA if side is Side.KAFKA else None)
        assert eventually(lambda: topic.texts <= read_by(other, process).keys(), timeout=LONGEST)
        assert max(read_by(other, process).values()) <= 2


def test_a_member_that_cannot_follow_its_group_stops_the_move(
    topic: Topic, sides: Sides, loop: Loops, registry: Registry
) -> None:
    consumer = loop(topic)
    with Member(registry.group(sides.group.name), [topic.name], id="plain") as member:
        assert member.next_generation(LONGEST) is not None
        with pytest.raises(RefusedError, match=r"members that cannot move with it are registered: plain \(zkgroups\)"):
            sides.move(Side.KAFKA)
        assert sides.state is None
    consumer.until_holding(*topic.ats)
    assert places(consumer) == []


def test_a_member_that_leaves_on_a_move_hears_of_it_and_continues_when_the_group_is_back(
    topic: Topic, sides: Sides, registry: Registry
) -> None:
    topic.write(10, 0)
    events: list[MemberEvent] = []
    options: dict[str, Any] = {"leaves_on_move": True, "on_event": events.append, "id": "plain"}
    with Member(registry.group(sides.group.name), [topic.name], **options) as member:
        generation = member.next_generation(LONGEST)
        assert generation is not None
        generation.mark(topic.ats[0], 5)
        assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
        assert not generation.active
        assert sides.kafka == {0: 5}
        if hear_of_move(member):  # it may receive only the error of the end
            assert hear_of_move(member) is False
        assert member.next_generation(0.2) is None
        assert sides.group.instances() == []
        moved = [event.detail for event in events if event.kind is EventKind.MOVED]
        assert [text for text in moved if "is being moved" in text] == moved[:-1]
        assert "was moved to the brokers" in moved[-1]
        sides.brokers.commit({sides.group.name: {topic.ats[0]: 7}})
        assert sides.move(Side.ZOOKEEPER) is MoveOutcome.MOVED
        back = member.next_generation(LONGEST)
        assert back is not None
        assert back.partitions[topic.ats[0]] == 7


def hear_of_move(member: Member) -> bool:
    """Wait for the error. Return whether the move was not finished."""
    with pytest.raises(GroupMovedError) as caught:
        member.next_generation(LONGEST)
    return caught.value.moving


def test_in_an_event_loop_a_member_that_leaves_on_a_move_hears_of_it_too(
    topic: Topic, sides: Sides, registry: Registry
) -> None:
    async def main() -> None:
        member = AsyncMember(registry.group(sides.group.name), [topic.name], leaves_on_move=True)
        async with member:
            assert await member.next_generation(LONGEST) is not None
            assert await asyncio.to_thread(sides.move, Side.KAFKA) is MoveOutcome.MOVED
            with pytest.raises(GroupMovedError):
                await member.next_generation(LONGEST)

    asyncio.run(main())


def test_a_member_of_a_group_on_the_brokers_hears_that_it_was_moved_and_how_it_comes_back(
    topic: Topic, sides: Sides, registry: Registry
) -> None:
    sides.group.create()
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    events: list[MemberEvent] = []
    with Member(registry.group(sides.group.name), [topic.name], on_event=events.append, join_backoff=0.1) as member:
        for _ in range(2):
            with pytest.raises(GroupMovedError, match=f"`zkgroups migrate switch {sides.group.name} --to zookeeper`"):
                member.next_generation(LONGEST)
        assert [event.kind for event in events].count(EventKind.MOVED) == 1
        sides.move(Side.ZOOKEEPER)
        assert eventually(lambda: [*sides.group.instances()], timeout=LONGEST)


def test_the_command_names_the_members_that_do_not_continue_on_the_brokers(
    topic: Topic, sides: Sides, registry: Registry, legacy_kafka: KafkaBroker
) -> None:
    with Member(registry.group(sides.group.name), [topic.name], id="plain", leaves_on_move=True) as member:
        assert member.next_generation(LONGEST) is not None
        where = ("-z", legacy_kafka.zookeeper, "-b", legacy_kafka.address)
        shown = run("migrate", "switch", sides.group.name, "--to", "kafka", *where)
    assert (shown.code, "do not continue on the brokers: plain." in shown.err) == (0, True)


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
    expire_session(consumer.registry.client)
    assert eventually(lambda: EventKind.LOST in [event.kind for event in consumer.events], timeout=LONGEST)
    with pytest.raises(NotClaimedError, match="stop working on it"):
        write({topic.ats[0]: 5}, {})
    assert generation is not None
    assert generation.over
    topic.write(5)
    consumer.until_read(topic.texts)
    await_all_committed(topic, sides, 10)
    assert sides.permits == before


def await_all_committed(topic: Topic, sides: Sides, offset: int) -> None:
    assert eventually(lambda: sides.kafka == {at.partition: offset for at in topic.ats}, timeout=LONGEST), sides.kafka


def test_a_group_goes_back_after_a_consumer_was_killed_on_the_brokers(
    legacy_kafka: KafkaBroker, topic: Topic, sides: Sides, loop: Loops
) -> None:
    """Its permit ends with its session, and its membership with that on the brokers."""
    with LoopProcess(legacy_kafka, sides.group.name, topic.name, "killed", kafka=QUICK_NATIVE) as process:
        other = loop(topic, kafka=QUICK_NATIVE)
        assert eventually(lambda: shares(other) in ([1], [2]), timeout=LONGEST)
        with written(topic):
            assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
            assert eventually(lambda: len(sides.permits) == 2 and len(sides.kafka) == 3, timeout=LONGEST)
            process.kill()
            assert sides.move(Side.ZOOKEEPER) is MoveOutcome.MOVED
            other.until_holding(*topic.ats)
            await_commits(sides, Side.ZOOKEEPER, 3)
        assert eventually(lambda: topic.texts <= read_by(other, process).keys(), timeout=LONGEST)


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
        assert sides.move(Side.ZOOKEEPER, patience=LASTING) is MoveOutcome.MOVED
        topic.write(3)
        assert eventually(lambda: set(sides.zookeeper.values()) == {9}, timeout=LONGEST)


def test_a_claim_that_meets_a_revocation_takes_nothing(
    topic: Topic, sides: Sides, loop: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers may take partitions back between their assignment and the claim."""
    sides.group.create()
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    claim, others, granted = NativeMembership.claim, list[Loop](), list[frozenset[TopicPartition]]()
    revoked, claimed = threading.Event(), threading.Event()

    def claim_late(membership: NativeMembership, partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        if others:
            return claim(membership, partitions)
        client = membership._joined()
        changed = client._changed

        def revocation_lasts() -> None:
            changed()
            revoked.set()
            assert claimed.wait(LONGEST)

        monkeypatch.setattr(client, "_changed", revocation_lasts)
        others.append(loop(topic))
        assert revoked.wait(LONGEST)
        granted.append(claim(membership, partitions))
        claimed.set()
        return granted[0]

    monkeypatch.setattr(NativeMembership, "claim", claim_late)
    mine = loop(topic)
    assert eventually(lambda: others and shares(mine, *others) == [1, 2], timeout=LONGEST)
    assert granted == [frozenset()]
    topic.write(4)
    assert eventually(lambda: read_by(mine, *others).keys() == topic.texts, timeout=LONGEST)
    await_all_committed(topic, sides, 4)
    assert set(read_by(mine, *others).values()) == {1}


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


def test_a_consumer_that_was_suspended_during_the_way_back_commits_nothing_when_it_wakes_up(
    legacy_kafka: KafkaBroker, topic: Topic, sides: Sides, loop: Loops
) -> None:
    sides.group.create()
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    with LoopProcess(legacy_kafka, sides.group.name, topic.name, "asleep", kafka=QUICK_NATIVE) as process:
        topic.write(5)
        await_all_committed(topic, sides, 5)
        process.process.suspend()
        assert sides.move(Side.ZOOKEEPER) is MoveOutcome.MOVED
        other = loop(topic)
        other.until_holding(*topic.ats)
        topic.write(5)
        assert eventually(lambda: set(sides.zookeeper.values()) == {10}, timeout=LONGEST)
        process.process.resume()
        assert eventually(
            lambda: {each.id for each in sides.group.instances()} == {"asleep", other.consumer.id}, timeout=LONGEST
        )
        assert set(sides.kafka.values()) == {5}
        topic.write(5)
        assert eventually(lambda: set(sides.zookeeper.values()) == {15}, timeout=LONGEST)


def test_the_members_of_a_move_that_was_killed_wait_until_it_is_finished_or_undone(
    topic: Topic, sides: Sides, loop: Loops
) -> None:
    class Killed(BaseException):
        pass

    def kill(step: MoveStep) -> None:
        if step is MoveStep.LEFT:
            raise Killed

    consumer = loop(topic)
    for again, held in ((Side.ZOOKEEPER, []), (Side.KAFKA, ["brokers"])):
        consumer.until_holding(*topic.ats)
        with pytest.raises(Killed):
            sides.move(Side.KAFKA, kill)
        assert sides.state is RouteState.MOVING_TO_KAFKA
        assert consumer.consumer.assignment == frozenset()
        sides.move(again)
        consumer.until(lambda: len(consumer.consumer.assignment) == 3)
        assert places(consumer) == held
    assert consumer.errors == []


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
    await_commits_of(sides, {0: 1})


def await_commits_of(sides: Sides, expected: dict[int, int]) -> None:
    assert eventually(lambda: sides.kafka == expected, timeout=LONGEST), sides.kafka


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
                assert eventually(lambda: len(handled) == 1, timeout=LONGEST)
                assert sides.move(Side.KAFKA, on_step) is MoveOutcome.MOVED
                assert eventually(lambda: len(handled) == 1 + takes_too_long, timeout=LONGEST)
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
    topic = Topic(kafka_broker, f"moves-{number}", 2)
    group = registry.group(f"moves-{number}")
    with Brokers.connect(kafka_broker.address) as brokers:
        sides = Sides(group, registry, brokers)
        settings = QUICK | {"bootstrap.servers": kafka_broker.address}
        options = {"partitions": lambda _topic: [0, 1], "auto_commit_every": 0.2, "join_backoff": 0.2}
        with Consumer(group, [topic.name], kafka=settings, **options) as consumer:
            assert eventually(lambda: [*group.instances()], timeout=LONGEST)
            for count, side in enumerate((Side.KAFKA, Side.ZOOKEEPER), 1):
                topic.write(4)
                assert sides.move(side) is MoveOutcome.MOVED
                read_until_committed(consumer, sides, side, {0: 4 * count, 1: 4 * count})


def read_until_committed(consumer: Consumer, sides: Sides, side: Side, expected: dict[int, int]) -> None:
    assert eventually(lambda: consumer.poll(0.05) is None and sides.offsets(side) == expected, timeout=LONGEST), (
        sides.offsets(side),
        consumer.stats(),
    )


def test_a_consumer_whose_topics_do_not_exist_leaves_the_brokers_at_once(
    sides: Sides, legacy_kafka: KafkaBroker
) -> None:
    """It has not joined there, so there is no answer to wait for."""
    sides.group.create()
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    settings = QUICK | {"bootstrap.servers": legacy_kafka.address}
    with Registry.connect(legacy_kafka.zookeeper) as registry:
        with Consumer(registry.group(sides.group.name), ["no-such-topic"], kafka=settings) as consumer:
            assert eventually(lambda: len(sides.permits) == 1, timeout=LONGEST)
            membership = consumer._reading.member._membership
            assert isinstance(membership, NativeMembership)
            assert eventually(lambda: membership._client is not None and membership._subscribed is not None)
            client = membership._client
        assert client is not None
        assert client._ended.is_set()
        assert sides.permits == []


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
    assert eventually(lambda: shares(first, second) == [1, 2], timeout=LONGEST)
    with pytest.raises(NotClaimedError, match="was given to another member"):
        write({topic.ats[0]: 0}, {})


def test_migrate_status_without_a_plan_shows_who_uses_the_brokers(
    legacy_kafka: KafkaBroker, topic: Topic, sides: Sides, loop: Loops
) -> None:
    consumer = loop(topic)
    consumer.until_holding(*topic.ats)
    assert sides.move(Side.KAFKA) is MoveOutcome.MOVED
    assert eventually(lambda: sides.permits != [], timeout=LONGEST)
    shown = run("migrate", "status", "-z", legacy_kafka.zookeeper, "-o", "json")
    [row] = [each for each in json.loads(shown.out)["groups"] if each["group"] == sides.group.name]
    assert (row["state"], row["holders"]) == ("kafka", [f"member {consumer.consumer.id}"])
