"""Replace the addresses of brokers in answers by addresses of the gateway.

`NAMES_BROKERS` lists all answers that contain brokers. A broker without an address at the gateway is removed from
answers to Metadata and DescribeCluster. In answers to FindCoordinator, COORDINATOR_NOT_AVAILABLE replaces it. Clients
repeat these requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from zlib import crc32

from ...core.znodes.own_nodes import CoordinatorNode
from ...input_errors import InvalidOptionError
from ...kafka.wire import codec
from ...kafka.wire.connection import Code
from ...kafka.wire.errors import LAST_PORT, Address

# The port of each broker at the gateway: always the same, so that addresses stay valid when the gateway restarts.


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


Addresses = Mapping[int, Address]
"""By the id of the broker."""

NAMES_BROKERS: Final = {codec.METADATA, codec.DESCRIBE_CLUSTER, codec.FIND_COORDINATOR}

FIRST_WITH_SEVERAL_KEYS: Final = 4
"""The first version of FindCoordinator with several keys."""

NOBODY: Final = Address("", -1)
NO_NODE: Final = -1
_FIRST_GATEWAY: Final = 1 << 30

_BROKER_RESOURCE: Final = 4
_ADDRESS_SETTINGS: Final = re.compile(
    r"(.*\.)?(listeners|host\.name|port|advertised\.port|quorum\.voters|bootstrap\.servers|zookeeper\.connect)"
)
"""Settings of a broker that contain addresses."""


def addresses_at(gateway: CoordinatorNode, nodes: Iterable[int]) -> dict[int, Address]:
    """Return the addresses of brokers at another gateway. Empty if its node is malformed.

    >>> addresses_at(CoordinatorNode("6f1c", "gateway-1", 19093, 19192), [1])
    {1: Address(host='gateway-1', port=19094)}
    """
    if not gateway.host:
        return {}
    ports = NodePorts(gateway.first_port, gateway.last_port)
    known = list(nodes)
    return {node: Address(gateway.host, ports.port(node)) for node in known if node not in ports.conflicts(known)}


def gateway_node(address: Address) -> int:
    """Return the id under which clients see another gateway: always the same, and higher than the ids of brokers.

    >>> gateway_node(Address("gateway-1", 19094))
    1392586963
    """
    return _FIRST_GATEWAY + crc32(str(address).encode()) % (_FIRST_GATEWAY // 2)


def add_gateways(answer: Any, gateways: Addresses) -> None:
    """Add other gateways to the brokers in an answer to Metadata.

    Some clients take the address of a coordinator from there, and not from the answer to FindCoordinator.
    """
    kind = codec.MetadataResponse.MetadataResponseBroker
    answer.brokers += [kind(node_id=id, host=host, port=port) for id, (host, port) in sorted(gateways.items())]


def brokers_in(answer: Any) -> dict[int, Address]:
    """Return the brokers in an answer, by their ids."""
    found = {}
    for each in _entries(answer):
        if (node := _node(each)) >= 0:
            found[node] = Address(each.host, each.port)
    return found


def replace_addresses(answer: Any, addresses: Addresses) -> None:
    """Replace all addresses in an answer of one of `NAMES_BROKERS`."""
    if answer.API_KEY == codec.FIND_COORDINATOR:
        for each in _entries(answer):
            _replace_coordinator(each, addresses)
        return
    answer.brokers = [each for each in answer.brokers if _node(each) in addresses]
    for each in answer.brokers:
        each.host, each.port = addresses[_node(each)]


def _replace_coordinator(found: Any, addresses: Addresses) -> None:
    if found.error_code or found.node_id not in addresses:
        found.error_code = found.error_code or Code.COORDINATOR_NOT_AVAILABLE
        found.node_id = NO_NODE
    found.host, found.port = addresses.get(found.node_id, NOBODY)


def _entries(answer: Any) -> list[Any]:
    """Return the parts of an answer that have a host and a port."""
    if answer.API_KEY != codec.FIND_COORDINATOR:
        return list(answer.brokers)
    return [answer] if answer.API_VERSION < FIRST_WITH_SEVERAL_KEYS else list(answer.coordinators)


def _node(entry: Any) -> int:
    return int(entry.broker_id if hasattr(entry, "broker_id") else entry.node_id)


def hide_address_settings(answer: Any) -> None:
    """Remove the values of settings with addresses from an answer to DescribeConfigs, as brokers do with passwords."""
    for resource in answer.results:
        if resource.resource_type != _BROKER_RESOURCE:
            continue
        for setting in resource.configs:
            if _ADDRESS_SETTINGS.fullmatch(setting.name):
                setting.value, setting.is_sensitive = None, True
            for synonym in setting.synonyms or ():
                if _ADDRESS_SETTINGS.fullmatch(synonym.name):
                    synonym.value = None
