"""Groups built from values: their nodes, what the doctor examines, and their descriptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from zkgroups import CommittedOffset, Dialect, GroupDescription, Owner, RegisteredInstance, Registration, TopicPartition
from zkgroups.core.doctor.group_nodes import GroupNodes
from zkgroups.core.times import from_ms
from zkgroups.core.znodes.codecs import decode_offset, decode_owner
from zkgroups.core.znodes.group_description import GroupView, describe
from zkgroups.core.znodes.paths import GroupPaths
from zkgroups.core.znodes.registrations import decode_registration, encode_registration
from zkgroups.core.znodes.values import (
    MalformedNode,
    ReadRegistration,
    UnevaluableRegistration,
    UnreadableNode,
    unreadable_part,
)

PATHS = GroupPaths("billing")
AT = TopicPartition("orders", 0)
SCALA = b'{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":"1795255170109"}'
KAZOO_GO = b'{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":1795255543}'
OURS = encode_registration(Registration({"orders": 1}))
GATEWAY = encode_registration(Registration({"orders": 1}, dialect=Dialect.GATEWAY, client_id="app", client_host="/h"))

Node = RegisteredInstance | Owner | CommittedOffset | UnreadableNode


def at(text: str) -> TopicPartition:
    """Parse `orders/3`."""
    topic, _, partition = text.rpartition("/")
    return TopicPartition(topic, int(partition))


def member(
    id: str, subscribes: Iterable[str] | ReadRegistration | bytes = ("orders",), *, session: int = 1
) -> RegisteredInstance:
    """An instance that subscribes to topics, or whose registration is this value, or has this data."""
    if isinstance(subscribes, bytes):
        subscribes = decode_registration(f"{PATHS.ids}/{id}", subscribes, session=session)
    elif not isinstance(subscribes, ReadRegistration):
        subscribes = Registration(dict.fromkeys(subscribes, 1))
    return RegisteredInstance(id, session, subscribes, registered_at=from_ms(1000 + session))


def owner(place: str, id: str, session: int = 1, path: str = "", group: str = "billing") -> Owner:
    return Owner(at(place), id, session, path=path or GroupPaths(group).owner(at(place)))


def offset(place: str, number: int = 5, committed_ms: int = 0) -> CommittedOffset:
    return CommittedOffset("billing", at(place), number, committed_at=from_ms(committed_ms))


def bad_owner(data: bytes, *, session: int = 0, partition: str = "0") -> UnreadableNode:
    where = TopicPartition("orders", int(partition)) if partition.isdigit() else None
    found = decode_owner(f"{PATHS.owners}/orders/{partition}", where, data, session=session)
    assert isinstance(found, UnreadableNode)
    return found


def bad_offset(data: bytes, place: str = "orders/0") -> UnreadableNode:
    found = decode_offset(f"{PATHS.offsets}/{place}", data, version=3)
    assert isinstance(found, UnreadableNode)
    return found


def view(*nodes: Node, partitions: Mapping[str, Iterable[int]] | None = None, exists: bool = True) -> GroupView:
    """A group with these nodes. Unreadable registrations are also listed as unreadable nodes, as by a reader."""
    instances = tuple(node for node in nodes if isinstance(node, RegisteredInstance))
    unreadable = [node for node in nodes if isinstance(node, UnreadableNode)]
    unreadable += [node for each in instances if (node := unreadable_part(each.registration)) is not None]
    return GroupView(
        "billing",
        exists,
        instances,
        tuple(node for node in nodes if isinstance(node, Owner)),
        tuple(node for node in nodes if isinstance(node, CommittedOffset)),
        tuple(unreadable),
        {topic: tuple(numbers) for topic, numbers in (partitions or {}).items()},
    )


def examined(*nodes: Node, partitions: Mapping[str, Iterable[int]] | None = None, **fields: Any) -> GroupNodes:
    """What the doctor examines."""
    return GroupNodes(view(*nodes, partitions=partitions), **fields)


def described(*nodes: Node, exists: bool = True, **partitions: int) -> GroupDescription:
    """Describe a group. `partitions` are the topics that Kafka has, by default `orders` with two partitions."""
    return describe(
        view(*nodes, partitions={name: range(n) for name, n in (partitions or {"orders": 2}).items()}, exists=exists)
    )


def malformed(value: object, path: str, data: bytes) -> str:
    """Return the reason of a malformed node, after checking its path, its data and that the reason has one line."""
    value = value.node if isinstance(value, UnevaluableRegistration) else value
    assert isinstance(value, MalformedNode), value
    assert (value.path, value.data) == (path, data)
    assert value.reason
    assert value.reason.isprintable()
    assert len(value.reason) <= 400
    return value.reason
