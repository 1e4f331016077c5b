"""Other gateways to which clients were sent, because they coordinate groups.

Some clients ignore the address in an answer to FindCoordinator, and look for the id of the coordinator in the list of
brokers. So a client that was sent to another gateway sees it in this list for a while. Other clients do not see it:
tools ask all brokers for their groups, and would get some groups twice.
"""

from __future__ import annotations

import time
from typing import Final

from ...kafka.wire.address import Address
from ..protocol.addresses import gateway_node

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
