"""Run several attempts at a time, and use the first that succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from .errors import NoListenerError, NotSentError, WireError

_AT_A_TIME: Final = 4
_NEXT_AFTER: Final = 0.25
"""In seconds: after this time the next attempt begins, even if earlier attempts have no result."""
_GRACE: Final = 0.5
"""In seconds: how long other attempts may go on after a permanent error."""
_REASONS: Final = 3

T = TypeVar("T")
U = TypeVar("U")


async def first_of(candidates: Iterable[T], attempt: Callable[[T], Coroutine[Any, Any, U]]) -> U:
    """Return the result of the first attempt that succeeds.

    If all fail, raise a permanent error if there was one, or else an error with some of the reasons.
    """
    left = list(candidates)
    running: set[asyncio.Task[U]] = set()
    failed: list[BaseException] = []
    permanent = None
    try:
        while (left and permanent is None) or running:
            if left and permanent is None and len(running) < _AT_A_TIME:
                running.add(asyncio.create_task(attempt(left.pop(0))))
            done, running = await asyncio.wait(
                running, timeout=_pause(bool(left), len(running), permanent), return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                if (error := task.exception()) is None:
                    return task.result()
                failed.append(error)
            if permanent is not None and not done:
                break
            permanent = next((error for error in failed if not isinstance(error, WireError)), None)
    finally:
        for task in running:
            task.cancel()
    kind = NoListenerError if all(isinstance(error, NoListenerError) for error in failed) else NotSentError
    raise permanent or kind("; ".join(dict.fromkeys(map(str, failed[:_REASONS]))))


def _pause(more: bool, running: int, permanent: BaseException | None) -> float | None:
    """Return how long to wait for a result; None to wait without a limit, because no attempt can be added."""
    if permanent is not None:
        return _GRACE
    return _NEXT_AFTER if more and running < _AT_A_TIME else None
