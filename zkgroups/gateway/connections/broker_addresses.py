"""The brokers of the cluster, and an address at the gateway for each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from ...kafka.wire.address import Address
from ..protocol.node_ports import NodePorts
from .other_gateways import OtherGateways

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
