"""A standalone Spark cluster whose workers have another file system or another Python, and the file with zkgroups.

`/proc/self/cwd` is a different folder for each process, so the driver does not find the files of an executor there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from zkgroups_cli.snapshots.snapshot import snapshot as snapshot_command

from zkgroups import Registry, TopicPartition, __version__
from zkgroups.exceptions import MissingDependencyError, NotFoundError
from zkgroups.input_errors import InvalidOptionError
from zkgroups.spark import SourceOptions, read_audit, run_audit, snapshot_names
from zkgroups.spark.files import SHARED
from zkgroups.spark.migration import read_plan
from zkgroups.spark.worker_package import write_worker_package
from zkgroups.testing import KafkaBroker, missing
from zkgroups.testing.java import find_java

from ...cli.running import run
from .cluster import Cluster, python_with_pyarrow

pytestmark = [
    pytest.mark.zookeeper,
    pytest.mark.spark,
    pytest.mark.xdist_group("spark_kafka"),
    pytest.mark.timeout(400),
]

OFFSETS = 20
ROOT = Path(__file__).parents[3]

DRIVER = """
import json, os, sys
from zkgroups.exceptions import ZkgroupsException
from zkgroups.spark import SourceOptions, run_audit, take_snapshot
from zkgroups.spark.migration import plan
from zkgroups.spark.session import own_session
from zkgroups.spark.files import SHARED

master, hosts, bare = sys.argv[1:]
source, here = SourceOptions(zookeeper=hosts, parallelism=1), "file:/proc/self/cwd"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SMALL = {
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.extraJavaOptions": QUICK,
    "spark.executor.memory": "512m",
    "spark.cores.max": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
}
def tell(name, work):
    try:
        work()
        print(json.dumps([name, None, None, None]), flush=True)
    except ZkgroupsException as error:
        print(json.dumps([name, type(error).__name__, str(error), type(error.__cause__).__name__]), flush=True)

def all_writers(spark, when):
    tell(f"snapshot {when}", lambda: take_snapshot(spark, f"{here}/groups", source))
    tell(f"audit {when}", lambda: run_audit(spark, f"{here}/audit", source, once=True))
    tell(f"plan {when}", lambda: plan(spark, f"{here}/plan", source, None))

with own_session(SMALL, master=master) as spark:
    all_writers(spark, "untold")
    spark.conf.set(SHARED, "true")
    all_writers(spark, "told")
    os.environ["PYSPARK_PYTHON"] = spark.sparkContext.pythonExec = bare
    tell("bare", lambda: take_snapshot(spark, f"{here}/bare", source))
"""


USE = """
import sys
sys.path.insert(0, sys.argv[1])
import kafka, kazoo.client, puresasl.client, re2
import zkgroups.kafka.brokers, zkgroups.migration.apply
from zkgroups.core.topic_filter import TopicFilter
from zkgroups.kafka.wire import codec

print(bool(re2.fullmatch("[a-c]+", "abc")), codec.OFFSET_COMMIT)
for module in (zkgroups, zkgroups.migration.apply, kazoo.client, kafka):
    print(module.__file__)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        find_java()
    except MissingDependencyError as error:
        missing("spark", str(error))
    path = python_with_pyarrow(tmp_path_factory.mktemp("python")).parent
    with ExitStack() as stack:
        yield Cluster(tmp_path_factory.mktemp("cluster"), stack, path=path)


def python_without_packages(folder: Path) -> Path:
    """A Python with pyspark, which Spark adds to its path, but without other packages."""
    python = folder / "bare-python"
    python.write_text(f'#!/bin/sh\nexec "{sys._base_executable}" -S -P "$@"\n')
    python.chmod(0o755)
    return python


def plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "PYTHONPATH"))}


def groups_are_made(hosts: str, topic: str = "orders") -> None:
    with Registry.connect(hosts) as registry:
        registry.group("billing").offsets.set_many({TopicPartition(topic, number): 0 for number in range(OFFSETS)})


def test_files_that_the_driver_does_not_see_are_an_error(
    cluster: Cluster, zookeeper_hosts: str, tmp_path: Path, spark: SparkSession
) -> None:
    """One driver for all cases, because starting Spark takes seconds."""
    groups_are_made(zookeeper_hosts)
    bare = python_without_packages(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, cluster.master, zookeeper_hosts, str(bare)],
        cwd=tmp_path,
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=330,
    )
    assert done.returncode == 0, done.stderr
    told = {name: outcome for name, *outcome in map(json.loads, done.stdout.splitlines())}

    # Refused before anything runs
    for writer, folder in (("snapshot", "groups"), ("audit", "audit"), ("plan", "plan")):
        kind, words, _cause = told[f"{writer} untold"]
        assert (kind, words) == ("NotSharedError", refusal(cluster, folder))

    # No result counts, although the workers have written all files.
    assert told["snapshot told"][0] == "NotSharedError"
    assert "the driver finds 0 rows in 0 files" in told["snapshot told"][1]
    assert snapshot_names(spark, str(tmp_path / "groups")) == []
    assert told["audit told"][0] == "NotSharedError"
    assert f"the workers wrote {OFFSETS} rows, but the driver finds 0 rows in 0 files" in told["audit told"][1]
    assert told["plan told"][0] == "NotSharedError"
    assert f"the workers wrote {OFFSETS} rows, but the driver finds 0 rows in 0 files" in told["plan told"][1]
    assert "use hdfs://, s3a:// or a mount that all machines share" in told["plan told"][1]
    with pytest.raises(NotFoundError):
        read_plan(spark, str(tmp_path / "plan"))

    # The position of the audit has not moved: a Spark with a shared disk finds all commits.
    source = SourceOptions(zookeeper=zookeeper_hosts, parallelism=1)
    assert not list(tmp_path.glob("audit/commits/*"))
    assert run_audit(spark, str(tmp_path / "audit"), source, once=True).commits == OFFSETS
    assert read_audit(spark, str(tmp_path / "audit")).count() == OFFSETS

    # Workers that lack a dependency give an error with advice.
    kind, words, cause = told["bare"]
    assert kind == "MissingDependencyError"
    assert cause != "NoneType"
    assert "ModuleNotFoundError: No module named 'zkgroups'" in words
    assert f"with zkgroups {__version__} and the same extras" in words
    assert "PYSPARK_PYTHON" in words


def refusal(cluster: Cluster, folder: str) -> str:
    return (
        f"file:/proc/self/cwd/{folder} was not written: the workers of {cluster.master} might not see this file "
        "system; use hdfs://, s3a:// or a mount that all machines share; if all machines have mounted it, use "
        f"--shared-file-system or the setting {SHARED}=true"
    )


def test_a_shared_file_system_is_declared_in_the_session() -> None:
    for given, more in (([], {}), (["--shared-file-system"], {SHARED: "true"})):
        context = snapshot_command.make_context("snapshot", ["/groups", "--conf", "a=b", *given])
        assert context.params["settings"] == {"a": "b"} | more


# The file with zkgroups


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_worker_package(tmp_path_factory.mktemp("package") / "zkgroups.zip").file


def test_the_command_prints_the_versions_and_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "zkgroups.zip"
    ended = run("spark-package", file, "-o", "json")
    assert ended.code == 0, ended.err
    shipped = {each["name"]: each["version"] for each in ended.json["packages"]}
    assert shipped["zkgroups"] == __version__
    assert shipped.items() >= {name: version(name) for name in ("kazoo", "google-re2", "kafka-python")}.items()
    python = f"python3.{sys.version_info.minor}"
    assert f"--conf spark.submit.pyFiles={file} --conf spark.pyspark.python={python}" in ended.err


def test_workers_without_zkgroups_get_it_from_a_file_and_one_may_be_killed(
    cluster: Cluster, package: Path, zookeeper_hosts: str, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = f"shipped-{tmp_path.name}"
    kafka_broker.create_topic(topic, OFFSETS)
    groups_are_made(zookeeper_hosts, topic)
    command = [
        sys.executable,
        "-m",
        "tests.spark.faults.on_cluster",
        cluster.master,
        zookeeper_hosts,
        kafka_broker.address,
    ]
    command += [str(package), str(tmp_path), *map(str, cluster.worker_pids())]
    done = subprocess.run(command, cwd=ROOT, env=plain_environment(), capture_output=True, text=True, timeout=330)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert (results["read"], results["killed"]) == (OFFSETS, 1)
    assert (results["snapshot"]["groups"], results["snapshot"]["offsets"]) == (1, OFFSETS)
    assert (results["audit"]["commits"], results["audited"]) == (OFFSETS, OFFSETS)
    assert results["apply"] == {"written": OFFSETS}
    assert results["verify"] == {"equal": OFFSETS}


def test_a_python_with_only_pyarrow_imports_compiled_and_other_modules(package: Path, tmp_path: Path) -> None:
    python = python_with_pyarrow(tmp_path)
    without = subprocess.run([python, "-c", USE, "/nowhere"], capture_output=True, text=True, timeout=60)
    assert "ModuleNotFoundError: No module named 'kafka'" in without.stderr
    done = subprocess.run([python, "-c", USE, package], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    used, *files = done.stdout.splitlines()
    assert used.startswith("True ")
    assert all(file.startswith(f"{package}/") and file.endswith(".pyc") for file in files), files


def test_the_same_installation_writes_the_same_bytes(package: Path, tmp_path: Path) -> None:
    assert write_worker_package(tmp_path / "again.zip").file.read_bytes() == package.read_bytes()


def test_the_file_contains_no_cached_files_and_no_file_twice(package: Path) -> None:
    with zipfile.ZipFile(package) as archive:
        names = archive.namelist()
        assert archive.testzip() is None
    assert len(names) == len(set(names))
    assert not [name for name in names if "__pycache__" in name or name.startswith(("/", ".."))]


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
