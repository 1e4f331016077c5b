"""A topic to move groups of, and the offsets that the brokers have."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

from zkgroups.kafka import Brokers
from zkgroups.testing import KafkaBroker

from ..running import Ended

NOWHERE = "127.0.0.1:1"
MESSAGES = 20
"""In each partition."""

MOVED = {0: 5, 1: MESSAGES}
"""The offsets of `group` after it was moved."""

Migrate = Callable[..., Ended]


def make_topic(broker: KafkaBroker) -> str:
    name = f"moved-{uuid4().hex[:12]}"
    broker.create_topic(name, 2)
    for partition in range(2):
        broker.write(name, partition, MESSAGES)
    return name


def native(brokers: Brokers, group: str) -> dict[int, int]:
    """The offsets of the brokers for each partition of the topic."""
    return {at.partition: it.offset for at, it in brokers.committed([group])[group].items()}
