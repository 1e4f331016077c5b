"""Members in an event loop in simulated time. `processes/test_asyncio.py` has real loops and servers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Self

import pytest

from zkgroups import Consumergroup, EventKind, InstanceState, MemberEvent, aio

from ..conftest import LONGEST, Partitions

PATIENT = {"release_timeout": 60.0, "rebalance_timeout": 100.0}
"""Limits so long that a test fails if it waits for a worker that does not end by itself."""


async def for_ever() -> None:
    await asyncio.Event().wait()


class Running:
    """A member whose tasks work on its generations, and all its events."""

    def __init__(self, group: Consumergroup, *, work: aio.Work | None = None, **options: Any) -> None:
        self.events: list[MemberEvent] = []
        self.generations: list[aio.Generation] = []
        self._news = asyncio.Event()
        self._work = work
        self.member = aio.Member(group, ["orders"], on_event=self._hear, **options)

    def _hear(self, event: MemberEvent) -> None:
        self.events.append(event)
        self._news.set()

    async def _run(self) -> None:
        async for generation in self.member.generations():
            self.generations.append(generation)
            self._news.set()
            if self._work is not None:
                generation.start(self._work)
            await generation.wait()

    async def until(self, so: Callable[[], object]) -> Self:
        """Wait for a condition. It is evaluated after each event, and every 50 ms."""
        async with asyncio.timeout(LONGEST):
            while not so():
                self._news.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), 0.05)
        return self

    async def until_holding(self, partitions: Partitions) -> Self:
        """Wait until the member works on exactly these partitions."""

        def works() -> bool:
            settled = self.member.assignment == partitions and self.member.state is InstanceState.STABLE
            return settled and bool(self.generations) and self.generations[-1].active

        return await self.until(works)

    def told(self, kind: EventKind) -> bool:
        return any(event.kind is kind for event in self.events)

    async def __aenter__(self) -> Self:
        await self.member.start()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.member.close()
        await self._task


async def mark_ten_more(generation: aio.Generation) -> None:
    for at, start in generation.partitions.items():
        generation.mark(at, (start if isinstance(start, int) else 0) + 10)
    await for_ever()


async def work_on_all(member: aio.Member, work: aio.Work) -> None:
    async for generation in member.generations():
        generation.start(work)
        await generation.wait()


@pytest.fixture(autouse=True)
def nothing_is_forgotten(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No task is destroyed while it is pending, and no exception is left unretrieved."""
    yield
    gc.collect()
    assert [record for record in caplog.get_records("call") if record.name in ("asyncio", "concurrent.futures")] == []
