"""Row counts of written files are checked on the driver; see test_standalone.py for unshared file systems."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from zkgroups import Registry, TopicPartition
from zkgroups.exceptions import DamagedFileError, NotSharedError
from zkgroups.spark import SourceOptions
from zkgroups.spark.migration import plan, read_plan, summary
from zkgroups.spark.storage.writing import check_row_count, write_and_list

from .commands import command_on


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


@pytest.mark.zookeeper
def test_a_plan_of_an_earlier_version_without_its_rows_is_an_error(
    spark: SparkSession, zookeeper_hosts: str, tmp_path: Path
) -> None:
    with Registry.connect(zookeeper_hosts) as registry:
        registry.group("billing").offsets.set(TopicPartition("orders", 0), 5)
    plan(spark, str(tmp_path), SourceOptions(zookeeper=zookeeper_hosts, parallelism=1), None)
    assert read_plan(spark, str(tmp_path)).count() == 1
    for file in tmp_path.glob("plan/part-*"):
        file.unlink()
    (tmp_path / "plan" / "._SUCCESS.crc").unlink()
    (tmp_path / "plan" / "_SUCCESS").write_text("")  # as earlier versions did, without a list of files
    with pytest.raises(DamagedFileError, match="are missing: make a new plan in another folder"):
        summary(spark, str(tmp_path))
    with command_on(spark, None) as zkgroups:
        ended = zkgroups("migrate", "show", tmp_path)
    assert (ended.code, ended.out) == (10, "")
    assert f"zkgroups: the rows of the plan in file:{tmp_path} are missing" in ended.err
