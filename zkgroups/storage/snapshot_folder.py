"""Reading the folder of snapshots: their names, their files and their summaries.

    DEST/table=owners/snapshot=<time>/part-*.parquet
    DEST/table=members/snapshot=<time>/part-*.parquet
    DEST/table=offsets/snapshot=<time>/part-*.parquet
    DEST/table=offsets/snapshot=<time>/_SUMMARY.json       the counts and files of all tables: see `snapshot_folder.py`
    DEST/table=offsets/snapshot=<time>/_SUCCESS

A snapshot exists once it has `_SUCCESS`. `zkgroups/snapshots/layout.py` writes snapshots.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

from ..core.ensemble_position import EnsemblePosition
from ..core.layouts.legacy import LEGACY
from ..core.table_columns import Table
from ..core.time_formats import parse_time
from ..core.times import from_ms
from ..exceptions import DamagedFileError, InvalidOptionError, NotFoundError
from .atomic_folder import AtomicFolder
from .files import TIMESTAMP, join_problems, missing_files, timestamp_text

# Positions as streaming checkpoints and audits store them. The names of the fields are part of the formats on disk.


FIELDS: Final = {"zxid": "zxid", "made_zxid": "created_zxid", "made_ms": "created_ms"}
"""The fields of a position by their names on disk."""


def encode_position(position: EnsemblePosition) -> dict[str, int]:
    """Convert a position to the fields on disk.

    >>> encode_position(EnsemblePosition(zxid=100, created_zxid=7, created_ms=1_000))
    {'zxid': 100, 'made_zxid': 7, 'made_ms': 1000}
    """
    return {name: getattr(position, field) for name, field in FIELDS.items()}


def decode_position(saved: Mapping[str, int]) -> EnsemblePosition:
    """Convert the fields on disk to a position. Other fields are ignored."""
    return EnsemblePosition(**{field: saved[name] for name, field in FIELDS.items()})


# The summary of a snapshot: its counts, its files, and a digest of the rows.
#
# It is stored beside the offsets as `_SUMMARY.json`, a name that Spark does not read as data. Snapshots of earlier
# versions have no summary, but can be read.


SCHEMA: Final = 1
"""The version of the format. It does not change when fields are added."""


@dataclass(frozen=True, slots=True)
class TableSummary:
    """The contents of one table."""

    rows: int
    problems: int
    """The number of rows with a problem."""
    digest: str
    files: Mapping[str, int]
    """The length of each file."""
    columns: str


@dataclass(frozen=True, slots=True)
class LagSummary:
    """The lag of all offsets."""

    total: int | None
    """The sum of the known lags; None if none is known, or if the sum does not fit into 64 bits."""
    unknown: int
    """The number of offsets whose lag is unknown."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The contents of a snapshot."""

    cluster: str
    groups: int
    """The number of groups."""
    tables: Mapping[Table, TableSummary]
    shares: int = 0
    """The number of `Selection`s that were read; 0 if unknown. The name of a file has the number of its selection."""
    zxid: int | None = None
    """The last transaction in the snapshot, if it was read from a data directory."""
    position: EnsemblePosition | None = None
    """The position of ZooKeeper before the snapshot, if it was read from servers with a quorum."""
    lag: LagSummary | None = None
    """None if the brokers were not asked, or did not answer."""
    layout: str = LEGACY.text
    """Where the offsets were found, as text."""

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Summary:
        """Decode a summary. Raise ValueError if the text is not a summary."""
        try:
            fields: dict[str, Any] = json.loads(text)
            tables = {Table(name): _table(found) for name, found in fields["tables"].items() if name in set(Table)}
            complete = {table: tables[table] for table in Table}
            zxid, position, lag = (fields.get(name) for name in ("zxid", "position", "lag"))
            return cls(
                str(fields["cluster"]),
                int(fields["groups"]),
                complete,
                int(fields.get("shares", 0)),
                None if zxid is None else int(zxid),
                None if position is None else EnsemblePosition(**{name: int(position[name]) for name in position}),
                None if lag is None else _lag(lag),
                str(fields.get("layout", LEGACY.text)),
            )
        except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not a summary of a snapshot: {error!r}") from error


def _lag(fields: Mapping[str, Any]) -> LagSummary:
    total = fields["total"]
    return LagSummary(None if total is None else int(total), int(fields["unknown"]))


def _table(fields: Mapping[str, Any]) -> TableSummary:
    numbers = {name: int(fields[name]) for name in ("rows", "problems")}
    files = {str(name): int(length) for name, length in fields["files"].items()}
    return TableSummary(**numbers, digest=str(fields["digest"]), files=files, columns=str(fields["columns"]))


# What `--at` means: choose a snapshot by `latest`, `previous`, its name, or a time.
#
# A time such as 2026-01-31T12:00 or 2026-01-31 12:00:07+01:00 selects the latest snapshot started at or before it. A
# time without a zone is UTC, like names.


LATEST: Final = "latest"
PREVIOUS: Final = "previous"

_CLOCKS_DIFFER: Final = timedelta(minutes=5)


def is_name(text: str) -> bool:
    """Return whether the text has the form of a snapshot's name."""
    return re.fullmatch(TIMESTAMP, text) is not None


def find_snapshot(
    latest_first: Iterable[str], text: str, is_candidate: Callable[[str], bool] = lambda _name: True
) -> str | None:
    """Return the first name that the text can mean and that satisfies `is_candidate`."""
    if text in (LATEST, PREVIOUS):
        return next(islice(filter(is_candidate, latest_first), int(text == PREVIOUS), None), None)
    if is_name(text):
        return next((name for name in latest_first if name == text and is_candidate(name)), None)
    last = _last_name(text)
    return None if last is None else next((name for name in latest_first if name <= last and is_candidate(name)), None)


def is_in_future(name: str, now: datetime | None = None) -> bool:
    """Return whether the time of a snapshot is in the future, so that it may not be the latest.

    Either the clock was wrong when it was taken, or it is wrong now.

    >>> now = datetime(2026, 1, 31, 12, tzinfo=UTC)
    >>> is_in_future("20260131T120007.005Z", now), is_in_future("20270131T120007.005Z", now)
    (False, True)
    """
    return name > timestamp_text((now or datetime.now(UTC)) + _CLOCKS_DIFFER)


def _last_name(text: str) -> str | None:
    """Return the name of a snapshot of that time; None if the text is not a time."""
    try:
        at = from_ms(parse_time(text))
    except InvalidOptionError:
        return None
    return None if at is None else timestamp_text(at)


SUMMARY: Final = "_SUMMARY.json"
IN_ORDER: Final = (Table.OWNERS, Table.MEMBERS, Table.OFFSETS)
"""The order in which tables are written and moved into place."""

_IN_PLACE: Final = re.compile(f"snapshot=({TIMESTAMP})")


class SnapshotFolder(AtomicFolder):
    """The snapshots of one destination."""

    def snapshots(self) -> list[str]:
        """Return the names of the complete snapshots, oldest first."""
        return [name for name in self._names(Table.OFFSETS) if self.has(name)]

    def latest(self) -> str | None:
        """Return the name of the latest snapshot, if any."""
        return next(self.latest_first(), None)

    def latest_first(self) -> Iterator[str]:
        """Iterate lazily over the names of the snapshots, latest first."""
        return (name for name in reversed(self._names(Table.OFFSETS)) if self.has(name))

    def has(self, name: str) -> bool:
        """Return whether a complete snapshot has this name."""
        return bool(re.fullmatch(TIMESTAMP, name)) and self.is_complete(*place(Table.OFFSETS, name))

    def choose(self, at: str | None = None) -> str:
        """Return the name of the snapshot that `at` means (see `snapshot_folder.py`); the latest by default."""
        found = find_snapshot(self.latest_first(), LATEST if at is None else at.strip())
        if found is None:
            raise self.no_snapshot(f" {at}" if at else "")
        return found

    def no_snapshot(self, wanted: str = "") -> NotFoundError:
        """Return the error for a missing snapshot. `wanted` follows "no snapshot", e.g. " of a cluster"."""
        names = self.snapshots()
        cure = f"the oldest is {names[0]}, the latest {names[-1]}" if names else "write one with `zkgroups snapshot`"
        return NotFoundError(f"no snapshot{wanted} in {self}: {cure}")

    def started_names(self) -> list[str]:
        """Return the names of which at least one table is in place, complete or not; oldest first."""
        return sorted({name for table in IN_ORDER for name in self._names(table)})

    def unfinished(self) -> list[str]:
        """Return the names of snapshots that are being written, or were when their process died; oldest first."""
        return sorted({time for time, _folder in self.staged()})

    def _names(self, table: Table) -> list[str]:
        matches = map(_IN_PLACE.fullmatch, self.children(f"table={table}"))
        return sorted(match[1] for match in matches if match)

    def table(self, table: Table, name: str) -> str:
        """Return the path of a table of the named snapshot."""
        return self.path(*place(table, name))

    def files(self, table: Table, name: str) -> dict[str, int]:
        """Return the files of a table with their lengths; empty if the table is missing."""
        return self.file_lengths(*place(table, name))

    def summary(self, name: str) -> Summary | None:
        """Return the summary of a snapshot; None if it was written by an earlier version."""
        names = (*place(Table.OFFSETS, name), SUMMARY)
        if not self.exists(*names):
            return None
        with self.translated(f"{self.path(*names)} cannot be read"):
            text = self.read_text(*names)
        try:
            return Summary.from_json(text)
        except ValueError as error:
            cure = "restore it from a backup, or choose another snapshot"
            raise DamagedFileError(f"{self.path(*names)} cannot be read: {error}; {cure}") from error

    def check_intact(self, table: Table, name: str, summary: Summary | None) -> None:
        """Raise DamagedFileError if a file is missing or truncated. Without a summary, check that any file exists."""
        found = self.files(table, name)
        if summary is not None:
            problems = missing_files(found, summary.tables[table].files, of=f" of table={table}")
        else:
            problems = [] if found else [f"table={table} has no file"]
        if problems:
            shown = join_problems(problems)
            raise DamagedFileError(f"snapshot {name} in {self} is damaged: {shown}; restore it, or choose another one")


def place(table: Table, name: str) -> tuple[str, str]:
    """Return the folders of a table of the named snapshot."""
    return f"table={table}", f"snapshot={name}"
