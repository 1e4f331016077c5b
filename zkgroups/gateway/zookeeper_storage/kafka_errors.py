"""Kafka's error for each error of zkgroups.

Clients repeat a request after COORDINATOR_NOT_AVAILABLE, and show the other errors to their users. So every temporary
error is converted to COORDINATOR_NOT_AVAILABLE.
"""

from __future__ import annotations

import logging

from ...coordinator.values.kafka_errors import KafkaError
from ...exceptions import (
    AccessError,
    ConflictError,
    GroupInUseError,
    GroupMigratedError,
    GroupNotFoundError,
    InvalidNameError,
    UnavailableError,
    ZkgroupsException,
)
from .elections import NotCoordinatorError

log = logging.getLogger("zkgroups.gateway")

_BY_TYPE: tuple[tuple[type[ZkgroupsException], KafkaError], ...] = (
    (NotCoordinatorError, KafkaError.NOT_COORDINATOR),
    (InvalidNameError, KafkaError.INVALID_GROUP_ID),
    (AccessError, KafkaError.GROUP_AUTHORIZATION_FAILED),
    (GroupInUseError, KafkaError.NON_EMPTY_GROUP),
    (GroupNotFoundError, KafkaError.GROUP_ID_NOT_FOUND),
    # Clients retry until the migration of the group has ended. Then they may find the group on the brokers.
    (GroupMigratedError, KafkaError.COORDINATOR_NOT_AVAILABLE),
    (UnavailableError, KafkaError.COORDINATOR_NOT_AVAILABLE),
    (ConflictError, KafkaError.COORDINATOR_NOT_AVAILABLE),
)


def kafka_error_of(error: Exception) -> KafkaError:
    """Return Kafka's error. An error without one is logged; if it is not from zkgroups, with its traceback."""
    for kind, found in _BY_TYPE:
        if isinstance(error, kind):
            return found
    log.error("the storage of the gateway failed: %s", error, exc_info=not isinstance(error, ZkgroupsException))
    return KafkaError.UNKNOWN_SERVER_ERROR
