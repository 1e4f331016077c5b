"""`zkgroups members`: list the registered instances of groups, or show one of them in detail."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
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
from zkgroups.core.znodes.names import check_instance
from zkgroups.core.znodes.values import ReadRegistration, unreadable_part
from zkgroups.exceptions import (
    GroupNotFoundError,
    MalformedNodeError,
    NoPermissionError,
    NotRegisteredError,
)

from .groups.description_rows import describe_groups, forbidden_nodes, instance_row
from .groups.description_tables import INSTANCES
from .shared.arguments import chosen_groups, group_argument, matching_option, maybe_groups_argument
from .shared.command_classes import Group
from .shared.complete_names import complete_instances
from .shared.connect import connected
from .shared.errors_to_exit_codes import Tally
from .shared.messages import say
from .shared.options import Options
from .shared.output import Column, Output, Row, Table

_COLUMNS: Final = (Column("GROUP", "group"), *INSTANCES.columns)

MEMBERS: Final = Table("members", key="instance", columns=_COLUMNS)
"""Instances of several groups, one row per instance."""

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
    columns=(*_COLUMNS, Column("TIMESTAMP", "timestamp_ms", show=utc, wide=True)),
    details=(_OWNED, _NODES),
)
"""One instance, with its partitions and its registration node."""


def _checked_instance(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    return check_instance(name)


@click.group(cls=Group)
def members() -> None:
    """List registered instances and their subscriptions.

    \b
    Example:
      zkgroups -z zk1:2181/kafka members list
    """


@members.command("list")
@maybe_groups_argument
@matching_option
@click.pass_obj
def list_members(options: Options, names: tuple[str, ...], matching: re.Pattern[str] | None) -> None:
    """List the instances of the named groups, or of all groups, with state, subscription and number of partitions.

    "Leaving" means that an instance is no longer registered but still owns partitions. "Dead" means that its
    registration belongs to no session, so no client is behind it; `zkgroups doctor --repair --execute` deletes it. If a
    registration cannot be read, its subscription and dialect are empty; `zkgroups members show` shows the reason.

    \b
    Example:
      zkgroups -z zk1:2181/kafka members list
      zkgroups -z zk1:2181/kafka members list billing invoices
      zkgroups -z zk1:2181/kafka members list --groups 'bill.*' -o json
    """
    tally = Tally()
    with connected(options) as registry:
        chosen = chosen_groups(registry, names, matching) if names or matching else registry.groups()
        rows = _rows(describe_groups(registry, chosen, tally, must_exist=names))
        Output(options).write(MEMBERS, _or_report_none(options, rows, tally))
    tally.finish()


def _rows(groups: Iterable[GroupDescription]) -> Iterator[Row]:
    for group in groups:
        yield from ({"group": group.group} | dict(row) for row in map(instance_row, group.instances))


def _or_report_none(options: Options, rows: Iterable[Row], tally: Tally) -> Iterator[Row]:
    """Yield the rows. If all groups were read and there are none, say so."""
    is_empty = True
    for row in rows:
        is_empty = False
        yield row
    if is_empty and tally.all_done:
        say(options, "There are no registered instances.")


@members.command()
@group_argument
@click.argument("instance", metavar="INSTANCE", callback=_checked_instance, shell_complete=complete_instances)
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
        description, found = _instance(registry, group, instance)
        data = _data(registry.group(group), found)
        Output(options).write(MEMBER, [_row(registry.group(group), description, found, data)])
    if isinstance(malformed := unreadable_part(found.registration), MalformedNode):
        raise MalformedNodeError(malformed)


def _instance(registry: Registry, group: str, id: str) -> tuple[GroupDescription, InstanceDescription]:
    """Return the registered instance and the description of its group."""
    [description] = registry.describe([group])
    if description.state is GroupState.DEAD:
        raise GroupNotFoundError(group)
    for found in description.instances:
        if found.id == id and found.state is not InstanceState.LEAVING:
            return description, found
    if forbidden := [node for node in forbidden_nodes(description) if node.path == registry.group(group).paths.ids]:
        raise NoPermissionError(forbidden[0].path)
    raise NotRegisteredError(group, id)


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
