"""The engine without Spark: threads, whole groups in each chunk, and the numbers of a summary."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator
from itertools import count, groupby
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from zkgroups.core.migration.plan_rows import PlanRow
from zkgroups.migration.arrow_rows import MAX_GROUPS, group_chunks, rows
from zkgroups.migration.local_engine import THREADS, LocalEngine, map_in_threads
from zkgroups.migration.plan import Planner, PlanSettings, SourceNode
from zkgroups.migration.tasks import PlanNodes
from zkgroups.tables.table_reader import lags


@pytest.mark.parametrize("threads", [1, 5])
def test_each_item_is_processed_once(threads: int) -> None:
    assert sorted(map_in_threads(lambda items: (-item for item in items), range(1000), threads)) == [*range(-999, 1)]


def test_threads_work_at_the_same_time() -> None:
    met = Barrier(3)

    def work(items: Iterator[int]) -> Iterator[int]:
        for item in items:
            met.wait(60)
            yield item

    assert sorted(map_in_threads(work, range(9), 3)) == [*range(9)]


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_ends_the_work_after_the_items_that_have_begun(threads: int) -> None:
    begun: list[int] = []
    finished: list[int] = []

    def work(items: Iterator[int]) -> Iterator[int]:
        for item in items:
            begun.append(item)
            if item == 5:
                raise ValueError(item)
            finished.append(item)
            yield item

    with pytest.raises(ValueError, match="5"):
        deque(map_in_threads(work, count(), threads), maxlen=0)
    assert {*begun} - {*finished} == {5}


def test_an_error_in_the_items_ends_all_threads() -> None:
    def items() -> Iterator[int]:
        yield from range(10)
        raise OSError("damaged")

    with pytest.raises(OSError, match="damaged"):
        list(map_in_threads(lambda those: those, items(), 3))


def test_an_error_of_the_consumer_ends_the_work_at_once() -> None:
    """As when a report cannot be written, or after Ctrl-C: no group is begun afterwards."""

    def consume() -> None:
        for _result in (each for each in map_in_threads(lambda items: items, count(), 3)):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consume()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("zkgroups-migration")]


# Whole groups


SETTINGS = PlanSettings(plan="p", planned_ms=0)


def nodes(groups: int, partitions: int) -> list[SourceNode]:
    names = [f"g{number:05d}" for number in range(groups)]
    return [
        SourceNode(name, name, False, None, "orders", at, 5, 100, 1000) for name in names for at in range(partitions)
    ]


def parts_of(targets: list[str]) -> Counter[str]:
    """Return for each target how often its rows begin."""
    return Counter(target for target, _rows in groupby(targets))


def test_a_thread_that_is_slow_between_two_batches_does_not_split_a_group(tmp_path: Path) -> None:
    """Each thread stops after its first batch until another thread has one, too."""
    given = nodes(groups=THREADS * MAX_GROUPS, partitions=53)  # a chunk has more than 10,000 rows
    engine, begun, several = LocalEngine(), list[int](), threading.Event()
    counted = engine.tally_sum()

    def plan(found: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(PlanNodes(None, SETTINGS, counted)(found)):
            yield batch
            if number == 0:
                begun.append(number)
                if len(begun) > 1:
                    several.set()
                assert several.wait(60)

    engine.rows(SourceNode, given).by_target().map(plan, PlanRow).write(str(tmp_path / "plan"), "failed", counted)

    [file] = tmp_path.glob("plan/*.parquet")
    found = parts_of(parquet.read_table(file, columns=["target"]).column(0).to_pylist())
    assert len(found) == THREADS * MAX_GROUPS
    assert {target: parts for target, parts in found.items() if parts > 1} == {}


def test_a_stored_plan_with_split_groups_is_processed_in_whole_groups(tmp_path: Path) -> None:
    """As earlier versions could write it."""
    planned = [*Planner(SETTINGS, None).plan(nodes(groups=MAX_GROUPS + 1, partitions=2))]
    planned.append(planned.pop(0))
    engine, path = LocalEngine(), str(tmp_path / "plan")
    engine.rows(PlanRow, planned).write(path, "failed", engine.tally_sum())

    def as_chunks(found: Iterator[Any]) -> Iterator[Any]:
        for chunk in group_chunks(PlanRow, found):
            chunks.append({*chunk.column("target")})
            yield from ()

    for columns in (PlanRow._fields, ("target", "topic", "partition")):
        chunks = list[set[str]]()
        stored = engine.read(PlanRow, path, *columns).stored_by_target(count=len(planned), files=1)
        found = stored.collect("failed").column("target").to_pylist()
        assert sorted(found) == sorted(row.target for row in planned)
        assert {*parts_of(found).values()} == {1}
    engine.read(PlanRow, path).stored_by_target(count=len(planned), files=1).map(as_chunks, PlanRow).collect("failed")
    assert sum(map(len, chunks)) == len({*found}) == MAX_GROUPS + 1


def test_a_stored_plan_with_consecutive_rows_keeps_their_order(tmp_path: Path) -> None:
    planned = [*reversed(Planner(SETTINGS, None).plan(nodes(groups=3, partitions=2)))]
    engine, path = LocalEngine(), str(tmp_path / "plan")
    engine.rows(PlanRow, planned).write(path, "failed", engine.tally_sum())
    found: pa.Table = engine.read(PlanRow, path).stored_by_target(count=len(planned), files=1).collect("failed")
    assert [*rows(PlanRow, found)] == planned


# Summaries


OFFSETS, ENDS = (5, 5, 6, 0, None, 5), (5, 6, 5, 0, 5, None)


def test_a_lag_of_zero_counts_and_one_that_is_negative_or_unknown_does_not() -> None:
    found = lags(pa.array(OFFSETS, pa.int64()), pa.array(ENDS, pa.int64())).to_pylist()
    assert found == [0, 1, None, 0, None, None]
