"""The settings of the Kafka client. confluent-kafka is imported here, when the first consumer is created."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final

from ..exceptions import InvalidOptionError, MissingDependencyError

_ADDRESS: Final = "bootstrap.servers"

_RESERVED: Final = {
    "auto.commit.enable": "use auto_commit_every: offsets are committed to ZooKeeper",
    "auto.commit.interval.ms": "use auto_commit_every: offsets are committed to ZooKeeper",
    "auto.offset.reset": "use start_at and out_of_range",
    "enable.auto.commit": "use auto_commit_every: offsets are committed to ZooKeeper",
    "enable.auto.offset.store": "use auto_commit_every: offsets are committed to ZooKeeper",
    "group.instance.id": "use id and a session_file",
    "partition.assignment.strategy": "use assignors",
}
"""Settings that have another meaning here, and the option to use instead."""

_QUEUE_PAUSE: Final = 20
"""In milliseconds. A client that has fetched enough in advance looks so often whether it should fetch more. The default
of librdkafka, a second, lets a partition stand still for almost as long after a pause: measured in `Consumer.run`."""


def confluent() -> ModuleType:
    """Import confluent-kafka. Raise `MissingDependencyError` if it is not installed."""
    try:
        import confluent_kafka
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "a Consumer reads with confluent-kafka: pip install 'zkgroups[consumer]'"
        ) from error
    return confluent_kafka


def client_settings(kafka: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's settings as a dictionary. Raise `InvalidOptionError` for a reserved setting.

    >>> client_settings("kafka1:9092,kafka2:9092")
    {'bootstrap.servers': 'kafka1:9092,kafka2:9092'}
    """
    given = {_ADDRESS: kafka} if isinstance(kafka, str) else kafka
    if not isinstance(given, Mapping):
        raise InvalidOptionError("kafka", kafka, "it must be an address of brokers, or settings of confluent-kafka")
    settings = dict(given)
    if not settings.get(_ADDRESS) and not settings.get("metadata.broker.list"):
        raise InvalidOptionError("kafka", ..., f"give the addresses of brokers as {_ADDRESS!r}")
    for name in sorted(_RESERVED.keys() & settings.keys()):
        raise InvalidOptionError("kafka", ..., f"leave out {name!r}: {_RESERVED[name]}")
    return settings


def fetching_settings(settings: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Return the settings of the client that fetches: it commits nothing, and reports a position outside of the log."""
    default = {"group.id": group, "fetch.queue.backoff.ms": _QUEUE_PAUSE}
    fixed = {"enable.auto.commit": False, "enable.auto.offset.store": False, "auto.offset.reset": "error"}
    return {**default, **settings, **fixed}


def reason(error: Exception) -> str:
    """Return the text of an error of confluent-kafka."""
    inner = error.args[0] if error.args else error
    return str(inner.str()) if hasattr(inner, "str") else str(error)
