"""The answers that a client waits for, sent in the order of its requests."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from ...kafka.wire import codec
from ...kafka.wire.codec import RequestKind
from ...kafka.wire.errors import DamagedAnswerError
from .frame_stream import FrameStream
from .large_messages import on_thread_if_large
from .upstream import Upstream
from .worker import Worker

_ID_SIZE: Final = 4
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
    """Sends answers to one client, in the order in which they were added.

    - `on_end`: called after each answer that was changed or captured, with an error, or None.
    """

    def __init__(self, client: FrameStream, upstream: Upstream, on_end: Callable[[BaseException | None], None]) -> None:
        self._client = client
        self._upstream = upstream
        self._due: deque[Due] = deque()
        self._worker = Worker(on_end)

    def __len__(self) -> int:
        """Return the number of answers that have not begun to arrive."""
        return len(self._due)

    @property
    def waits_for_broker(self) -> bool:
        """True while an answer of the broker is due."""
        return self._is_within or any(not isinstance(each, Ready) for each in self._due)

    @property
    def is_empty(self) -> bool:
        """True if all answers were sent."""
        return not self._due and not self._is_within

    @property
    def is_blocked(self) -> bool:
        """True while answers must wait, even if they have arrived."""
        return self._worker.is_busy or self._client.is_full

    @property
    def _is_within(self) -> bool:
        return self._upstream.stream is not None and self._upstream.stream.frames.is_within

    def add(self, due: Due) -> None:
        """Add an answer."""
        self._due.append(due)
        if isinstance(due, Ready):
            self.proceed()

    def proceed(self) -> None:
        """Send all answers that have arrived."""
        while self._due and not self.is_blocked and self._next_answer(self._due[0]):
            pass
        if not self._client.is_full:
            self._send_passed_on()

    async def stop(self) -> None:
        """Stop to change answers."""
        await self._worker.stop()

    def _next_answer(self, due: Due) -> bool:
        """Begin the next answer. Return False if it has not arrived, or takes time."""
        if isinstance(due, Ready):
            if self._is_within:
                return False
            self._send_passed_on()
            self._client.send(due.frame)
        else:
            assert self._upstream.stream is not None
            frames = self._upstream.stream.frames
            if (start := frames.start(_ID_SIZE)) is None:
                return False
            if codec.correlation_id(start) != due.kind.correlation_id:
                raise DamagedAnswerError("the broker did not answer in the order of the requests")
            if not isinstance(due, Forwarded):
                self._send_passed_on()
                self._worker.start(self._read(due, self._upstream.stream))
                return False
            frames.pass_on()
        self._due.popleft()
        return True

    def _send_passed_on(self) -> None:
        stream = self._upstream.stream
        if stream is not None and stream.frames.held:
            self._client.send(stream.take())

    async def _read(self, due: Changed | Captured, stream: FrameStream) -> None:
        """Receive the next answer as a whole, and change it or capture it."""
        size, kind = stream.frames.size or 0, due.kind
        if size > _LONGEST_DECODED:
            raise DamagedAnswerError(
                f"an answer of the broker has {size} bytes; at most {_LONGEST_DECODED} can be decoded"
            )
        decode = partial(codec.decode_answer, kind.key, kind.version, await stream.receive_frame())
        answer = await on_thread_if_large(size, decode)
        if isinstance(due, Changed):
            version = await due.change(answer)
            written = partial(codec.encode_answer, answer, version, kind.correlation_id)
            self._client.send(await on_thread_if_large(size, written))
        elif not due.answer.done():
            due.answer.set_result(answer)
        self._due.popleft()
