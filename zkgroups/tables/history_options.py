"""The options of the data source for the tables of a history, as a validated value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from ..core.history.period import Moment, Period
from ..core.history_columns import HistoryTable
from ..core.selection import Selection, check_expression
from ..datadir.data_dir import DataDir
from ..exceptions import InvalidOptionError
from .source_options import MAX_PARALLELISM, Parsers, options_as_text, parsed_options, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOptions:
    """Which transaction logs to read. The options of `format("zkgroups")` for the tables of a history are:

        table          commits or ownership
        dataDir        the data directory of a ZooKeeper server, running or not; required
        dataLogDir     the directory of the transaction logs, if they are elsewhere
        chroot         the chroot of the groups
        since, until   from and until which time or transaction, for example 2026-01-31T12:00:00, or 0x1a2b
        cluster        the value of the column `cluster`; by default the directory with the chroot
        groups         a regular expression that must match the whole name of a group
        topics         a regular expression that must match the whole name of a topic
        parallelism    the number of tasks; 4 by default. Each task reads some logs; a log is not divided

    The fields of this class have these names in snake case: `dataDir` is `data_dir`. All workers must see the
    directory.

    >>> options = HistoryOptions(table=HistoryTable.COMMITS, data_dir="/backup/zookeeper", since="0x1a2b")
    >>> options.period.since
    Moment(zxid=6699, time_ms=None)
    """

    table: HistoryTable
    data_dir: str
    data_log_dir: str | None = None
    chroot: str | None = None
    since: str | None = None
    until: str | None = None
    cluster: str | None = None
    groups: str | None = None
    topics: str | None = None
    parallelism: int | None = None

    def __post_init__(self) -> None:
        if not self.data_dir:
            raise InvalidOptionError("dataDir", None, f"{self.table} are read from transaction logs: set it")
        _ = self.files  # which checks the chroot
        check_expression("groups", self.groups)
        check_expression("topics", self.topics)
        if self.parallelism is not None and not 1 <= self.parallelism <= MAX_PARALLELISM:
            raise InvalidOptionError("parallelism", self.parallelism, f"it must be from 1 to {MAX_PARALLELISM}")
        _ = self.period  # which checks its moments

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Parse the options that Spark passes: names in any case, values as text."""
        values = parsed_options(cls, given, _PARSERS)
        return cls(**{"data_dir": ""} | values)

    def as_text(self) -> dict[str, str]:
        """Return the options as text for `parse`, without default values."""
        return options_as_text(self)

    @property
    def files(self) -> DataDir:
        """The data directory."""
        return DataDir(self.data_dir, log_folder=self.data_log_dir, chroot=(self.chroot or "").rstrip("/"))

    @property
    def shown_cluster(self) -> str:
        """The value of the column `cluster`."""
        return self.cluster or str(self.files)

    @property
    def period(self) -> Period:
        """The period to read."""
        return Period(_moment("since", self.since), _moment("until", self.until))

    @property
    def selection(self) -> Selection:
        """The groups and topics to read."""
        return Selection(self.groups, self.topics)


def history_table(given: Mapping[str, str]) -> HistoryTable | None:
    """Return the table of a history that Spark's options name, if they name one."""
    name = next((text for option, text in given.items() if option.lower() == "table"), "").lower()
    return HistoryTable(name) if name in set(HistoryTable) else None


def _table(_option: str, text: str) -> HistoryTable:
    return HistoryTable(text.lower())


def _moment(option: str, text: str | None) -> Moment | None:
    return None if text is None else Moment.parse(text, option)


_PARSERS: Final[Parsers] = {"table": _table, "parallelism": whole}
