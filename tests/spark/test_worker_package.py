"""The file with zkgroups for workers: a Python without packages imports everything that tasks need from it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from zkgroups import __version__
from zkgroups.input_errors import InvalidOptionError
from zkgroups.spark.worker_package import write_worker_package

from ..cli.running import run
from .cluster import python_with_pyarrow

USE = """
import sys
sys.path.insert(0, sys.argv[1])
import kafka, kazoo.client, puresasl.client, re2
import zkgroups.kafka.brokers, zkgroups.migration.apply
from zkgroups.core.java_regex.topic_filter import TopicFilter
from zkgroups.kafka.wire import codec

print(bool(re2.fullmatch("[a-c]+", "abc")), codec.OFFSET_COMMIT)
for module in (zkgroups, zkgroups.migration.apply, kazoo.client, kafka):
    print(module.__file__)
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("package") / "zkgroups.zip"
    write_worker_package(file)
    return file


def test_a_python_with_only_pyarrow_imports_compiled_and_other_modules(package: Path, tmp_path: Path) -> None:
    python = python_with_pyarrow(tmp_path)
    done = subprocess.run([python, "-c", USE, package], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    used, *files = done.stdout.splitlines()
    assert used.startswith("True ")
    assert all(file.startswith(f"{package}/") and file.endswith(".pyc") for file in files), files


def test_without_the_file_the_same_python_has_none_of_it(tmp_path: Path) -> None:
    python = python_with_pyarrow(tmp_path)
    done = subprocess.run([python, "-c", USE, "/nowhere"], capture_output=True, text=True, timeout=60)
    assert "ModuleNotFoundError: No module named 'kafka'" in done.stderr


def test_the_same_installation_writes_the_same_bytes(package: Path, tmp_path: Path) -> None:
    assert write_worker_package(tmp_path / "again.zip").file.read_bytes() == package.read_bytes()


def test_the_file_contains_no_cached_files_and_no_file_twice(package: Path) -> None:
    with zipfile.ZipFile(package) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
    assert len(names) == len(set(names))
    assert not [name for name in names if "__pycache__" in name or name.startswith(("/", ".."))]


def test_the_command_prints_the_versions_and_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "zkgroups.zip"
    ended = run("spark-package", file, "-o", "json")
    assert ended.code == 0, ended.err
    shipped = {each["name"]: each["version"] for each in ended.json["packages"]}
    assert shipped["zkgroups"] == __version__
    assert shipped.items() >= {name: version(name) for name in ("kazoo", "google-re2", "kafka-python")}.items()
    assert (
        f"--conf spark.submit.pyFiles={file} --conf spark.pyspark.python=python3.{sys.version_info.minor}" in ended.err
    )


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "notes.zip"
    file.write_text("notes")
    ended = run("spark-package", file)
    assert (ended.code, ended.out) == (4, "")
    assert f"{file} already exists and is not overwritten" in ended.err
    assert file.read_text() == "notes"


def test_a_name_that_spark_would_not_import_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match=r"end with \.zip"):
        write_worker_package(tmp_path / "zkgroups.tar.gz")
    assert run("spark-package", tmp_path / "zkgroups.tgz").code == 2
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zkgroups.spark.worker_package._REQUIRED", ("kazoo", "no-such-package"))
    with pytest.raises(ModuleNotFoundError):
        write_worker_package(tmp_path / "zkgroups.zip")
    assert not list(tmp_path.iterdir())
