"""The connection of one client: requests are forwarded or answered, and all answers keep their order.

Requests and answers that need no work are forwarded at once, in the callback that has received them. The gateway
answers a request about groups before it begins the next request of the client, as a broker does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from ...kafka.wire import codec
from ...kafka.wire.codec import RequestKind
from ...kafka.wire.errors import Address, DamagedAnswerError, DamagedRequestError
from ..groups.group_service import GroupService
from ..protocol.addresses import NAMES_BROKERS, add_gateways, brokers_in, hide_address_settings, replace_addresses
from ..protocol.frames import (
    NAME_START,
    SIZE,
    SOFTWARE_END,
    START_SIZE,
    FrameError,
    expects_answer,
    is_librdkafka,
    name_end,
)
from ..protocol.offered_apis import (
    Handling,
    Permission,
    layout,
    limit_versions,
    offered,
    probes,
    refused_groups,
    unknown_version,
)
from ..settings import Limits
from .streams import ClientStream, FrameStream, GroupCodec, StalledError, Worker, on_thread_if_large
from .upstream import BrokerAddresses, Upstream, UpstreamError

# The permissions of one client for groups. The gateway asks its broker, and remembers permissions for some time.


_VALID: Final = 60.0
"""In seconds: how long a permission is remembered. A refusal is not remembered."""
_MOST: Final = 10_000
_AT_A_TIME: Final = 1000

Ask = Callable[[Any], Awaitable[Any]]
"""Sends a request on the client's own connection to its broker, and returns the answer."""


class GroupPermissions:
    """Asks the broker of a client for its permissions."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._valid_until: dict[tuple[Permission, str], float] = {}

    async def allowed(self, permission: Permission, groups: Sequence[str], *, deletes_offsets: bool) -> set[str]:
        """Return the groups for which the client has a permission."""
        now = asyncio.get_running_loop().time()
        unknown = [group for group in groups if self._valid_until.get((permission, group), 0.0) <= now]
        refused: set[str] = set()
        for first in range(0, len(unknown), _AT_A_TIME):
            some = unknown[first : first + _AT_A_TIME]
            for request, asked in probes(permission, some, deletes_offsets=deletes_offsets):
                refused |= refused_groups(await self._ask(request), asked)
        if len(self._valid_until) > _MOST:
            self._valid_until.clear()
        self._valid_until |= {(permission, group): now + _VALID for group in unknown if group not in refused}
        return set(groups) - refused


# The answers that a client waits for, sent in the order of its requests.


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


# A client as seen by the requests that the gateway reads: its name, its permissions, and its broker's answers.


_CLIENT: Final = "zkgroups-gateway"
_WITHOUT_TOPICS: Final = 1
"""The first version of Metadata that can ask for the brokers without any topic."""


class Requester:
    """One client. Its methods are for requests about groups, and for answers of the broker that must be changed."""

    def __init__(
        self,
        stream: ClientStream,
        upstream: Upstream,
        answers: AnswerQueue,
        addresses: BrokerAddresses,
        *,
        node: int | None,
    ) -> None:
        self.host = f"/{stream.peer}"
        self.node = node
        self.name = ""
        """The name that the client gives itself."""
        self.keeps_addresses = False
        """True for librdkafka: see `GroupService`."""
        self._local = stream.local
        self._upstream = upstream
        self._answers = answers
        self._addresses = addresses
        self._permissions = GroupPermissions(self._probe)
        self._versions: dict[int, int] = {}
        """The first version of each request that the broker supports."""

    # Answers of the broker

    def change(self, kind: RequestKind) -> Callable[[Any], Awaitable[int]]:
        """Return a function that changes an answer, and returns the version in which to write it."""

        async def change(answer: Any) -> int:
            if kind.key == codec.API_VERSIONS:
                self._learn_versions(answer)
                limit_versions(answer)
                return layout(answer, kind.version)
            if kind.key == codec.DESCRIBE_CONFIGS:
                hide_address_settings(answer)
            else:
                await self._replace_addresses(answer)
            return kind.version

        return change

    def _learn_versions(self, answer: Any) -> None:
        if not answer.error_code:
            self._versions = {each.api_key: each.min_version for each in answer.api_keys}

    async def _replace_addresses(self, answer: Any) -> None:
        if answer.API_KEY == codec.FIND_COORDINATOR:
            known = await self._addresses.add(brokers_in(answer), self._local)
        else:
            known = await self._addresses.replace(brokers_in(answer), self._local)
        replace_addresses(answer, known)
        if answer.API_KEY == codec.METADATA:
            add_gateways(answer, self._addresses.other_gateways.of((self.host, self.name)))

    # For requests about groups

    async def ask(self, message: Any, version: int) -> Any:
        """Return the answer of the broker to a request of the gateway, on this client's connection."""
        kind = RequestKind(message.API_KEY, version, 0)
        await self._upstream.open(answers_due=self._answers.waits_for_broker)
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers.add(Captured(kind, waiting))
        self._upstream.send(codec.encode(message, version, kind.correlation_id, _CLIENT))
        answer = await waiting
        if answer.API_KEY in NAMES_BROKERS:
            await self._replace_addresses(answer)
        return answer

    async def allowed(self, permission: Permission, groups: Sequence[str]) -> set[str]:
        """Return the groups for which this client has a permission."""
        if permission is Permission.DELETE and not self._versions:
            self._learn_versions(await self.ask(codec.ApiVersionsRequest(), 0))
        deletes_offsets = codec.OFFSET_DELETE in self._versions
        return await self._permissions.allowed(permission, groups, deletes_offsets=deletes_offsets)

    async def brokers(self) -> Mapping[int, Address]:
        """Return the addresses at the gateway of all known brokers."""
        known = self._addresses.known(self._local)
        if not known:
            await self.ask(codec.MetadataRequest(topics=[]), _WITHOUT_TOPICS)
            known = self._addresses.known(self._local)
        return known

    def add_gateway(self, address: Address) -> int:
        """Return the id under which this client sees a gateway that coordinates a group."""
        return self._addresses.other_gateways.add((self.host, self.name), address)

    async def _probe(self, message: Any) -> Any:
        return await self.ask(message, self._versions.get(message.API_KEY, 0))


_log = logging.getLogger("zkgroups.gateway")

_KIND_SIZE: Final = 8
_SHORT_START: Final = 512
_LONGEST_NAME: Final = 256
"""In characters: how much of the name of a client is remembered."""
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
        group_codec: GroupCodec,
        limits: Limits,
        *,
        node: int | None,
    ) -> None:
        self._stream = stream
        self._upstream = upstream
        self._groups = groups
        self._group_codec = group_codec
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
        if not self._learn_client(kind):
            return False
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
                return self._forward(Changed(kind, change))

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

    def _learn_client(self, kind: RequestKind) -> bool:
        """Note the name and the software of the client, which answers depend on. Return False if they have not arrived.

        The name is in each Metadata request, the software in the first ApiVersions request.
        """
        if kind.key == codec.API_VERSIONS:
            if (start := self._stream.frames.start(SOFTWARE_END)) is None:
                return False
            self._requester.keeps_addresses |= is_librdkafka(start)
        if kind.key != codec.METADATA:
            return True
        if (start := self._stream.frames.start(NAME_START)) is None:
            return False
        end = name_end(start)
        if (start := self._stream.frames.start(end)) is None:
            return False
        self._requester.name = start[NAME_START:end].decode(errors="replace")[:_LONGEST_NAME]
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
        frame, received = await self._group_codec.receive(self._stream)
        if kind.key == codec.FIND_COORDINATOR:
            self._requester.name = (received.client_id or "")[:_LONGEST_NAME]
        self._is_parked = kind.key in _PARKED
        answer = await self._groups.answer(received, self._requester)
        self._is_parked = False
        if answer is not None:
            self._answers.add(Ready(await self._group_codec.encode(answer, received)))
            return
        await self._upstream.open(answers_due=self._answers.waits_for_broker)
        is_changed = kind.key == codec.FIND_COORDINATOR
        self._answers.add(Changed(kind, self._requester.change(kind)) if is_changed else Forwarded(kind))
        self._upstream.send(SIZE.pack(len(frame)) + frame)
