"""A gateway in front of Kafka's brokers: it speaks their protocol, and keeps consumer groups itself.

    clients  --->  connections/  --->  brokers
                       |
                   protocol/ (the offer, addresses, routes, translations: rules without I/O)
                       |
                   groups/  --->  zkgroups.coordinator  --->  a storage

1. A client connects to a listener (`connections/client_stream.py`): one for all, and one for each broker, whose ports
   never change (`protocol/node_ports.py`).
2. `connections/client_connection.py` reads its requests. `protocol/offered_apis.py` lists the requests that are
   offered. All but a few are forwarded unread, in parts (`connections/frames.py`), on a connection to the broker that
   belongs to this client alone (`connections/upstream.py`).
3. Answers that name brokers are changed (`protocol/addresses.py`, `protocol/api_versions.py`). All answers are sent in
   the order of the requests (`connections/answer_queue.py`).
4. Requests about groups go to `groups/group_service.py`. The name of the group decides (`protocol/group_routing.py`).
   The broker is asked whether the client may do that (`protocol/permissions.py`).
5. `groups/coordinator_host.py` runs the coordinator: a state machine, which knows no clock and no connection.
"""

from __future__ import annotations

from .gateway import Gateway
from .limits import Limits
from .protocol.group_routing import GroupRouting
from .protocol.node_ports import NodePorts
from .settings import GatewaySettings

__all__ = ["Gateway", "GatewaySettings", "GroupRouting", "Limits", "NodePorts"]
