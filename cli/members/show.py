"""`zkgroups members show`: show one registered instance in detail."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Any, Final

import click

from zkgroups import (
    Consumergroup,
    ForbiddenNode,
    GroupDescription,
    GroupState,
    InstanceDescription,
    InstanceState,
    MalformedNode,
    Registration,
    Registry,
)
from zkgroups.core.doctor.scala_blockers import scala_blocker
from zkgroups.core.times import to_ms, utc
from zkgroups.core.znodes.values import ReadRegistration, unreadable_part
from zkgroups.exceptions import GroupNotFoundError, MalformedNodeError, NoPermissionError, NotRegisteredError

from ..groups.description_rows import forbidden_nodes, instance_row
from ..shared.arguments import group_argument, instance_argument
from ..shared.command_classes import Command
from ..shared.connect import connected
from ..shared.options import Options
from ..shared.output import Column, Output, Row, Table
from .list import COLUMNS

_OWNED: Final = Table(
    "partitions",
    key="partition",
    columns=(
        Column("TOPIC", "topic"),
        Column("PARTITION", "partition", right=True),
        Column("CLAIMED", "claimed_ms", show=utc),
        Column("OWNER-NODE", "path"),
    ),
)

_NODES: Final = Table(
    "nodes",
    key="path",
    columns=(
        Column("REGISTRATION", "path"),
        Column("DATA", "data"),
        Column("CANNOT-BE-READ", "reason"),
        Column("TO-SCALA", "to_scala"),
    ),
)

MEMBER: Final = Table(
    "members",
    key="instance",
    columns=(*COLUMNS, Column("TIMESTAMP", "timestamp_ms", show=utc, wide=True)),
    details=(_OWNED, _NODES),
)
"""One instance, with its partitions and its registration node."""


@click.command(cls=Command)
@group_argument
@instance_argument
@click.pass_obj
def show(options: Options, group: str, instance: str) -> None:
    """Show one instance in detail: its registration, decoded and as raw data, and the partitions that it owns.

    TO-SCALA shows whether Kafka's own Scala consumers can read the registration. The exit code is 10 if zkgroups cannot
    read it.

    \b
    Example:
      zkgroups -z zk1:2181/kafka members show billing anna
      zkgroups -z zk1:2181/kafka members show billing anna -o json
    """
    with connected(options) as registry:
        description, found = read_instance(registry, group, instance)
        data = _data(registry.group(group), found)
        Output(options).write(MEMBER, [_row(registry.group(group), description, found, data)])
    if isinstance(malformed := unreadable_part(found.registration), MalformedNode):
        raise MalformedNodeError(malformed)


def read_instance(registry: Registry, group: str, id: str) -> tuple[GroupDescription, InstanceDescription]:
    """Return the registered instance and the description of its group."""
    description, found = described_instance(registry, group, id)
    if found is None or found.state is InstanceState.LEAVING:
        raise NotRegisteredError(group, id)
    return description, found


def described_instance(registry: Registry, group: str, id: str) -> tuple[GroupDescription, InstanceDescription | None]:
    """Return the instance, which may only be the owner of partitions, and the description of its group."""
    [description] = registry.describe([group])
    if description.state is GroupState.DEAD:
        raise GroupNotFoundError(group)
    for found in description.instances:
        if found.id == id:
            return description, found
    if forbidden := [node for node in forbidden_nodes(description) if node.path == registry.group(group).paths.ids]:
        raise NoPermissionError(forbidden[0].path)
    return description, None


def _data(group: Consumergroup, found: InstanceDescription) -> bytes:
    """Return the raw data of the registration node."""
    match unreadable_part(found.registration):
        case ForbiddenNode() as node:
            raise NoPermissionError(node.path)
        case MalformedNode(data=malformed):
            return malformed
    return group.raw_registration(found.id)


def _row(group: Consumergroup, description: GroupDescription, found: InstanceDescription, data: bytes) -> Row:
    registration = found.registration
    row: dict[str, Any] = {"group": group.name}
    row |= instance_row(found)
    row["timestamp_ms"] = to_ms(registration.timestamp) or None if isinstance(registration, Registration) else None
    row["partitions"] = list(_owned(description, found))
    row["nodes"] = [_node_row(group.paths.instance(found.id), data, registration)]
    return row


def _owned(description: GroupDescription, found: InstanceDescription) -> Iterator[Row]:
    owners = (owner for partition in description.partitions for owner in partition.owners)
    for owner in owners:
        if owner.session == found.session and owner.instance({found.id}) is not None:
            at = {"topic": owner.at.topic, "partition": owner.at.partition}
            yield at | {"claimed_ms": to_ms(owner.claimed_at), "path": owner.path}


def _node_row(path: str, data: bytes, registration: ReadRegistration | None) -> Row:
    return {
        "path": path,
        "data": data.decode(errors="backslashreplace"),
        "data_base64": b64encode(data).decode(),
        "reason": None if (unreadable := unreadable_part(registration)) is None else unreadable.reason,
        "to_scala": _to_scala(data, registration),
    }


def _to_scala(data: bytes, registration: ReadRegistration | None) -> str | None:
    """Tell whether Scala members can read the registration; None if only Java can tell."""
    if (blocker := scala_blocker(data)) is not None:
        return f"stops every Scala member: {blocker}"
    return "reads it" if isinstance(registration, Registration) else None
