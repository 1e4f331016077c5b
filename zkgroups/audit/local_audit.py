"""Record and read an audit in this process, without Spark, in a folder of this machine. Spark can go on with it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from threading import Event
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from ..core.commit_record import Commit
from ..core.selection import Selection, check_expression
from ..core.table_columns import COMMITS, KEY, READ, STANDING, Table, TableColumn
from ..core.times import to_ms
from ..core.znodes.topic_partition import TopicPartition
from ..exceptions import NotFoundError
from ..snapshots.local_snapshot import ArrowLayout
from ..storage.atomic_folder import write_list
from ..storage.files import LocalFiles, join
from ..tables.arrow import TIMESTAMP, arrow_schema
from ..tables.parquet_files import FILE_NAME, arrow_errors, parquet_writer, read_parquet, read_row_groups, to_columns
from ..tables.source_options import SourceOptions
from ..tables.table_reader import read_selected, with_log_ends, written_after
from ..zookeeper.registry import Registry
from .audit import AuditResult, AuditStep, Batch, Counts, Interrupted, Recording, check_interval
from .journal import COMMITS as COMMITS_FOLDER
from .journal import CURE, DESCRIPTION, Journal, Piece

# The rows of an audit on the disk of this machine, as Arrow tables.


_ROWS_OF_A_FILE: Final = 1_000_000


class ArrowJournal(Journal):
    """The folder of one audit, with its rows as Arrow tables."""

    @classmethod
    def at(cls, destination: str) -> Self:
        """Return the journal of a folder of this machine."""
        return cls(LocalFiles(), destination)

    # Reading

    def read(self, pieces: Iterable[Piece]) -> Any:
        """Return the commits of pieces, after a check that their files are there."""
        return self._read([(COMMITS_FOLDER, piece.name) for piece in pieces], COMMITS)

    def latest_first(self, piece: Piece, columns: Sequence[TableColumn]) -> Iterator[Any]:
        """Yield these columns of a piece, latest first, some rows at a time: it may hold nearly the whole audit."""
        with arrow_errors(f"{self} cannot be read"):
            for file in reversed(self._files_of((COMMITS_FOLDER, piece.name))):
                yield from read_row_groups(file, columns, latest_first=True)

    def select(self, piece: Piece, columns: Sequence[TableColumn], groups: Collection[str] | None) -> Iterator[Any]:
        """Yield these columns of the commits of a piece, of these groups or of all, some rows at a time."""
        with arrow_errors(f"{self} cannot be read"):
            for file in self._files_of((COMMITS_FOLDER, piece.name)):
                yield from read_row_groups(file, columns, groups=groups)

    def count(self) -> int:
        """Return the number of recorded commits, from the lists of files."""
        lists = [self.check_files(COMMITS_FOLDER, piece.name, cure=CURE) for piece in self.pieces()]
        return sum(each.rows for each in lists if each is not None)

    def known(self, first: int) -> Iterator[Any]:
        """Yield the last commits of all partitions, latest first, without those before the batch `first`.

        A partition may be in several of these tables. In each, its later rows come first.
        """
        for names in self.known_folders():
            found = self._read([names], STANDING)
            found = found.filter(pc.greater_equal(found.column("batch"), first))
            yield found.sort_by([("batch", "descending")])

    def _read(self, folders: Sequence[tuple[str, str]], columns: Sequence[TableColumn]) -> Any:
        files = list(chain.from_iterable(map(self._files_of, folders)))
        names = {each.name for each in columns}
        with arrow_errors(f"{self} cannot be read"):
            tables = [to_columns(read_parquet(file, names), columns, file) for file in files]
        return pa.concat_tables(tables) if tables else arrow_schema(columns).empty_table()

    def _files_of(self, names: tuple[str, str]) -> list[str]:
        """Check a complete folder, and return its files."""
        self.check_files(*names, cure=CURE)
        return [self.path(*names, file) for file in sorted(self.file_lengths(*names))]

    # Writing

    def write_commits(self, rows: Any, piece: Piece) -> None:
        """Add a piece."""
        with self.new_piece(piece) as path:
            _write(path, COMMITS, [rows])

    def write_standing(self, rows: Any, batch: int) -> None:
        """Add the last commit of each partition."""
        with self.new_standing(batch) as path:
            _write(path, STANDING, [rows])

    def merge(self, pieces: Sequence[Piece], into: Piece) -> None:
        """Copy the commits of pieces to another one, some at a time."""
        files = [file for piece in pieces for file in self._files_of((COMMITS_FOLDER, piece.name))]
        with self.new_piece(into) as path, arrow_errors(f"{self} cannot be read"):
            _write(path, COMMITS, chain.from_iterable(read_row_groups(file, COMMITS) for file in files))


def _write(path: str, columns: Sequence[TableColumn], tables: Iterable[Any]) -> None:
    """Write tables to files of a new folder, and list them."""
    files = LocalFiles()
    files.make_folder(path)
    rows = 0
    left = iter(tables)
    for number, table in enumerate(left):
        in_file = 0
        with parquet_writer(join(path, FILE_NAME.format(number)), columns) as file:
            for each in chain([table], left):
                file.write_table(each)
                in_file += len(each)
                if in_file >= _ROWS_OF_A_FILE:
                    break
        rows += in_file
    write_list(files, path, rows)


# Records the batches of an audit in this process, without Spark: the rows are Arrow tables.


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


_ORDER: Final = [(name, "ascending") for name in ("batch", "zxid", *KEY)]
_BATCH_ROWS: Final = 10_000


def run_audit(
    destination: str,
    source: SourceOptions | str,
    *,
    every: float = 10.0,
    once: bool = False,
    on_progress: Callable[[AuditStep], None] | None = None,
    stop: Event | None = None,
) -> AuditResult:
    """Record commits in a folder of this machine. `zkgroups.spark.run_audit` explains the arguments."""
    check_interval(every)
    source = SourceOptions(zookeeper=source) if isinstance(source, str) else source
    stop = stop or Event()
    return Recording(LocalLedger(destination, source, stop), source, every, once, on_progress, stop).go()


def read_commits(destination: str) -> Any:
    """Return every recorded commit as an Arrow table, in the order of batches and transactions."""
    journal = ArrowJournal.at(destination)
    journal.check_exists()
    return journal.read(journal.pieces()).sort_by(_ORDER)


def offsets_at(destination: str, at: datetime, groups: Collection[str] | None = None) -> Any:
    """Return the offsets committed at a time, of these groups or of all, as an Arrow table.

    `zkgroups.spark.offsets_at` has the rules.
    """
    journal = ArrowJournal.at(destination)
    journal.check_exists()
    journal.check_has_read(at)
    first = journal.description().first_batch
    last = arrow_schema(STANDING).empty_table()
    # Some rows after the others: an audit has every commit, and few are needed.
    for rows in (rows for piece in journal.pieces() for rows in journal.select(piece, STANDING, groups)):
        in_time = pc.less_equal(rows.column("committed_at"), pa.scalar(at, TIMESTAMP))
        rows = rows.filter(pc.and_(in_time, pc.greater_equal(rows.column("batch"), first)))
        rows = pa.concat_tables([last, rows]).sort_by("batch")
        numbered = rows.select(KEY).append_column("row", pa.array(range(len(rows)), pa.int64()))
        last = rows.take(numbered.group_by(KEY).aggregate([("row", "max")]).column("row_max"))
    return last.filter(pc.is_valid(last.column("offset")))


def count_commits(destination: str) -> int:
    """Return the number of recorded commits. Reads no rows."""
    journal = ArrowJournal.at(destination)
    journal.check_exists()
    return journal.count()


def find_commits(destination: str, *, groups: str | None = None, topics: str | None = None) -> Iterator[dict[str, Any]]:
    """Return the commits of groups and topics whose whole names match, oldest first."""
    commits = read_commits(destination)
    for column, expression in (("group", groups), ("topic", topics)):
        check_expression(f"{column}s", expression)
        if expression is not None:
            matching = re.compile(expression, re.DOTALL)
            names = commits.column(column).combine_chunks().dictionary_encode()
            is_matching = [matching.fullmatch(name) is not None for name in names.dictionary.to_pylist()]
            commits = commits.filter(pa.array(is_matching, pa.bool_()).take(names.indices))
    for batch in commits.to_batches(max_chunksize=_BATCH_ROWS):
        yield from batch.to_pylist()


# The last commits in a folder of snapshots, or in the folder of an audit, without Spark.
#
# For programs that need to know the recent past when they start. Rows of unreadable nodes are left out.


MOST_SNAPSHOTS: Final = 16
MOST_PIECES: Final = 16

KEPT: Final = timedelta(hours=1)
"""Earlier commits of an audit say nothing about the present."""

_COLUMNS: Final = ["group", "topic", "partition", "offset", "commit_count", "committed_at"]
_READ: Final = [each for each in COMMITS if each.name in _COLUMNS]


class PastCommit(NamedTuple):
    """A committed offset as it was at some time. `created_ms` is 0 if it was not recorded."""

    group: str
    at: TopicPartition
    offset: int
    version: int
    committed_ms: int
    created_ms: int

    def as_read(self) -> Commit:
        """Return the commit without its place."""
        return Commit(self.offset, self.version, self.committed_ms, self.created_ms)


@dataclass(frozen=True, slots=True)
class PastSweep:
    """Commits that were seen at one time, in milliseconds."""

    ms: int
    commits: Iterator[PastCommit]


def recent_commits(destination: str) -> Iterator[PastSweep]:
    """Yield the last snapshots of a destination, or the last batches of an audit, oldest first."""
    if Path(destination, DESCRIPTION).exists():
        yield from _of_audit(destination)
        return
    layout = ArrowLayout.at(destination)
    for name in layout.snapshots()[-MOST_SNAPSHOTS:]:
        found = layout.read_intact(Table.OFFSETS, name)
        read_at = found.column("read_at")
        ms = to_ms(max((time for time in read_at.to_pylist() if time is not None), default=None))
        yield PastSweep(ms, _rows(found))


def _of_audit(destination: str) -> Iterator[PastSweep]:
    """Yield the last commits of an audit, each as seen when it was written to ZooKeeper."""
    journal = ArrowJournal.at(destination)
    pieces = journal.pieces()
    if not pieces:
        raise NotFoundError(f"no commits in the audit in {destination}")
    for commit in _rows(_last_rows(journal, pieces[-MOST_PIECES:]).sort_by("committed_at")):
        yield PastSweep(commit.committed_ms, iter([commit]))


def _last_rows(journal: ArrowJournal, pieces: Sequence[Piece]) -> Any:
    """Return the rows within `KEPT` of the newest. Stop at the first piece without any: those before it are older."""
    nothing = arrow_schema(_READ).empty_table()
    kept, newest = [nothing], pc.max(nothing.column("committed_at"))
    for piece in reversed(pieces):
        rows = recent = 0
        for part in journal.latest_first(piece, _READ):
            newest = pc.max(pa.array([newest.as_py(), pc.max(part.column("committed_at")).as_py()], newest.type))
            kept.append(_since(newest, part))
            rows, recent = rows + len(part), recent + len(kept[-1])
        if rows and not recent:
            break
    return _since(newest, pa.concat_tables(reversed(kept)))


def _since(newest: Any, found: Any) -> Any:
    return found.filter(pc.greater_equal(found.column("committed_at"), pc.subtract(newest, pa.scalar(KEPT))))


def _rows(found: Any) -> Iterator[PastCommit]:
    names = [*_COLUMNS, *(["created_at"] if "created_at" in found.column_names else [])]
    for batch in found.select(names).to_batches(max_chunksize=10_000):
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            group, topic, partition, offset, version, committed, *created = values
            if topic is not None and partition is not None and offset is not None:
                yield PastCommit(
                    group, TopicPartition(topic, partition), offset, version or 0, _ms(committed), _ms(*created)
                )


def _ms(at: datetime | None = None) -> int:
    return to_ms(at)
