"""A gateway in front of Kafka's brokers: it speaks their protocol, and keeps consumer groups itself.

    clients  --->  connections/  --->  brokers
                       |
                   protocol/ (offered requests, addresses, routes, conversions: rules without I/O)
                       |
                   groups/  --->  zkgroups.coordinator  --->  a storage

1. A client connects to a listener (`connections/streams.py`). The first listener is for all clients. Each broker
   has another one, whose port never changes (`protocol/addresses.py`).
2. `connections/client_connection.py` reads its requests. `protocol/offered_apis.py` lists the requests that are
   offered. Most requests are forwarded without being decoded, in parts (`protocol/frames.py`). Each client has its
   own connection to the broker (`connections/upstream.py`).
3. Answers that name brokers are changed (`protocol/addresses.py`, `protocol/offered_apis.py`). All answers are sent in
   the order of the requests (`connections/client_connection.py`).
4. Requests about groups go to `groups/group_service.py`. The name of the group decides whether the gateway or the
   broker answers (`protocol/offered_apis.py`). The broker says whether the client has the permission
   (`protocol/offered_apis.py`).
5. `groups/coordinator_host.py` runs the coordinator: a state machine without clock and connections.
"""

from __future__ import annotations

from .gateway import Gateway
from .protocol.addresses import NodePorts
from .protocol.offered_apis import GroupRouting
from .settings import GatewaySettings, Limits

__all__ = ["Gateway", "GatewaySettings", "GroupRouting", "Limits", "NodePorts"]
