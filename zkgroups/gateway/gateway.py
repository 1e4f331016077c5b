"""The gateway: its listeners, its coordinator, and its own connection to the brokers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Self, TypeAlias

from ..coordinator.config import CoordinatorConfig
from ..coordinator.storage import Storage
from ..exceptions import NotConnectedError
from ..kafka.wire.cluster import Cluster
from ..kafka.wire.errors import Address, WireError, addresses
from .connections.client_connection import ClientConnection
from .connections.streams import ClientStream, GroupCodec, listen
from .connections.upstream import BrokerAddresses, Upstream
from .groups.coordinator_host import BrokerTopics, CoordinatorHost, Report
from .groups.group_service import LAST_COMMITS, GroupService, Routes
from .settings import GatewaySettings

_log = logging.getLogger("zkgroups.gateway")

_LAST_ANSWERS: Final = 0.2
"""In seconds: how long connections stay open after the coordinator has answered everything."""

StorageFactory: TypeAlias = Callable[[BrokerTopics, Report], Storage]
"""Opens a storage. Its arguments: the topics of the brokers, and a receiver of events for the coordinator."""


class Gateway:
    """Serves clients while it is open. Use it as an asynchronous context manager.

    - `routes`: the routes of groups that were moved live, if the storage knows them.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        config: CoordinatorConfig,
        storage: StorageFactory,
        routes: Routes | None = None,
    ) -> None:
        self._settings = settings
        self._config = replace(config, max_members=settings.limits.members)
        self._storage = storage
        self._routes = routes
        self._bootstrap = addresses(settings.bootstrap)
        self._server: asyncio.Server | None = None
        self._node_servers: dict[int, asyncio.Server] = {}
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> Address:
        """The address that clients use as their bootstrap server."""
        assert self._server is not None
        return Address(*self._server.sockets[0].getsockname()[:2])

    @property
    def connections(self) -> int:
        """The number of connected clients."""
        return len(self._serving)

    async def __aenter__(self) -> Self:
        settings = self._settings
        self._cluster = Cluster(settings.bootstrap, settings.security, client_id="zkgroups-gateway")
        self._addresses = BrokerAddresses(settings.ports, settings.advertised_host, self._listen_for)
        topics = BrokerTopics(self._cluster)
        self._host = CoordinatorHost(
            lambda report: self._storage(topics, report),
            self._config,
            most_groups=settings.limits.groups,
        )
        self._groups = GroupService(
            self._host,
            settings.routing,
            read_only=settings.read_only,
            routes=self._routes,
            most_entries=settings.limits.group_request_entries,
        )
        self._codec = GroupCodec()
        try:
            await self._find_brokers()
            self._server = await self._listen(settings.listen, None)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop_listening()
        try:
            await self._host.let_leave(LAST_COMMITS)
        finally:
            self._host.close()
            await asyncio.sleep(_LAST_ANSWERS)
            await self._close()

    async def _find_brokers(self) -> None:
        """Open the listeners of all brokers, so that clients can reconnect at once after a restart of the gateway."""
        try:
            found = await self._cluster.metadata([])
        except WireError as error:
            reason = f"{error}; check the address, and the gateway's own TLS and login (--command-config)"
            raise NotConnectedError(f"no broker answered at {self._settings.bootstrap}: {reason}") from error
        await self._addresses.replace(found.brokers, self._settings.listen.host)

    async def _listen_for(self, node: int, port: int) -> None:
        """Open the listener of a broker."""
        self._node_servers[node] = await self._listen(Address(self._settings.listen.host, port), node)

    async def _listen(self, address: Address, node: int | None) -> asyncio.Server:
        settings = self._settings
        return await listen(
            *address,
            settings.tls,
            lambda client: self._accept(client, node),
            longest_request=settings.limits.request_size,
        )

    def _accept(self, client: ClientStream, node: int | None) -> None:
        limits = self._settings.limits
        if len(self._serving) >= limits.connections:
            _log.warning(
                "disconnected client %s: the gateway has %d connections already; allow more with --max-connections",
                client.peer,
                limits.connections,
            )
            client.abort()
            return
        upstream = Upstream(lambda: self._upstream_of(node), self._settings.security.tls)
        connection = ClientConnection(client, upstream, self._addresses, self._groups, self._codec, limits, node=node)
        task = asyncio.create_task(connection.serve())
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    def _upstream_of(self, node: int | None) -> list[Address]:
        """Return the addresses to which requests of a client can go."""
        if node is None:
            return list(self._bootstrap)
        real = self._addresses.real(node)
        return [] if real is None else [real]

    # The end

    def _stop_listening(self) -> None:
        for server in (self._server, *self._node_servers.values()):
            if server is not None:
                server.close()

    async def _close(self) -> None:
        self._stop_listening()
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        self._host.close()
        await self._cluster.close()
