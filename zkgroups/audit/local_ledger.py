"""Records the batches of an audit in this process, without Spark: the rows are Arrow tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from threading import Event
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ..core.audit_columns import COMMITS, KEY, READ, STANDING
from ..core.selection import Selection
from ..core.tables import Table
from ..tables.arrow_schema import arrow_schema
from ..tables.log_ends import with_log_ends
from ..tables.source_options import SourceOptions
from ..tables.table_reader import read_selected, written_after
from ..zookeeper.registry import Registry
from .arrow_journal import ArrowJournal
from .audit import Batch, Counts, Interrupted
from .pieces import Piece

_COMMITS: Final = arrow_schema(COMMITS)
_STANDING: Final = arrow_schema(STANDING)
_LAST: Final = ("offset", "zxid", "committed_at")
"""The columns of the last recorded commit that the next one is compared with."""


class LocalLedger:
    """Records the batches of one audit. `Ledger` describes the methods."""

    def __init__(self, destination: str, source: SourceOptions, stop: Event) -> None:
        self.journal = ArrowJournal.at(destination)
        self._source = replace(source, with_owners=False, table=Table.OFFSETS)
        self._stop = stop

    def add(self, registry: Registry, batch: Batch) -> Counts:
        source = self._source if batch.with_log_ends else self._source.without_brokers()
        read = _table(batch.select(READ) for batch in with_log_ends(self._read(registry, batch), source))
        forbidden = _forbidden(read)
        new = self._new(read.filter(_is_commit(read)), batch)
        if len(new):
            self.journal.write_commits(new, Piece(batch.number, batch.number))
        return Counts(len(new), len(new) - new.column("problem").null_count, forbidden)

    def _read(self, registry: Registry, batch: Batch) -> Iterator[Any]:
        """Read the offsets written after the batch before, and all of the groups that had forbidden nodes."""
        selection = Selection(self._source.groups, self._source.topics)
        for found in read_selected(registry, self._source, selection):
            if self._stop.is_set():
                raise Interrupted
            yield written_after(found, batch.after, or_in=batch.were_forbidden)

    def _new(self, commits: Any, batch: Batch) -> Any:
        """Return the commits that are not in the audit yet, with the previous offset of each partition."""
        last = self._last(commits, batch.first)
        same_zxid = pc.equal(last["zxid"], commits.column("zxid"))
        # The time is null if the server's clock was out of range.
        times = last["committed_at"], commits.column("committed_at")
        same_time = pc.if_else(pc.is_valid(times[0]), pc.equal(*times), pc.is_null(times[1]))
        is_new = pc.invert(pc.fill_null(pc.and_(same_zxid, pc.fill_null(same_time, False)), False))
        numbers = pa.repeat(pa.scalar(batch.number, pa.int64()), len(commits))
        columns = {"before": last["offset"], "batch": numbers}
        columns |= {name: commits.column(name) for name in READ}
        return pa.table({name: columns[name] for name in _COMMITS.names}, _COMMITS).filter(is_new)

    def _last(self, commits: Any, first: int) -> dict[str, Any]:
        """Return the last recorded commit of each of these partitions, as columns; null if there is none.

        Only as many folders are read as are needed to find all.
        """
        keys, left = _keys(commits), pa.array(range(len(commits)), pa.int64())
        places, found = [], []
        for known in self.journal.known(first) if len(commits) else ():
            rows = pc.index_in(keys, value_set=_keys(known))  # the first one of each key, and so the latest
            hit = pc.is_valid(rows)
            places.append(left.filter(hit))
            found.append(known.select(_LAST).take(rows.drop_null()))
            keys, left = keys.filter(pc.invert(hit)), left.filter(pc.invert(hit))
            if not len(left):
                break
        nothing = pa.table({name: pa.nulls(len(left), _STANDING.field(name).type) for name in _LAST})
        order = pc.sort_indices(pa.concat_arrays([*places, left]))
        together = pa.concat_tables([*found, nothing]).take(order)
        return {name: together.column(name) for name in _LAST}

    def write_standing(self, batch: int, first: int) -> None:
        last = _STANDING.empty_table()
        for known in self.journal.known(first):
            keys = _keys(known)
            is_first = pc.equal(pc.index_in(keys, value_set=keys), pa.array(range(len(known)), pa.int32()))
            is_older = pc.is_in(keys, value_set=_keys(last))
            last = pa.concat_tables([last, known.filter(pc.and_(is_first, pc.invert(is_older)))])
        self.journal.write_standing(last, batch)

    def merge(self, pieces: list[Piece], into: Piece) -> None:
        self.journal.merge(pieces, into)


def _table(batches: Iterator[Any]) -> Any:
    schema = pa.schema([_COMMITS.field(name) for name in READ])
    return pa.Table.from_batches([batch.cast(schema) for batch in batches], schema).combine_chunks()


def _is_commit(rows: Any) -> Any:
    """Select the rows of commits. A forbidden node has no zxid, and a directory has no partition."""
    zxid, topic, partition = (pc.is_valid(rows.column(name)) for name in ("zxid", "topic", "partition"))
    return pc.and_(zxid, pc.and_(topic, partition))


def _forbidden(rows: Any) -> dict[str, int]:
    """Return how many forbidden nodes each group has. Each problem names its node, so it is counted once."""
    found = rows.filter(pc.is_null(rows.column("zxid"))).select(["group", "problem"]).to_pylist()
    return Counter(group for group, _problem in {(row["group"], row["problem"]) for row in found})


def _keys(rows: Any) -> Any:
    """Return one text for each row that identifies its partition. Names contain no slash."""
    group, topic, partition = (rows.column(name) for name in KEY)
    joined = pc.binary_join_element_wise(group, topic, partition.cast(pa.string()), "/")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
