"""A server that answers like a broker, until a test tells it to lie, and tests with such brokers in simulated time."""

from __future__ import annotations

import asyncio
import inspect
import struct
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, Self, TypeVar

from tests.simulation.loop import HOST, simulated
from zkgroups.kafka.wire import codec
from zkgroups.kafka.wire.cluster import Cluster
from zkgroups.kafka.wire.errors import Address
from zkgroups.kafka.wire.link import Link
from zkgroups.kafka.wire.security import Security

HEADER = struct.Struct(">ihhih")
LONGEST = 600.0
"""In simulated seconds."""

T = TypeVar("T")

Send = Callable[[bytes], Awaitable[None]]
Behaviour = Callable[["Asked", Send], Awaitable[None]]


class Asked:
    """A request: its kind, version, correlation id, and message."""

    def __init__(self, frame: bytes) -> None:
        _, self.key, self.version, self.id, client = HEADER.unpack_from(frame)
        start = HEADER.size + client
        kind = getattr(codec, f"{(codec.APIS | codec.SERVED)[self.key].name}Request")
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
        self.port = 0
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
        return Address(HOST, self.port)

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
        if asked.key == codec.HEARTBEAT:
            return codec.HeartbeatResponse(error_code=25)
        return described(asked.message.groups)

    async def start(self) -> Self:
        self._server = await asyncio.start_server(self._serve, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
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


async def never(_asked: Asked, _send: Send) -> None:
    """A behaviour: do not answer."""
    await asyncio.Event().wait()


# Tests in simulated time


def simulate(use: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that must end."""
    with simulated():
        return asyncio.run(asyncio.wait_for(use, LONGEST))


def with_link(use: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a coroutine that gets a fake broker and a link to it."""

    async def main(arguments: Mapping[str, Any]) -> None:
        async with FakeBroker() as fake:
            link = Link(fake.address, Security())
            await use(fake, link, **arguments)
            link.close()

    return _test(use, main, given=2)


def with_brokers(use: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a coroutine that gets a cluster of two fake brokers, 0 and 1, which know each other and lead one
    partition of orders each."""

    async def main(arguments: Mapping[str, Any]) -> None:
        async with AsyncExitStack() as stack:
            fakes = [await stack.enter_async_context(FakeBroker()) for _ in range(2)]
            for fake in fakes:
                fake.brokers = {number: each.address for number, each in enumerate(fakes)}
                fake.leaders = {"orders": {0: 0, 1: 1}}
            cluster = await stack.enter_async_context(Cluster(str(fakes[0].address)))
            await use(cluster, fakes, **arguments)

    return _test(use, main, given=2)


def with_fakes(use: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a coroutine that gets a fake broker for each of its first parameters, up to a `*`."""
    given = sum(each.kind is not each.KEYWORD_ONLY for each in inspect.signature(use).parameters.values())

    async def main(arguments: Mapping[str, Any]) -> None:
        async with AsyncExitStack() as stack:
            await use(*[await stack.enter_async_context(FakeBroker()) for _ in range(given)], **arguments)

    return _test(use, main, given=given)


def _test(use: Any, main: Callable[[Mapping[str, Any]], Coroutine[Any, Any, None]], *, given: int) -> Any:
    """Return a function with the parameters of `use`, without those that `main` gives."""

    def test(**arguments: Any) -> None:
        simulate(main(arguments))

    test.__name__, test.__doc__ = use.__name__, use.__doc__
    signature = inspect.signature(use)
    left = [each.replace(kind=each.KEYWORD_ONLY) for each in [*signature.parameters.values()][given:]]
    test.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
    return test
