"""The summary of a snapshot: its counts, its files, and a digest of the rows.

It is stored beside the offsets as `_SUMMARY.json`, a name that Spark does not read as data. Snapshots of earlier
versions have no summary, but can be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from ..core.ensemble_position import EnsemblePosition
from ..core.layouts.legacy import LEGACY
from ..core.tables import Table

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
