"""A member of a group, for asyncio."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Any, Self

from ..consumer import member as consumer
from ..consumer.events import MemberStats
from ..core.znodes.states import InstanceState
from ..core.znodes.topic_partition import TopicPartition
from ..deadline import Deadline
from ..exceptions import MemberClosedError
from .event_loop import Home, is_set_in_time, options_of
from .generation import Generation

log = logging.getLogger("zkgroups.member")


class Member:
    """A member of a group, for asyncio, with the options of `zkgroups.Member`.

    It has no `cancel`: cancel the task that waits for a generation instead. No generation is lost by that.
    """

    @options_of(consumer.Member)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._home = Home()
        self._member = _MemberThread(self._home, self._notify, *arguments, **self._home.with_callbacks(options))
        self._home.member = self._member
        self.group = self._member.group
        self.id = self._member.id
        self._news = asyncio.Event()
        self._closed = asyncio.Event()
        self._latest: Generation | None = None

    def _notify(self) -> None:
        self._home.tell(self._hear)

    def _hear(self) -> None:
        self._news.set()
        if self._member._closed:
            self._closed.set()
            self._home.leave()

    # Life

    async def start(self) -> Self:
        """Join the group, and stay in the running loop. A second call does nothing."""
        await self._home.settle()
        self._member.start()
        return self

    def stop(self, *, leave: bool = True) -> None:
        """Ask the member to leave, without waiting: `generations` ends soon. Use it with `loop.add_signal_handler`."""
        self._member.stop(leave=leave)

    async def close(self, *, leave: bool = True) -> None:
        """Cancel the tasks, commit what they have marked, release everything and leave the group.

        See `zkgroups.Member.close`. If it is cancelled, the member still leaves.
        """
        if self._member._thread is None:
            self._member.close(leave=leave)
        elif not self._member._closed:
            await self._leave(leave)
        await self._home.dismiss_sentry()

    async def _leave(self, leave: bool) -> None:
        task = asyncio.current_task()
        if self._latest is not None:
            self._latest._step_out(task)  # a task that calls `close` must not wait for itself
        self._member.stop(leave=leave)
        if self._home.in_callback:
            return  # neither must a callback
        if not await is_set_in_time(self._closed, Deadline(self._member._longest_leave)):
            log.error(
                "member %r of group %r did not leave in time; still trying in the background", self.id, self.group.name
            )

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Generations

    async def generations(self) -> AsyncGenerator[Generation, None]:
        """Iterate over the generations until the member is closed.

        Errors of tasks and of the member are raised here. Call this again to receive the next generation. The body of
        the loop must end when its generation ends. The member waits for the body as it does for a task, but does not
        cancel it.
        """
        await self.start()
        while True:
            try:
                generation = await self.next_generation()
            except MemberClosedError:
                return
            if generation is None:
                return
            body = asyncio.current_task()
            if generation._step_in(body):  # otherwise it has ended since
                try:
                    yield generation
                finally:
                    generation._step_out(body)

    async def next_generation(self, timeout: float | None = None) -> Generation | None:
        """Wait for the next generation. Return None after the timeout. A cancelled call loses none."""
        deadline = None if timeout is None else Deadline.after("timeout", timeout)
        if not self._member._closed:
            await self.start()
        while True:
            self._news.clear()
            found = self._member.next_generation(0)  # 0: never waits
            if found is not None:
                self._latest = Generation(found, self._home, self._member._options.release_timeout)
                return self._latest
            if not await is_set_in_time(self._news, deadline):
                return None

    # State

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that the member holds now. A partition is not among them once its release is requested."""
        return self._member.assignment

    @property
    def state(self) -> InstanceState:
        """The state of this member, as other clients see it: Joining, AwaitingSync, Stable or Leaving."""
        return self._member.state

    @property
    def stats(self) -> MemberStats:
        """A copy of the `MemberStats` since the member was created."""
        return self._member.stats

    def __repr__(self) -> str:
        return f"<Member {self._member._membership}, {self.state}, {len(self.assignment)} partitions>"


class _MemberThread(consumer.Member):
    """The member on its own thread. `notify` is called there when something is new; callbacks run in the event loop."""

    def __init__(self, home: Home, notify: Callable[[], None], *arguments: Any, **options: Any) -> None:
        self._home = home
        self._tell = notify
        super().__init__(*arguments, **options)

    def _queue_changed(self) -> None:
        self._tell()

    def _await_callback(self, awaitable: Any) -> None:
        self._home.run(awaitable)
