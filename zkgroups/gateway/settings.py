"""The settings of a gateway."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from ..kafka.wire.address import Address
from ..kafka.wire.security import Security
from .limits import Limits
from .protocol.group_routing import GroupRouting
from .protocol.node_ports import NodePorts


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """All settings but those of the coordinator.

    - `listen`: the address for clients to begin with.
    - `ports`: the range of ports for the addresses of brokers.
    - `bootstrap`: the addresses of some brokers.
    - `security`: TLS to the brokers, and the gateway's own login. Clients log in by themselves.
    - `advertised_host`: the name of this machine for clients. Without it, the address to which they have connected.
    - `tls`: the certificate of the gateway, if clients connect with TLS.
    - `routing`: the groups that are answered here.
    - `read_only`: refuse requests that change a group.
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
