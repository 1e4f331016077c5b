"""`zkgroups groups describe`: show everything about groups, once or whenever something changes."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import click

from zkgroups import (
    BlockedPartition,
    ForbiddenNode,
    GroupDescription,
    GroupState,
    InstanceDescription,
    MalformedNode,
    Owner,
    Registration,
    Registry,
    TopicPartition,
    UnevaluableRegistration,
    UnreadableNode,
)
from zkgroups.core.layouts.layout import Layout
from zkgroups.core.layouts.legacy import LEGACY
from zkgroups.core.offsets.lag import GroupLag, LagNote, LogRanges, PartitionLag, group_lag
from zkgroups.core.session_lifetime import session_hex
from zkgroups.core.time_formats import duration_text
from zkgroups.core.times import to_ms, utc
from zkgroups.core.znodes.own_nodes import Mark
from zkgroups.exceptions import GroupNotFoundError, NoPermissionError

from ..shared.arguments import groups_argument
from ..shared.connect import LAG_UNKNOWN, brokers, connected_with_topics, reported_as
from ..shared.errors import Tally
from ..shared.errors import watch as watch_rows
from ..shared.global_options import Command
from ..shared.options import Options
from ..shared.output import AT, MOVED_TO, Column, Output, Row, Table
from ..shared.parameter_types import Duration
from .lags import check_leaders

# The tables that show descriptions and lags of groups. `describe.py` has their rows.


_STATES: Final = {
    "Stable": "green",
    "Dead": "red",
    "Leaving": "red",
    "PreparingRebalance": "yellow",
    "CompletingRebalance": "yellow",
    "Joining": "yellow",
    "AwaitingSync": "yellow",
}

_NOTES: Final = {
    "orphan": "red",
    "blocked": "red",
    "two owners": "red",
    "unowned": "yellow",
    LagNote.PAST_END.value: "red",
    LagNote.CANNOT_BE_READ.value: "red",
    LagNote.BEFORE_START.value: "yellow",
    LagNote.LOG_UNKNOWN.value: "yellow",
}


def _subscription(value: Mapping[str, Any]) -> str:
    """E.g. `orders, payments x2`, or `white_list orders.*`."""
    if "unevaluable" in value:
        return f"{value['pattern']} {next(iter(value['streams'])):.40} (cannot be evaluated)"
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
    Column("UNEVALUABLE", "unevaluable", wide=True),
)

SUBSCRIPTION: Final = Column("SUBSCRIPTION", "subscription", show=_subscription)

INSTANCES: Final = Table(
    "instances",
    key="instance",
    columns=(
        Column("INSTANCE", "instance"),
        Column("STATE", "state", styles=_STATES),
        Column("OWNED", "owned", right=True),
        SUBSCRIPTION,
        Column("DIALECT", "dialect"),
        Column("CLIENT-ID", "client_id", wide=True),
        Column("HOST", "client_host", wide=True),
        Column("SESSION", "session"),
        Column("SINCE", "registered_ms", show=utc),
    ),
)

_OFFSET: Final = Column("CURRENT-OFFSET", "offset", right=True)
_COMMITTED: Final = Column("COMMITTED", "committed_ms", show=utc, wide=True)
_OWNER: Final = Column("OWNER", "owners.id")
_NOTE: Final = Column("NOTE", "note", styles=_NOTES)
_CLAIMS: Final = (
    _OWNER,
    Column("SESSION", "owners.session"),
    Column("SINCE", "owners.claimed_ms", show=utc),
    _NOTE,
)
_LOG: Final = (
    Column("LOG-START-OFFSET", "log_start", right=True, wide=True),
    Column("LOG-END-OFFSET", "log_end", right=True),
    Column("LAG", "lag", right=True),
)

PARTITIONS: Final = Table("partitions", key="partition", columns=(*AT, _OFFSET, _COMMITTED, *_CLAIMS))

PARTITIONS_WITH_LAG: Final = Table("partitions", key="partition", columns=(*AT, _OFFSET, *_LOG, _COMMITTED, *_CLAIMS))

_MALFORMED: Final = Table(
    "malformed",
    key="path",
    columns=(Column("CANNOT-BE-READ", "path"), Column("REASON", "reason"), Column("DATA", "data")),
)

_BLOCKED: Final = Table(
    "blocked",
    key="holder",
    columns=(
        Column("BLOCKED-TOPIC", "topic"),
        Column("PARTITION", "partition", right=True),
        Column("HELD-BY", "holder"),
        Column("SESSION", "session"),
        Column("SINCE", "claimed_ms", show=utc),
        Column("PROBLEM", "obstacle"),
    ),
)

_MIGRATION: Final = Table(
    "migration",
    key="plan",
    columns=(
        Column("MOVED-TO", "target"),
        Column("STATE", "state", styles={"moving": "yellow"}),
        Column("BY-PLAN", "plan"),
        Column("SINCE", "since_ms", show=utc),
    ),
)

SUMMARIES: Final = Table("groups", key="group", columns=(*_SUMMARY, MOVED_TO._replace(wide=True)))
"""One row per group."""


SUMMARIES_WITH_LAG: Final = SUMMARIES._replace(
    columns=(
        *SUMMARIES.columns,
        Column("TOTAL-LAG", "total_lag", right=True),
        Column("MAX-LAG", "max_lag", right=True),
        Column("UNKNOWN-LAGS", "unknown_lags", right=True),
    )
)
"""One row per group, with its lag, for commands that asked the brokers."""

DESCRIPTIONS: Final = Table(
    "groups",
    key="group",
    columns=_SUMMARY,
    details=(INSTANCES, PARTITIONS, _BLOCKED, _MIGRATION, _MALFORMED),
    csv=PARTITIONS_WITH_LAG,
)
"""Groups with their instances, partitions and problems."""

DESCRIPTIONS_WITH_LAG: Final = DESCRIPTIONS._replace(
    details=(INSTANCES, PARTITIONS_WITH_LAG, _BLOCKED, _MIGRATION, _MALFORMED)
)
"""Descriptions with lag, for commands that asked the brokers."""

LAGS: Final = Table(
    "lags", key="group", columns=(Column("GROUP", "group"), *AT, _OFFSET, *_LOG, _COMMITTED, _OWNER, _NOTE)
)
"""The lag of groups, one row per partition."""

TIME_LAGS: Final = LAGS._replace(
    columns=(
        *LAGS.columns[:-2],
        Column("TIME-LAG", "time_lag_seconds", show=duration_text, right=True),
        *LAGS.columns[-2:],
    )
)
"""The lag of groups with the age of the first unread message, one row per partition."""

TOTAL_LAGS: Final = Table(
    "groups",
    key="group",
    columns=(
        Column("GROUP", "group"),
        Column("STATE", "state", styles=_STATES),
        Column("MEMBERS", "members", right=True),
        Column("PARTITIONS", "partitions", right=True),
        Column("TOTAL-LAG", "total_lag", right=True),
        Column("MAX-LAG", "max_lag", right=True),
        Column("UNKNOWN", "unknown", right=True),
        Column("LAST-COMMIT", "last_commit_ms", show=utc),
    ),
)
"""The lag of groups, one row per group."""

TOTAL_TIME_LAGS: Final = TOTAL_LAGS._replace(
    columns=(
        *TOTAL_LAGS.columns[:6],
        Column("MAX-TIME-LAG", "max_time_lag_seconds", show=duration_text, right=True),
        *TOTAL_LAGS.columns[6:],
    )
)
"""The lag of groups with the age of the oldest unread message, one row per group."""


# Read groups, and convert their descriptions and lags to the rows of `describe.py`.


def describe_groups(
    registry: Registry, names: Iterable[str], tally: Tally, *, must_exist: Collection[str], layout: Layout = LEGACY
) -> Iterator[GroupDescription]:
    """Yield the existing groups while they are read. Report forbidden nodes, and missing groups in `must_exist`."""
    for found in registry.describe(names, layout=layout):
        with tally.attempt():
            if found.state is not GroupState.DEAD:
                yield found
            elif found.group in must_exist:
                raise GroupNotFoundError(found.group)
            if forbidden := forbidden_nodes(found):
                raise NoPermissionError(forbidden[0].path)


def forbidden_nodes(group: GroupDescription) -> list[ForbiddenNode]:
    """Return the nodes of the group that this client has no permission to read."""
    return [node for node in group.unreadable if isinstance(node, ForbiddenNode)]


def summary_row(group: GroupDescription) -> dict[str, Any]:
    """Return the summary of a group. If it has forbidden nodes, its state and totals are unknown."""
    known = not forbidden_nodes(group)
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
        "last_commit_ms": to_ms(group.last_commit_at) or None if known else None,
        "moved_to": group.mark.target if isinstance(group.mark, Mark) and group.mark.is_moved else None,
        "unevaluable": list(group.unevaluable),
    }


def state_of(group: GroupDescription) -> str:
    """Return the state of a group. If it has forbidden nodes, its state is unknown."""
    return summary_row(group)["state"] or GroupState.UNKNOWN.value


def description_row(group: GroupDescription, logs: LogRanges | None = None) -> Row:
    """Return the full description of a group. Without `logs`, its lag is unknown."""
    notes = _notes(group)
    lags = group_lag(group, group.partitions, logs or {}).partitions
    return summary_row(group) | {
        "topics": list(group.topics),
        "instances": [instance_row(instance) for instance in group.instances],
        "partitions": [
            _at(each.partition.at)
            | _lag_row(each)
            | {"note": _joined(notes.get(each.partition.at), _log_note(each) if logs is not None else None)}
            for each in lags
        ],
        "orphans": [_at(orphan.at) | _owner_row(orphan) for orphan in group.orphans],
        "unowned": [_at(at) for at in group.unowned],
        "blocked": [_blocked_row(blocked) for blocked in group.blocked],
        "migration": [_migration_row(group.mark)] if isinstance(group.mark, Mark) else [],
        "malformed": [_unreadable_row(node) for node in _unreadable(group)],
    }


def lag_row(group: str, lag: PartitionLag, moved_to: str | None) -> Row:
    """Return the lag of a group in one partition."""
    note = {"note": lag.note and lag.note.value, "moved_to": moved_to}
    return {"group": group} | _at(lag.partition.at) | _lag_row(lag) | note


def total_lag_row(description: GroupDescription, group: GroupLag, moved_to: str | None) -> Row:
    """Return the lag of a group as one row."""
    summary = summary_row(description)
    return {
        "group": group.group,
        "state": summary["state"],
        "members": summary["totals"]["members"],
        "partitions": len(group.partitions),
        "total_lag": group.total,
        "max_lag": group.most,
        "unknown": group.unknown,
        "last_commit_ms": max(
            (to_ms(each.partition.offset.committed_at) for each in group.partitions if each.partition.offset), default=0
        )
        or None,
        "moved_to": moved_to,
    }


def instance_row(instance: InstanceDescription) -> Row:
    found = instance.registration
    registration, note = found if isinstance(found, Registration) else None, {}
    if isinstance(found, UnevaluableRegistration):
        registration, note = found.registration, {"unevaluable": found.reason}
    streams = registration and {"pattern": registration.pattern.value, "streams": dict(registration.streams)}
    return {
        "instance": instance.id,
        "state": instance.state.value,
        "owned": len(instance.owned),
        "subscription": streams and streams | note,
        "dialect": registration and registration.dialect.value,
        "client_id": (registration and registration.client_id) or None,
        "client_host": (registration and registration.client_host) or None,
        "session": _session(instance.session),
        "registered_ms": to_ms(instance.registered_at) or None,
    }


def _lag_row(lag: PartitionLag) -> dict[str, Any]:
    offset = lag.partition.offset
    return {
        "offset": offset and offset.offset,
        "log_start": lag.log and lag.log.start,
        "log_end": lag.log and lag.log.end,
        "lag": lag.lag,
        "committed_ms": offset and to_ms(offset.committed_at),
        "owners": [_owner_row(owner) for owner in lag.partition.owners],
    }


def _log_note(lag: PartitionLag) -> str | None:
    """Return the note about the lag. A partition without a commit needs none: its OFFSET is empty."""
    return None if lag.note is None or lag.note is LagNote.NEVER_COMMITTED else lag.note.value


def _joined(*notes: str | None) -> str | None:
    return ", ".join(note for note in notes if note) or None


def _notes(group: GroupDescription) -> dict[TopicPartition, str]:
    """Return the problem of each partition. Of several, the last one added below is shown."""
    orphans = [(orphan.at, "orphan") for orphan in group.orphans]
    two = [(partition.at, "two owners") for partition in group.partitions if len(partition.owners) > 1]
    blocked = [(blocked.at, "blocked") for blocked in group.blocked]
    return dict([*((at, "unowned") for at in group.unowned), *blocked, *orphans, *two])


def _owner_row(owner: Owner) -> dict[str, Any]:
    return {"id": owner.id, "session": _session(owner.session), "claimed_ms": to_ms(owner.claimed_at)}


def _blocked_row(blocked: BlockedPartition) -> dict[str, Any]:
    holder = blocked.holder
    return _at(blocked.at) | {
        "holder": holder.id if isinstance(holder, Owner) else holder.shown,
        "session": _session(holder.session),
        "claimed_ms": to_ms(blocked.since) or None,
        "obstacle": blocked.obstacle.value,
    }


def _migration_row(mark: Mark) -> Row:
    return {"target": mark.target, "state": mark.state.value, "plan": mark.plan, "since_ms": to_ms(mark.since)}


def _unreadable(group: GroupDescription) -> list[UnreadableNode]:
    """Return the unreadable nodes. A mark of a migration is one of them: even unreadable, it keeps members out."""
    return [*group.unreadable, *([group.mark] if isinstance(group.mark, UnreadableNode) else [])]


def _unreadable_row(node: UnreadableNode) -> Row:
    data = node.data if isinstance(node, MalformedNode) else None
    return {
        "path": node.path,
        "reason": node.reason,
        "data": None if data is None else node.shown,
        "data_base64": None if data is None else b64encode(data).decode(),
    }


def _at(at: TopicPartition) -> dict[str, Any]:
    return {"topic": at.topic, "partition": at.partition}


def _session(session: int) -> str | None:
    """Format a session as ZooKeeper does, in hexadecimal. JSON numbers would lose its last digits."""
    return session_hex(session) if session else None


@click.command(cls=Command)
@groups_argument
@click.option("--watch", is_flag=True, help="Keep running, and show the groups again whenever something changes.")
@click.option(
    "--interval",
    type=Duration(least=0.1),
    default="2s",
    show_default=True,
    help="How often --watch reads the groups.",
)
@click.pass_obj
def describe(options: Options, names: tuple[str, ...], watch: bool, interval: float) -> None:
    """Show the state, instances, partitions, owners, offsets and problems of groups.

    With brokers (-b), the command also shows log ends and lag; a dash means unknown. If brokers do not answer, it
    shows all else, and ends with exit code 9. JSON and CSV always have these fields. -o csv prints one line for each
    partition.

    \b
    The states of a group:
      Empty                no instance is registered
      PreparingRebalance   instances are registered, but own nothing
      CompletingRebalance  some partitions are owned, others not
      Stable               every partition of every subscribed topic is owned
      Unknown              the permission to read some nodes is missing

    \b
    NOTE has the problems of a partition:
      orphan        the owner is not a registered instance
      unowned       the topic is subscribed to, but no instance owns the partition
      blocked       its owner does not subscribe to the topic, but others do; see the table BLOCKED-TOPIC
      past end      the offset is past the log end
      before start  the messages at the offset have been deleted

    On a terminal, --watch redraws the screen; elsewhere it prints everything again. It ends with Ctrl-C, or when a
    group can no longer be shown. It goes on while no broker answers.

    \b
    Example:
      zkgroups -z zk1:2181/kafka groups describe billing
      zkgroups -z zk1:2181/kafka groups describe billing -o json
      zkgroups -z zk1:2181/kafka groups describe billing -b kafka1:9092
    """
    output = Output(options)
    table = DESCRIPTIONS if options.bootstrap_server is None else DESCRIPTIONS_WITH_LAG
    with connected_with_topics(options) as registry:
        if watch:
            watch_rows(
                output, table, lambda *tallies: list(_descriptions(options, registry, names, *tallies)), interval
            )
        tally = Tally()
        output.write(table, _descriptions(options, registry, names, tally, tally))
    tally.finish()


def _descriptions(
    options: Options, registry: Registry, names: tuple[str, ...], tally: Tally, of_brokers: Tally
) -> Iterator[Row]:
    """Yield the rows. Count groups in one tally, and the brokers in another."""
    found = describe_groups(registry, names, tally, must_exist=names)
    if options.bootstrap_server is None:
        yield from map(description_row, found)
        return
    groups = list(found)  # read offsets before log ends, so that no lag is negative
    logs: LogRanges | None = None
    with reported_as(LAG_UNKNOWN, of_brokers), brokers(options) as found_brokers:
        logs = found_brokers.ranges([partition.at for group in groups for partition in group.partitions])
        check_leaders(found_brokers, logs)
    yield from (description_row(group, logs) for group in groups)
