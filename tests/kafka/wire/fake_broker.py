"""A server that answers like a broker, until a test tells it to lie."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Self

from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.address import Address
from zkgroups.testing import ports

HOST = ports.HOST
HEADER = struct.Struct(">ihhih")

Send = Callable[[bytes], Awaitable[None]]
Behaviour = Callable[["Asked", Send], Awaitable[None]]


class Asked:
    """A request: its kind, version, correlation id, and message."""

    def __init__(self, frame: bytes) -> None:
        _, self.key, self.version, self.id, client = HEADER.unpack_from(frame)
        start = HEADER.size + client
        kind = getattr(codec, f"{codec.APIS[self.key].name}Request")
        start += 1 if kind.flexible_version_q(self.version) else 0
        self.message = kind.decode(frame[start:], version=self.version)

    def frame(self, response: Any) -> bytes:
        """The frame of an answer."""
        flexible = response.flexible_version_q(self.version) and self.key != codec.API_VERSIONS
        body = struct.pack(">i", self.id) + bytes(flexible) + bytes(response.encode(version=self.version))
        return struct.pack(">i", len(body)) + body


class FakeBroker:
    """Reports its versions, repeats names of groups that it is asked to describe, and knows what tests tell it.

    While it is stopped, nothing else listens at its port.
    """

    def __init__(self) -> None:
        self._reserved = ports.reserve()
        self.port = self._reserved.number
        self._server: asyncio.Server | None = None
        self._served: set[asyncio.StreamWriter] = set()
        self.brokers: Mapping[int, Address] = {}
        """The brokers of its cluster; itself if there are none."""
        self.leaders: Mapping[str, Mapping[int, int]] = {}
        """The topics, with the leader of each partition."""
        self.last_versions: dict[int, int] = {}
        """The last versions of some kinds of requests, if not the last that we use."""
        self.behaviours: dict[int, Behaviour] = {}
        """What to do instead of answering, by the kind of the request."""
        self.asked: list[int] = []
        self.connections = 0

    @property
    def address(self) -> Address:
        assert self._server is not None
        return Address(HOST, self._server.sockets[0].getsockname()[1])

    async def answer(self, asked: Asked, send: Send) -> None:
        """Answer a request honestly."""
        await send(asked.frame(self._response(asked)))

    def _response(self, asked: Asked) -> Any:
        if asked.key == codec.API_VERSIONS:
            api = codec.ApiVersionsResponse.ApiVersion
            last = {key: it.last for key, it in codec.APIS.items()} | self.last_versions
            known = [api(api_key=key, min_version=it.first, max_version=last[key]) for key, it in codec.APIS.items()]
            return codec.ApiVersionsResponse(api_keys=known)
        if asked.key == codec.METADATA:
            broker = codec.MetadataResponse.MetadataResponseBroker
            known = [
                broker(node_id=node, host=it.host, port=it.port)
                for node, it in (self.brokers or {1: self.address}).items()
            ]
            topics = [_topic(name, leaders) for name, leaders in self.leaders.items()]
            return codec.MetadataResponse(brokers=known, topics=topics, cluster_id="fake", controller_id=-1)
        if asked.key == codec.SASL_HANDSHAKE:
            return codec.SaslHandshakeResponse(error_code=0, mechanisms=[])
        return described(asked.message.groups)

    async def start(self) -> Self:
        self._server = await asyncio.start_server(self._serve, HOST, self.port)
        return self

    async def stop(self) -> None:
        """Stop to listen, and cut all connections."""
        if self._server is not None:
            self._server.close()
            self.cut()
            await asyncio.sleep(0.01)
        self._server = None

    def cut(self) -> None:
        for writer in self._served:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._served.add(writer)

        async def send(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                size = await reader.readexactly(4)
                asked = Asked(size + await reader.readexactly(struct.unpack(">i", size)[0]))
                self.asked.append(asked.key)
                await self.behaviours.get(asked.key, self.answer)(asked, send)
        writer.transport.abort()
        self._served.discard(writer)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        self._reserved.release()


def _topic(name: str, leaders: Mapping[int, int]) -> Any:
    kind = codec.MetadataResponse.MetadataResponseTopic
    partitions = [
        kind.MetadataResponsePartition(
            partition_index=number, leader_id=leader, replica_nodes=[], isr_nodes=[], offline_replicas=[]
        )
        for number, leader in leaders.items()
    ]
    return kind(error_code=0, name=name, topic_id=None, partitions=partitions)


def described(groups: list[str]) -> Any:
    kind = codec.DescribeGroupsResponse
    return kind(groups=[kind.DescribedGroup(group_id=group, members=[]) for group in groups])


DESCRIBE = 15


def describe(group: str) -> Any:
    return codec.DescribeGroupsRequest(groups=[group])
