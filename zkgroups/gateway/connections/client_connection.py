"""The connection of one client: requests are forwarded or answered, and all answers keep their order.

The gateway answers a request about groups before it reads the next request of the client, as a broker does. It forwards
other requests at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from ...kafka.wire import codec
from ...kafka.wire.address import Address
from ...kafka.wire.codec import RequestKind
from ...kafka.wire.errors import DamagedAnswerError, DamagedRequestError
from ..groups.group_service import GroupService
from ..limits import Limits
from ..protocol.addresses import NAMES_BROKERS, add_gateways, brokers_in, hide_address_settings, replace_addresses
from ..protocol.api_versions import layout, limit_versions, unknown_version
from ..protocol.client_name import NAME_START, name_end
from ..protocol.offered_apis import Handling, offered
from ..protocol.permissions import Permission
from ..protocol.produce_acks import START_SIZE, expects_answer
from .answer_queue import AnswerQueue, Captured, Changed, Forwarded, Ready
from .broker_addresses import BrokerAddresses
from .byte_stream import StalledError
from .client_stream import ClientStream
from .frames import Frame, FrameError, FrameReader
from .group_permissions import GroupPermissions
from .large_messages import RequestDecoder
from .upstream import Upstream, UpstreamError

_log = logging.getLogger("zkgroups.gateway")

_KIND_SIZE: Final = 8
_SHORT_START: Final = 512
_CLIENT: Final = "zkgroups-gateway"
_WITHOUT_TOPICS: Final = 1
"""The first version of Metadata that can be asked about brokers alone."""
_PARKED: Final = {codec.JOIN_GROUP, codec.SYNC_GROUP}
"""Requests that may wait for minutes. They are stopped if the client disconnects. All others are finished even then: a
client may commit or leave, and close its connection at once."""

T = TypeVar("T")


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
        self.host = f"/{stream.peer}"
        self.node = node
        self._stream = stream
        self._upstream = upstream
        self._addresses = addresses
        self._groups = groups
        self._decoder = decoder
        self._limits = limits
        self._frames = FrameReader(stream, longest=limits.request_size, stall_timeout=limits.stall_timeout)
        self._answers = AnswerQueue(stream, upstream, limits)
        self._permissions = GroupPermissions(self._probe)
        self._client = self.host, ""
        self._versions: dict[int, int] = {}
        """The first version of each request that the broker supports."""

    async def serve(self) -> None:
        """Serve the client. Errors close the connection."""
        sending = asyncio.create_task(self._answers.run())
        receiving = asyncio.create_task(self._receive())
        self._ended = asyncio.create_task(self._stream.ended.wait())
        try:
            done, _ = await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except (FrameError, StalledError, UpstreamError, DamagedRequestError, DamagedAnswerError, OSError) as error:
            _log.info("closed the connection of %s: %s", self.host, error)
        except Exception:
            _log.exception("closed the connection of %s", self.host)
        finally:
            for task in (sending, receiving):
                task.cancel()
            self._ended.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)
            self._upstream.close()
            self._stream.abort() if self._stream.ended.is_set() else self._stream.close()

    # Requests

    async def _receive(self) -> None:
        while (frame := await self._next()) is not None:
            kind = RequestKind.read(await frame.start(_KIND_SIZE))
            found = offered(kind.key, kind.version)
            if found is None:
                await self._refuse(kind, frame)
                continue
            match found.handling:
                case Handling.FORWARD:
                    self._upstream.logged_in |= kind.key == codec.SASL_HANDSHAKE
                    await self._forward(frame, Forwarded(kind))
                case Handling.PRODUCE:
                    answered = await self._expects_answer(frame)
                    await self._forward(frame, Forwarded(kind) if answered else None)
                case Handling.CHANGE_ANSWER:
                    await self._learn_client(kind, frame)
                    await self._forward(frame, Changed(kind, self._change(kind)))
                case Handling.GROUPS:
                    await self._learn_client(kind, frame)
                    await self._about_groups(kind, frame)

    async def _learn_client(self, kind: RequestKind, frame: Frame) -> None:
        if kind.key in (codec.METADATA, codec.FIND_COORDINATOR):
            end = name_end(await frame.start(NAME_START))
            name = (await frame.start(end))[NAME_START:end]
            self._client = self.host, name.decode(errors="replace")

    async def _next(self) -> Frame | None:
        """Return the next request. None at the end of the connection, or after a long time without requests."""
        return await self._frames.next(idle_timeout=self._limits.idle_timeout, busy=lambda: not self._answers.is_empty)

    async def _refuse(self, kind: RequestKind, frame: Frame) -> None:
        """Answer ApiVersions in an unknown version. Disconnect a client that sends any other request."""
        if kind.key != codec.API_VERSIONS:
            raise DamagedRequestError(f"request {kind.key} in version {kind.version} is not offered")
        async for _ in frame.parts():
            pass
        await self._answers.add(Ready(codec.encode_answer(unknown_version(), 0, kind.correlation_id)))

    async def _expects_answer(self, frame: Frame) -> bool:
        """Look at the start of a Produce request. Its part before the messages is nearly always short."""
        try:
            return expects_answer(await frame.start(_SHORT_START))
        except DamagedRequestError:
            return expects_answer(await frame.start(START_SIZE))

    async def _forward(self, frame: Frame, due: Forwarded | Changed | None) -> None:
        await self._upstream.connect_if_needed(answers_due=self._answers.waits_for_broker)
        if due is not None:
            await self._answers.add(due)
        async for part in frame.parts():
            await self._upstream.send(part)

    async def _about_groups(self, kind: RequestKind, frame: Frame) -> None:
        if frame.size > self._limits.group_request_size:
            raise DamagedRequestError(
                f"a request of {frame.size} bytes about groups; at most {self._limits.group_request_size} are accepted"
            )
        received = await self._decoder.decode(frame)
        answering = self._groups.answer(received, self)
        answer = await (self._while_connected(answering) if kind.key in _PARKED else answering)
        if answer is not None:
            await self._answers.add(Ready(codec.encode_answer(answer, kind.version, kind.correlation_id)))
            return
        changed = kind.key == codec.FIND_COORDINATOR
        await self._forward(frame, Changed(kind, self._change(kind)) if changed else Forwarded(kind))

    async def _while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of work, or stop it when the client disconnects."""
        working = asyncio.create_task(work)

        def stop(_ended: object) -> None:
            working.cancel()

        self._ended.add_done_callback(stop)
        try:
            return await working
        except asyncio.CancelledError:
            if self._stream.ended.is_set():
                raise FrameError("the client disconnected") from None
            raise
        finally:
            self._ended.remove_done_callback(stop)

    # Answers of the broker

    def _change(self, kind: RequestKind) -> Any:
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
            known = await self._addresses.add(brokers_in(answer), self._stream.local)
        else:
            known = await self._addresses.replace(brokers_in(answer), self._stream.local)
        replace_addresses(answer, known)
        if answer.API_KEY == codec.METADATA:
            add_gateways(answer, self._addresses.other_gateways.of(self._client))

    # For requests about groups

    async def ask(self, message: Any, version: int) -> Any:
        """Return the answer of the broker to a request of the gateway, on this client's connection."""
        kind = RequestKind(message.API_KEY, version, 0)
        await self._upstream.connect_if_needed(answers_due=self._answers.waits_for_broker)
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await self._answers.add(Captured(kind, waiting))
        await self._upstream.send(codec.encode(message, version, kind.correlation_id, _CLIENT))
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
        known = self._addresses.known(self._stream.local)
        if not known:
            await self.ask(codec.MetadataRequest(topics=[]), _WITHOUT_TOPICS)
            known = self._addresses.known(self._stream.local)
        return known

    def add_gateway(self, address: Address) -> int:
        """Return the id under which this client sees an elected gateway."""
        return self._addresses.other_gateways.add(self._client, address)

    async def _probe(self, message: Any) -> Any:
        return await self.ask(message, self._versions.get(message.API_KEY, 0))
