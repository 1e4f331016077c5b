"""The requests to a broker that it needs for its start and for its topics."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from zkgroups.exceptions import MissingDependencyError, ServerStartError

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient

# In seconds. A starting broker may not answer a request, so it is sent again.
_PATIENCE = 2.0
_POLL = 0.05
_READY_GROUP = "zkgroups-is-the-coordinator-ready"


def check_client() -> None:
    """Raise an error if there is no client for Kafka."""
    try:
        import confluent_kafka.admin  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingDependencyError("a broker needs confluent-kafka: pip install 'zkgroups[consumer]'") from error


def admin_client(address: str) -> AdminClient:
    """Return an admin client that does not log failed connections."""
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": address, "reconnect.backoff.max.ms": 200}, logger=silent_logger())


def consumer(address: str, group: str, topic: str) -> Consumer:
    """Return a consumer of a group that commits nothing, and hears soon of a rebalance."""
    from confluent_kafka import Consumer

    settings = {"bootstrap.servers": address, "group.id": group, "client.id": "librdkafka"}
    settings |= {"enable.auto.commit": "false", "heartbeat.interval.ms": "500"}
    found = Consumer(settings, logger=silent_logger())
    found.subscribe([topic])
    return found


def silent_logger() -> logging.Logger:
    """Return a logger that writes nothing."""
    logger = logging.Logger(__name__)
    logger.addHandler(logging.NullHandler())
    return logger


def serves(admin: AdminClient) -> bool:
    """Return True if the broker knows its topics and answers requests about groups.

    It does not ask for the offsets of a group: librdkafka aborts the process if the broker is not a coordinator yet.
    """
    from confluent_kafka import KafkaException

    try:
        admin.list_topics(timeout=_PATIENCE)
        admin.describe_consumer_groups([_READY_GROUP], request_timeout=_PATIENCE)[_READY_GROUP].result()
    except KafkaException:
        return False
    return True


def answers(admin: AdminClient, topic: str, partitions: int) -> bool:
    """Return True if each partition answers. A known partition may have a leader that does not know it yet."""
    from confluent_kafka import KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(partitions)}
    try:
        for answer in admin.list_offsets(asked, request_timeout=_PATIENCE).values():
            answer.result()
    except KafkaException:
        return False
    return True


def wait_until_forgotten(zookeeper: str, node: str, timeout: float) -> None:
    """Wait until the session of a killed broker has expired. Its successor cannot register before that."""
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import KazooTimeoutError

    hosts, slash, chroot = zookeeper.partition("/")
    registered = f"{slash}{chroot.rstrip('/')}/brokers/ids/{node}"  # a missing chroot causes a warning
    client = KazooClient(hosts)
    deadline = time.monotonic() + timeout
    try:
        client.start(timeout=timeout)
        while client.exists(registered) and time.monotonic() < deadline:
            time.sleep(_POLL)
    except KazooTimeoutError as error:
        raise ServerStartError(f"no ZooKeeper answers at {zookeeper}") from error
    finally:
        client.stop()
        client.close()
