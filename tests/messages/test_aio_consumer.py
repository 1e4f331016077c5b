"""The consumer for asyncio: what it hands out, what it commits, and how it ends."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Message

from zkgroups import CommittedOffset, Consumergroup, TopicPartition, aio
from zkgroups.exceptions import InvalidOptionError, MemberClosedError, NotClaimedError
from zkgroups.testing import KafkaBroker

from ..consumer.aio.loops import in_a_loop
from ..testing.waiting import eventually
from .conftest import Loops, Topic
from .looping import LONGEST, QUICK, at_of

Partitions = frozenset[TopicPartition]


@pytest.fixture
def consumer(legacy_kafka: KafkaBroker, group: Consumergroup, topic: Topic) -> Callable[..., aio.Consumer]:
    """Create a consumer of the topic: options."""
    settings = QUICK | {"bootstrap.servers": legacy_kafka.address}
    chosen: dict[str, Any] = {"kafka": settings, "join_backoff": 0.2}
    return lambda **options: aio.Consumer(group, [topic.name], **chosen | options)


def committed(group: Consumergroup) -> dict[int, int]:
    return {found.at.partition: found.offset for found in group.offsets if isinstance(found, CommittedOffset)}


async def receive(consumer: aio.Consumer, count: int, *, at_once: int = 500) -> list[Message]:
    """Receive exactly that many messages."""
    found: list[Message] = []
    while len(found) < count:
        new = await consumer.consume(min(at_once, count - len(found)), LONGEST)
        assert new, f"only {len(found)} of {count} messages"
        found += new
    return found


def texts(messages: list[Message]) -> set[str]:
    return {(message.value() or b"").decode() for message in messages}


async def until(so: Callable[[], object]) -> None:
    """Wait for a condition without holding the loop."""
    assert await asyncio.to_thread(eventually, so, timeout=LONGEST)


@in_a_loop
async def test_a_loop_receives_all_messages_and_commits_what_it_has_finished(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(300)
    found = []
    async with consumer(auto_commit_every=0.1) as reading:
        async for message in reading:
            found.append(message)
            if len(found) == 900:
                await until(lambda: sum(committed(group).values()) == 899)  # the last one is in hand
                reading.stop()
    assert texts(found) == topic.texts
    assert committed(group) == {0: 300, 1: 300, 2: 300}
    assert group.instances() == []


@in_a_loop
async def test_the_message_of_a_cancelled_task_is_not_committed(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(5, 0)
    at_two = asyncio.Event()

    async def read() -> None:
        async with consumer() as reading:
            async for message in reading:
                if message.offset() == 2:
                    at_two.set()
                    await asyncio.Event().wait()

    task = asyncio.create_task(read())
    await at_two.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert committed(group) == {0: 2}


@in_a_loop
async def test_a_cancelled_poll_loses_no_message(consumer: Any, topic: Topic, group: Consumergroup) -> None:
    async with consumer() as reading:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await reading.poll()
        topic.write(4)
        for _ in range(3):
            polling = asyncio.create_task(reading.poll())
            await asyncio.sleep(0.01)
            if not polling.cancel():
                break
            await asyncio.wait([polling])
        found = await receive(reading, 12 - (not polling.cancelled()), at_once=5)
        if not polling.cancelled():
            found.append(polling.result())
        assert texts(found) == topic.texts
        assert await reading.poll(0) is None
        assert await reading.consume(5, 0.05) == []


@in_a_loop
async def test_messages_that_are_given_back_are_not_committed_and_come_again(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(5, 0)
    async with consumer() as reading:
        found = await receive(reading, 5)
        reading.give_back(3)
        await reading.commit()
        assert committed(group) == {0: 2}
        assert await receive(reading, 3) == found[2:]
        reading.give_back(1)
        async for message in reading:
            assert message is found[4]
            reading.give_back(1)
            break
    assert committed(group) == {0: 4}


@in_a_loop
async def test_commit_includes_the_message_in_hand_unless_another_task_reads(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(5, 0)
    async with consumer(auto_commit_every=None) as reading:
        await receive(reading, 2, at_once=1)
        await reading.commit()
        assert committed(group) == {0: 2}
        message = (await receive(reading, 1))[0]
        await asyncio.create_task(reading.commit())
        assert committed(group) == {0: 2}
        await asyncio.create_task(reading.commit(message))
        assert committed(group) == {0: 3}
        message = await asyncio.create_task(reading.poll(LONGEST))
        await reading.commit()  # the task that has received it is over
        assert committed(group) == {0: 4}
        with pytest.raises(NotClaimedError):
            await reading.commit(Message(topic=topic.name, partition=9, offset=1))
    assert committed(group) == {0: 4}


@in_a_loop
async def test_callbacks_run_in_the_loop_and_a_commit_in_on_revoked_is_carried_out(
    consumer: Any, topic: Topic, group: Consumergroup, loop: Loops
) -> None:
    """Also while the task that reads waits with a commit of its own for the end of the rebalance."""
    topic.write(3)
    called: list[tuple[str, threading.Thread, dict[int, int]]] = []
    revoked = asyncio.Event()

    async def on_revoked(_partitions: Partitions) -> None:
        await reading.commit()
        called.append(("revoked", threading.current_thread(), committed(group)))
        revoked.set()

    def on_assigned(_partitions: Partitions) -> None:
        called.append(("assigned", threading.current_thread(), {}))

    options = {"on_revoked": on_revoked, "on_assigned": on_assigned, "auto_commit_every": None}
    async with consumer(id="a", rebalance_timeout=2 * LONGEST, **options) as reading:
        await receive(reading, 9, at_once=1)
        reading._inner._reading.follow()
        assert await reading.poll(0.1) is None  # all are finished
        other = await asyncio.to_thread(loop, topic, id="b")
        while not revoked.is_set():
            await reading.commit()
        await asyncio.to_thread(other.until_holding, topic.ats[2])
    assert [name for name, _thread, _committed in called[:2]] == ["assigned", "revoked"]
    assert {thread for _name, thread, _committed in called} == {threading.current_thread()}
    assert called[1][2] == {0: 3, 1: 3, 2: 3}


@in_a_loop
async def test_a_rebalance_drops_fetched_messages_of_partitions_that_move_and_nothing_is_lost(
    consumer: Any, topic: Topic, loop: Loops
) -> None:
    topic.write(200)
    found: list[str] = []
    async with consumer(id="a", auto_commit_every=0.1) as reading:

        async def read() -> None:
            async for message in reading:
                found.append((message.value() or b"").decode())
                if len(found) > 50:
                    await asyncio.sleep(0.001)

        task = asyncio.create_task(read())
        await until(lambda: len(found) >= 50)
        other = await asyncio.to_thread(loop, topic, id="b")
        await until(lambda: topic.texts <= {*found, *other.texts})
        reading.stop()
        await task
    await asyncio.to_thread(other.until_holding, *topic.ats)
    topic.write(10)
    await until(lambda: topic.texts <= {*found, *other.texts})
    assert set((Counter(found) + other.texts).values()) == {1}


@in_a_loop
async def test_only_one_task_may_read_at_a_time(consumer: Any, topic: Topic) -> None:
    async with consumer() as reading:
        first = asyncio.create_task(reading.poll())
        await until(lambda: len(reading.assignment) == 3)
        with pytest.raises(RuntimeError, match="another task reads"):
            await reading.poll()
        topic.write(1, 0)
        assert at_of(await first) == topic.ats[0]


@in_a_loop
async def test_other_tasks_run_while_a_body_that_never_waits_receives_messages(consumer: Any, topic: Topic) -> None:
    topic.write(400)
    ticks: list[int] = []
    count = 0

    async def tick() -> None:
        while True:
            ticks.append(count)
            await asyncio.sleep(0)

    async with consumer() as reading:
        async for _message in reading:
            if count == 0:
                ticking = asyncio.create_task(tick())
            count += 1
            if count == 1200:
                reading.stop()
    ticking.cancel()
    between = [1, *ticks, 1200]
    assert max(after - before for before, after in itertools.pairwise(between)) <= 250


@in_a_loop
async def test_positions_seeks_and_pauses_take_effect_at_once(consumer: Any, topic: Topic) -> None:
    topic.write(10)
    at = topic.ats[1]
    async with consumer() as reading:
        await receive(reading, 30)
        assert (reading.position(at), reading.lag(at), reading.stats().messages) == (10, 0, 30)
        reading.pause(topic.ats[0])
        reading.seek(at, 7)
        reading.seek(topic.ats[0], 5)
        assert [(at_of(each), each.offset()) for each in await receive(reading, 3)] == [(at, 7), (at, 8), (at, 9)]
        assert reading.lag(at) == 0
        assert await reading.poll(0.05) is None
        reading.resume(topic.ats[0])
        assert [each.offset() for each in await receive(reading, 5)] == [5, 6, 7, 8, 9]
        with pytest.raises(NotClaimedError):
            reading.pause(TopicPartition("no-topic", 0))


@in_a_loop
async def test_messages_that_were_put_aside_come_when_another_task_ends_the_pause(consumer: Any, topic: Topic) -> None:
    topic.write(20, 0)
    async with consumer() as reading:
        await receive(reading, 1)
        reading.pause(topic.ats[0])
        rest = asyncio.create_task(receive(reading, 19))
        await until(lambda: reading._inner._delivery._aside)
        reading.resume(topic.ats[0])
        assert [each.offset() for each in await rest] == list(range(1, 20))


@in_a_loop
async def test_after_the_end_reading_is_refused_and_no_thread_is_left(consumer: Any, topic: Topic) -> None:
    topic.write(1)
    reading = await consumer().start()
    await receive(reading, 3)
    polling = asyncio.create_task(reading.poll())
    await asyncio.sleep(0)
    await reading.close()
    with pytest.raises(MemberClosedError):
        await polling
    with pytest.raises(MemberClosedError):
        await reading.poll(0)
    assert [message async for message in reading] == []
    await reading.close()
    ours = ("zkgroups-read", "zkgroups-commit", "zkgroups-callback-commit")
    await until(lambda: not [each for each in threading.enumerate() if each.name.startswith(ours)])


def test_a_consumer_leaves_if_its_loop_has_ended_without_closing_it(
    consumer: Any, topic: Topic, group: Consumergroup, caplog: pytest.LogCaptureFixture
) -> None:
    topic.write(1)

    async def forget() -> None:
        await receive(await consumer(release_timeout=0.2).start(), 3)

    asyncio.run(forget())
    assert eventually(lambda: group.instances() == [], timeout=LONGEST)
    assert "has ended; the member leaves the group" in caplog.text


@in_a_loop
async def test_options_are_checked_as_in_the_other_consumer(consumer: Any, group: Consumergroup) -> None:
    with pytest.raises(InvalidOptionError, match="on_lost is 'no'"):
        consumer(on_lost="no")
    unused = consumer()
    with pytest.raises(InvalidOptionError, match="count is 0"):
        await unused.consume(0)
    await unused.close()
    with pytest.raises(MemberClosedError):
        await unused.start()
