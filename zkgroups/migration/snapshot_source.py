"""A snapshot as the source of a plan: its offsets and registrations, as `SourceNode` rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ..core.layouts.legacy import LEGACY
from ..core.migration.offset_decision import NoOffset, Renaming
from ..core.selection import Selection, check_expression
from ..core.table_columns import Table
from ..core.znodes.codecs import MISNAMED
from ..storage.snapshot_folder import LATEST, SnapshotFolder
from ..tables.arrow import where_name
from .arrow_rows import arrow_schema
from .plan import SourceNode
from .tasks import Engine, Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSource:
    """A snapshot as the source of a migration.

    - `destination`: the folder of the snapshots.
    - `at`: its name, "latest", "previous", or a time, which means the latest snapshot at or before it.
    - `groups`, `topics`: regular expressions that must match the whole names.
    """

    destination: str
    at: str = LATEST
    groups: str | None = None
    topics: str | None = None

    def __post_init__(self) -> None:
        check_expression("groups", self.groups)
        check_expression("topics", self.topics)

    def nodes(self, engine: Engine, renaming: Renaming) -> SnapshotNodes:
        """Return the rows of the selected groups as `SourceNode`s.

        Both tables are read from one snapshot, even if a newer one appears meanwhile.
        """
        folder, name = self._chosen(engine)
        summary = folder.summary(name)
        for table in (Table.OFFSETS, Table.MEMBERS):
            folder.check_intact(table, name, summary)
        naming = TargetNaming(renaming, self.groups, self.topics)
        offsets = engine.read(_Offset, folder.table(Table.OFFSETS, name)).map(OffsetNodes(naming), SourceNode)
        members = engine.read(_Member, folder.table(Table.MEMBERS, name)).map(MemberNodes(naming), SourceNode)
        layout = LEGACY.text if summary is None else summary.layout
        return SnapshotNodes(f"snapshot {name} in {self.destination}", layout, offsets.joined(members))

    def count(self, engine: Engine) -> int:
        """Return the number of offsets in the snapshot, of all groups."""
        folder, name = self._chosen(engine)
        return engine.count(folder.table(Table.OFFSETS, name))

    def _chosen(self, engine: Engine) -> tuple[SnapshotFolder, str]:
        folder = SnapshotFolder(engine.files(self.destination), self.destination)
        return folder, folder.choose(self.at)


class SnapshotNodes(NamedTuple):
    """The rows of a snapshot, with its description, and the layout in which its offsets were found."""

    description: str
    layout: str
    rows: Rows


class _Offset(NamedTuple):
    """The columns of the table of offsets that a plan needs."""

    group: str
    topic: str | None
    partition: int | None
    offset: int | None
    zxid: int | None
    committed_at: datetime | None
    raw: bytes | None
    problem: str | None


class _Member(NamedTuple):
    """The columns of the table of members that a plan needs."""

    group: str
    instance: str | None
    session: str | None
    raw: bytes | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class TargetNaming:
    """The names of targets, and the selected groups and topics."""

    renaming: Renaming
    groups: str | None
    topics: str | None

    def nodes(self, batch: Any, columns: dict[str, Any]) -> Any:
        """Return the selected rows of a batch with these columns, and their targets. All other columns are null."""
        selection = Selection(self.groups, self.topics)
        groups = batch.column("group").dictionary_encode()
        targets = pa.array(map(self.renaming.target, groups.dictionary.to_pylist()), pa.string())
        columns |= {"group": batch.column("group"), "target": targets.take(groups.indices)}
        schema = arrow_schema(SourceNode)
        arrays = [columns.get(each.name, pa.nulls(len(batch), each.type)).cast(each.type) for each in schema]
        chosen = where_name(batch.column("group"), selection.has_group)
        if "topic" in columns:
            of_topic = where_name(columns["topic"], lambda topic: selection.has_topic("", topic or ""))
            chosen = pc.and_(chosen, of_topic)
        return pa.RecordBatch.from_arrays(arrays, schema=schema).filter(chosen)


@dataclass(frozen=True, slots=True)
class OffsetNodes:
    """Converts the table of offsets."""

    naming: TargetNaming

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            problem, raw = batch.column("problem"), batch.column("raw")
            columns = {name: batch.column(name) for name in ("topic", "partition", "offset", "zxid", "problem")}
            columns["member"] = pa.repeat(False, len(batch))
            columns["committed_ms"] = pc.divide(batch.column("committed_at").cast(pa.int64()), 1000)
            columns["no_offset"] = _no_offset(problem, raw)
            columns["forbidden"] = _is_forbidden(problem, raw)
            yield self.naming.nodes(batch, columns)


@dataclass(frozen=True, slots=True)
class MemberNodes:
    """Converts the table of members, and leaves out registrations that have certainly no live client."""

    naming: TargetNaming

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            # A registration without a session has no live client. The row of a forbidden node has no session either,
            # but the node may belong to one. Such a row has a problem and no data.
            session = pc.is_valid(batch.column("session"))
            living = batch.filter(pc.or_(session, _is_forbidden(batch.column("problem"), batch.column("raw"))))
            columns = {name: living.column(name) for name in ("instance", "problem")}
            columns["member"] = pa.repeat(True, len(living))
            # The name of an instance is known even if its data is forbidden.
            columns["forbidden"] = _is_forbidden(living.column("problem"), living.column("instance"))
            yield self.naming.nodes(living, columns)


def _is_forbidden(problem: Any, data: Any) -> Any:
    """Return where a node has a problem but no data."""
    return pc.and_(pc.is_valid(problem), pc.is_null(data))


_NEGATIVE: Final = r"\A-[0-9]+\z"


def _no_offset(problem: Any, raw: Any) -> Any:
    """Return why nodes with a problem have no offset."""
    negative = pc.fill_null(pc.match_substring_regex(raw, _NEGATIVE), False)
    found = pc.if_else(negative, NoOffset.NEGATIVE.value, NoOffset.UNREADABLE.value)
    misnamed = pc.fill_null(pc.ends_with(problem, f": {MISNAMED}"), False)
    found = pc.if_else(misnamed, NoOffset.NOT_A_PARTITION.value, found)
    return pc.if_else(pc.is_valid(problem), found, pa.scalar(None, pa.string()))
