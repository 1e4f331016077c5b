"""`zkgroups history`: every change to groups, from the transaction logs of a ZooKeeper server."""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, Self

import click

from zkgroups.core.history.changes import Period
from zkgroups.core.history.events import (
    Commit,
    GroupChange,
    HistoryEvent,
    MemberChange,
    OwnerChange,
    PastInstance,
    PastOwner,
    Rule,
    Violation,
    violations,
)
from zkgroups.core.session_lifetime import session_hex
from zkgroups.core.times import utc_exactly
from zkgroups.core.znodes.topic_partition import check_group
from zkgroups.core.znodes.values import UnevaluableRegistration, unreadable_part
from zkgroups.datadir.data_dir import DataDir
from zkgroups.datadir.history import GapReason, HistoryReader, LogGap
from zkgroups.exceptions import NotFoundError

from .groups.describe import SUBSCRIPTION
from .shared.arguments import ChosenPartitions, is_chosen, matching_option, maybe_partitions_arguments, session_option
from .shared.global_options import Group
from .shared.messages import complain, say
from .shared.options import ExitCode, Options
from .shared.output import GROUP_AT, Column, Row, StreamedOutput, Table
from .shared.parameter_types import FilePath, MomentType, combined, usage_error


@click.group(cls=Group)
def history() -> None:
    """Show every change to groups in the transaction logs of a ZooKeeper server: who made it, and when.

    The server may be running: its files are only read. In an ensemble, the logs of one server have all transactions,
    except from the time when it was stopped. Gaps are reported on stderr. If any transactions between two others are
    missing, or --since is earlier than the first log that is left, the exit code is 9.

    Rows are printed while the logs are read, in all formats. So large logs need little memory, and if the command fails
    in the middle, a JSON or YAML document is incomplete.

    \b
    Example:
      zkgroups history offsets billing orders 3 --from-data-dir /var/lib/zookeeper --chroot /kafka
      zkgroups history check --from-data-dir /backup/zookeeper
    """


# The rows of the history commands, and the columns that several of them have.


TIME: Final = Column("TIME", "time_ms", show=utc_exactly)
ZXID: Final = Column("ZXID", "zxid", show=hex)
SESSION: Final = Column("SESSION", "session")
ADDRESS: Final = Column("ADDRESS", "address")
GROUP: Final = Column("GROUP", "group")
INSTANCE: Final = Column("INSTANCE", "instance")
HOST: Final = Column("HOST", "host", wide=True)
DIALECT: Final = Column("DIALECT", "dialect", wide=True)
MARKS: Final = Column("MARKS", "marks", styles={"went-back": "red", "not-owner": "red"})


def event_row(event: HistoryEvent) -> Row:
    """Return the fields that all events have."""
    return {
        "time_ms": event.time_ms,
        "zxid": event.zxid,
        "session": shown_session(event.session),
        "group": event.group,
        "event": event.action.value,
        "complete": event.is_complete,
    }


def instance_row(instance: PastInstance | None) -> Row:
    """Return the fields of an instance."""
    registration = instance.registration if instance else None
    return {
        "instance": instance.id if instance else None,
        "host": instance.host if instance else None,
        "dialect": registration.dialect.value if registration else None,
        "client_id": registration.client_id or None if registration else None,
    }


def owner_row(owner: PastOwner | None) -> Row:
    """Return the fields of an owner."""
    return {
        "owner": owner.id if owner else None,
        "owner_session": shown_session(owner.session) if owner else None,
        "claimed_ms": (owner.claimed_ms or None) if owner else None,
    }


def shown_session(session: int | None) -> str | None:
    """Format a session; None if it is unknown, or if a node belongs to none."""
    return session_hex(session) if session else None


def marks(event: HistoryEvent) -> Iterator[str]:
    """Yield the words that mark an event."""
    if isinstance(event, Commit):
        if event.went_back:
            yield "went-back"
        if event.gap:
            yield "gap"
        if event.is_without_claim:
            yield "unowned" if event.owner is None else "not-owner"
        if event.is_unregistered:
            yield "unregistered"
    if not event.is_complete:
        yield "incomplete"


def _checked_group(_ctx: click.Context, _param: click.Parameter, name: str | None) -> str | None:
    return None if name is None else check_group(name)


history_options: Final = combined(
    click.option(
        "--from-data-dir",
        "data_dir",
        metavar="DIR",
        required=True,
        type=FilePath(path_type=Path),
        help="The dataDir of a ZooKeeper server, running or not, or a copy of it.",
    ),
    click.option(
        "--data-log-dir",
        metavar="DIR",
        type=FilePath(path_type=Path),
        help="The server's dataLogDir, if its logs are elsewhere.",
    ),
    click.option("--chroot", metavar="PATH", help="The chroot of the groups, e.g. /kafka."),
    matching_option,
    click.option(
        "--since",
        type=MomentType(),
        help="Only from this moment on: 2026-01-31T12:00, yesterday, 2h (ago), or 0x1f (zxid).",
    ),
    click.option("--until", type=MomentType(), help="Only until this moment."),
    session_option("--session", help="Only changes that this session has made."),
    click.option(
        "--server-log",
        "server_logs",
        metavar="FILE",
        type=FilePath(path_type=Path),
        multiple=True,
        help="Show the addresses of clients, from the log of a server, as text or .gz. May be repeated: each "
        "server logs its own clients. ZooKeeper 3.5 and later log them only at level DEBUG.",
    ),
)
"""The options of all history commands, for `HistoryOptions.of`."""


group_argument: Final = click.argument("group", metavar="[GROUP]", required=False, callback=_checked_group)
"""One group, as `group`; None for all groups."""


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """Which logs to read, and which events to show."""

    data: DataDir
    group: str | None
    matching: re.Pattern[str] | None
    period: Period
    session: int | None
    server_logs: tuple[Path, ...] = ()

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        """Create them from the options of a command."""
        log_folder = given["data_log_dir"] and str(given["data_log_dir"])
        chroot = (given["chroot"] or "").rstrip("/")
        data = DataDir(str(given["data_dir"]), log_folder=log_folder, chroot=chroot)
        period = Period(given["since"], given["until"])
        return cls(data, given["group"], given["matching"], period, given["session"], given["server_logs"])

    @property
    def selection(self) -> dict[str, Any]:
        """The arguments of the reader that select groups."""
        group, matching = self.group, self.matching
        if matching is None:
            return {"group": group}
        return {"has_group": lambda name: name == group or matching.fullmatch(name) is not None}


_ESTABLISHED: Final = re.compile(
    rb"Established session (0x[0-9a-f]+) with negotiated timeout [0-9]+ for client [^ /]*/(\S+):([0-9]+)"
)


def client_addresses(files: Iterable[Path]) -> dict[str, str]:
    """Return the client of each session in the logs of servers: its addresses, each with its last port."""
    found: dict[str, dict[str, str]] = {}
    for file in files:
        try:
            with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
                for session, host, port in chain.from_iterable(map(_ESTABLISHED.findall, lines)):
                    found.setdefault(session.decode(), {})[host.decode(errors="replace")] = port.decode()
        except (OSError, EOFError, zlib.error) as error:
            reason = (isinstance(error, OSError) and error.strerror) or str(error)
            raise usage_error(f"{file} cannot be read: {reason}") from error
    return {session: ", ".join(":".join(each) for each in hosts.items()) for session, hosts in found.items()}


class HistoryRun:
    """One reading of the logs. It reports gaps on stderr."""

    def __init__(self, options: Options, chosen: HistoryOptions) -> None:
        self._options = options
        self._chosen = chosen
        self._reader = HistoryReader(chosen.data, **chosen.selection, period=chosen.period)
        self._is_partial = False
        self._addresses = client_addresses(chosen.server_logs)
        if chosen.server_logs and not self._addresses:
            say(options, "The server logs name no clients. ZooKeeper 3.5 and later log them only at level DEBUG.")

    def events(self) -> Iterator[HistoryEvent]:
        """Yield the events of the chosen groups and session."""
        session = self._chosen.session
        for item in self._reader.items():
            if isinstance(item, LogGap):
                self._report(item)
            elif session is None or item.session == session:
                yield item

    def _report(self, gap: LogGap) -> None:
        """Report a gap. At the beginning of the logs it is an error only if earlier transactions were asked for."""
        if gap.reason is GapReason.PURGED and self._chosen.period.since is None:
            say(self._options, f"{gap.text}.")
        else:
            self._is_partial = True
            complain(gap.text)

    def stream(self, table: Table, rows: Iterable[Row]) -> None:
        """Write rows that are made from the events, with the addresses of clients if a server log is given."""
        if self._chosen.server_logs:
            at = next((n for n, each in enumerate(table.columns, 1) if each.field == SESSION.field), len(table.columns))
            table = table._replace(columns=(*table.columns[:at], ADDRESS, *table.columns[at:]))
            rows = ({**row, ADDRESS.field: self._addresses.get(row[SESSION.field])} for row in rows)
        StreamedOutput(self._options).stream(table, rows)

    def write(self, table: Table, rows: Iterable[Row], nothing: str) -> None:
        """Write rows that are made from the events, and end the command. Without rows, print `nothing`."""
        left = iter(rows)
        first = list(islice(left, 1))
        self.stream(table, chain(first, left))
        self.check_groups()
        if not first:
            say(self._options, nothing)
        self.finish()

    def check_groups(self) -> None:
        """Raise NotFoundError if no chosen group was seen: then the name or the chroot is probably wrong."""
        group, seen = self._chosen.group, self._reader.groups
        if group is not None and group not in seen:
            raise NotFoundError(f"group {group!r} does not appear in {self._chosen.data}: check the name and --chroot")
        if not seen:
            which = "no group" if self._chosen.matching is None else "no group that matches"
            raise NotFoundError(f"{which} appears in {self._chosen.data}: check --chroot")

    def finish(self) -> None:
        """Report an incomplete end, and end the command with an error if transactions are missing."""
        if self._reader.torn is not None:
            say(self._options, f"{self._reader.torn} ends within a record, which is left out.")
        if self._is_partial:
            raise click.exceptions.Exit(ExitCode.PARTIAL)


# `zkgroups history check`: find the events that break a rule of groups.


_VIOLATIONS: Final = Table(
    "violations",
    key="zxid",
    columns=(
        TIME,
        ZXID,
        Column("RULE", "rule", styles={"went-back": "red", "two-owners": "red", "commit-not-owner": "red"}),
        *GROUP_AT,
        DIALECT._replace(wide=False),
        INSTANCE,
        HOST,
        SESSION._replace(wide=True),
        Column("WHAT", "what"),
    ),
)

_UNREGISTERED: Final = "not registered"


@history.command()
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


@history.command()
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


@history.command()
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
        *GROUP_AT,
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


@history.command()
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
    rows = (
        {
            **event_row(event),
            "topic": event.topic,
            "partition": event.partition,
            "before": event.before,
            "offset": event.offset,
            "version": event.version if event.version >= 0 else None,
            **instance_row(event.instance),
            **owner_row(event.owner),
            "marks": list(marks(event)),
            "problem": event.problem,
        }
        for event in run.events()
        if isinstance(event, Commit) and is_chosen(event, topics)
    )
    run.write(_COMMITS, rows, "No commits were found.")


# `zkgroups history owners`: every claim, and how it ended.


_OWNERS: Final = Table(
    "owners",
    key="zxid",
    columns=(
        TIME,
        ZXID,
        *GROUP_AT,
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


@history.command()
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
