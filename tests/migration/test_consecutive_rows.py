"""The rows of each target are consecutive in a plan of the local engine, and are processed together."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from zkgroups.core.migration.plan_rows import PlanRow
from zkgroups.migration.engines.arrow_rows import rows
from zkgroups.migration.engines.chunks import MAX_GROUPS, group_chunks
from zkgroups.migration.engines.local_engine import THREADS, LocalEngine
from zkgroups.migration.engines.tasks import PlanNodes
from zkgroups.migration.plan import Planner, PlanSettings, SourceNode

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
        stored = engine.read(PlanRow, path).select(*columns).stored_by_target(count=len(planned), files=1)
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
