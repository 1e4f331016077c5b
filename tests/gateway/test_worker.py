"""Work beside the callbacks that forward bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from zkgroups.gateway.connections.worker import Worker


async def nothing() -> None:
    pass


async def fail() -> None:
    raise OSError("broken")


async def cancelled_elsewhere() -> None:
    waiting = asyncio.get_running_loop().create_future()
    waiting.cancel()
    await waiting


def test_work_that_was_cancelled_has_failed() -> None:
    """Otherwise a connection would go on without the answer to a request."""

    async def end(work: Coroutine[Any, Any, None]) -> BaseException | None:
        ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        worker = Worker(ended.set_result)
        worker.start(work)
        assert worker.is_busy
        error = await asyncio.wait_for(ended, 30)
        assert not worker.is_busy
        return error

    async def kinds() -> list[type]:
        return [type(await end(work())) for work in (nothing, fail, cancelled_elsewhere)]

    assert asyncio.run(kinds()) == [type(None), OSError, asyncio.CancelledError]
