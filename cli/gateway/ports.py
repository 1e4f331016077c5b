"""Convert the options of `zkgroups gateway` for the ports of brokers, and for its own address."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from zkgroups.gateway import GatewaySettings, NodePorts
    from zkgroups.gateway.protocol.node_ports import GatewayAddress
    from zkgroups.kafka.wire.address import Address

_PORTS: Final = 100
_ANY: Final = ("0.0.0.0", "::")  # noqa: S104 -- compared, never a default
"""Hosts that stand for all addresses of the machine."""


def port_range(text: str | None, listen: Address) -> NodePorts:
    """Return the ports of brokers."""
    from zkgroups.gateway import NodePorts

    if text is None:
        return NodePorts(listen.port + 1, listen.port + _PORTS)
    found = re.fullmatch("([0-9]{1,5})-([0-9]{1,5})", text)
    if found is None:
        raise click.BadParameter("it must be a range of ports, like 19100-19199", param_hint="--broker-ports")
    ports = NodePorts(int(found[1]), int(found[2]))
    if ports.first <= listen.port <= ports.last:
        raise click.BadParameter("it must not contain the port of --listen", param_hint="--broker-ports")
    return ports


def reachable_address(settings: GatewaySettings) -> GatewayAddress:
    """Return the address to which other gateways send clients: advertised, or listened on, or this machine's."""
    from zkgroups.gateway.protocol.node_ports import GatewayAddress

    host = settings.advertised_host or settings.listen.host
    return GatewayAddress(socket.getfqdn() if host in _ANY else host, settings.ports)
