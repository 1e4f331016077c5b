"""The node of the gateway that coordinates a group. Other gateways tell clients the address in it.

    /zkgroups/coordinators/<group>    {"version":1,"id":"6f1c…","host":"gateway-1","ports":[19093,19192]}

The node is ephemeral, so it ends with the session of the gateway. The gateway has a port for each broker.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from .decoding import is_int

_VERSION: Final = 1
_LAST_PORT: Final = 65535
_LONGEST_HOST: Final = 255
"""The names of hosts in the DNS are shorter."""


@dataclass(frozen=True, slots=True)
class CoordinatorNode:
    """The gateway that coordinates a group.

    - `id`: differs between all gateways, also between those with the same session.
    - `host`: the name or address at which clients reach it. Empty if the node is malformed.
    - `first_port`, `last_port`: the ports for the brokers.
    """

    id: str
    host: str = ""
    first_port: int = 0
    last_port: int = 0


def encode_coordinator(node: CoordinatorNode) -> bytes:
    """Encode the node.

    >>> encode_coordinator(CoordinatorNode("6f1c", "gateway-1", 19093, 19192))
    b'{"version":1,"id":"6f1c","host":"gateway-1","ports":[19093,19192]}'
    """
    fields = {"version": _VERSION, "id": node.id, "host": node.host, "ports": [node.first_port, node.last_port]}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_coordinator(data: bytes) -> CoordinatorNode:
    """Decode the node. A malformed node, or one of a later version, has no host: clients must try again later.

    >>> decode_coordinator(encode_coordinator(CoordinatorNode("6f1c", "gateway-1", 19093, 19192)))
    CoordinatorNode(id='6f1c', host='gateway-1', first_port=19093, last_port=19192)
    >>> decode_coordinator(b'{"version":1,"id":"6f1c","host":"gateway-1","ports":[19093,-1]}')
    CoordinatorNode(id='6f1c', host='', first_port=0, last_port=0)
    >>> decode_coordinator(b'{"version":1,"id":"6f1c","host":"gateway-\\\\ud800","ports":[19093,19192]}').host
    ''
    """
    try:
        fields: Any = json.loads(data)
    except (ValueError, RecursionError):
        return CoordinatorNode("")
    if not isinstance(fields, dict):
        return CoordinatorNode("")
    id, host, ports = fields.get("id"), fields.get("host"), fields.get("ports")
    id = id if isinstance(id, str) else ""
    if fields.get("version") != _VERSION or not _is_host(host) or not _is_range(ports):
        return CoordinatorNode(id)
    first, last = ports
    return CoordinatorNode(id, host, first, last)


def _is_host(host: Any) -> TypeGuard[str]:
    """Return whether an answer to a client can contain this name or address."""
    return isinstance(host, str) and len(host) <= _LONGEST_HOST and host.isprintable()


def _is_range(ports: Any) -> TypeGuard[list[int]]:
    match ports:
        case [first, last] if is_int(first) and is_int(last):
            return bool(0 < first <= last <= _LAST_PORT)
    return False
