"""A consumer of messages, for asyncio.

The event loop hands out the messages. A thread fetches them: it waits, and follows the rebalances. So the two threads
of `zkgroups.Consumer`, the one that reads and the one of the member, meet here in the same way.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ..core.znodes.topic_partition import TopicPartition
from ..deadline import Deadline
from ..exceptions import MemberClosedError
from ..messages import consumer
from ..messages.loop_delivery import Batch, Pace
from ..messages.reading import ConsumerStats
from .event_loop import Home, finished_in, options_of

if TYPE_CHECKING:
    from confluent_kafka import Message


_LARGEST_PART: Final = 250
"""The most messages between two times when other tasks can run."""


class Consumer:
    """A consumer of messages, for asyncio, with the options of `zkgroups.Consumer`.

        async with Consumer(registry.group("billing"), ["orders"], kafka="kafka1:9092") as consumer:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)  # ends the loop
            async for message in consumer:
                await process(message.topic(), message.partition(), message.value())

    Delivery is at least once, with the rules of `zkgroups.Consumer`. Only the task that received a message can finish
    it. If the task is cancelled or fails, or another task reads, the message comes again.

    One task at a time may read. A cancelled `poll` or `consume` loses no message. To call a coroutine function for
    several messages at the same time, use `zkgroups.Consumer.run`.
    """

    @options_of(consumer.Consumer)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._home = Home()
        self._inner = _Inner(self._home, *arguments, **self._home.with_callbacks(options))
        self._home.member = self._inner._reading.member
        self.group = self._inner.group
        self.id = self._inner.id
        self._thread = ThreadPoolExecutor(1, "zkgroups-read")
        self._task: asyncio.Task[Any] | None = None  # the last that has read
        self._reads = False
        self._started = False
        self._closed = False

    async def start(self) -> Self:
        """Join the group, and stay in the running loop. A second call does nothing."""
        await self._home.settle()
        self._check_open()
        if not self._started:
            self._inner._reader = threading.get_ident()  # the loop hands out
            await finished_in(self._thread, self._inner.start)
            self._started = True
        return self

    def stop(self, *, leave: bool = True) -> None:
        """Ask the consumer to leave, without waiting: see `zkgroups.Consumer.stop`."""
        self._inner.stop(leave=leave)

    async def close(self, *, leave: bool = True) -> None:
        """Commit what is finished, release everything and leave the group: see `zkgroups.Consumer.close`.

        If it is cancelled, the consumer still leaves.
        """
        if self._home.forked:
            return
        if self._task is None or self._task.done() or self._task is asyncio.current_task():
            self._inner._put_back()
        self._inner.stop(leave=leave)  # ends a call that reads
        if self._home.in_callback or self._closed:
            return  # the consumer waits for its callbacks
        self._closed = True
        try:
            await finished_in(self._thread, self._inner._reading.close, leave=leave)
        finally:
            self._thread.shutdown(wait=False)
            self._home.leave()
            await self._home.dismiss_sentry()

    def _check_open(self) -> None:
        if self._closed:
            raise MemberClosedError(self.group.name, self.id)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over messages until the consumer has left: see `zkgroups.Consumer.__iter__`."""
        loop = consumer.Loop()
        messages = self._messages(loop)
        loop.iterator = weakref.ref(messages)  # cleared at once, while the generator is closed later
        return messages

    async def _messages(self, loop: consumer.Loop) -> AsyncGenerator[Message, None]:
        pace = Pace(_LARGEST_PART)
        while True:
            try:
                batch = await self._load(Deadline(consumer.FOREVER), loop)
            except MemberClosedError:
                return
            pace.begin()
            while batch is not None and self._may_give(loop) and (part := batch.give(pace.size)) is not None:
                for message in part:
                    yield message
                    if asyncio.current_task() is not self._task:
                        break  # it has not received this message
                await asyncio.sleep(0)  # a body that never waits would keep the loop
                pace.end()
            batch = part = None  # free its messages before others are fetched

    def _may_give(self, loop: consumer.Loop) -> bool:
        """True while this loop, in the task that asks now, has the messages in hand, and the claims are certain."""
        return asyncio.current_task() is self._task and self._inner._may_give(loop)

    async def poll(self, timeout: float | None = None) -> Message | None:
        """Return the next message, or None after the timeout: see `zkgroups.Consumer.poll`."""
        found = await self.consume(1, timeout)
        return found[0] if found else None

    async def consume(self, count: int = consumer.MOST_FETCHED, timeout: float | None = None) -> list[Message]:
        """Return up to `count` messages, as soon as there is one: see `zkgroups.Consumer.consume`."""
        consumer.check_count(count)
        deadline = consumer.read_deadline(timeout)
        while (batch := await self._load(deadline)) is not None:
            if found := self._inner._hand_out(batch, count):
                return found
        return []

    def give_back(self, count: int) -> None:
        """Give back the last `count` of the messages received: see `zkgroups.Consumer.give_back`."""
        self._inner.give_back(count)

    async def _load(self, deadline: Deadline, loop: consumer.Loop | None = None) -> Batch | None:
        """Finish what was handed out. Return a batch that has messages, or None after the deadline."""
        await self.start()
        if self._reads:
            raise RuntimeError("another task reads from this consumer: one task at a time may do that")
        same_task = self._task is None or self._has_in_hand(asyncio.current_task())
        self._reads, self._task = True, asyncio.current_task()
        try:
            return await self._fetch(deadline, left=self._inner._ask(loop, same_task=same_task))
        finally:
            self._reads = False

    async def _fetch(self, deadline: Deadline, *, left: bool) -> Batch | None:
        """Fetch on the thread. It hands nothing out, so a cancelled call loses no message."""
        fetching = asyncio.ensure_future(finished_in(self._thread, self._inner._fetch, deadline, left=left))
        try:
            return await asyncio.shield(fetching)
        except asyncio.CancelledError:
            deadline.expire()
            await asyncio.wait([fetching])
            fetching.exception()
            raise

    async def commit(self, message: Message | None = None) -> None:
        """Commit now: everything received so far, or the messages of one partition up to `message`.

        While another task reads, and in a callback, only finished messages are committed. A cancellation takes effect
        after the commit has ended. See `zkgroups.Consumer.commit`.
        """
        task, called_back = asyncio.current_task(), self._home.in_callback
        if self._home.left:
            self._inner._commit(message, lambda: False)  # raises an error, or has nothing to do
            return
        await self._home.in_thread(
            self._inner._commit,
            message,
            lambda: not called_back and self._has_in_hand(task),
            waits=not called_back,
        )

    def _has_in_hand(self, task: asyncio.Task[Any] | None) -> bool:
        """True if the messages in hand are those of this task.

        A task may read in other tasks, for example in `asyncio.wait_for`. These have ended, and not by an error.
        """
        last = self._task
        if last is None or not last.done():
            return last is not None and last is task
        # `exception()` would hide an error that nobody has retrieved.
        return not last.cancelled() and last._exception is None

    def position(self, at: TopicPartition) -> int | None:
        """Return the offset of the next message that is handed out: see `zkgroups.Consumer.position`."""
        return self._inner.position(at)

    def seek(self, at: TopicPartition, offset: int) -> None:
        """Go on at another offset in a partition: see `zkgroups.Consumer.seek`."""
        self._inner.seek(at, offset)

    def lag(self, at: TopicPartition) -> int | None:
        """Return how many messages are in the log after `position`, as of the last fetch; None if it is not known."""
        return self._inner.lag(at)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer reads now."""
        return self._inner.assignment

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out no messages of these partitions until `resume`. They stay paused while this consumer keeps them."""
        self._inner.pause(*partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Hand out messages of these partitions again."""
        self._inner.resume(*partitions)

    def stats(self) -> ConsumerStats:
        """Return what this consumer is doing now. Sends no request."""
        return self._inner.stats()

    def __repr__(self) -> str:
        return repr(self._inner)


class _Inner(consumer.Consumer):
    """The consumer. The event loop is its reading thread; callbacks run there, too."""

    def __init__(self, home: Home, *arguments: Any, **options: Any) -> None:
        self._home = home
        super().__init__(*arguments, **options)

    def _await_callback(self, awaitable: Any) -> None:
        self._home.run(awaitable)
