"""Convert the events of a history to Arrow batches, column by column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..core.history.events import Commit, HistoryEvent, OwnerChange, PastInstance, PastOwner
from ..core.session_lifetime import session_hex
from ..core.table_columns import HISTORY_COLUMNS, HistoryTable
from ..core.times import LATEST_MS
from ..rare_collections import rare_collections
from .arrow import TIMESTAMP, arrow_schema

ROWS: Final = 10_000
"""The number of rows per batch."""

_Columns = dict[str, Any]
"""Columns by name: Arrow arrays, or sequences of values."""


def history_batches(table: HistoryTable, events: Iterable[HistoryEvent], cluster: str) -> Iterator[Any]:
    """Yield the rows of a table. Events of other tables are left out."""
    kind = Commit if table is HistoryTable.COMMITS else OwnerChange
    wanted = (event for event in events if isinstance(event, kind))
    with rare_collections():
        while rows := list(islice(wanted, ROWS)):
            yield _batch(table, dict(zip(kind._fields, zip(*rows, strict=True), strict=True)), cluster)


def _batch(table: HistoryTable, fields: _Columns, cluster: str) -> Any:
    """Convert the fields of events, each of which is a sequence."""
    schema = arrow_schema(HISTORY_COLUMNS[table])
    columns = (_commits if table is HistoryTable.COMMITS else _ownership)(fields) | {
        "cluster": pa.repeat(cluster, len(fields["zxid"])),
        "event": fields["action"],
        "session": _sessions(fields["session"]),
    }
    columns = fields | columns
    return pa.RecordBatch.from_arrays([_array(columns[field.name], field.type) for field in schema], schema=schema)


def _array(column: Any, kind: Any) -> Any:
    return column if isinstance(column, pa.Array) else pa.array(column, kind)


def _commits(fields: _Columns) -> _Columns:
    sessions, instances, owners, complete = (fields[name] for name in ("session", "instance", "owner", "is_complete"))
    before, offset = pa.array(fields["before"], pa.int64()), pa.array(fields["offset"], pa.int64())
    is_owned = [
        owner.session == session if owner is not None else (False if is_complete else None)
        for session, owner, is_complete in zip(sessions, owners, complete, strict=True)
    ]
    is_registered = [
        True if instance is not None else (False if is_complete else None)
        for instance, is_complete in zip(instances, complete, strict=True)
    ]
    return {
        "before": before,
        "offset": offset,
        "went_back": pc.fill_null(pc.less(offset, before), False),
        "commit_count": [None if version < 0 else version for version in fields["version"]],
        "committed_at": _times(fields["time_ms"]),
        "owned": is_owned,
        "registered": is_registered,
        **_instances(instances),
        **_owners(owners),
    }


def _ownership(fields: _Columns) -> _Columns:
    owners: Sequence[PastOwner] = fields["owner"]
    return {
        "changed_at": _times(fields["time_ms"]),
        "claimed_at": _times([owner.claimed_ms or None for owner in owners]),
        "claimed_zxid": [owner.claimed_zxid or None for owner in owners],
        "by": _instances(fields["instance"])["instance"],
        **_instances(fields["holder"]),
        **_owners(owners),
    }


def _instances(instances: Sequence[PastInstance | None]) -> _Columns:
    """Return the columns of instances. A batch has few of them, many times."""
    known: dict[int, tuple[str | None, str | None, str | None]] = {id(None): (None, None, None)}
    for key, each in {id(each): each for each in instances if each is not None}.items():
        known[key] = (each.id, each.host, each.dialect.value if each.dialect else None)
    found = [known[id(each)] for each in instances]
    return dict(zip(("instance", "host", "dialect"), zip(*found, strict=True), strict=True))


def _owners(owners: Sequence[PastOwner | None]) -> _Columns:
    return {
        "owner": [owner.id or None if owner is not None else None for owner in owners],
        "owner_session": _sessions([owner.session if owner is not None else None for owner in owners]),
    }


def _sessions(sessions: Sequence[int | None]) -> list[str | None]:
    shown = {session: session_hex(session) if session else None for session in set(sessions)}
    return [shown[session] for session in sessions]


def _times(milliseconds: Sequence[int | None]) -> Any:
    """Convert to timestamps. A time that is out of range, because of a wrong server clock, is null."""
    found = pa.array(milliseconds, pa.int64())
    in_range = pc.and_(pc.greater_equal(found, 0), pc.less_equal(found, LATEST_MS))
    return pc.cast(pc.if_else(in_range, found, None).view(pa.timestamp("ms", tz="UTC")), TIMESTAMP)
