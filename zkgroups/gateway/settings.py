"""The settings of a gateway."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TypeVar

from ..input_errors import InvalidOptionError
from ..kafka.wire.errors import Address
from ..kafka.wire.security import Security
from .protocol.addresses import NodePorts
from .protocol.offered_apis import GroupRouting

# The resources that clients may use, so that slow or hostile clients cannot stall other clients.


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a gateway. Sizes are in bytes, times in seconds.

    - `connections`: the largest number of connected clients. Further clients are disconnected at once.
    - `request_size`: the largest request. A client that sends a larger one is disconnected.
    - `group_request_size`: the largest request about groups. These are decoded, so they need more memory.
    - `group_request_entries`: the most groups, topics, partitions, members and strategies in such a request.
    - `requests_in_flight`: the largest number of unanswered requests of one client. Further requests are not read.
    - `groups`: the largest number of groups in memory. Further groups are refused.
    - `members`: the largest number of members of a group.
    - `stall_timeout`: the longest pause within a message. Then the connection is closed.
    - `idle_timeout`: the longest time without requests and answers. Then the connection is closed.
    """

    connections: int = 5000
    request_size: int = 100 * 1024 * 1024
    group_request_size: int = 1024 * 1024
    group_request_entries: int = 20_000
    requests_in_flight: int = 100
    groups: int = 10_000
    members: int = 1000
    stall_timeout: float = 60.0
    idle_timeout: float = 600.0

    def __post_init__(self) -> None:
        for each in fields(self):
            if not getattr(self, each.name) > 0:
                raise InvalidOptionError(each.name, getattr(self, each.name), "must be above 0")


class Turns:
    """Carries out one long step at a time, and serves other clients before the next one.

    So other clients wait for one step, however many clients send long requests. Threads would make them wait longer:
    each thread that computes delays the event loop again and again.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def run(self, step: Callable[[], T]) -> T:
        """Carry out a step that may take up to a tenth of a second, and return its result."""
        async with self._turn:
            found = step()
            await asyncio.sleep(0)
            return found

    async def run_on_thread(self, step: Callable[[], T]) -> T:
        """Carry out a step that may take longer."""
        async with self._turn:
            return await asyncio.to_thread(step)


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """All settings except those of the coordinator.

    - `listen`: the address that clients use as their bootstrap server.
    - `ports`: the range of ports for the addresses of brokers.
    - `bootstrap`: the addresses of some brokers.
    - `security`: TLS to the brokers, and the gateway's own login. Clients log in by themselves.
    - `advertised_host`: the host name of the gateway for clients. None: the address to which a client has connected.
    - `tls`: the certificate of the gateway, if clients connect with TLS.
    - `routing`: the groups that are answered here.
    - `read_only`: refuse requests that change a group.
    - `limits`: the resources that clients may use.
    """

    listen: Address
    ports: NodePorts
    bootstrap: str
    security: Security = field(default_factory=Security)
    advertised_host: str | None = None
    tls: ssl.SSLContext | None = None
    routing: GroupRouting = field(default_factory=GroupRouting)
    read_only: bool = False
    limits: Limits = field(default_factory=Limits)
