"""Operations of an instance, and the nodes it may leave behind."""

from __future__ import annotations

from typing import Any

from zkgroups import Instance, Registry, TopicPartition

from .rules import P0, P1

P2 = TopicPartition("orders", 2)
OWNERS = "/consumers/billing/owners/orders"


def register(me: Instance) -> object:
    return me.register(["orders"])


def claim_one(me: Instance) -> object:
    return me.claim(P0)


def claim_three(me: Instance) -> object:
    return me.claim_many([P0, P1, P2])


def prepare(registry: Registry) -> None:
    """Create the directories, so that the next transaction is the operation itself."""
    with registry.group("billing").instance("me") as me:
        register(me)
        claim_three(me)


def left_behind(raw: Any) -> list[str]:
    """The registrations and owners of the group."""
    found = []
    for directory in ("/consumers/billing/ids", OWNERS):
        if raw.exists(directory):
            found += [f"{directory}/{name}" for name in raw.get_children(directory)]
    return found
