"""The files of a plan and of its reports: rows as columns, chunks, formats, and names. Both engines share them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups import Registry, TopicPartition
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.offset_decision import Action, Reason
from zkgroups.core.migration.plan_rows import PLAN_VERSION, MigrationStep, PlanRow, ReportRow
from zkgroups.exceptions import NotFoundError, RefusedError, StorageError
from zkgroups.migration import arrow_rows, local
from zkgroups.migration.arrow_rows import group_chunks
from zkgroups.migration.local import ZooKeeperSource
from zkgroups.migration.local_engine import LocalEngine

from ..spark.commands import command_on

pytestmark = pytest.mark.zookeeper

# Columns and chunks

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
OBSTACLES = st.builds(
    Obstacle,
    st.sampled_from(ObstacleKind),
    st.lists(TEXTS, max_size=2).map(tuple),
    st.integers(0, 9),
    st.none() | st.sampled_from(Reason),
    TEXTS,
)
LONGS = st.none() | st.integers(-(2**63), 2**63 - 1)


def _row(target: str = "t", **fields: Any) -> PlanRow:
    given: dict[str, Any] = dict.fromkeys(PlanRow._fields)
    given |= {"plan": "p", "planned_ms": 1, "source": "s", "group": target, "stale": False, "target": target}
    return PlanRow(**given | {"action": Action.SKIP, "reason": Reason.STALE, "obstacles": ()} | fields)


@given(
    st.lists(
        st.builds(
            _row,
            TEXTS,
            topic=st.none() | TEXTS,
            offset=LONGS,
            retention_seconds=st.none() | st.floats(0, 1e9),
            action=st.sampled_from(Action),
            reason=st.sampled_from(Reason),
            obstacles=st.lists(OBSTACLES, max_size=3).map(tuple),
        ),
        max_size=5,
    )
)
def test_rows_survive_conversion_to_columns_and_back(rows: list[PlanRow]) -> None:
    batches = arrow_rows.batches(PlanRow, rows)
    assert [row for batch in batches for row in arrow_rows.rows(PlanRow, batch)] == rows


@given(st.lists(st.integers(1, 12), max_size=30), st.integers(1, 20))
def test_chunks_have_whole_groups_within_the_limits(sizes: list[int], size: int) -> None:
    rows = [_row(f"g{number}", offset=each) for number, count in enumerate(sizes) for each in range(count)]
    table = pa.Table.from_batches(arrow_rows.batches(PlanRow, rows), arrow_rows.arrow_schema(PlanRow))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_rows, "MAX_GROUPS", 3)
        patch.setattr(arrow_rows, "MAX_OFFSETS", 10)
        found = list(group_chunks(PlanRow, table.to_batches(max_chunksize=size)))
    assert [row for chunk in found for row in chunk] == rows
    seen: set[str] = set()
    for chunk in found:
        names = {row.target for row in chunk}
        assert not names & seen
        seen |= names
        assert len(names) <= 3
        assert len(chunk) <= 10 or len(names) == 1


# Files


def test_a_plan_with_another_format_is_refused_with_advice(
    registry: Registry, zookeeper_hosts: str, tmp_path: Path
) -> None:
    """Plans of earlier versions have no `_VERSION`."""
    made = planned_without_brokers(registry, zookeeper_hosts, tmp_path)
    version = tmp_path / "plan" / "_VERSION"
    assert version.read_text() == str(PLAN_VERSION)
    version.write_text("3")
    assert local.summary(str(tmp_path)) == made, "plans of the last version can be read"

    for found, replace_version in (("1", version.unlink), ("99", lambda: version.write_text("99"))):
        replace_version()
        with pytest.raises(
            RefusedError,
            match=f"has format {found}, but .* reads formats 3 and {PLAN_VERSION}: make a new plan in another",
        ):
            local.summary(str(tmp_path))
        assert LocalEngine().folder(str(tmp_path)).has_plan()


def test_an_unknown_action_in_a_plan_is_an_error(registry: Registry, zookeeper_hosts: str, tmp_path: Path) -> None:
    planned_without_brokers(registry, zookeeper_hosts, tmp_path)
    [file] = (tmp_path / "plan").glob("part-*")
    rows = parquet.read_table(file)
    column = rows.schema.get_field_index("action")
    words = pa.array(["explode"] * len(rows), pa.string())
    parquet.write_table(rows.set_column(column, rows.schema.field(column), words), file)
    (tmp_path / "plan" / "_SUCCESS").write_text("")  # as earlier versions did, without a list of files

    with command_on(None, None) as zkgroups:
        ended = zkgroups("migrate", "show", tmp_path, "--offsets")

    assert (ended.code, ended.out) == (10, "")
    assert f"the plan in file:{tmp_path} cannot be read: 'explode' is not a known Action: restore" in ended.err


def planned_without_brokers(registry: Registry, hosts: str, folder: Path) -> local.PlanSummary:
    registry.group("g").offsets.set(TopicPartition("orders", 0), 5)
    return local.plan(str(folder), ZooKeeperSource(zookeeper=hosts), None)


def test_reports_are_stored_beside_the_plan_and_listed_oldest_first(tmp_path: Path) -> None:
    engine, now = LocalEngine(), datetime(2026, 1, 31, 12, tzinfo=UTC)
    folder = engine.folder(str(tmp_path))
    for step, at in (
        (MigrationStep.TO_ZOOKEEPER, now + timedelta(seconds=1)),
        (MigrationStep.APPLY, now),
        (MigrationStep.APPLY, now),
    ):
        with folder.new_report(step, at) as report:
            engine.rows(ReportRow, []).write(report.path, "failed", engine.tally_sum())
        assert report.name in folder.reports()
    with pytest.raises(StorageError, match="no report"), folder.new_report(MigrationStep.ROLLBACK, now):
        raise StorageError("no report")

    names = folder.reports()

    assert names == [
        "20260131T120000.000Z-apply",
        "20260131T120000.001Z-apply",
        "20260131T120001.000Z-to-zookeeper",
    ]
    assert folder.report(names[0]) == (folder.path("reports", names[0]), ReportRow)
    assert folder.report()[0] == folder.path("reports", names[-1])
    with pytest.raises(NotFoundError, match="no report"):
        folder.report("20260131T120000.000Z-rollback")
