"""The requests that the gateway offers: an allow list of Kafka's API keys and their versions.

Requests and versions that are missing here are hidden from clients. A client that sends one anyway is disconnected. So
no request of a later Kafka can show clients the address of a broker. The list hides on purpose:

- the newer kinds of groups: consumer groups of KIP-848 (68, 69), share groups (76 to 80, 90 to 92), streams groups
  (88, 89). A client gets an error that tells it to use `group.protocol=classic`.
- offsets in transactions (25, 28): groups here cannot take part in a transaction of Kafka.
- telemetry (71, 72), delegation tokens (38 to 41), and the requests of brokers to each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from ...kafka.wire import codec


class Handling(Enum):
    """What the gateway does with a request."""

    FORWARD = auto()
    """Pass the request and its answer on, unread."""
    PRODUCE = auto()
    """Pass both on, unread. A request with `acks=0` is not answered."""
    CHANGE_ANSWER = auto()
    """Pass the request on, and replace the addresses of brokers in its answer."""
    GROUPS = auto()
    """Answer it here, or pass it on to the brokers. The names of its groups decide."""


@dataclass(frozen=True, slots=True)
class Offered:
    """A kind of request, with its first and last version."""

    name: str
    first: int
    last: int
    handling: Handling = Handling.FORWARD


PRODUCE: Final = 0
FETCH: Final = 1


def _served(key: int, handling: Handling) -> Offered:
    api = codec.SERVED[key]
    return Offered(api.name, api.first, api.last, handling)


OFFERED: Final = {
    # The answers of later versions contain the addresses of new leaders.
    PRODUCE: Offered("Produce", 0, 9, Handling.PRODUCE),
    FETCH: Offered("Fetch", 0, 15),
    2: Offered("ListOffsets", 0, 10),
    codec.METADATA: _served(codec.METADATA, Handling.CHANGE_ANSWER),
    codec.OFFSET_COMMIT: _served(codec.OFFSET_COMMIT, Handling.GROUPS),
    codec.OFFSET_FETCH: _served(codec.OFFSET_FETCH, Handling.GROUPS),
    codec.FIND_COORDINATOR: _served(codec.FIND_COORDINATOR, Handling.GROUPS),
    codec.JOIN_GROUP: _served(codec.JOIN_GROUP, Handling.GROUPS),
    codec.HEARTBEAT: _served(codec.HEARTBEAT, Handling.GROUPS),
    codec.LEAVE_GROUP: _served(codec.LEAVE_GROUP, Handling.GROUPS),
    codec.SYNC_GROUP: _served(codec.SYNC_GROUP, Handling.GROUPS),
    codec.DESCRIBE_GROUPS: _served(codec.DESCRIBE_GROUPS, Handling.GROUPS),
    codec.LIST_GROUPS: _served(codec.LIST_GROUPS, Handling.GROUPS),
    # Not version 0: the login after it consists of bytes that are not requests.
    codec.SASL_HANDSHAKE: Offered("SaslHandshake", 1, 1),
    codec.API_VERSIONS: _served(codec.API_VERSIONS, Handling.CHANGE_ANSWER),
    19: Offered("CreateTopics", 0, 7),
    20: Offered("DeleteTopics", 0, 6),
    21: Offered("DeleteRecords", 0, 2),
    22: Offered("InitProducerId", 0, 5),
    23: Offered("OffsetForLeaderEpoch", 0, 4),
    # Later versions of these two belong to transaction.version 2: see api_versions.py.
    24: Offered("AddPartitionsToTxn", 0, 3),
    26: Offered("EndTxn", 0, 4),
    29: Offered("DescribeAcls", 0, 3),
    30: Offered("CreateAcls", 0, 3),
    31: Offered("DeleteAcls", 0, 3),
    codec.DESCRIBE_CONFIGS: _served(codec.DESCRIBE_CONFIGS, Handling.CHANGE_ANSWER),
    33: Offered("AlterConfigs", 0, 2),
    34: Offered("AlterReplicaLogDirs", 0, 2),
    35: Offered("DescribeLogDirs", 0, 4),
    codec.SASL_AUTHENTICATE: Offered("SaslAuthenticate", 0, 2),
    37: Offered("CreatePartitions", 0, 3),
    codec.DELETE_GROUPS: _served(codec.DELETE_GROUPS, Handling.GROUPS),
    43: Offered("ElectLeaders", 0, 2),
    44: Offered("IncrementalAlterConfigs", 0, 1),
    45: Offered("AlterPartitionReassignments", 0, 1),
    46: Offered("ListPartitionReassignments", 0, 0),
    codec.OFFSET_DELETE: _served(codec.OFFSET_DELETE, Handling.GROUPS),
    48: Offered("DescribeClientQuotas", 0, 1),
    49: Offered("AlterClientQuotas", 0, 1),
    50: Offered("DescribeUserScramCredentials", 0, 0),
    51: Offered("AlterUserScramCredentials", 0, 0),
    # Version 2 has the addresses of controllers.
    55: Offered("DescribeQuorum", 0, 1),
    57: Offered("UpdateFeatures", 0, 1),
    codec.DESCRIBE_CLUSTER: _served(codec.DESCRIBE_CLUSTER, Handling.CHANGE_ANSWER),
    61: Offered("DescribeProducers", 0, 0),
    65: Offered("DescribeTransactions", 0, 0),
    66: Offered("ListTransactions", 0, 1),
    75: Offered("DescribeTopicPartitions", 0, 0),
}
"""By Kafka's API key."""


def offered(key: int, version: int) -> Offered | None:
    """Return how to handle a request; None if it is not offered in this version.

    >>> offered(codec.METADATA, 9).handling, offered(FETCH, 16), offered(68, 0)
    (<Handling.CHANGE_ANSWER: 3>, None, None)
    """
    found = OFFERED.get(key)
    return found if found is not None and found.first <= version <= found.last else None
