"""Nodes of one instance and one partition, for the tests of the rules."""

from __future__ import annotations

from zkgroups import Instance, Registry, TopicPartition

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
OWNER = "/consumers/billing/owners/orders/0"
OFFSET = "/consumers/billing/offsets/orders/0"
ME = "/consumers/billing/ids/me"


def member(registry: Registry, id: str = "me") -> Instance:
    instance = registry.group("billing").instance(id)
    instance.register(["orders"])
    return instance


def session_of(registry: Registry) -> tuple[int, bytes]:
    """Also while disconnected, when kazoo does not report it."""
    return registry.client._session_id, registry.client._session_passwd
