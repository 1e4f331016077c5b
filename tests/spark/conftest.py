"""One Spark session for all tests, and the tree as other clients write it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NodeExistsError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession

from tests.lasting import lasting_client
from zkgroups.exceptions import MissingDependencyError
from zkgroups.spark import register
from zkgroups.testing import missing
from zkgroups.testing.java import find_java

from ..conftest import KAFKA

ENVIRONMENT_PASSWORD = "the environment's password"
"""The environment of Spark's processes."""

SETTINGS = {
    "spark.master": "local[2,4]",  # a task may fail three times
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The compiled code of so many tests does not fit into the 48 MB that TieredStopAtLevel=1 implies: Java would search
    # for unused code all the time, throw it away, and compile it again.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests that need Spark in two processes, each with one session.

    The second process runs tests that also need brokers, and tests that start more Sparks. In one process, all these
    tests would take longer than everything else.
    """
    for item in items:
        names = set(getattr(item, "fixturenames", ()))
        if "spark" in names:
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("xdist_group") is None:
                brokers = names & KAFKA or item.get_closest_marker("kafka")
                item.add_marker(pytest.mark.xdist_group("spark_kafka" if brokers else "spark"))


@pytest.fixture(scope="session")
def spark_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of Spark and its workers."""
    return tmp_path_factory.mktemp("spark") / "log"


@pytest.fixture(scope="session")
def another_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a `python3` without zkgroups."""
    folder = tmp_path_factory.mktemp("bin")
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\nexec "{sys._base_executable}" -S -E "$@"\n')
    python.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def spark(spark_log: Path, another_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session with two cores and the data source; the `python3` on its path lacks zkgroups."""
    try:
        find_java()
    except MissingDependencyError as error:
        missing("spark", str(error))
    conf = SparkConf().setAll(list(SETTINGS.items()))
    conf.set("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    with pytest.MonkeyPatch.context() as patch, spark_log.open("w") as log:
        for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            patch.delenv(variable, raising=False)
        patch.setenv("PATH", str(another_python), prepend=":")
        patch.setenv("ZKGROUPS_PASSWORD", ENVIRONMENT_PASSWORD)
        context = SparkContext(conf=conf, gateway=launch_gateway(conf, {"stderr": log}))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark's own would call Java in any later test
    context.setLogLevel("OFF")
    session = SparkSession(context)
    register(session)
    yield session
    context.stop()


Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, zookeeper_hosts: str) -> Read:
    """Read a table of the test's ZooKeeper, in one task by default."""

    def read(table: str = "offsets", *, session: SparkSession = spark, **options: Any) -> DataFrame:
        given = {"zookeeper": zookeeper_hosts, "parallelism": 1, "table": table} | options
        return session.read.format("zkgroups").options(**given).load()

    return read


@pytest.fixture
def raw(zookeeper_hosts: str) -> Iterator[Any]:
    """A plain kazoo client in the chroot of the test, which plays other clients and checks results."""
    with lasting_client(zookeeper_hosts) as client:
        yield client


def plant(client: Any, nodes: Mapping[str, bytes], *, ephemeral: bool = False) -> None:
    """Create nodes below /consumers, with their parents."""
    paths = [f"/consumers/{path}" for path in nodes]
    above = {path[:end] for path in paths for end in range(len(path)) if path[end] == "/" and end}
    for made in [client.create_async(path) for path in sorted(above)]:
        with suppress(NodeExistsError):
            made.get(timeout=60)
    for made in [client.create_async(f"/consumers/{p}", data, ephemeral=ephemeral) for p, data in nodes.items()]:
        made.get(timeout=60)
