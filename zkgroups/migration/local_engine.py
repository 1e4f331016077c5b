"""The engine that does everything in this process, with files on the local disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from queue import SimpleQueue
from threading import Lock
from typing import Any, Final, Generic, Self, TypeVar

import pyarrow as pa
import pyarrow.parquet as parquet

from ..core.migration.plan_rows import Tally
from ..storage.atomic_folder import write_list
from ..storage.files import LocalFiles, join, local_path
from ..tables.sums import LocalSum, TaskSum
from .arrow_rows import are_consecutive, arrow_schema, group_tables, table
from .plan_folder import PlanFolder
from .stored_rows import data_files, in_order, read_errors, read_table, schema_of
from .tasks import BatchFunction, OnProgress

# Call one function in several threads, because one can compute while others wait for servers.


T = TypeVar("T")
R = TypeVar("R")


def map_in_threads(function: Callable[[Iterator[T]], Iterator[R]], items: Iterable[T], threads: int) -> Iterator[R]:
    """Call the function once per thread, and yield all results. Each call gets some of the items.

    After an error or an interrupt, each thread finishes the items that it has.
    """
    if threads == 1:
        yield from function(iter(items))
        return
    shared = _SharedIterator(items)
    results: SimpleQueue[R | None] = SimpleQueue()

    def work() -> None:
        try:
            for result in function(shared):
                results.put(result)
        except BaseException:
            shared.end()
            raise
        finally:
            results.put(None)

    with ThreadPoolExecutor(threads, "zkgroups-migration") as pool:
        working = [pool.submit(work) for _ in range(threads)]
        try:
            for _ in working:
                yield from iter(results.get, None)
        finally:
            shared.end()
    for each in working:
        each.result()


class _SharedIterator(Generic[T]):
    """An iterator that several threads can use."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)
        self._lock = Lock()

    def end(self) -> None:
        """Yield no more items."""
        with self._lock:
            self._items = iter(())

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        with self._lock:
            return next(self._items)


_FILE: Final = "part-00000.snappy.parquet"
THREADS: Final = 3
"""Several threads, because one can compute while others wait for servers."""


class LocalEngine:
    """One process, without Spark. `Engine` describes the methods."""

    def __init__(self) -> None:
        self._files = LocalFiles()
        self._progress = _Progress()

    def files(self, destination: str) -> LocalFiles:  # noqa: ARG002
        return self._files

    def folder(self, destination: str) -> PlanFolder:
        return PlanFolder(self._files, destination)

    def run(self, work: Callable[[OnProgress], T], on_progress: OnProgress | None) -> T:
        return work(on_progress or (lambda _step: None))

    def check_writes_to(self, destination: str) -> None:
        """Do nothing: there is one process."""

    def check_writes_once(self) -> None:
        """Do nothing: there is one process."""

    def share_done(self) -> float:
        """Return the finished share of the rows that are being processed."""
        return self._progress.done / max(self._progress.rows, 1)

    def tally_sum(self) -> LocalSum[Tally]:
        return LocalSum(Tally())

    def rows(self, kind: type[T], rows: Sequence[T]) -> LocalRows:
        return LocalRows(lambda: [table(kind, rows)], arrow_schema(kind), self._progress)

    def read(self, kind: type[Any], path: str, *columns: str) -> LocalRows:
        schema, files = schema_of(kind, columns), data_files(self._files, path)
        return LocalRows(lambda: (read_table(self._files, file, schema) for file in files), schema, self._progress)

    def count(self, path: str) -> int:
        with read_errors(f"{path} cannot be read"):
            return sum(parquet.read_metadata(local_path(file)).num_rows for file in data_files(self._files, path))


class _Progress:
    """How many rows a step processes, and how many are done."""

    def __init__(self) -> None:
        self.rows = self.done = 0

    def of(self, tables: Iterable[Any], rows: int) -> Iterator[Any]:
        """Yield the `rows` rows in parts of whole groups. A part counts as done when the next one is requested."""
        self.rows, self.done = rows, 0
        for part in group_tables(batch for each in tables for batch in each.to_batches()):
            yield part
            self.done += len(part)


class LocalRows:
    """Rows as Arrow tables, which are computed when they are used. `Rows` describes the methods."""

    def __init__(
        self, tables: Callable[[], Iterable[Any]], schema: Any, progress: _Progress, *, threads: int = 1
    ) -> None:
        self._tables = tables
        self._schema = schema
        self._progress = progress
        self._threads = threads

    def joined(self, other: Self) -> Self:
        return type(self)(lambda: chain(self._tables(), other._tables()), self._schema, self._progress)

    def by_target(self, *, count: int | None = None, tasks: int | None = None) -> Self:  # noqa: ARG002
        def tables() -> Iterator[Any]:
            found = in_order(self._table())
            return self._progress.of([found], len(found))

        return type(self)(tables, self._schema, self._progress, threads=THREADS)

    def stored_by_target(self, *, count: int, files: int) -> Self:  # noqa: ARG002
        def tables() -> Iterator[Any]:
            found = [*self._tables()]  # a damaged file must be detected before the first group is written
            if not are_consecutive(batch for each in found for batch in each.to_batches()):
                found = [in_order(pa.concat_tables(found))]  # an earlier version could write such a plan
            return self._progress.of(found, count)

        return type(self)(tables, self._schema, self._progress, threads=THREADS)

    def map(self, function: BatchFunction, kind: type[Any]) -> Self:
        def work(tables: Iterator[Any]) -> Iterator[Any]:
            return map(_as_table, function(each for table in tables for each in table.to_batches()))

        def results() -> Iterator[Any]:
            tables = iter(self._tables())
            first = [*islice(tables, 2)]
            threads = self._threads if len(first) > 1 else 1
            return map_in_threads(work, chain(first, tables), threads)

        return type(self)(results, arrow_schema(kind), self._progress)

    def write(self, path: str, failure: str, counted: TaskSum[Tally]) -> Tally:
        files = LocalFiles()
        with read_errors(failure):
            files.make_folder(path)
            options = {"store_schema": False, "write_page_checksum": True}
            with parquet.ParquetWriter(local_path(join(path, _FILE)), self._schema, **options) as file:
                for each in self._tables():
                    file.write_table(each)
            write_list(files, path, counted.value.rows)
        return counted.value

    def collect(self, failure: str) -> Any:
        with read_errors(failure):
            return self._table()

    def _table(self) -> Any:
        return pa.concat_tables([self._schema.empty_table(), *self._tables()])


def _as_table(batch: Any) -> Any:
    return pa.Table.from_batches([batch])
