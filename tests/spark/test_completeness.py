"""Snapshots, plans, reports and audits with missing files are errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from zkgroups.core.migration.plan_rows import MigrationStep
from zkgroups.exceptions import DamagedFileError
from zkgroups.spark import SourceOptions, Table, read_audit, read_snapshot, run_audit, take_snapshot
from zkgroups.spark.audit.journal import SparkJournal
from zkgroups.spark.migration import SnapshotSource, plan, read_plan, summary
from zkgroups.spark.migration.engine import SparkEngine
from zkgroups.spark.storage.writing import write_and_list

from .commands import Command, command_on
from .conftest import plant

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]

Damage = Callable[[Path], object]


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


def add(folder: Path) -> None:
    (folder / "part-9.parquet").write_bytes(with_rows(folder).read_bytes())


def cut(folder: Path) -> None:
    file = with_rows(folder)
    file.write_bytes(file.read_bytes()[:-1])


def garble(folder: Path) -> None:
    text_of(folder, "_SUCCESS", '{"rows": 5}')


def text_of(folder: Path, name: str, text: str) -> None:
    """Overwrite a small file without updating Hadoop's checksum."""
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    file.write_text(text)


DAMAGES: dict[str, tuple[Damage, str]] = {
    "a file is missing": (lambda folder: with_rows(folder).unlink(), r"part-\S+ is missing"),
    "a file was cut": (cut, r"part-\S+ has \d+ bytes, not \d+"),
    "a file was added": (add, r"part-9\.parquet is not in the list of files"),
    "the list is garbled": (garble, "_SUCCESS is damaged"),
}


def test_a_snapshot_with_a_missing_file_is_neither_read_nor_planned_from(
    spark: SparkSession, hosts: str, zkgroups: Command, tmp_path: Path
) -> None:
    taken = take_snapshot(spark, str(tmp_path / "kept"), SourceOptions(zookeeper=hosts, parallelism=2))
    with_rows(tmp_path / f"kept/table=offsets/snapshot={taken.name}").unlink()

    for name in (None, taken.name):
        with pytest.raises(DamagedFileError, match=rf"snapshot {taken.name} in .* is damaged: .*missing"):
            read_snapshot(spark, str(tmp_path / "kept"), name)
    assert read_snapshot(spark, str(tmp_path / "kept"), table=Table.MEMBERS).count() == 0
    ended = zkgroups("migrate", "plan", tmp_path / "plan", "--without-brokers", "--from-snapshot", tmp_path / "kept")

    assert (ended.code, ended.out) == (10, "")
    assert "is damaged" in ended.err
    with pytest.raises(DamagedFileError):
        plan(spark, str(tmp_path / "plan"), SnapshotSource(destination=str(tmp_path / "kept")), None)
    assert not SparkEngine(spark).folder(str(tmp_path / "plan")).has_plan()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_plan_or_report_with_changed_files_is_an_error(
    spark: SparkSession, hosts: str, zkgroups: Command, tmp_path: Path, damage: str
) -> None:
    plan(spark, str(tmp_path), SourceOptions(zookeeper=hosts, parallelism=1), None)
    folder, (do, said) = SparkEngine(spark).folder(str(tmp_path)), DAMAGES[damage]
    with folder.new_report(MigrationStep.APPLY, datetime.now(UTC)) as report:
        write_and_list(spark.range(4), report.path)
    assert read_plan(spark, str(tmp_path)).count() == 8
    assert folder.report(report.name)[0].endswith(report.name)
    do(tmp_path / "plan")
    do(tmp_path / "reports" / report.name)

    for look in (
        lambda: folder.plan(),
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
    text_of(tmp_path, "plan/_SUCCESS", "")
    assert summary(spark, str(tmp_path)) == made
    SparkEngine(spark).folder(str(tmp_path)).check_rows(7)


def test_an_unknown_action_in_a_plan_is_an_error(
    spark: SparkSession, hosts: str, zkgroups: Command, tmp_path: Path
) -> None:
    plan(spark, str(tmp_path), SourceOptions(zookeeper=hosts, parallelism=1), None)
    for file in (tmp_path / "plan").glob("part-*"):
        rows = pq.read_table(file)
        column = rows.schema.get_field_index("action")
        words = pa.array(["explode"] * len(rows), pa.string())
        pq.write_table(rows.set_column(column, rows.schema.field(column), words), file)
        file.with_name(f".{file.name}.crc").unlink()
    text_of(tmp_path, "plan/_SUCCESS", "")

    ended = zkgroups("migrate", "show", tmp_path, "--offsets")

    assert (ended.code, ended.out) == (10, "")
    assert f"the plan in file:{tmp_path} cannot be read: 'explode' is not a known Action: restore" in ended.err


def test_a_plan_with_a_wrong_number_of_rows_is_an_error(spark: SparkSession, hosts: str, tmp_path: Path) -> None:
    plan(spark, str(tmp_path), SourceOptions(zookeeper=hosts, parallelism=1), None)
    folder = SparkEngine(spark).folder(str(tmp_path))
    folder.check_rows(8)
    with pytest.raises(DamagedFileError, match="was written with 8 rows, but has 7 now"):
        folder.check_rows(7)


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
    finished = SparkJournal(spark, str(tmp_path)).finished_batch()
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
