"""`zkgroups.read_snapshot`: a table of a snapshot without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.table_columns import Table
from ..exceptions import InvalidOptionError, MissingDependencyError

if TYPE_CHECKING:
    import pyarrow as pa


def read_snapshot(
    destination: str, at: str = "latest", *, table: Table | str = Table.OFFSETS, cluster: str | None = None
) -> pa.Table:
    """Return a table of a snapshot as a `pyarrow.Table`, without Spark. Needs the extra `zkgroups[snapshots]`.

        offsets = zkgroups.read_snapshot("/data/groups")
        offsets.to_pandas(), polars.from_arrow(offsets), duckdb.sql("SELECT sum(offset) FROM offsets")

    - `destination`: the folder that `zkgroups snapshot` writes to, on this machine.
    - `at`: "latest", "previous", a name, or a time such as "2026-01-31 12:00" in UTC, which means the latest snapshot
      at or before it. Only complete snapshots count.
    - `table`: "offsets", "owners" or "members". `zkgroups.spark.Table` lists the columns.
    - `cluster`: the value of the column `cluster`, if the destination has snapshots of several.

    A snapshot of an earlier version is converted to the columns of this one. Raise NotFoundError if there is no such
    snapshot, and DamagedFileError if a file of the table is missing or damaged.
    """
    if table not in set(Table):
        raise InvalidOptionError("table", table, f"it must be one of {', '.join(Table)}")
    try:
        from .local_snapshot import ArrowLayout
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pyarrow":
            raise
        needed = "reading a snapshot needs pyarrow; from the checkout: pip install '.[snapshots]'"
        raise MissingDependencyError(needed) from error
    layout = ArrowLayout.at(destination)
    return layout.read_chosen(Table(table), at, cluster)
