"""The files that Spark writes: the same for both engines, counted on the driver, and an error if they are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from zkgroups.exceptions import NotSharedError
from zkgroups.spark.files import HadoopFiles, check_row_count, write_and_list
from zkgroups.storage.atomic_folder import AtomicFolder, write_list
from zkgroups.storage.files import Files, LocalFiles, join

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
