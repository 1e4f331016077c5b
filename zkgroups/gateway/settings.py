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
