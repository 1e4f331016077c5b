"""The files that Spark writes: the same for both engines, counted on the driver, and an error if they are damaged."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from zkgroups.audit.journal import Journal
from zkgroups.core.migration.plan_rows import MigrationStep
from zkgroups.exceptions import DamagedFileError, NotSharedError
from zkgroups.spark import SourceOptions, Table, read_audit, read_snapshot, run_audit, take_snapshot
from zkgroups.spark.files import HadoopFiles, check_row_count, write_and_list
from zkgroups.spark.migration import SnapshotSource, plan, read_plan, summary
from zkgroups.spark.migration.engine import SparkEngine
from zkgroups.storage.atomic_folder import AtomicFolder, write_list
from zkgroups.storage.files import Files, LocalFiles, join

from .commands import Command, command_on
from .conftest import plant

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "a [1] é:b"


@pytest.fixture(params=["local", "hadoop"])
def files(request: pytest.FixtureRequest, spark: SparkSession, folder: Path) -> Files:
    return LocalFiles() if request.param == "local" else HadoopFiles(spark, f"file:{folder}")


def test_both_kinds_of_files_do_the_same(files: Files, folder: Path) -> None:
    root = files.resolve(f"file:{folder}")
    assert root == f"file:{folder}"
    assert (files.exists(root), files.is_folder(root), files.names(root), files.lengths(root)) == (False, False, [], {})
    files.make_folder(join(root, "x", "y"))
    files.write_text(join(root, "x", "größe"), "ü\n")
    files.write_text(join(root, "x", "_hidden"), "")
    assert sorted(name for name in files.names(join(root, "x")) if not name.startswith(".")) == [
        "_hidden",
        "größe",
        "y",
    ]
    assert files.lengths(join(root, "x")) == {"größe": 3}
    assert files.read_text(join(root, "x", "größe")) == "ü\n"
    with pytest.raises(files.errors):
        files.write_text(join(root, "x", "größe"), "again")
    files.move(join(root, "x", "größe"), join(root, "new", "folder", "file"))
    assert (files.exists(join(root, "x", "größe")), files.lengths(join(root, "new", "folder"))) == (False, {"file": 3})
    with pytest.raises(files.errors):
        files.move(join(root, "x", "missing"), join(root, "z"))
    with pytest.raises(files.errors):
        files.read_text(join(root, "missing"))
    for _ in range(2):
        files.delete(join(root, "x"))
    assert files.is_folder(root)
    assert not files.exists(join(root, "x"))


def test_each_reads_the_folders_that_the_other_has_published(spark: SparkSession, files: Files, folder: Path) -> None:
    written = AtomicFolder(files, f"file:{folder}")
    staged = written.path("_unfinished", written.make_staging_folder("20260131T120000.000Z"), "rows")
    files.make_folder(staged)
    files.write_text(join(staged, "part-0"), "rows")
    write_list(files, staged, 7)
    written.publish(staged, "plan")
    for reader in (LocalFiles(), HadoopFiles(spark, f"file:{folder}")):
        found = AtomicFolder(reader, f"file:{folder}")
        assert found.is_complete("plan")
        listed = found.check_files("plan", cure="")
        assert listed is not None
        assert (listed.rows, listed.files) == (7, {"part-0": 4})


def test_rows_missing_on_the_driver_are_an_error(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "rows")
    write_and_list(spark.range(0, 20, 1, 20), path)
    check_row_count(spark, path, 20)
    first, *others = sorted(tmp_path.glob("rows/part-*"))
    first.unlink()
    with pytest.raises(NotSharedError, match="the workers wrote 20 rows, but the driver finds 19 rows in 19 files"):
        check_row_count(spark, path, 20)
    for file in others:
        file.unlink()
    with pytest.raises(NotSharedError, match="the workers wrote 0 rows, but the driver finds 0 rows in 0 files"):
        check_row_count(spark, path, 0)


def test_a_write_without_rows_makes_a_file(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "rows")
    write_and_list(spark.range(0), path)
    assert spark.read.parquet(path).columns == ["id"]


# Damage


@pytest.fixture
def hosts(zookeeper_hosts: str, raw: Any) -> str:
    """A ZooKeeper with enough groups for several files."""
    plant(raw, {f"g{number}/offsets/t{number}/0": b"5" for number in range(8)})
    return zookeeper_hosts


@pytest.fixture
def zkgroups(spark: SparkSession, hosts: str) -> Iterator[Command]:
    with command_on(spark, hosts) as run:
        yield run


def with_rows(folder: Path) -> Path:
    """Return a Parquet file with rows."""
    found = [file for file in sorted(folder.glob("part-*")) if pq.read_metadata(file).num_rows]
    assert found
    return found[0]


def test_a_snapshot_with_a_missing_file_is_neither_read_nor_planned_from(
    spark: SparkSession, hosts: str, zkgroups: Command, tmp_path: Path
) -> None:
    taken = take_snapshot(spark, str(tmp_path / "kept"), SourceOptions(zookeeper=hosts, parallelism=2))
    with_rows(tmp_path / f"kept/table=offsets/snapshot={taken.name}").unlink()

    for name in (None, taken.name):
        with pytest.raises(DamagedFileError, match=rf"snapshot {taken.name} in .* is damaged: .*missing"):
            read_snapshot(spark, str(tmp_path / "kept"), name)
    assert read_snapshot(spark, str(tmp_path / "kept"), table=Table.MEMBERS).count() == 0
    ended = zkgroups(
        "migrate", "plan", tmp_path / "plan", "--all", "--without-brokers", "--from-snapshot", tmp_path / "kept"
    )

    assert (ended.code, ended.out) == (10, "")
    assert "is damaged" in ended.err
    with pytest.raises(DamagedFileError):
        plan(spark, str(tmp_path / "plan"), SnapshotSource(destination=str(tmp_path / "kept")), None)
    assert not SparkEngine(spark).folder(str(tmp_path / "plan")).has_plan()


def test_a_plan_or_report_with_a_missing_file_is_an_error(
    spark: SparkSession, hosts: str, zkgroups: Command, tmp_path: Path
) -> None:
    made = plan(spark, str(tmp_path), SourceOptions(zookeeper=hosts, parallelism=1), None)
    folder = SparkEngine(spark).folder(str(tmp_path))
    with folder.new_report(MigrationStep.APPLY, datetime.now(UTC)) as report:
        write_and_list(spark.range(4), report.path)
    assert read_plan(spark, str(tmp_path)).count() == 8
    assert folder.report(report.name)[0].endswith(report.name)
    with pytest.raises(DamagedFileError, match="was written with 8 rows, but has 7 now"):
        folder.check_rows(7)
    with_rows(tmp_path / "plan").unlink()
    with_rows(tmp_path / "reports" / report.name).unlink()

    for look in (folder.plan, lambda: summary(spark, str(tmp_path)), lambda: folder.report(report.name)):
        with pytest.raises(DamagedFileError, match=r"part-\S+ is missing"):
            look()
    for more in ((), ("--report",)):
        ended = zkgroups("migrate", "show", tmp_path, *more)
        assert (ended.code, ended.out) == (10, "")
    assert made.groups == 8


def test_a_plan_of_an_earlier_version_has_an_empty_mark_and_is_read_unless_its_rows_are_missing(
    spark: SparkSession, hosts: str, zkgroups: Command, tmp_path: Path
) -> None:
    made = plan(spark, str(tmp_path), SourceOptions(zookeeper=hosts, parallelism=1), None)
    (tmp_path / "plan" / "._SUCCESS.crc").unlink()
    (tmp_path / "plan" / "_SUCCESS").write_text("")
    assert summary(spark, str(tmp_path)) == made
    SparkEngine(spark).folder(str(tmp_path)).check_rows(7)
    for file in tmp_path.glob("plan/part-*"):
        file.unlink()
    with pytest.raises(DamagedFileError, match="are missing: make a new plan in another folder"):
        summary(spark, str(tmp_path))
    ended = zkgroups("migrate", "show", tmp_path)
    assert (ended.code, ended.out) == (10, "")
    assert f"zkgroups: the rows of the plan in file:{tmp_path} are missing" in ended.err


def test_an_audit_with_a_missing_file_is_neither_read_nor_continued(
    spark: SparkSession, hosts: str, raw: Any, zkgroups: Command, tmp_path: Path
) -> None:
    """By no engine."""
    for offset in (b"10", b"55"):
        raw.set("/consumers/g0/offsets/t0/0", offset)
        run_audit(spark, str(tmp_path), hosts, once=True)
    assert read_audit(spark, str(tmp_path)).count() == 9
    [piece] = tmp_path.glob("commits/0-000000000001-*")
    with_rows(piece).unlink()

    with pytest.raises(DamagedFileError, match=r"part-\S+ is missing: restore it from a backup, or start a new"):
        read_audit(spark, str(tmp_path))
    finished = Journal.at(str(tmp_path)).finished_batch()
    assert finished is not None
    at = datetime.fromtimestamp(finished.read_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
    raw.set("/consumers/g0/offsets/t0/0", b"60")
    engines = [("--engine", engine) for engine in ("spark", "local")]
    commands = [("audit", tmp_path, what, *engine) for what in ("--show", "--once") for engine in engines]
    reset = ("offsets", "reset", "g0", "--all-topics", "--from-audit", tmp_path, "--to-datetime", at)
    for command in [*commands, reset]:
        ended = zkgroups(*command)
        assert (ended.code, ended.out) == (10, ""), command
        assert "is missing" in ended.err
