"""`zkgroups members`: list, show and evict registered instances."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any, Final

import click

from zkgroups import (
    Consumergroup,
    Dialect,
    ForbiddenNode,
    GroupDescription,
    GroupState,
    InstanceDescription,
    InstanceState,
    MalformedNode,
    Owner,
    Registration,
    Registry,
)
from zkgroups.core.doctor.member_checks import scala_blocker
from zkgroups.core.session_lifetime import session_hex
from zkgroups.core.times import to_ms, utc
from zkgroups.core.znodes.values import ReadRegistration, unreadable_part
from zkgroups.exceptions import GroupNotFoundError, MalformedNodeError, NoPermissionError, NotRegisteredError

from .groups.describe import INSTANCES, describe_groups, forbidden_nodes, instance_row
from .shared.arguments import (
    chosen_groups,
    execute_option,
    group_argument,
    instance_argument,
    matching_option,
    maybe_groups_argument,
    session_option,
)
from .shared.connect import connected
from .shared.errors import Tally, or_say
from .shared.global_options import Group
from .shared.messages import say
from .shared.options import Options
from .shared.output import AT, Column, Output, Row, Table


@click.group(cls=Group)
def members() -> None:
    """List registered instances and their subscriptions. Evict stuck instances.

    \b
    Example:
      zkgroups -z zk1:2181/kafka members list
    """


# `zkgroups members list`: list the registered instances of groups.


COLUMNS: Final = (Column("GROUP", "group"), *INSTANCES.columns)

MEMBERS: Final = Table("members", key="instance", columns=COLUMNS)
"""Instances of several groups, one row per instance."""


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
        Output(options).write(MEMBERS, or_say(options, rows, tally, "There are no registered instances."))
    tally.finish()


def _rows(groups: Iterable[GroupDescription]) -> Iterator[Row]:
    for group in groups:
        yield from ({"group": group.group} | dict(row) for row in map(instance_row, group.instances))


# `zkgroups members show`: show one registered instance in detail.


_OWNED: Final = Table(
    "partitions",
    key="partition",
    columns=(
        *AT,
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


@members.command()
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
        Output(options).write(MEMBER, [_shown_row(registry.group(group), description, found, data)])
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


def _shown_row(group: Consumergroup, description: GroupDescription, found: InstanceDescription, data: bytes) -> Row:
    registration = found.registration
    row: dict[str, Any] = {"group": group.name}
    row |= instance_row(found)
    row["timestamp_ms"] = to_ms(registration.timestamp) or None if isinstance(registration, Registration) else None
    row["partitions"] = list(_owned(description, found))
    row["nodes"] = [
        {
            "path": group.paths.instance(found.id),
            "data": data.decode(errors="backslashreplace"),
            "data_base64": b64encode(data).decode(),
            "reason": None if (unreadable := unreadable_part(registration)) is None else unreadable.reason,
            "to_scala": _to_scala(data, registration),
        }
    ]
    return row


def _owned(description: GroupDescription, found: InstanceDescription) -> Iterator[Row]:
    owners = (owner for partition in description.partitions for owner in partition.owners)
    for owner in owners:
        if owner.session == found.session and owner.instance({found.id}) is not None:
            at = {"topic": owner.at.topic, "partition": owner.at.partition}
            yield at | {"claimed_ms": to_ms(owner.claimed_at), "path": owner.path}


def _to_scala(data: bytes, registration: ReadRegistration | None) -> str | None:
    """Tell whether Scala members can read the registration; None if only Java can tell."""
    if (blocker := scala_blocker(data)) is not None:
        return f"stops every Scala member: {blocker}"
    return "reads it" if isinstance(registration, Registration) else None


# `zkgroups members evict`: remove a stuck instance from its group.


FREED: Final = Table(
    "partitions",
    key="partition",
    columns=(
        *AT,
        Column("OWNER", "instance"),
        Column("CLAIMED", "claimed_ms", show=utc),
    ),
)
"""The partitions that an eviction frees."""

_NEXT: Final = {
    Dialect.ZKGROUPS: "ZooKeeper refuses its commits. If it is only slow, it registers and joins the group again.",
    Dialect.GATEWAY: "The gateway registers it again as long as its client sends heartbeats: stop the client first.",
    Dialect.SCALA: "A Scala member that wakes up may first commit old offsets, or delete the new owner nodes of its "
    "former partitions. ZooKeeper cannot refuse that: stop its process now. Otherwise it holds nothing until it is "
    "restarted, or joins again if its session has expired.",
    Dialect.KAZOO_GO: "A kazoo-go member that wakes up may go on committing, which ZooKeeper cannot refuse: stop it.",
    Dialect.PYKAFKA: "A pykafka member that wakes up may go on committing, which ZooKeeper cannot refuse: stop it.",
}
_NEXT_OF_UNKNOWN: Final = "Its client is unknown. If it wakes up, it may go on reading and committing: stop it."


@members.command()
@group_argument
@instance_argument
@session_option("--expect-session", help="The session that the instance must have.")
@execute_option
@click.pass_obj
def evict(options: Options, group: str, instance: str, session: int | None, execute: bool) -> None:
    """Remove a stuck instance: delete its registration and its owner nodes, in one transaction.

    The other members notice that, rebalance, and take its partitions. `zkgroups release` would only free them: Scala
    members do not notice that, and the stuck instance would keep its share of the next rebalance.

    The command also says what the client of the instance does when it wakes up.

    \b
    Example:
      zkgroups -z zk1:2181/kafka members evict billing anna
      zkgroups -z zk1:2181/kafka members evict billing anna --execute
    """
    with connected(options, writes=execute) as registry:
        _, found = described_instance(registry, group, instance)
        if found is None:
            raise NotRegisteredError(group, instance)
        expected = found.session if session is None else session
        freed = registry.group(group).evict(instance, expected_session=expected, execute=execute)
    Output(options).write(FREED, map(_evicted_row, freed))
    dialect = found.registration.dialect if isinstance(found.registration, Registration) else None
    who = f"{dialect or 'unknown'} member {instance} of group {group}, session {session_hex(expected)}"
    say(options, f"{'Evicted' if execute else 'Would evict'} {who}. Partitions: {len(freed)}.")
    say(options, _NEXT_OF_UNKNOWN if dialect is None else _NEXT[dialect])
    if not execute:
        say(options, "Nothing was changed: add --execute to apply.")


def _evicted_row(owner: Owner) -> Row:
    return {
        "topic": owner.at.topic,
        "partition": owner.at.partition,
        "instance": owner.id,
        "claimed_ms": to_ms(owner.claimed_at) or None,
        "path": owner.path,
    }
