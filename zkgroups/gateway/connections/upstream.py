"""The connection to a broker on behalf of one client."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from ...kafka.wire.errors import Address
from ..protocol.addresses import NodePorts, gateway_node
from .streams import FrameStream

# Other gateways to which clients were sent, because they coordinate groups.
#
# Some clients ignore the address in an answer to FindCoordinator, and look for the id of the coordinator in the list
# of brokers. So a client that was sent to another gateway sees it in this list for a while. Other clients do not see
# it: tools ask all brokers for their groups, and would get some groups twice.


_KNOWN_FOR: Final = 900.0
"""In seconds: how long a client sees a gateway after it was sent there."""
_MOST_CLIENTS: Final = 10_000


class OtherGateways:
    """The gateways to which each client was sent. A client is known by its host and its `client.id`."""

    def __init__(self) -> None:
        self._by_client: dict[tuple[str, str], dict[Address, float]] = {}

    def add(self, client: tuple[str, str], address: Address) -> int:
        """Note that a client was sent to this address. Return the id under which it sees the gateway."""
        known = self._by_client.pop(client, {})
        self._by_client[client] = known | {address: time.monotonic()}
        if len(self._by_client) > _MOST_CLIENTS:
            del self._by_client[next(iter(self._by_client))]  # the client that was sent away longest ago
        return gateway_node(address)

    def of(self, client: tuple[str, str]) -> dict[int, Address]:
        """Return the gateways that a client sees, by id."""
        limit = time.monotonic() - _KNOWN_FOR
        known = self._by_client.get(client, {})
        return {gateway_node(address): address for address, seen in known.items() if seen > limit}


# The brokers of the cluster, and an address at the gateway for each.


_log = logging.getLogger("zkgroups.gateway")

OpenListener = Callable[[int, int], Awaitable[None]]
"""Opens the listener of a broker. Its arguments: the id of the broker, and the port. Raises OSError."""


class BrokerAddresses:
    """Knows the brokers from their own answers, and opens a listener for each new one.

    - `host`: the host name of the gateway for clients. None: the address to which a client has connected.
    """

    def __init__(self, ports: NodePorts, host: str | None, open_listener: OpenListener) -> None:
        self._ports = ports
        self._host = host
        self._open_listener = open_listener
        self._brokers: dict[int, Address] = {}
        self._current: set[int] = set()
        self._listening: set[int] = set()
        self._reported: set[int] = set()
        self._opening = asyncio.Lock()
        self.other_gateways = OtherGateways()

    def real(self, node: int) -> Address | None:
        """Return the broker's own address."""
        return self._brokers.get(node)

    def known(self, local: str) -> dict[int, Address]:
        """Return the gateway's addresses of all brokers in the cluster, for a client that has connected to `local`."""
        return {node: self._address(node, local) for node in sorted(self._current & self._listening)}

    async def replace(self, brokers: Mapping[int, Address], local: str) -> dict[int, Address]:
        """Learn all brokers of the cluster, and return their addresses at the gateway."""
        if brokers:  # a broker that has just started answers with an empty list
            self._current = set(brokers)
        return await self.add(brokers, local)

    async def add(self, brokers: Mapping[int, Address], local: str) -> dict[int, Address]:
        """Learn some brokers, and return their addresses at the gateway."""
        self._brokers.update(brokers)
        self._current |= brokers.keys()
        if not brokers.keys() <= self._listening:
            async with self._opening:
                await self._open_all()
        return {node: self._address(node, local) for node in brokers if node in self._listening}

    async def _open_all(self) -> None:
        """Open the missing listeners. After a failure, try again when an answer of the cluster has this broker."""
        refused = self._ports.conflicts(self._brokers)
        for node, owner in refused.items():
            self._report(node, f"broker {owner} has the same port: choose a wider range with --broker-ports")
        for node in sorted(self._brokers.keys() - self._listening - refused.keys()):
            port = self._ports.port(node)
            try:
                await self._open_listener(node, port)
            except OSError as error:
                self._report(node, f"cannot listen on port {port}: {error}; choose others with --broker-ports")
            else:
                self._listening.add(node)

    def _report(self, node: int, reason: str) -> None:
        """Log why clients cannot reach a broker, once."""
        if node not in self._reported:
            self._reported.add(node)
            _log.error("clients cannot reach broker %d: %s", node, reason)

    def _address(self, node: int, local: str) -> Address:
        return Address(self._host or local, self._ports.port(node))


_CONNECT_TIMEOUT: Final = 10.0
_LONGEST_ANSWER: Final = 2**31 - 1


class UpstreamError(Exception):
    """No connection to a broker, or a connection that ended too early."""


class Upstream:
    """Connects to a broker before the first request is sent.

    A broker closes connections that are idle for some minutes. The connection of a client is idle while the gateway
    answers all its requests. The next request for the broker opens a new connection. This is not possible if an answer
    is due, or if the client has logged in. Then the client is disconnected, and repeats its requests and its login.

    - `addresses`: returns the addresses to try, one after the other. It is called for each attempt to connect.
    """

    def __init__(self, addresses: Callable[[], Sequence[Address]], tls: ssl.SSLContext | None) -> None:
        self._addresses = addresses
        self._tls = tls
        self.on_change: Callable[[], None] = _nothing
        """Called after each change of the stream."""
        self.stream: FrameStream | None = None
        """The last connection, which may have ended."""
        self.logged_in = False

    @property
    def is_open(self) -> bool:
        """True if requests can be sent."""
        return self.stream is not None and not (self.stream.ended or self.stream.is_closing)

    @property
    def has_ended(self) -> bool:
        """True if the broker has closed the connection."""
        return self.stream is not None and self.stream.ended

    @property
    def is_full(self) -> bool:
        """True while the broker reads too slowly."""
        return self.stream is not None and self.stream.is_full

    async def open(self, *, answers_due: bool) -> None:
        """Connect, unless there is a connection. Raise UpstreamError if that fails."""
        if self.is_open:
            return
        if self.stream is not None and (answers_due or self.logged_in):
            raise UpstreamError("the broker closed the connection")
        self.stream = await self._connect()
        self.stream.on_change = self.on_change

    def send(self, data: bytes | memoryview) -> None:
        """Send bytes to the broker. There must be a connection."""
        assert self.stream is not None
        self.stream.send(data)

    def close(self, longest: float) -> None:
        """Close the connection. Bytes that were sent still arrive, unless that takes longer, in seconds."""
        if self.stream is not None:
            self.stream.close(longest)

    async def _connect(self) -> FrameStream:
        loop, reasons = asyncio.get_running_loop(), []
        for address in self._addresses():
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT):
                    _, stream = await loop.create_connection(_stream, address.host, address.port, ssl=self._tls)
                    return stream
            except TimeoutError:
                reasons.append(f"{address}: no answer")
            except (OSError, UnicodeError) as error:
                reasons.append(f"{address}: {error}")
        raise UpstreamError(f"no connection to a broker: {'; '.join(reasons) or 'its address is not known'}")


def _stream() -> FrameStream:
    return FrameStream(longest=_LONGEST_ANSWER)


def _nothing() -> None:
    pass
