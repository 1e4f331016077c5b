"""The port of each broker at the gateway: always the same, so that addresses stay valid when the gateway restarts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ...input_errors import InvalidOptionError
from ...kafka.wire.address import LAST_PORT


@dataclass(frozen=True, slots=True)
class NodePorts:
    """A range of ports. A broker has the port `first + id`, modulo the size of the range.

    >>> ports = NodePorts(19100, 19199)
    >>> ports.port(1), ports.port(1001), ports.conflicts([1, 2, 101])
    (19101, 19101, {101: 1})
    """

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 < self.first <= self.last <= LAST_PORT:
            raise InvalidOptionError(
                "broker_ports", f"{self.first}-{self.last}", "it must be a range of ports, like 19100-19199"
            )

    def port(self, node: int) -> int:
        return self.first + node % (self.last - self.first + 1)

    def conflicts(self, nodes: Iterable[int]) -> dict[int, int]:
        """Return the brokers whose port belongs to a broker with a lower id. The values are those brokers."""
        owners: dict[int, int] = {}
        refused: dict[int, int] = {}
        for node in sorted(nodes):
            if (owner := owners.setdefault(self.port(node), node)) != node:
                refused[node] = owner
        return refused


class GatewayAddress(NamedTuple):
    """The address at which clients reach a gateway: its host, and its ports for the brokers."""

    host: str
    ports: NodePorts
