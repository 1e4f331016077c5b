"""The options of all history commands: which logs to read, and which events to show."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import click

from zkgroups.core.history.changes import Period
from zkgroups.core.history.events import Commit, HistoryEvent, PastInstance, PastOwner
from zkgroups.core.session_lifetime import session_hex
from zkgroups.core.times import utc_exactly
from zkgroups.core.znodes.topic_partition import check_group
from zkgroups.datadir.data_dir import DataDir
from zkgroups.datadir.history import GapReason, HistoryReader, LogGap
from zkgroups.exceptions import NotFoundError

from ..shared.arguments import matching_option, session_option
from ..shared.exit_codes import ExitCode
from ..shared.input_files import FilePath
from ..shared.messages import complain, say
from ..shared.options import Options
from ..shared.output import Column, Row, StreamedOutput, Table
from ..shared.parameter_types import MomentType

# The rows of the history commands, and the columns that several of them have.


TIME: Final = Column("TIME", "time_ms", show=utc_exactly)
ZXID: Final = Column("ZXID", "zxid", show=hex)
SESSION: Final = Column("SESSION", "session")
ADDRESS: Final = Column("ADDRESS", "address")
GROUP: Final = Column("GROUP", "group")
TOPIC: Final = Column("TOPIC", "topic")
PARTITION: Final = Column("PARTITION", "partition", right=True)
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


Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _checked_group(_ctx: click.Context, _param: click.Parameter, name: str | None) -> str | None:
    return None if name is None else check_group(name)


def history_options(command: Decorated) -> Decorated:
    """The options of all history commands, for `HistoryOptions.of`."""
    for option in reversed(
        (
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
    ):
        command = option(command)
    return command


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
            raise click.UsageError(f"{file} cannot be read: {reason}", click.get_current_context()) from error
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
