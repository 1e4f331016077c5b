"""The summary of a snapshot: its counts, its files, and a digest of the rows.

It is stored beside the offsets as `_SUMMARY.json`, a name that Spark does not read as data. Snapshots of earlier
versions have no summary, but can be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import MapType, StructType

from ..source.tables import Table

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
class Summary:
    """The contents of a snapshot."""

    cluster: str
    groups: int
    """The number of groups."""
    tables: Mapping[Table, TableSummary]
    shares: int = 0
    """The number of `Selection`s that were read; 0 if unknown. The number in a file's name is that of its selection."""
    zxid: int | None = None
    """The last transaction in the snapshot, if it was read from a data directory."""

    def to_json(self) -> str:
        """Encode the summary."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Summary:
        """Decode a summary. Raise ValueError if the text is not a summary."""
        try:
            fields: dict[str, Any] = json.loads(text)
            tables = {Table(name): _table(found) for name, found in fields["tables"].items() if name in set(Table)}
            complete = {table: tables[table] for table in Table}
            zxid = fields.get("zxid")
            return cls(
                str(fields["cluster"]),
                int(fields["groups"]),
                complete,
                int(fields.get("shares", 0)),
                None if zxid is None else int(zxid),
            )
        except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"not a summary of a snapshot: {error!r}") from error


def _table(fields: Mapping[str, Any]) -> TableSummary:
    numbers = {name: int(fields[name]) for name in ("rows", "problems")}
    files = {str(name): int(length) for name, length in fields["files"].items()}
    return TableSummary(**numbers, digest=str(fields["digest"]), files=files, columns=str(fields["columns"]))


def digest(columns: StructType) -> Column:
    """Return an order-independent digest of all rows."""
    return f.hex(f.coalesce(f.bit_xor(row_hash(columns)), f.lit(0)))


def row_hash(columns: StructType) -> Column:
    """Return a hash of one row. Maps become lists, because Spark cannot hash maps."""
    return f.xxhash64(
        *(f.map_entries(f.col(c.name)) if isinstance(c.dataType, MapType) else f.col(c.name) for c in columns)
    )


def columns_of(frame: DataFrame) -> str:
    """Encode the columns of a table for its summary."""
    return frame.schema.json()
