"""Snapshots, plans, reports and audits that have lost a file are errors, and are not read as if they had fewer rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from zkgroups.core.plan import Step
from zkgroups.exceptions import DamagedFileError
from zkgroups.spark import SourceOptions, Table, audit, read_audit, read_snapshot, snapshot
from zkgroups.spark.journal import Journal
from zkgroups.spark.migration import SnapshotSource, plan, read_plan, summary
from zkgroups.spark.migration.carrying import Planned
from zkgroups.spark.migration.folder import Folder
from zkgroups.spark.whole import write_and_list

from .commands import Command, command_on
from .conftest import plant

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]

Damage = Callable[[Path], object]


@pytest.fixture
def hosts(zookeeper_hosts: str, raw: Any) -> str:
    """A ZooKeeper with groups enough for several files."""
    plant(raw, {f"g{number}/offsets/t{number}/0": b"5" for number in range(8)})
    return zookeeper_hosts


@pytest.fixture
def zkgroups(spark: SparkSession, hosts: str) -> Iterator[Command]:
    with command_on(spark, hosts) as run:
        yield run


def with_rows(folder: Path) -> Path:
    """A Parquet file that has rows, one of several."""
    found = [file for file in sorted(folder.glob("part-*")) if pq.read_metadata(file).num_rows]
    assert found
    return found[0]


def add(folder: Path) -> None:
    (folder / "part-9.parquet").write_bytes(with_rows(folder).read_bytes())


def cut(folder: Path) -> None:
    file = with_rows(folder)
    file.write_bytes(file.read_bytes()[:-1])


def garble(folder: Path) -> None:
    (folder / "._SUCCESS.crc").unlink()
    (folder / "_SUCCESS").write_text('{"rows": 5}')


DAMAGES: dict[str, tuple[Damage, str]] = {
    "a file is missing": (lambda folder: with_rows(folder).unlink(), r"part-\S+ is missing"),
    "a file was cut": (cut, r"part-\S+ has \d+ bytes, not \d+"),
    "a file was added": (add, r"part-9\.parquet was not written with it"),
    "the list is garbled": (garble, "_SUCCESS is damaged"),
}


def test_a_snapshot_that_has_lost_a_file_is_neither_read_nor_planned_from(
    spark: SparkSession, hosts: str, zkgroups: Command, tmp_path: Path
) -> None:
    taken = snapshot(spark, str(tmp_path / "kept"), SourceOptions(zookeeper=hosts, parallelism=2))
    with_rows(tmp_path / f"kept/table=offsets/snapshot={taken.name}").unlink()

    for name in (None, taken.name):
        with pytest.raises(DamagedFileError, match=rf"snapshot {taken.name} in .* is not whole: .*missing"):
            read_snapshot(spark, str(tmp_path / "kept"), name)
    assert read_snapshot(spark, str(tmp_path / "kept"), table=Table.MEMBERS).count() == 0
    ended = zkgroups("migrate", "plan", tmp_path / "plan", "--without-brokers", "--from-snapshot", tmp_path / "kept")

    assert (ended.code, ended.out) == (10, "")
    assert "is not whole" in ended.err
    with pytest.raises(DamagedFileError):
        plan(spark, str(tmp_path / "plan"), SnapshotSource(destination=str(tmp_path / "kept")), None)
    assert not Folder(spark, str(tmp_path / "plan")).has_plan()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_plan_or_report_whose_files_are_not_as_they_were_written_is_an_error(
    spark: SparkSession, hosts: str, zkgroups: Command, tmp_path: Path, damage: str
) -> None:
    plan(spark, str(tmp_path), SourceOptions(zookeeper=hosts, parallelism=1), None)
    folder, (do, said) = Folder(spark, str(tmp_path)), DAMAGES[damage]
    with folder.new_report(Step.APPLY, datetime.now(UTC)) as report:
        write_and_list(spark.range(4), report.path)
    assert read_plan(spark, str(tmp_path)).count() == 8
    assert folder.report(report.name).count() == 4
    do(tmp_path / "plan")
    do(tmp_path / "reports" / report.name)

    for look in (
        lambda: Planned.of(spark, folder),
        lambda: summary(spark, str(tmp_path)),
        lambda: folder.report(report.name),
    ):
        with pytest.raises(DamagedFileError, match=said):
            look()
    for more in ((), ("--report",)):
        ended = zkgroups("migrate", "show", tmp_path, *more)
        assert (ended.code, ended.out) == (10, "")


def test_a_plan_of_an_earlier_version_has_an_empty_mark_and_is_read(
    spark: SparkSession, hosts: str, tmp_path: Path
) -> None:
    made = plan(spark, str(tmp_path), SourceOptions(zookeeper=hosts, parallelism=1), None)
    (tmp_path / "plan" / "._SUCCESS.crc").unlink()
    (tmp_path / "plan" / "_SUCCESS").write_text("")
    assert summary(spark, str(tmp_path)) == made
    Folder(spark, str(tmp_path)).check_rows(7)


def test_a_plan_with_another_number_of_rows_than_were_written_is_an_error(
    spark: SparkSession, hosts: str, tmp_path: Path
) -> None:
    plan(spark, str(tmp_path), SourceOptions(zookeeper=hosts, parallelism=1), None)
    folder = Folder(spark, str(tmp_path))
    folder.check_rows(8)
    with pytest.raises(DamagedFileError, match="was written with 8 rows, and 7 are there"):
        folder.check_rows(7)


def test_an_audit_that_has_lost_a_file_is_neither_read_nor_gone_on_with(
    spark: SparkSession, hosts: str, raw: Any, zkgroups: Command, tmp_path: Path
) -> None:
    for offset in (b"10", b"55"):
        raw.set("/consumers/g0/offsets/t0/0", offset)
        audit(spark, str(tmp_path), hosts, once=True)
    assert read_audit(spark, str(tmp_path)).count() == 9
    [piece] = tmp_path.glob("commits/0-000000000001-*")
    with_rows(piece).unlink()

    with pytest.raises(DamagedFileError, match=r"part-\S+ is missing: put it back from a backup, or begin a new"):
        read_audit(spark, str(tmp_path))
    looked = Journal(spark, str(tmp_path)).looked_ms()
    assert looked is not None
    at = datetime.fromtimestamp(looked / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
    commands = (
        ("audit", tmp_path, "--show"),
        ("audit", tmp_path, "--once"),
        ("offsets", "reset", "g0", "--all-topics", "--from-audit", tmp_path, "--to-datetime", at),
    )
    raw.set("/consumers/g0/offsets/t0/0", b"60")
    for command in commands:
        ended = zkgroups(*command)
        assert (ended.code, ended.out) == (10, ""), command
        assert "is missing" in ended.err
