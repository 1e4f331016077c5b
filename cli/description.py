"""How a group is shown: its description as rows, and the tables these rows fill."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final

from zkgroups import (
    DeniedNode,
    GroupDescription,
    InstanceDescription,
    MalformedNode,
    Owner,
    PartitionDescription,
    Registration,
    TopicPartition,
)
from zkgroups.core.model import session_hex, utc

from .output import Column, Row, Table

_STATES: Final = {
    "Stable": "green",
    "Dead": "red",
    "Leaving": "red",
    "PreparingRebalance": "yellow",
    "CompletingRebalance": "yellow",
    "Joining": "yellow",
    "AwaitingSync": "yellow",
}


def _subscription(value: Mapping[str, Any]) -> str:
    """E.g. `orders, payments x2`, or `white_list orders.*`."""
    names = ", ".join(name if streams == 1 else f"{name} x{streams}" for name, streams in value["streams"].items())
    return names or "nothing" if value["pattern"] == "static" else f"{value['pattern']} {names}"


_SUMMARY: Final = (
    Column("GROUP", "group"),
    Column("STATE", "state", styles=_STATES),
    Column("MEMBERS", "totals.members", right=True),
    Column("TOPICS", "totals.topics", right=True),
    Column("PARTITIONS", "totals.partitions", right=True),
    Column("OWNED", "totals.owned", right=True),
    Column("OFFSETS", "totals.offsets", right=True),
    Column("LAST-COMMIT", "last_commit_ms", show=utc),
)

INSTANCES: Final = Table(
    "instances",
    key="instance",
    columns=(
        Column("INSTANCE", "instance"),
        Column("STATE", "state", styles=_STATES),
        Column("OWNED", "owned", right=True),
        Column("SUBSCRIPTION", "subscription", show=_subscription),
        Column("DIALECT", "dialect"),
        Column("SESSION", "session"),
        Column("SINCE", "registered_ms", show=utc),
    ),
)

PARTITIONS: Final = Table(
    "partitions",
    key="partition",
    columns=(
        Column("TOPIC", "topic"),
        Column("PARTITION", "partition", right=True),
        Column("OFFSET", "offset", right=True),
        Column("COMMITTED", "committed_ms", show=utc, wide=True),
        Column("OWNER", "owners.id"),
        Column("SESSION", "owners.session"),
        Column("SINCE", "owners.claimed_ms", show=utc),
        Column("NOTE", "note", styles={"orphan": "red", "unowned": "yellow", "two owners": "red"}),
    ),
)

_MALFORMED: Final = Table(
    "malformed",
    key="path",
    columns=(Column("CANNOT-BE-READ", "path"), Column("REASON", "reason"), Column("DATA", "data")),
)

NAMES: Final = Table("groups", key="group", columns=(Column("GROUP", "group"),))
"""Groups by their names only."""

SUMMARIES: Final = Table("groups", key="group", columns=_SUMMARY)
"""Groups in one line each."""

DESCRIPTIONS: Final = Table(
    "groups", key="group", columns=_SUMMARY, details=(INSTANCES, PARTITIONS, _MALFORMED), csv=PARTITIONS
)
"""Groups with everything that is in them."""


def denied(group: GroupDescription) -> list[DeniedNode]:
    """The nodes of the group that we may not read."""
    return [node for node in group.malformed if isinstance(node, DeniedNode)]


def summary_row(group: GroupDescription) -> dict[str, Any]:
    """A group in one line. Where some of it may not be read, its state and totals are unknown."""
    known = not denied(group)
    totals = {
        "members": group.members,
        "topics": len(group.topics),
        "partitions": len(group.partitions),
        "owned": group.owned,
        "offsets": group.offsets,
    }
    return {
        "group": group.group,
        "state": group.state.value if known else None,
        "totals": totals if known else dict.fromkeys(totals),
        "last_commit_ms": group.last_commit_ms if known else None,
    }


def description_row(group: GroupDescription) -> Row:
    """A group with everything that is in it."""
    orphans, unowned = set(group.orphans), set(group.unowned)
    return summary_row(group) | {
        "topics": list(group.topics),
        "instances": [_instance_row(instance) for instance in group.instances],
        "partitions": [_partition_row(partition, orphans, unowned) for partition in group.partitions],
        "orphans": [_at(orphan.at) | _owner_row(orphan) for orphan in group.orphans],
        "unowned": [_at(at) for at in group.unowned],
        "malformed": [_malformed_row(node) for node in group.malformed],
    }


def _instance_row(instance: InstanceDescription) -> Row:
    found = instance.registration
    registration = found if isinstance(found, Registration) else None
    return {
        "instance": instance.id,
        "state": instance.state.value,
        "owned": len(instance.owned),
        "subscription": registration and {"pattern": registration.pattern.value, "streams": dict(registration.streams)},
        "dialect": registration and registration.dialect.value,
        "session": _session(instance.session),
        "registered_ms": instance.registered_ms or None,
    }


def _partition_row(partition: PartitionDescription, orphans: set[Owner], unowned: set[TopicPartition]) -> Row:
    offset = partition.offset
    return _at(partition.at) | {
        "offset": offset and offset.offset,
        "committed_ms": offset and offset.modified_ms,
        "owners": [_owner_row(owner) for owner in partition.owners],
        "note": _note(partition, orphans, unowned),
    }


def _note(partition: PartitionDescription, orphans: set[Owner], unowned: set[TopicPartition]) -> str | None:
    if len(partition.owners) > 1:
        return "two owners"
    if orphans.intersection(partition.owners):
        return "orphan"
    return "unowned" if partition.at in unowned else None


def _owner_row(owner: Owner) -> dict[str, Any]:
    return {"id": owner.id, "session": _session(owner.session), "claimed_ms": owner.claimed_ms}


def _malformed_row(node: MalformedNode) -> Row:
    read = not isinstance(node, DeniedNode)
    return {
        "path": node.path,
        "reason": node.reason,
        "data": node.shown if read else None,
        "data_base64": b64encode(node.data).decode() if read else None,
    }


def _at(at: TopicPartition) -> dict[str, Any]:
    return {"topic": at.topic, "partition": at.partition}


def _session(session: int) -> str | None:
    """In hexadecimal, as ZooKeeper shows it: as a number in JSON it would lose its last digits."""
    return session_hex(session) if session else None
