"""What a snapshot says of itself: how much is in it, in which files, and a digest of the rows.

It lies beside the offsets as `_SUMMARY.json`, where other programs do not look for data. Snapshots of earlier versions
have none, and are read all the same; what follows from it is then not known.
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
"""The version of the file; one that adds to it leaves the number as it is."""


@dataclass(frozen=True, slots=True)
class Contents:
    """One table: its rows, those with a problem, their digest, its files with their lengths, and its columns."""

    rows: int
    problems: int
    digest: str
    files: Mapping[str, int]
    columns: str


@dataclass(frozen=True, slots=True)
class Summary:
    """A snapshot: whose groups are in it, how many there are, its tables, and in how many shares it was written.

    The share of a `Selection` is the number in the name of a file; 0 shares means that it is not known.
    """

    cluster: str
    groups: int
    tables: Mapping[Table, Contents]
    shares: int = 0
    zxid: int | None = None
    """Of files, after which transaction: they are of that time, and not of the one in the snapshot's name."""

    def to_json(self) -> str:
        """As it is kept."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Summary:
        """As it was; ValueError for what is none."""
        try:
            fields: dict[str, Any] = json.loads(text)
            tables = {Table(name): _contents(of) for name, of in fields["tables"].items() if name in set(Table)}
            whole = {table: tables[table] for table in Table}
            zxid = fields.get("zxid")
            return cls(
                str(fields["cluster"]),
                int(fields["groups"]),
                whole,
                int(fields.get("shares", 0)),
                None if zxid is None else int(zxid),
            )
        except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"no summary of a snapshot: {error!r}") from error


def _contents(fields: Mapping[str, Any]) -> Contents:
    numbers = {name: int(fields[name]) for name in ("rows", "problems")}
    files = {str(name): int(length) for name, length in fields["files"].items()}
    return Contents(**numbers, digest=str(fields["digest"]), files=files, columns=str(fields["columns"]))


def digest(columns: StructType) -> Column:
    """Of all rows together, whatever their order: equal rows give an equal one."""
    return f.hex(f.coalesce(f.bit_xor(row_hash(columns)), f.lit(0)))


def row_hash(columns: StructType) -> Column:
    """Of one row."""
    return f.xxhash64(
        *(f.map_entries(f.col(c.name)) if isinstance(c.dataType, MapType) else f.col(c.name) for c in columns)
    )


def columns_of(frame: DataFrame) -> str:
    """The columns of a table as a summary has them."""
    return frame.schema.json()
