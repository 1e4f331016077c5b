"""Requests to many brokers at a time: some in flight at each, and no more to a broker that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from ..input_errors import ZkgroupsException
from .wire.errors import WireError

_IN_FLIGHT: Final = 16
"""At each broker: one for each of its links."""

T = TypeVar("T")


async def send_all(
    batches: Mapping[int, Sequence[T]], send: Callable[[int, T], Awaitable[None]]
) -> dict[int, WireError | ZkgroupsException]:
    """Send the batches of each broker, by its id. Return the first error of each broker that failed.

    The rest of the batches of such a broker is not sent.
    """
    failed: dict[int, WireError | ZkgroupsException] = {}

    async def work(node: int, left: Iterator[T]) -> None:
        for batch in left:
            if node in failed:
                return
            try:
                await send(node, batch)
            except (WireError, ZkgroupsException) as error:
                failed.setdefault(node, error)

    async with asyncio.TaskGroup() as tasks:
        for node, those in batches.items():
            left = iter(those)
            for _ in range(min(_IN_FLIGHT, len(those))):
                tasks.create_task(work(node, left))
    return failed


def parts(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Split items into parts of this size."""
    return [items[first : first + size] for first in range(0, len(items), size)]
