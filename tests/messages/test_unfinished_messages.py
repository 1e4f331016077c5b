"""Which messages come again after a loop, a call or a task has ended early: the rule of `Consumer`, case by case.

Each case is written for asyncio. Without its `async` and `await` it is the case of the other consumer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Message

from tests.simulation.loop import run_in_a_loop
from tests.simulation.world import World
from tests.waiting import eventually
from zkgroups import Consumer, Consumergroup, EventKind, aio

from .conftest import LONGEST, Loops, Topic, offsets
from .faces import without_async


class LeftError(Exception):
    """Ends the body of a loop."""


async def an_exception_in_the_body(reading: Any) -> None:
    with suppress(LeftError):
        async for message in reading:
            if message.offset() == 2:
                raise LeftError


async def a_break(reading: Any) -> None:
    async for message in reading:
        if message.offset() == 2:
            break


async def a_generator_that_the_traceback_of_an_exception_keeps(reading: Any) -> None:
    async def messages() -> AsyncGenerator[Message, None]:
        async for message in reading:
            yield message

    async def handle() -> None:
        generator = messages()
        async for message in generator:
            if message.offset() == 2:
                raise LeftError

    try:
        await handle()
    except LeftError as error:
        reading.kept = error


async def a_poll_in_the_body_that_fails_then(reading: Any) -> None:
    with suppress(LeftError):
        async for message in reading:
            if message.offset() == 2:
                assert (await reading.poll(LONGEST)).offset() == 3
                assert [each.offset() for each in await reading.consume(1, LONGEST)] == [4]
                raise LeftError


async def a_poll_in_the_body_that_goes_on(reading: Any) -> None:
    async for message in reading:
        if message.offset() == 0:
            assert (await reading.poll(LONGEST)).offset() == 1
        if message.offset() == 2:
            break


async def a_loop_in_the_body_of_a_loop(reading: Any) -> None:
    async for message in reading:
        if message.offset() >= 2:
            break
        async for inner in reading:
            if inner.offset() >= 2:
                break


async def a_commit_before_the_break(reading: Any) -> None:
    async for message in reading:
        if message.offset() == 1:
            await reading.commit()
            break


async def a_commit_of_a_message_before_an_exception(reading: Any) -> None:
    with suppress(LeftError):
        async for message in reading:
            if message.offset() == 1:
                await reading.commit(message)
                raise LeftError


async def a_poll(reading: Any) -> None:
    for offset in range(3):
        assert (await reading.poll(LONGEST)).offset() == offset


async def a_commit_of_a_part_of_what_was_consumed(reading: Any) -> None:
    found = [await reading.poll(LONGEST)]
    while len(found) < 4:
        reading.give_back(len(found))
        found = await reading.consume(4, LONGEST)
    await reading.commit(found[1])


# Only for asyncio


async def _loop(reading: Any, at_two: Callable[[], object] = bool) -> None:
    async for message in reading:
        if message.offset() == 2:
            at_two()
            await asyncio.Event().wait()


async def _calls(reading: Any, at_two: Callable[[], object] = bool) -> None:
    await a_poll(reading)
    at_two()
    await asyncio.Event().wait()


async def _in_hand(read: Callable[..., Any], reading: Any) -> asyncio.Task[None]:
    """Let a task receive messages, and wait until it has the last one in hand."""
    at_two = asyncio.Event()
    task = asyncio.create_task(read(reading, at_two.set))
    await at_two.wait()
    return task


async def a_cancelled_task_with_a_loop(reading: Any) -> None:
    (await _in_hand(_loop, reading)).cancel()


async def a_loop_that_goes_on_in_another_task(reading: Any) -> None:
    messages = aiter(reading)
    task = await _in_hand(_loop, messages)
    task.cancel()
    await asyncio.wait([task])
    assert (await anext(messages)).offset() == 2


async def a_cancelled_task_with_calls(reading: Any) -> None:
    task = await _in_hand(_calls, reading)
    task.cancel()
    await asyncio.wait([task])
    await reading.commit()


async def a_failed_task_with_calls(reading: Any) -> None:
    async def fail() -> None:
        await a_poll(reading)
        raise LeftError

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    assert isinstance(task.exception(), LeftError)


async def another_task_that_still_works(reading: Any) -> None:
    reading.kept = await _in_hand(_calls, reading)


async def calls_in_tasks_that_have_ended(reading: Any) -> None:
    for offset in range(3):
        assert (await asyncio.wait_for(asyncio.create_task(reading.poll()), LONGEST)).offset() == offset


async def hang(make: Callable[[], Any], pause: Callable[[], Any]) -> None:
    async with make() as reading:
        async for message in reading:
            if message.offset() == 2:
                await pause()


async def first_received(make: Callable[[], Any], case: Callable[[Any], Any], by: str) -> Any:
    """Let a consumer end early. Return the first offset that it receives then, and leave that unfinished."""
    async with make() as reading:
        await case(reading)
        if by == "poll":
            return (await reading.poll(LONGEST)).offset()
        async for message in reading:
            return message.offset()
    return None


CASES = {
    an_exception_in_the_body: (2, 2),
    a_break: (2, 2),
    a_generator_that_the_traceback_of_an_exception_keeps: (2, 3),
    a_poll_in_the_body_that_fails_then: (2, 2),
    a_poll_in_the_body_that_goes_on: (2, 2),
    a_loop_in_the_body_of_a_loop: (2, 2),
    a_commit_before_the_break: (2, 2),
    a_commit_of_a_message_before_an_exception: (2, 2),
    a_poll: (2, 3),
    a_commit_of_a_part_of_what_was_consumed: (2, 4),
}
"""What the consumer receives next, by another loop, and by `poll`."""

CASES_OF_ASYNCIO = {
    a_cancelled_task_with_a_loop: (2, 2),
    a_loop_that_goes_on_in_another_task: (2, 2),
    a_cancelled_task_with_calls: (2, 2),
    a_failed_task_with_calls: (2, 2),
    another_task_that_still_works: (2, 2),
    calls_in_tasks_that_have_ended: (2, 3),
}

ROWS = [
    pytest.param(face, case, by, expected, id=f"{case.__name__}-{by}-{face}")
    for face, cases in (("threads", CASES), ("asyncio", CASES | CASES_OF_ASYNCIO))
    for case, both in cases.items()
    for by, expected in zip(("loop", "poll"), both, strict=True)
]


@pytest.mark.parametrize(("face", "case", "by", "expected"), ROWS)
def test_only_the_code_that_received_a_message_can_finish_it(
    world: World, group: Consumergroup, topic: Topic, face: str, case: Any, by: str, expected: int
) -> None:
    topic.write(6, 0)
    if face == "asyncio":
        make: Any = lambda: aio.Consumer(group, [topic.name], kafka="simulated")  # noqa: E731
        found = run_in_a_loop(world, first_received(make, case, by))
    else:
        make = lambda: Consumer(group, [topic.name], kafka="simulated")  # noqa: E731
        found = without_async(first_received)(make, without_async(case), by)
    assert found == expected
    kept = case is a_generator_that_the_traceback_of_an_exception_keeps  # its message waits for its loop
    assert offsets(group) == {0: 2 if kept else expected}


@pytest.mark.parametrize("case", [an_exception_in_the_body, a_poll, a_commit_before_the_break])
def test_run_begins_with_the_messages_that_are_not_finished(group: Consumergroup, topic: Topic, case: Any) -> None:
    topic.write(6, 0)
    handled: list[int | None] = []

    def handle(message: Message) -> None:
        handled.append(message.offset())
        if message.offset() == 5:
            reading.stop()

    with Consumer(group, [topic.name], kafka="simulated") as reading:
        without_async(case)(reading)
        reading.run(handle)
    assert handled == [2, 3, 4, 5]


@pytest.mark.parametrize("face", ["threads", "asyncio", "run"])
def test_a_loop_that_hangs_gives_its_partitions_away_and_joins_again_when_it_asks(
    world: World, group: Consumergroup, topic: Topic, loop: Loops, face: str
) -> None:
    topic.write(6, 0)
    made: list[Any] = []
    free, events = threading.Event(), list[EventKind]()
    options: dict[str, Any] = {"max_idle": 5.0, "release_timeout": 0.1, "id": "a", "kafka": "simulated"}

    def make(kind: Any) -> Any:
        made.append(kind(group, [topic.name], on_event=lambda event: events.append(event.kind), **options))
        return made[-1]

    def run() -> None:
        if face == "asyncio":
            run_in_a_loop(world, hang(lambda: make(aio.Consumer), lambda: asyncio.to_thread(free.wait)))
        elif face == "threads":
            without_async(hang)(lambda: make(Consumer), free.wait)
        else:
            with make(Consumer) as reading:
                reading.run(lambda message: free.wait() if message.offset() == 2 else None)

    hanging = threading.Thread(target=run)
    hanging.start()
    assert eventually(lambda: EventKind.IDLE in events and not made[0].assignment)
    other = loop(topic, id="b")
    other.until(lambda: [offset for _at, offset, _text in other.messages] == [2, 3, 4, 5])
    assert not made[0].assignment
    free.set()
    other.until(lambda: len(made[0].assignment) == 2, "the first consumer")
    made[0].stop()
    hanging.join()
    other.stop()
    assert events.count(EventKind.JOINED) >= 2
    assert offsets(group) == {0: 6}
