"""The connection of one client: requests are forwarded or answered, and all answers keep their order.

Requests and answers that need no work are forwarded at once, in the callback that has received them. The gateway
answers a request about groups before it begins the next request of the client, as a broker does.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from ...kafka.wire import codec
from ...kafka.wire.codec import RequestKind
from ...kafka.wire.errors import DamagedAnswerError, DamagedRequestError
from ..groups.group_service import GroupService
from ..limits import Limits
from ..protocol.api_versions import unknown_version
from ..protocol.client_name import NAME_START, name_end
from ..protocol.frames import SIZE, FrameError
from ..protocol.offered_apis import Handling, offered
from ..protocol.produce_acks import START_SIZE, expects_answer
from .answer_queue import AnswerQueue, Changed, Forwarded, Ready
from .broker_addresses import BrokerAddresses
from .client_stream import ClientStream
from .frame_stream import StalledError
from .large_messages import RequestDecoder
from .requester import Requester
from .upstream import Upstream, UpstreamError
from .worker import Worker

_log = logging.getLogger("zkgroups.gateway")

_KIND_SIZE: Final = 8
_SHORT_START: Final = 512
_PARKED: Final = {codec.JOIN_GROUP, codec.SYNC_GROUP}
"""Requests that may wait for minutes. They are cancelled if the client disconnects. All others are finished even then:
a client may commit or leave, and close its connection at once."""
_CHECKS: Final = 4
"""So many times per timeout, the connection is checked. That is cheaper than a timer for each message."""


class ClientConnection:
    """Serves one client until it, or its broker, closes the connection."""

    def __init__(
        self,
        stream: ClientStream,
        upstream: Upstream,
        addresses: BrokerAddresses,
        groups: GroupService,
        decoder: RequestDecoder,
        limits: Limits,
        *,
        node: int | None,
    ) -> None:
        self._stream = stream
        self._upstream = upstream
        self._groups = groups
        self._decoder = decoder
        self._limits = limits
        self._worker = Worker(self._work_ended)
        self._is_parked = False
        self._answers = AnswerQueue(stream, upstream, self._work_ended)
        self._requester = Requester(stream, upstream, self._answers, addresses, node=node)
        self._loop = asyncio.get_running_loop()
        self._active_at = self._loop.time()
        self._closed: asyncio.Future[BaseException | None] = self._loop.create_future()
        """The reason why the connection must be closed. None: it has ended as it should."""
        stream.on_change = upstream.on_change = self._proceed

    async def serve(self) -> None:
        """Serve the client. Errors close the connection."""
        limits = self._limits
        try:
            while not self._closed.done():
                await asyncio.wait([self._closed], timeout=min(limits.stall_timeout, limits.idle_timeout) / _CHECKS)
                self._check_timeouts()
            if (error := self._closed.result()) is not None:
                raise error
        except (FrameError, StalledError, UpstreamError, DamagedRequestError, DamagedAnswerError, OSError) as error:
            _log.info("closed the connection of %s: %s", self._requester.host, error)
        except Exception:
            _log.exception("closed the connection of %s", self._requester.host)
        finally:
            self._end()
            await self._worker.stop()
            await self._answers.stop()
            self._upstream.close(limits.stall_timeout)
            self._stream.abort() if self._stream.ended else self._stream.close(limits.stall_timeout)

    def _end(self, error: BaseException | None = None) -> None:
        if not self._closed.done():
            self._closed.set_result(error)

    def _work_ended(self, error: BaseException | None) -> None:
        if error is None:
            self._proceed()
        else:
            self._end(error)

    def _proceed(self) -> None:
        """Do everything that is possible now. This is called after each change."""
        if self._closed.done():
            return
        self._active_at = self._loop.time()
        try:
            self._answers.proceed()
            if self._stream.frames.held:
                self._relay_requests()
            self._check_ends()
        except Exception as error:
            self._end(error)

    def _check_ends(self) -> None:
        """Close the connection if one of its sides has ended."""
        frames = self._stream.frames
        if self._stream.ended and self._is_parked:
            self._end()
        elif self._stream.ended and not self._is_blocked:
            self._end(FrameError("the connection ended in the middle of a frame") if frames.is_incomplete else None)
        lacks_broker = self._upstream.has_ended and not self._answers.is_blocked
        if lacks_broker and (frames.is_within or self._answers.waits_for_broker):
            raise UpstreamError("the broker closed the connection")

    def _check_timeouts(self) -> None:
        """Close the connection if one of its sides has stalled, or the client is idle."""
        timeout, answers = self._limits.stall_timeout, self._answers
        self._stream.check(timeout, is_awaited=not self._is_blocked)
        if self._upstream.stream is not None:
            is_awaited = answers.waits_for_broker and not answers.is_blocked
            self._upstream.stream.check(timeout, is_awaited=is_awaited)
        is_busy = self._worker.is_busy or not answers.is_empty or self._stream.frames.is_incomplete
        if not is_busy and self._loop.time() >= self._active_at + self._limits.idle_timeout:
            self._end()

    # Requests

    @property
    def _is_blocked(self) -> bool:
        """True while no request can be begun."""
        return (
            self._worker.is_busy
            or self._upstream.is_full
            or len(self._answers) >= self._limits.requests_in_flight
            or (self._stream.is_full and not self._stream.ended)
        )

    def _relay_requests(self) -> None:
        while not self._is_blocked and self._next_request():
            pass
        if not self._upstream.is_full:
            self._send_passed_on()

    def _next_request(self) -> bool:
        """Begin the next request. Return False if too little of it has arrived, or if it takes time."""
        if (start := self._stream.frames.start(_KIND_SIZE)) is None:
            return False
        kind = RequestKind.read(start)
        found = offered(kind.key, kind.version)
        if found is None:
            return self._refuse(kind)
        match found.handling:
            case Handling.GROUPS:
                self._send_passed_on()
                self._worker.start(self._about_groups(kind))
                return False
            case Handling.FORWARD:
                return self._forward(Forwarded(kind))
            case Handling.PRODUCE:
                answered = self._expects_answer()
                return answered is not None and self._forward(Forwarded(kind) if answered else None)
            case Handling.CHANGE_ANSWER:
                change = self._requester.change(kind)
                return self._learn_name(kind) and self._forward(Changed(kind, change))

    def _refuse(self, kind: RequestKind) -> bool:
        """Answer ApiVersions in an unknown version. Disconnect a client that sends any other request."""
        if kind.key != codec.API_VERSIONS or (self._stream.frames.size or 0) > START_SIZE:
            raise DamagedRequestError(
                f"it sent a request that is not offered: API key {kind.key}, version {kind.version}"
            )
        self._send_passed_on()
        if self._stream.take_frame() is None:
            return False
        self._answers.add(Ready(codec.encode_answer(unknown_version(), 0, kind.correlation_id)))
        return True

    def _expects_answer(self) -> bool | None:
        """Return whether a Produce request expects an answer; None if too little of it has arrived.

        The part before its messages is nearly always short.
        """
        frames = self._stream.frames
        if (start := frames.start(_SHORT_START)) is None:
            return None
        try:
            return expects_answer(start)
        except DamagedRequestError:
            start = frames.start(START_SIZE)
            return None if start is None else expects_answer(start)

    def _learn_name(self, kind: RequestKind) -> bool:
        """Note the name of the client, which an answer to Metadata depends on. Return False if it has not arrived."""
        if kind.key != codec.METADATA:
            return True
        if (start := self._stream.frames.start(NAME_START)) is None:
            return False
        end = name_end(start)
        if (start := self._stream.frames.start(end)) is None:
            return False
        self._requester.name = start[NAME_START:end].decode(errors="replace")
        return True

    def _forward(self, due: Forwarded | Changed | None) -> bool:
        """Pass on the next request. Return False if the broker must be connected first."""
        if not self._upstream.is_open:
            self._worker.start(self._upstream.open(answers_due=self._answers.waits_for_broker))
            return False
        self._stream.frames.pass_on()
        if due is not None:
            self._answers.add(due)
            self._upstream.logged_in |= due.kind.key == codec.SASL_HANDSHAKE
        return True

    def _send_passed_on(self) -> None:
        if data := self._stream.take():
            self._upstream.send(data)

    async def _about_groups(self, kind: RequestKind) -> None:
        size, most = self._stream.frames.size or 0, self._limits.group_request_size
        if size > most:
            raise DamagedRequestError(f"a request about groups has {size} bytes; at most {most} are accepted")
        frame, received = await self._decoder.receive(self._stream)
        if kind.key == codec.FIND_COORDINATOR:
            self._requester.name = received.client_id or ""
        self._is_parked = kind.key in _PARKED
        answer = await self._groups.answer(received, self._requester)
        self._is_parked = False
        if answer is not None:
            self._answers.add(Ready(codec.encode_answer(answer, kind.version, kind.correlation_id)))
            return
        await self._upstream.open(answers_due=self._answers.waits_for_broker)
        is_changed = kind.key == codec.FIND_COORDINATOR
        self._answers.add(Changed(kind, self._requester.change(kind)) if is_changed else Forwarded(kind))
        self._upstream.send(SIZE.pack(len(frame)) + frame)
