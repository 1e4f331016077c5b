"""The answers that a client waits for, sent in the order of its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from ...kafka.wire import codec
from ...kafka.wire.codec import RequestKind
from ...kafka.wire.errors import DamagedAnswerError
from ..limits import Limits
from .byte_stream import ByteStream
from .frames import Frame
from .large_messages import on_thread_if_large
from .upstream import Upstream, UpstreamError

_LONGEST_DECODED: Final = 200_000_000


@dataclass(frozen=True, slots=True)
class Ready:
    """An answer of the gateway."""

    frame: bytes


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The next answer of the broker, passed on in parts."""

    kind: RequestKind


@dataclass(frozen=True, slots=True)
class Changed:
    """The next answer of the broker, which is changed before it is passed on."""

    kind: RequestKind
    change: Callable[[Any], Awaitable[int]]
    """Changes the answer, and returns the version in which to write it."""


@dataclass(frozen=True, slots=True)
class Captured:
    """The next answer of the broker. The request was one of the gateway, so the client does not see the answer."""

    kind: RequestKind
    answer: asyncio.Future[Any]


Due: TypeAlias = Ready | Forwarded | Changed | Captured


class AnswerQueue:
    """Sends answers to one client, in the order in which they were added."""

    def __init__(self, client: ByteStream, upstream: Upstream, limits: Limits) -> None:
        self._client = client
        self._upstream = upstream
        self._stall_timeout = limits.stall_timeout
        self._due: asyncio.Queue[Due] = asyncio.Queue(limits.requests_in_flight)
        self._from_broker = 0

    @property
    def waits_for_broker(self) -> bool:
        """True while an answer of the broker is due."""
        return self._from_broker > 0

    @property
    def is_empty(self) -> bool:
        """True if all answers were sent."""
        return self._due.empty() and not self.waits_for_broker

    async def add(self, due: Due) -> None:
        """Add an answer. Wait while too many are due."""
        if not isinstance(due, Ready):
            self._from_broker += 1
        await self._due.put(due)

    async def run(self) -> None:
        """Send all answers, until an error."""
        while True:
            due = await self._due.get()
            if isinstance(due, Ready):
                await self._send(due.frame)
            else:
                await self._pass_on(due, await self._next_frame(due.kind))
                self._from_broker -= 1

    async def _pass_on(self, due: Forwarded | Changed | Captured, frame: Frame) -> None:
        match due:
            case Forwarded():
                async for part in frame.parts():
                    await self._send(part)
            case Changed(kind, change):
                answer = await _decoded(kind, frame)
                version = await change(answer)
                written = partial(codec.encode_answer, answer, version, kind.correlation_id)
                await self._send(await on_thread_if_large(frame.size, written))
            case Captured(kind, waiting):
                answer = await _decoded(kind, frame)
                if not waiting.done():
                    waiting.set_result(answer)

    async def _next_frame(self, kind: RequestKind) -> Frame:
        frame = await self._upstream.frames.next()
        if frame is None:
            raise UpstreamError("the broker closed the connection")
        if codec.correlation_id(await frame.start(4)) != kind.correlation_id:
            raise DamagedAnswerError("the answers of the broker are not in the order of the requests")
        return frame

    async def _send(self, data: bytes | memoryview) -> None:
        await self._client.send(data, self._stall_timeout)


async def _decoded(kind: RequestKind, frame: Frame) -> Any:
    if frame.size > _LONGEST_DECODED:
        raise DamagedAnswerError(f"an answer of {frame.size} bytes is too long to be read")
    return await on_thread_if_large(
        frame.size, partial(codec.decode_answer, kind.key, kind.version, await frame.whole())
    )
