"""One consumer, for threads and for asyncio: what it hands out, what it commits, and how it ends."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any

import pytest
from confluent_kafka import Message

from tests.simulation.kafka import Logs
from tests.simulation.loop import in_a_loop
from zkgroups import Consumer, Consumergroup, InstanceState, TopicPartition, aio
from zkgroups.exceptions import (
    HandlerFailedError,
    InvalidOptionError,
    MemberClosedError,
    NotClaimedError,
)

from .conftest import LONGEST, Loops, Topic, at_of, offsets, offsets_of
from .faces import both_faces, pause, receive, without_async

MANUAL: dict[str, Any] = {"auto_commit_every": None}


def texts(messages: list[Message]) -> set[str]:
    return {(message.value() or b"").decode() for message in messages}


# Reading


@both_faces
async def test_a_loop_receives_each_message_once_in_order_and_commits_what_it_has_finished(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(300)
    found: list[Message] = []
    async with consumer(auto_commit_every=0.1) as reading:
        async for message in reading:
            found.append(message)
            if len(found) == 900:
                await pause(1)
                assert sum(offsets(group).values()) == 899  # the last one is in hand
                reading.stop()
    assert texts(found) == topic.texts
    for at in topic.ats:
        assert [message.offset() for message in found if at_of(message) == at] == list(range(300))
    assert offsets(group) == {0: 300, 1: 300, 2: 300}
    assert group.instances() == []


@both_faces
async def test_consume_returns_at_once_what_has_come_and_an_empty_list_after_the_timeout(
    consumer: Any, topic: Topic
) -> None:
    topic.write(2)
    async with consumer() as reading:
        assert texts(await receive(reading, 6)) == topic.texts
        assert await reading.consume(10, timeout=0.1) == []
        assert await reading.poll(0) is None
        topic.write(1, 1)
        assert at_of(await reading.poll(LONGEST)) == topic.ats[1]
        for count in (0, -1, True, 1.5):
            with pytest.raises(InvalidOptionError, match="count is"):
                await reading.consume(count)


@both_faces
async def test_messages_that_are_given_back_are_not_committed_and_come_again(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(5, 0)
    async with consumer() as reading:
        found = await receive(reading, 5)
        reading.give_back(3)
        assert (reading.position(topic.ats[0]), reading.stats().messages) == (2, 2)
        await reading.commit()
        assert offsets(group) == {0: 2}
        assert await receive(reading, 2) == found[2:4]
        reading.give_back(1)
        assert await reading.poll() is found[3]
        for count in (2, -1, True, 1.5):
            with pytest.raises(InvalidOptionError, match="count is"):
                reading.give_back(count)
        reading.give_back(1)
    assert offsets(group) == {0: 3}


# Committing


@both_faces
async def test_a_message_is_committed_by_itself_only_after_the_next_one_was_asked_for(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(5, 0)
    async with consumer(auto_commit_every=0.1) as reading:
        await receive(reading, 3)
        await pause(2)
        assert offsets(group) == {}
        await reading.poll(0)  # three are finished, the fourth is in hand
        await pause(2)
        assert offsets(group) == {0: 3}
    assert offsets(group) == {0: 3}


@both_faces
async def test_commit_includes_the_messages_in_hand_and_without_auto_commit_nothing_else_is_committed(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(4, 0)
    async with consumer(**MANUAL) as reading:
        async for message in reading:
            if message.offset() == 1:
                await reading.commit()
                break
        assert offsets(group) == {0: 2}
        await receive(reading, 1)
        await reading.poll(0)
    assert offsets(group) == {0: 2}


@both_faces
async def test_the_commit_of_a_message_leaves_later_ones_of_its_partition_and_other_partitions(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(4)
    async with consumer(**MANUAL) as reading:
        found = await receive(reading, 12)
        [chosen] = [each for each in found if at_of(each) == topic.ats[1] and each.offset() == 1]
        await reading.commit(chosen)
        assert offsets(group) == {1: 2}
        with pytest.raises(NotClaimedError):
            await reading.commit(Message(topic=topic.name, partition=7, offset=0))
    assert offsets(group) == {1: 2}


def test_another_thread_commits_only_what_is_finished(topic: Topic, group: Consumergroup, logs: Any) -> None:
    topic.write(3, 0)
    with Consumer(group, [topic.name], kafka="simulated", **MANUAL) as reading:
        without_async(receive)(reading, 3, at_once=1)
        other = threading.Thread(target=reading.commit)
        other.start()
        other.join(LONGEST)
    assert offsets(group) == {0: 2}


@in_a_loop
async def test_another_task_commits_only_what_is_finished(topic: Topic, group: Consumergroup) -> None:
    topic.write(5, 0)
    async with aio.Consumer(group, [topic.name], kafka="simulated", **MANUAL) as reading:
        await receive(reading, 2, at_once=1)
        message = (await receive(reading, 1))[0]
        await asyncio.create_task(reading.commit())
        assert offsets(group) == {0: 2}
        await asyncio.create_task(reading.commit(message))
        assert offsets(group) == {0: 3}
        await asyncio.create_task(reading.poll(LONGEST))
        await reading.commit()  # the task that has received it is over
    assert offsets(group) == {0: 4}


def test_without_auto_commit_a_loop_after_run_commits_nothing_by_itself(topic: Topic, group: Consumergroup) -> None:
    def fail_at_two(message: Message) -> None:
        assert message.offset() != 2

    topic.write(6, 0)
    with Consumer(group, [topic.name], kafka="simulated", **MANUAL) as reading:
        with pytest.raises(HandlerFailedError):
            reading.run(fail_at_two, attempts=1)
        assert offsets_of(without_async(receive)(reading, 3, at_once=1)) == [2, 3, 4]
        reading.poll(0)
    assert offsets(group) == {0: 2}


# Positions


@both_faces
async def test_the_position_is_the_next_message_and_lag_counts_from_there(consumer: Any, topic: Topic) -> None:
    topic.write(5, 0)
    at = topic.ats[0]
    async with consumer() as reading:
        await receive(reading, 2)
        assert (reading.position(at), reading.lag(at)) == (2, 3)
        stats = reading.stats()
        assert (stats.state, stats.messages, stats.member.generations) == (InstanceState.STABLE, 2, 1)
        assert stats.partitions.keys() == set(topic.ats) == reading.assignment
        assert (stats.partitions[at].position, stats.partitions[at].lag) == (2, 3)
        for call in (reading.position, reading.pause):
            with pytest.raises(NotClaimedError):
                call(TopicPartition("no-topic", 0))
    assert reading.stats().partitions == {}


@both_faces
async def test_seeks_read_again_or_skip_messages_and_the_committed_offset_does_not_go_back(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(10, 0)
    at = topic.ats[0]
    async with consumer() as reading:
        await receive(reading, 8)
        await reading.commit()
        reading.seek(at, 3)
        assert reading.position(at) == 3
        assert offsets_of(await receive(reading, 1, at_once=1)) == [3]
        await reading.commit()
        assert offsets(group) == {0: 8}
        reading.seek(at, 7)
        assert offsets_of(await receive(reading, 3)) == [7, 8, 9]
        await reading.commit()
    assert offsets(group) == {0: 10}


@both_faces
async def test_a_paused_partition_stands_still_and_goes_on_without_a_gap(consumer: Any, topic: Topic) -> None:
    topic.write(20)
    paused = topic.ats[1]
    async with consumer() as reading:
        found = await receive(reading, 1, at_once=1)
        reading.pause(paused)
        assert reading.stats().partitions[paused].paused
        found += await receive(reading, 40 - (at_of(found[0]) != paused), at_once=3)
        assert {at_of(message) for message in found[1:]} == set(topic.ats) - {paused}
        assert await reading.consume(3, 0.5) == []
        reading.resume(paused)
        found += await receive(reading, 60 - len(found))
    assert [message.offset() for message in found if at_of(message) == paused] == list(range(20))
    assert texts(found) == topic.texts


def test_messages_that_were_put_aside_come_when_another_thread_ends_the_pause(topic: Topic, loop: Loops) -> None:
    def body(_message: Message) -> None:
        if not mine.messages:
            mine.consumer.pause(topic.ats[0])

    topic.write(20, 0)
    mine = loop(topic, body=body)
    mine.until(lambda: mine.consumer._delivery._aside, "the pause")
    mine.consumer.resume(topic.ats[0])
    mine.until_read(topic.texts)
    assert [offset for _at, offset, _text in mine.messages] == list(range(20))


def test_a_partition_that_was_paused_when_it_was_revoked_is_read_when_it_comes_back(topic: Topic, loop: Loops) -> None:
    topic.write(1)
    mine = loop(topic, id="a").until_read(topic.texts)
    mine.consumer.pause(*topic.ats)
    loop(topic, id="b").until_holding(topic.ats[2]).stop()
    mine.until_holding(*topic.ats)
    before = set(topic.texts)
    topic.write(1)
    mine.until(lambda: mine.texts.keys() - before)
    assert mine.messages[-1][0] == topic.ats[2]


# Where to begin


@both_faces
async def test_start_at_latest_is_committed_at_once_so_that_the_next_owner_skips_nothing(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(5)
    async with consumer(start_at="latest") as reading:
        assert await reading.poll(2) is None
    assert offsets(group) == {0: 5, 1: 5, 2: 5}
    topic.write(1)
    async with consumer(start_at="latest") as reading:
        assert offsets_of(await receive(reading, 3)) == [5, 5, 5]


def test_a_partition_without_an_offset_in_a_group_that_has_others_is_reported_once(
    topic: Topic, group: Consumergroup, loop: Loops, caplog: pytest.LogCaptureFixture
) -> None:
    topic.write(2, 0, 1)
    loop(topic, commits=False).until_read(topic.texts).stop()  # a new group
    assert "has no committed offset" not in caplog.text
    group.offsets.set(topic.ats[0], 1)
    mine = loop(topic)
    mine.until(lambda: len(mine.messages) == 3)
    text = f"{topic.ats[1]} has no committed offset, although group {group.name!r} has others: reading begins at 0"
    assert caplog.text.count("has no committed offset") == caplog.text.count(text) == 1


@pytest.mark.parametrize(("policy", "expected"), [("earliest", [2, 3]), ("latest", []), ("error", None)])
@pytest.mark.parametrize("committed", [0, 5_000])
def test_an_offset_outside_of_the_log_stops_its_partition_or_moves_as_out_of_range_says(
    topic: Topic, logs: Logs, group: Consumergroup, loop: Loops, policy: str, expected: list[int] | None, committed: int
) -> None:
    topic.write(4)
    logs.of[topic.ats[0]].start = 2
    group.offsets.set(topic.ats[0], committed)
    mine = loop(topic, out_of_range=policy)
    mine.until(lambda: len(mine.messages) == 8 + len(expected or ()), "the messages")
    mine.until(lambda: offsets(group) == {0: committed if expected is None else 4, 1: 4, 2: 4}, "the commits")
    assert [offset for at, offset, _text in mine.messages if at == topic.ats[0]] == (expected or [])
    words = "outside of the log" if expected is None else "None"
    mine.until(lambda: words in str(mine.consumer.stats().partitions[topic.ats[0]].error), "the error, or its end")


# The end


@both_faces
async def test_stop_ends_the_loop_after_the_message_in_hand_and_commits_it(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(9, 0)
    async with consumer() as reading:
        async for message in reading:
            if message.offset() == 4:
                reading.stop()
        assert offsets(group) == {0: 5}
        assert group.instances() == []
        with pytest.raises(MemberClosedError):
            await reading.poll(1)
        await reading.close()


@both_faces
async def test_the_consumer_does_not_wait_for_itself_when_the_loop_is_left(
    consumer: Any, topic: Topic, group: Consumergroup
) -> None:
    topic.write(3, 0)
    async with consumer(release_timeout=LONGEST, rebalance_timeout=2 * LONGEST) as reading:
        async for _message in reading:
            break
        await reading.close()
        assert group.instances() == []
    assert offsets(group) == {}


@both_faces
async def test_a_member_that_cannot_join_raises_its_error_in_the_loop(consumer: Any, topic: Topic) -> None:
    def partitions(_topic: str) -> list[int]:
        raise ZeroDivisionError

    async with consumer(partitions=partitions) as reading:
        with pytest.raises(ZeroDivisionError):
            async for _message in reading:
                pass


# Only for asyncio


@in_a_loop
async def test_a_cancelled_poll_loses_no_message(topic: Topic, group: Consumergroup) -> None:
    found: list[Message] = []
    async with aio.Consumer(group, [topic.name], kafka="simulated") as reading:
        for number in range(30):
            topic.write(1)
            polling = asyncio.create_task(reading.poll())
            await asyncio.sleep(0.001 * number)
            polling.cancel()
            await asyncio.wait([polling])
            if not polling.cancelled():
                found.append(polling.result())
        found += await receive(reading, len(topic.texts) - len(found), at_once=5)
        assert texts(found) == topic.texts
        assert await reading.poll(0) is None


@in_a_loop
async def test_only_one_task_may_read_at_a_time(topic: Topic, group: Consumergroup) -> None:
    async with aio.Consumer(group, [topic.name], kafka="simulated") as reading:
        first = asyncio.create_task(reading.poll())
        await asyncio.sleep(5)
        with pytest.raises(RuntimeError, match="another task reads"):
            await reading.poll()
        topic.write(1, 0)
        assert at_of(await first) == topic.ats[0]


@in_a_loop
async def test_other_tasks_run_while_a_body_that_never_waits_receives_messages(
    topic: Topic, group: Consumergroup
) -> None:
    topic.write(400)
    ticks, count = list[int](), 0

    async def tick() -> None:
        while True:
            ticks.append(count)
            await asyncio.sleep(0)

    async with aio.Consumer(group, [topic.name], kafka="simulated") as reading:
        async for _message in reading:
            if count == 0:
                ticking = asyncio.create_task(tick())
            count += 1
            if count == 1200:
                ticking.cancel()
                reading.stop()
    between = [1, *ticks, 1200]
    assert max(after - before for before, after in itertools.pairwise(between)) <= 250


@in_a_loop
async def test_callbacks_run_in_the_loop_and_a_commit_in_on_revoked_is_carried_out(
    topic: Topic, group: Consumergroup, loop: Loops
) -> None:
    """Also while the task that reads waits with a commit of its own for the end of the rebalance."""
    topic.write(3)
    called: list[tuple[str, threading.Thread, dict[int, int]]] = []
    revoked = asyncio.Event()

    async def on_revoked(_partitions: object) -> None:
        await reading.commit()
        called.append(("revoked", threading.current_thread(), offsets(group)))
        revoked.set()

    def on_assigned(_partitions: object) -> None:
        called.append(("assigned", threading.current_thread(), {}))

    options: dict[str, Any] = {"on_revoked": on_revoked, "on_assigned": on_assigned, "rebalance_timeout": 2 * LONGEST}
    async with aio.Consumer(group, [topic.name], kafka="simulated", id="a", **MANUAL, **options) as reading:
        await receive(reading, 9, at_once=1)
        assert await reading.poll(0.1) is None  # all are finished
        other = await asyncio.to_thread(loop, topic, id="b")
        while not revoked.is_set():
            await reading.commit()
            await asyncio.sleep(0.01)
        await asyncio.to_thread(other.until_holding, topic.ats[2])
    assert [name for name, _thread, _committed in called[:2]] == ["assigned", "revoked"]
    assert {thread for _name, thread, _committed in called} == {threading.current_thread()}
    assert called[1][2] == {0: 3, 1: 3, 2: 3}


# Options


@pytest.mark.parametrize(
    ("kafka", "text"),
    [
        ({}, "bootstrap.servers"),
        ({"bootstrap.servers": "kafka1:9092", "auto.offset.reset": "earliest"}, "use start_at and out_of_range"),
        ({"bootstrap.servers": "kafka1:9092", "enable.auto.commit": True}, "use auto_commit_every"),
        (7, "it must be an address"),
    ],
)
def test_settings_that_a_consumer_must_not_have_are_refused(group: Consumergroup, kafka: Any, text: str) -> None:
    with pytest.raises(InvalidOptionError, match=text):
        Consumer(group, ["orders"], kafka=kafka)


@pytest.mark.parametrize("option", ["on_assigned", "on_revoked", "on_lost", "on_event"])
def test_a_callback_that_is_no_function_is_refused(group: Consumergroup, option: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"{option} is 'print', but it must be a function"):
        Consumer(group, ["orders"], kafka="127.0.0.1:1", **{option: "print"})


def test_settings_that_the_client_does_not_know_are_refused_without_showing_their_values(group: Consumergroup) -> None:
    consumer = Consumer(group, ["orders"], kafka={"bootstrap.servers": "127.0.0.1:1", "sasl.pasword": "geheim"})
    with pytest.raises(InvalidOptionError, match="No such configuration property") as raised:
        consumer.start()
    assert "geheim" not in str(raised.value)
    consumer.close()
