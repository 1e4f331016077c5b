"""`zkgroups history check`, `groups`, `members`, `offsets` and `owners`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import click

from zkgroups.core.history.events import (
    Commit,
    GroupChange,
    MemberChange,
    OwnerChange,
    PastInstance,
    Rule,
    Violation,
    violations,
)
from zkgroups.core.znodes.values import UnevaluableRegistration, unreadable_part

from ..groups.describe import SUBSCRIPTION
from ..shared.arguments import ChosenPartitions, is_chosen, maybe_partitions_arguments
from ..shared.command_classes import Command
from ..shared.exit_codes import ExitCode
from ..shared.messages import say
from ..shared.options import Options
from ..shared.output import Column, Row, Table
from .options import (
    DIALECT,
    GROUP,
    HOST,
    INSTANCE,
    MARKS,
    PARTITION,
    SESSION,
    TIME,
    TOPIC,
    ZXID,
    HistoryOptions,
    HistoryRun,
    event_row,
    group_argument,
    history_options,
    instance_row,
    marks,
    owner_row,
    shown_session,
)

# `zkgroups history check`: find the events that break a rule of groups.


_VIOLATIONS: Final = Table(
    "violations",
    key="zxid",
    columns=(
        TIME,
        ZXID,
        Column("RULE", "rule", styles={"went-back": "red", "two-owners": "red", "commit-not-owner": "red"}),
        GROUP,
        TOPIC,
        PARTITION,
        DIALECT._replace(wide=False),
        INSTANCE,
        HOST,
        SESSION._replace(wide=True),
        Column("WHAT", "what"),
    ),
)

_UNREGISTERED: Final = "not registered"


@click.command(cls=Command)
@group_argument
@history_options
@click.option(
    "--ignore",
    type=click.Choice([rule.value for rule in Rule]),
    metavar="RULE",
    multiple=True,
    help="Leave out the violations of this rule. May be repeated.",
)
@click.pass_obj
def check(options: Options, /, ignore: tuple[str, ...], **given: Any) -> None:
    """Find the events in the logs that break a rule of groups, and show who broke it. The exit code is then 10.

    \b
    two-owners           a partition was claimed while another owner had it
    claim-taken          an owner node was deleted by another session
    claim-unregistered   a partition was claimed by a session without a registration
    commit-not-owner     a partition was committed while another session owned it
    commit-unowned       a partition was committed while nobody owned it
    commit-unregistered  a partition was committed by its owner, which had no registration
    went-back            an offset became lower
    malformed            an offset was written that clients cannot read
    deleted              an offset was deleted

    Tools of administrators break some of these rules on purpose, and so do programs that commit without joining the
    group: leave these rules out with --ignore. DIALECT is the client of the instance that broke the rule. It is empty
    if the session had not registered an instance. Nothing is reported that may be due to missing transactions.

    \b
    Example:
      zkgroups history check --from-data-dir /var/lib/zookeeper --chroot /kafka
      zkgroups history check billing --from-data-dir /backup/zookeeper --ignore deleted --ignore commit-unowned
    """
    run, counts = HistoryRun(options, HistoryOptions.of(given)), Counter[str]()
    run.stream(_VIOLATIONS, _rows(run, set(ignore), counts))
    run.check_groups()
    say(options, _summary(counts))
    run.finish()
    if counts:
        raise click.exceptions.Exit(ExitCode.FINDINGS)


def _rows(run: HistoryRun, ignored: set[str], counts: Counter[str]) -> Iterator[Row]:
    for event in run.events():
        for violation in violations(event):
            if violation.rule not in ignored:
                counts[violation.dialect or _UNREGISTERED] += 1
                yield _violation_row(violation)


def _violation_row(violation: Violation) -> Row:
    event = violation.event
    return {
        **event_row(event),
        "rule": violation.rule.value,
        "topic": event.topic,
        "partition": event.partition,
        **instance_row(violation.by),
        "what": violation.text,
    }


def _summary(counts: Counter[str]) -> str:
    if not counts:
        return "No violations found."
    by_dialect = ", ".join(f"{dialect}: {count}" for dialect, count in counts.most_common())
    return f"Violations: {counts.total()} ({by_dialect})."


# `zkgroups history groups`: which groups were created and deleted.


_GROUPS: Final = Table(
    "groups",
    key="group",
    columns=(TIME, ZXID, GROUP, Column("EVENT", "event"), SESSION, INSTANCE, HOST, DIALECT, MARKS),
)


@click.command(cls=Command)
@group_argument
@history_options
@click.pass_obj
def groups(options: Options, /, **given: Any) -> None:
    """Show which groups were created and deleted in the logs, in order.

    \b
    Example:
      zkgroups history groups --from-data-dir /var/lib/zookeeper --chroot /kafka
      zkgroups history groups --groups 'bill.*' --from-data-dir /backup/zookeeper --since 7d
    """
    run = HistoryRun(options, HistoryOptions.of(given))
    rows = (
        {**event_row(event), **instance_row(event.instance), "marks": list(marks(event))}
        for event in run.events()
        if isinstance(event, GroupChange)
    )
    run.write(_GROUPS, rows, "No groups were created or deleted.")


# `zkgroups history members`: every registration, and how it ended.


_MEMBERS: Final = Table(
    "members",
    key="instance",
    columns=(
        TIME,
        ZXID,
        GROUP,
        Column("EVENT", "event", styles={"removed": "red", "expired": "yellow"}),
        INSTANCE,
        Column("MEMBER-SESSION", "member_session"),
        DIALECT._replace(wide=False),
        HOST,
        SUBSCRIPTION._replace(wide=True),
        SESSION._replace(wide=True),
        Column("BY", "by", wide=True),
        MARKS,
        Column("PROBLEM", "problem", wide=True),
    ),
)


@click.command(cls=Command)
@group_argument
@history_options
@click.pass_obj
def members(options: Options, /, **given: Any) -> None:
    """Show every registration in the logs, in order, and how it ended.

    EVENT: registered; changed, the registration was written; deregistered, by its own session; removed, by another
    session; closed, the client closed its session; expired, the server ended the session; deleted, it is not known by
    whose session. With -o wide, SESSION and BY are the session that made the change, and its instance.

    \b
    Example:
      zkgroups history members billing --from-data-dir /var/lib/zookeeper --chroot /kafka
      zkgroups history members --groups 'bill.*' --from-data-dir /backup/zookeeper -o jsonl
    """
    run = HistoryRun(options, HistoryOptions.of(given))
    rows = (_member_row(event) for event in run.events() if isinstance(event, MemberChange))
    run.write(_MEMBERS, rows, "No registrations were found.")


def _member_row(change: MemberChange) -> Row:
    member = change.member
    unreadable = unreadable_part(member.read)
    return {
        **event_row(change),
        **instance_row(member),
        "member_session": shown_session(member.session),
        "registered_ms": member.registered_ms or None,
        "subscription": _subscription(member),
        "by": change.instance.id if change.instance else None,
        "marks": list(marks(change)),
        "problem": unreadable.reason if unreadable else None,
    }


def _subscription(member: PastInstance) -> Row | None:
    """Return the subscription in the form that other commands have."""
    if member.registration is None:
        return None
    found = {"pattern": member.registration.pattern.value, "streams": dict(member.registration.streams)}
    return found | {"unevaluable": member.read.reason} if isinstance(member.read, UnevaluableRegistration) else found


# `zkgroups history offsets`: every commit, and who made it.


_COMMITS: Final = Table(
    "commits",
    key="zxid",
    columns=(
        TIME,
        ZXID,
        GROUP,
        TOPIC,
        PARTITION,
        Column("BEFORE", "before", right=True),
        Column("OFFSET", "offset", right=True),
        SESSION,
        INSTANCE,
        HOST,
        DIALECT,
        Column("OWNER", "owner"),
        Column("EVENT", "event", wide=True),
        Column("VERSION", "version", right=True, wide=True),
        MARKS,
        Column("PROBLEM", "problem", wide=True),
    ),
)


@click.command(cls=Command)
@group_argument
@maybe_partitions_arguments
@history_options
@click.pass_obj
def offsets(options: Options, /, topics: ChosenPartitions | None, **given: Any) -> None:
    """Show every commit in the logs, in order: the offset before and after, and who made it.

    INSTANCE is the instance that the session had registered in the group at that moment. OWNER is the owner of the
    partition. The address of a client is not in the transaction logs, but most ids of instances contain the host (-o
    wide), and --server-log shows the addresses that the server has logged.

    MARKS: went-back, the offset is lower than before; gap, the previous commit is missing in the logs, so BEFORE is
    unknown; not-owner, another session owned the partition; unowned, nobody owned it; unregistered, the session had no
    registration in the group; incomplete, earlier transactions are missing, so the owner or the instance may be
    unknown.

    \b
    Example:
      zkgroups history offsets billing orders 3 --from-data-dir /var/lib/zookeeper --chroot /kafka
      zkgroups history offsets billing --from-data-dir /backup/zookeeper --since 2026-01-31T12:00:00 -o csv
      zkgroups history offsets --session 0x10000a1b2c3d4e5 --from-data-dir /backup/zookeeper
    """
    run = HistoryRun(options, HistoryOptions.of(given))
    rows = (_offset_row(event) for event in run.events() if isinstance(event, Commit) and is_chosen(event, topics))
    run.write(_COMMITS, rows, "No commits were found.")


def _offset_row(commit: Commit) -> Row:
    return {
        **event_row(commit),
        "topic": commit.topic,
        "partition": commit.partition,
        "before": commit.before,
        "offset": commit.offset,
        "version": commit.version if commit.version >= 0 else None,
        **instance_row(commit.instance),
        **owner_row(commit.owner),
        "marks": list(marks(commit)),
        "problem": commit.problem,
    }


# `zkgroups history owners`: every claim, and how it ended.


_OWNERS: Final = Table(
    "owners",
    key="zxid",
    columns=(
        TIME,
        ZXID,
        GROUP,
        TOPIC,
        PARTITION,
        Column("EVENT", "event", styles={"taken": "red", "expired": "yellow"}),
        Column("OWNER", "owner"),
        Column("OWNER-SESSION", "owner_session"),
        Column("HELD-MS", "held_ms", right=True, wide=True),
        SESSION._replace(wide=True),
        INSTANCE._replace(wide=True),
        HOST,
        DIALECT,
        MARKS,
    ),
)


@click.command(cls=Command)
@group_argument
@maybe_partitions_arguments
@history_options
@click.pass_obj
def owners(options: Options, /, topics: ChosenPartitions | None, **given: Any) -> None:
    """Show every claim in the logs, in order, and how it ended.

    EVENT: claimed; released, by its own session; taken, another session deleted the owner node; closed, the client
    closed its session; expired, the server ended the session; changed, the owner node was written; deleted, it is not
    known by whose session. With -o wide, SESSION and INSTANCE show who made the change, and HELD-MS is how long
    the claim has lasted.

    \b
    Example:
      zkgroups history owners billing orders 3 --from-data-dir /var/lib/zookeeper --chroot /kafka
      zkgroups history owners billing --from-data-dir /backup/zookeeper --since 2h -o wide
    """
    run = HistoryRun(options, HistoryOptions.of(given))
    rows = (_owner_row(event) for event in run.events() if isinstance(event, OwnerChange) and is_chosen(event, topics))
    run.write(_OWNERS, rows, "No owners were found.")


def _owner_row(change: OwnerChange) -> Row:
    claimed_ms = change.owner.claimed_ms
    return {
        **event_row(change),
        "topic": change.topic,
        "partition": change.partition,
        **owner_row(change.owner),
        "held_ms": change.time_ms - claimed_ms if claimed_ms and claimed_ms != change.time_ms else None,
        "holder": change.holder.id if change.holder else None,
        **instance_row(change.instance),
        "beside": [owner.id for owner in change.others],
        "marks": list(marks(change)),
    }
