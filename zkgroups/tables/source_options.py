"""The options of the data source, as a validated value that contains no secrets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from ..core.history.changes import Moment, Period
from ..core.layouts.legacy import LEGACY
from ..core.selection import Selection, check_expression
from ..core.table_columns import HistoryTable, Table
from ..datadir.data_dir import DataDir
from ..exceptions import InvalidOptionError
from ..zookeeper.registry import Registry
from ..zookeeper.session.connection import check_hosts
from ..zookeeper.zookeeper_source import MAX_PARALLELISM as MAX_PARALLELISM
from ..zookeeper.zookeeper_source import ZooKeeperSource

if TYPE_CHECKING:
    from ..kafka import BrokerOptions


DEFAULT_PARALLELISM: Final = 4

_UNREACHABLE_TIMEOUT: Final = 1.0
"""In seconds."""

_NO_ZXID: Final = "it must be earliest, latest, or a transaction number, decimal or with 0x in hexadecimal"


class Starting(StrEnum):
    """Where a stream starts, if not at a number: with all current offsets, or with commits from now on."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(ZooKeeperSource):
    """Where to read groups, and which. The options of `format("zkgroups")` are:

        table          offsets (default), owners or members; for commits and ownership see `HistoryOptions`
        zookeeper      host:port,host:port/chroot; required unless dataDir is set
        dataDir        the data directory of a ZooKeeper server, running or not: see `zkgroups.datadir`
        dataLogDir     with dataDir: the directory of the transaction logs, if they are elsewhere
        chroot         with dataDir: the chroot of the groups
        zxid           with dataDir: read the state after this transaction; the last by default; 0x marks hexadecimal
        cluster        the value of the column `cluster`; by default the hosts string with its chroot, or the directory;
                       another layout is added to it
        groups         a regular expression that must match the whole name of a group
        topics         a regular expression that must match the whole name of a topic; the row that reports a group
                       whose topics may not be listed is always included
        layout         where the offsets are, as in `Registry.offsets`: legacy (default), storm:/kafkastorm, ...
        parallelism    the number of tasks, each with its own session; 4 by default, 1 for a data directory
        bootstrapServers   offsets: the brokers, host:port,host:port, to fill in `log_start` and `log_end`
        commandConfig      the settings of a Kafka client for them, a file that each worker reads; e.g. for TLS and SASL
        withOwners     offsets: if false, leave the column `owner` null, and do not read the owners
        startingZxid   offsets: only rows written after this transaction, and rows of forbidden nodes; a number, or
                       earliest (default); for streams also latest
        startOver      streams: if true, continue when ZooKeeper was replaced or wiped
        timeout, sessionTimeout     in seconds, as for `Registry.connect`
        readOnly                    if true, accept a server without quorum, whose data may be stale
        digestUser or saslUser      the user to authenticate as
        passwordFile                without it, the environment variable ZKGROUPS_PASSWORD is used
        tls                         true to use TLS
        tlsCa, tlsCert, tlsKey      PEM files
        tlsKeyPasswordFile          without it, the environment variable ZKGROUPS_TLS_KEY_PASSWORD is used
        tlsHostnameCheck            false to skip the check of the server's host name

    The fields of this class have these names in snake case: `dataDir` is `data_dir`.

    Files and environment variables are read when a connection is opened, on the driver and on each worker. So secrets
    never appear in a plan or a log.

    >>> SourceOptions(zookeeper="zk1:2181/kafka", digest_user="ops", password_file="/run/secrets/zk").as_text()
    {'zookeeper': 'zk1:2181/kafka', 'digestUser': 'ops', 'passwordFile': '/run/secrets/zk'}
    """

    data_dir: str | None = None
    data_log_dir: str | None = None
    chroot: str | None = None
    zxid: int | None = None
    table: Table = Table.OFFSETS
    cluster: str | None = None
    bootstrap_servers: str | None = None
    command_config: str | None = None
    with_owners: bool = True
    starting_zxid: int | Starting = Starting.EARLIEST
    start_over: bool = False

    def __post_init__(self) -> None:
        ZooKeeperSource.__post_init__(self)  # `super()` does not work in a dataclass with slots
        if isinstance(self.starting_zxid, int) and not 0 <= self.starting_zxid < 2**63:
            raise InvalidOptionError("startingZxid", self.starting_zxid, _NO_ZXID)
        self._check_brokers()

    def _check_brokers(self) -> None:
        if self.bootstrap_servers is None:
            if self.command_config is not None:
                raise InvalidOptionError("commandConfig", self.command_config, "it needs bootstrapServers")
        elif self.data_dir is not None:
            raise InvalidOptionError(
                "bootstrapServers", self.bootstrap_servers, "a data directory may be older than the log ends of brokers"
            )

    def _check_address(self) -> None:
        if self.data_dir is None:
            if not self.zookeeper:
                raise InvalidOptionError(
                    "zookeeper", None, "it must be the address of ZooKeeper: host:port,host:port/chroot"
                )
            check_hosts(self.zookeeper)
            for name in ("data_log_dir", "chroot", "zxid"):
                if getattr(self, name) is not None:
                    raise InvalidOptionError(_in_spark(name), getattr(self, name), "it needs a dataDir")
        elif self.zookeeper:
            raise InvalidOptionError("dataDir", self.data_dir, "zookeeper is set, too: set only one of them")
        _ = self.files  # which checks the chroot
        if self.zxid is not None and not 0 <= self.zxid < 2**63:
            raise InvalidOptionError("zxid", self.zxid, _NO_ZXID)

    # As Spark's options

    @classmethod
    def option(cls, name: str) -> str:
        """Return the name of a field in camel case, like Spark's own options."""
        return _in_spark(name)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Self:
        """Parse the options that Spark passes: names in any case, values as text."""
        return cls(**parsed_options(cls, given, _PARSERS))

    def as_text(self) -> dict[str, str]:
        """Return the options as text for `parse`, without default values."""
        return options_as_text(self)

    @property
    def shown_cluster(self) -> str:
        """The value of the column `cluster`. Another layout is a part of it, so that its offsets are kept apart."""
        name = self.cluster or (check_hosts(self.zookeeper) if self.files is None else str(self.files))
        return name if self.parsed_layout == LEGACY else f"{name} {self.parsed_layout.location}"

    @property
    def files(self) -> DataDir | None:
        """The data directory to read instead of a server, if any."""
        if self.data_dir is None:
            return None
        return DataDir(self.data_dir, log_folder=self.data_log_dir, chroot=(self.chroot or "").rstrip("/"))

    @property
    def brokers(self) -> BrokerOptions | None:
        """How to connect to the brokers, if any. It is not worth waiting for brokers that refuse connections."""
        if self.bootstrap_servers is None:
            return None
        from ..kafka import BrokerOptions  # only if needed, because it takes long to import

        return BrokerOptions(self.bootstrap_servers, self.command_config, self.timeout, _UNREACHABLE_TIMEOUT)

    def without_brokers(self) -> Self:
        """Return the options without brokers."""
        return replace(self, bootstrap_servers=None, command_config=None)

    def connect(self, *, unreachable_timeout: float | None = None) -> Registry:
        """Open a session to ZooKeeper."""
        if self.data_dir is not None:
            raise InvalidOptionError("dataDir", self.data_dir, "this operation needs a server: set zookeeper instead")
        return ZooKeeperSource.connect(self, unreachable_timeout=unreachable_timeout)


Parsers: TypeAlias = Mapping[str, Callable[[str, str], object]]
"""Functions by the names of fields, which parse the text of an option. They get the option's name, too."""


def parsed_options(kind: type[Any], given: Mapping[str, str], parsers: Parsers) -> dict[str, Any]:
    """Parse the options that Spark passes, names in any case and values as text, to the fields of a dataclass."""
    known = {_in_spark(field.name).lower(): field.name for field in fields(kind)}
    values: dict[str, Any] = {}
    for option, text in given.items():
        name = known.get(option.lower())
        if name is None:
            raise InvalidOptionError("option", option, _unknown(option, kind))
        values[name] = parsers.get(name, _text)(_in_spark(name), text)
    return values


def options_as_text(options: Any) -> dict[str, str]:
    """Return the fields of a dataclass as text for `parsed_options`, without default values."""
    values = ((field, getattr(options, field.name)) for field in fields(options))
    return {
        _in_spark(field.name): str(value).lower() if isinstance(value, bool) else str(value)
        for field, value in values
        if value != field.default
    }


def _in_spark(name: str) -> str:
    """Convert to camel case, e.g. digestUser, like Spark's own options."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _unknown(option: str, kind: type[Any]) -> str:
    if "password" in option.lower():
        return "options are visible in plans and logs: put the password into a file or an environment variable"
    if option.lower() == "path":
        return 'load() takes no path: use option("zookeeper", "host:port/chroot")'
    return f"no such option exists: see help(zkgroups.spark.{kind.__name__})"


def _text(_option: str, text: str) -> str:
    return text


def _table(option: str, text: str) -> Table:
    if text.lower() not in set(Table):
        raise InvalidOptionError(option, text, f"it must be one of {', '.join([*Table, *HistoryTable])}")
    return Table(text.lower())


def whole(option: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > len(str(MAX_PARALLELISM)):
        raise InvalidOptionError(option, text, f"it must be a whole number from 1 to {MAX_PARALLELISM}")
    return int(text)


def _starting(option: str, text: str) -> int | Starting:
    return Starting(text.lower()) if text.lower() in set(Starting) else _zxid(option, text)


def _zxid(option: str, text: str) -> int:
    if not re.fullmatch("0x[0-9a-f]{1,16}|[0-9]{1,19}", text.lower()):
        raise InvalidOptionError(option, text, _NO_ZXID)
    return int(text, 16 if "x" in text.lower() else 10)


def _seconds(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InvalidOptionError(option, text, "it must be a number of seconds") from error


def _flag(option: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise InvalidOptionError(option, text, "it must be true or false")
    return text.lower() == "true"


_PARSERS: Final[Parsers] = {
    "table": _table,
    "parallelism": whole,
    "starting_zxid": _starting,
    "zxid": _zxid,
    "start_over": _flag,
    "with_owners": _flag,
    "timeout": _seconds,
    "session_timeout": _seconds,
    "read_only": _flag,
    "tls": _flag,
    "tls_hostname_check": _flag,
}


# The options of the data source for the tables of a history, as a validated value.


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
        values = parsed_options(cls, given, _HISTORY_PARSERS)
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


def _history_table(_option: str, text: str) -> HistoryTable:
    return HistoryTable(text.lower())


def _moment(option: str, text: str | None) -> Moment | None:
    return None if text is None else Moment.parse(text, option)


_HISTORY_PARSERS: Final[Parsers] = {"table": _history_table, "parallelism": whole}
