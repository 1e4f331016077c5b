"""Nodes as the old clients write them."""

from __future__ import annotations

import json
from typing import Any

from zkgroups import Consumergroup, Owner, TopicPartition

SCALA = "billing_app-1-1795255170109-ab12cd34"
KAZOO_GO = "app-2:7d4f0d2a-5f6e-4b53-9c53-7f6d2f1c9a10"


def register(client: Any, group: str, id: str, topics: dict[str, int], *, pattern: str = "static") -> None:
    """Register a member as Scala does, or as kazoo-go does if its id is `host:uuid`."""
    timestamp: str | int = 1_795_255_543 if ":" in id else "1795255170109"
    fields = {"version": 1, "subscription": topics, "pattern": pattern, "timestamp": timestamp}
    path = f"/consumers/{group}/ids/{id}"
    client.create(path, json.dumps(fields).encode(), ephemeral=True, makepath=True)


def claim(client: Any, group: str, owner: str, topic: str, *partitions: int) -> None:
    """Create owner nodes."""
    for partition in partitions:
        client.create(f"/consumers/{group}/owners/{topic}/{partition}", owner.encode(), ephemeral=True, makepath=True)


def commit(client: Any, group: str, topic: str, partition: int, data: bytes) -> None:
    """Write an offset without any check."""
    path = f"/consumers/{group}/offsets/{topic}/{partition}"
    client.ensure_path(path)
    client.set(path, data)


def create_topic(client: Any, topic: str, partitions: int) -> None:
    """Register a topic as Kafka does."""
    fields = {"version": 1, "partitions": {str(number): [1] for number in range(partitions)}}
    client.create(f"/brokers/topics/{topic}", json.dumps(fields).encode(), makepath=True)


def owners(group: Consumergroup) -> dict[int, str]:
    """The owners in the nodes, by the number of the partition."""
    return {owner.at.partition: owner.id for owner in group.owners() if isinstance(owner, Owner)}


def orders(*numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("orders", number) for number in numbers)


ALL = orders(*range(6))
