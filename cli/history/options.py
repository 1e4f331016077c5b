"""The options of all history commands: which logs to read, and which events to show."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import click

from zkgroups.core.history.events import HistoryEvent
from zkgroups.core.history.period import Moment, Period
from zkgroups.core.time_formats import parse_duration
from zkgroups.core.znodes.names import check_group
from zkgroups.datadir.data_dir import DataDir
from zkgroups.datadir.history.gaps import GapReason, LogGap
from zkgroups.datadir.history.reader import HistoryReader
from zkgroups.exceptions import InvalidOptionError, NotFoundError

from ..shared.arguments import matching_option, session_option
from ..shared.durations import parsed_by
from ..shared.exit_codes import ExitCode
from ..shared.input_files import FilePath
from ..shared.messages import complain, say
from ..shared.options import Options
from ..shared.output import Row, Table
from ..shared.streamed_output import StreamedOutput

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _moment_option(name: str, help: str) -> Callable[[Decorated], Decorated]:
    return click.option(name, metavar="TIME|DURATION|ZXID", callback=parsed_by(_moment), help=help)


def _moment(text: str) -> Moment:
    try:
        return Moment(time_ms=time.time_ns() // 1_000_000 - parse_duration(text))
    except InvalidOptionError:
        return Moment.parse(text, "the moment", "a duration like 2h")


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
            _moment_option("--since", "Only from this moment on: 2026-01-31T12:00:00, 2h (ago), or 0x1f (zxid)."),
            _moment_option("--until", "Only until this moment."),
            session_option("--session", help="Only changes that this session has made."),
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

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        """Create them from the options of a command."""
        log_folder = given["data_log_dir"] and str(given["data_log_dir"])
        chroot = (given["chroot"] or "").rstrip("/")
        data = DataDir(str(given["data_dir"]), log_folder=log_folder, chroot=chroot)
        return cls(data, given["group"], given["matching"], Period(given["since"], given["until"]), given["session"])

    @property
    def selection(self) -> dict[str, Any]:
        """The arguments of the reader that select groups."""
        group, matching = self.group, self.matching
        if matching is None:
            return {"group": group}
        return {"has_group": lambda name: name == group or matching.fullmatch(name) is not None}


class HistoryRun:
    """One reading of the logs. It reports gaps on stderr."""

    def __init__(self, options: Options, chosen: HistoryOptions) -> None:
        self._options = options
        self._chosen = chosen
        self._reader = HistoryReader(chosen.data, **chosen.selection, period=chosen.period)
        self._is_partial = False

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

    def write(self, table: Table, rows: Iterable[Row], nothing: str) -> None:
        """Write rows that are made from the events, and end the command. Without rows, print `nothing`."""
        left = iter(rows)
        first = list(islice(left, 1))
        StreamedOutput(self._options).stream(table, chain(first, left))
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
