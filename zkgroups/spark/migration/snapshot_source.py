"""The input of a plan from a snapshot: its offsets and registrations, as `SourceNode` rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ...core.migration.offset_decision import NoOffset
from ...core.migration.target_names import Renaming
from ...core.selection import Selection, check_expression
from ...exceptions import InvalidOptionError, NotFoundError
from ...migration.arrow_rows import arrow_schema
from ...migration.engine import Engine
from ...migration.plan import SourceNode
from ..snapshots.moments import LATEST, find_moment
from ..snapshots.snapshot import read_snapshot, snapshot_names
from ..source.tables import Table
from .engine import SparkEngine, SparkRows


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSource:
    """A snapshot as the source of a migration.

    - `destination`: the folder of the snapshots.
    - `at`: its name, "latest", "previous", or a time, for the latest at or before it.
    - `groups`, `topics`: regular expressions that must match the whole names.
    """

    destination: str
    at: str = LATEST
    groups: str | None = None
    topics: str | None = None

    def __post_init__(self) -> None:
        check_expression("groups", self.groups)
        check_expression("topics", self.topics)

    def nodes(self, engine: Engine, renaming: Renaming) -> tuple[str, SparkRows]:
        """Return a description of the snapshot, and the rows of the selected groups as `SourceNode`s.

        Both tables are read of one snapshot, even if a newer one appears meanwhile.
        """
        if not isinstance(engine, SparkEngine):
            raise InvalidOptionError("source", self, "only Spark reads snapshots")
        name = find_moment(reversed(snapshot_names(engine.spark, self.destination)), self.at)
        if name is None:
            raise NotFoundError(f"no snapshot {self.at} in {self.destination}")
        offsets, members = (
            read_snapshot(engine.spark, self.destination, name, table=table) for table in (Table.OFFSETS, Table.MEMBERS)
        )
        living = members.where(_MAY_BE_ALIVE).selectExpr(*_MEMBER_COLUMNS)
        found = SparkRows(offsets.selectExpr(*_OFFSET_COLUMNS).unionByName(living))
        naming = TargetNaming(renaming, self.groups, self.topics)
        return f"snapshot {name} in {self.destination}", found.map(naming, SourceNode)


_OFFSET_COLUMNS: Final = (
    "`group`",
    "false as member",
    "cast(null as string) as instance",
    "topic",
    "cast(partition as long) as partition",
    "`offset`",
    "zxid",
    "unix_millis(committed_at) as committed_ms",
    "problem",
    r"case when problem is null then null when cast(raw as string) rlike r'\A-[0-9]+\z' then "
    f"'{NoOffset.NEGATIVE}' else '{NoOffset.UNREADABLE}' end as no_offset",
    "problem is not null and raw is null as forbidden",
)
_MAY_BE_ALIVE: Final = "session is not null or (problem is not null and raw is null)"
"""A registration without a session has no client. A forbidden node has no session here either, but may belong to a
client; it has a problem and no data."""
_MEMBER_COLUMNS: Final = (
    "`group`",
    "true as member",
    "instance",
    "cast(null as string) as topic",
    "cast(null as long) as partition",
    "cast(null as long) as offset",
    "cast(null as long) as zxid",
    "cast(null as long) as committed_ms",
    "problem",
    "cast(null as string) as no_offset",
    # An instance whose data is forbidden is known all the same.
    "problem is not null and instance is null as forbidden",
)


@dataclass(frozen=True, slots=True)
class TargetNaming:
    """Adds the targets to rows, and removes groups and topics of a snapshot that were not selected."""

    renaming: Renaming
    groups: str | None
    topics: str | None

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        selection = Selection(self.groups, self.topics)
        for batch in batches:
            groups = batch.column("group").dictionary_encode()
            names = groups.dictionary.to_pylist()
            targets = pa.array(map(self.renaming.target, names), pa.string()).take(groups.indices)
            topics = pc.fill_null(batch.column("topic"), "").dictionary_encode()
            chosen = pc.and_(
                _chosen(groups, selection.has_group), _chosen(topics, lambda topic: selection.has_topic("", topic))
            )
            yield _in_order(batch.append_column("target", targets)).filter(chosen)


def _chosen(names: Any, has: Callable[[str], bool]) -> Any:
    return pa.array(map(has, names.dictionary.to_pylist()), pa.bool_()).take(names.indices)


def _in_order(batch: Any) -> Any:
    """Return the columns in the order of `SourceNode`."""
    columns = arrow_schema(SourceNode)
    return pa.RecordBatch.from_arrays([batch.column(each.name) for each in columns], schema=columns)
