"""Old servers, interpreters, wrong options, lost servers and killed tasks."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.lasting import lasting_client
from zkgroups.exceptions import (
    InvalidOptionError,
    MissingDependencyError,
    NoRegistryError,
    NotConnectedError,
    SparkJobError,
    ZkgroupsException,
)
from zkgroups.spark import register
from zkgroups.spark.errors import translated
from zkgroups.testing import Op, TcpProxy

from ...testing.waiting import eventually
from ..conftest import Read, plant
from .rows import OPERATORS, SCALA, planned, through, told

pytestmark = pytest.mark.zookeeper


# Old servers


def test_an_old_server_gives_the_same_rows(read: Read, raw: Any, zookeeper_hosts: str, old_hosts: str) -> None:
    groups, topics = ("alpha", "beta"), ("orders", "tax", "über")
    nodes = {f"{g}/offsets/{t}/{n}": b"%d" % n for g in groups for t in topics for n in range(40)}
    nodes |= {"alpha/offsets/orders/x": b"7", "alpha/offsets/tax/50": b"7.5", "closed/offsets/t/0": b"7"}
    nodes |= {f"{g}/owners/{t}/{n}": b"anna" for g in groups for t in topics for n in range(30)}
    nodes |= {"alpha/ids/anna": SCALA, "beta/ids/ben": b"junk{"}
    with lasting_client(old_hosts) as old:
        for client in (raw, old):
            plant(client, nodes)
            client.set_acls("/consumers/closed/offsets", [OPERATORS])
        for table in ("offsets", "owners", "members"):
            now, then = (
                sorted(
                    repr({c: v for c, v in row.items() if c not in UNLIKE})
                    for row in told(read(table, zookeeper=hosts, cluster="c", parallelism=2))
                )
                for hosts in (zookeeper_hosts, old_hosts)
            )
            assert now == then
            assert now


UNLIKE = {"committed_at", "created_at", "claimed_at", "registered_at", "zxid"}
"""The columns that differ between servers."""


# The interpreter


def test_workers_run_the_interpreter_of_the_driver(
    read: Read, spark: SparkSession, some: None, another_python: Path
) -> None:
    there = subprocess.run([another_python / "python3", "-c", "import kazoo"], capture_output=True, check=False)
    assert b"ModuleNotFoundError" in there.stderr
    assert spark.sparkContext.pythonExec == "python3", "as it was: other functions of the session are unchanged"
    assert read().count() == 47


def test_registration_may_be_repeated_for_any_session(read: Read, spark: SparkSession, some: None) -> None:
    other = spark.newSession()
    for session in (spark, other, other, spark):
        register(session)
        assert SparkSession.getActiveSession() == spark
        assert read(session=session).count() == 47


@pytest.mark.parametrize("said_by", ["environment", "setting"])
def test_a_configured_interpreter_is_used(
    read: Read, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, said_by: str
) -> None:
    context = spark.sparkContext
    session = spark.newSession()
    usual = context.pythonExec
    if said_by == "environment":
        monkeypatch.setenv("PYSPARK_PYTHON", "/no/such/python")
    else:
        monkeypatch.setattr(context, "_conf", context.getConf().set("spark.pyspark.python", "/no/such/python"))
    register(session)
    assert context.pythonExec == usual
    with pytest.raises(MissingDependencyError, match=r"Cannot run program ./no/such/python."), translated("it"):
        read(session=session)


# Errors

NOWHERE = "127.0.0.1:1"


WRONG: dict[str, tuple[Mapping[str, str], type[ZkgroupsException], str]] = {
    "option": ({"groop": "x"}, InvalidOptionError, "option is 'groop', but no such option exists"),
    "table": ({"table": "groups"}, InvalidOptionError, "table is 'groups', but it must be one of offsets, owners, mem"),
    "hosts": ({"zookeeper": "a:b"}, InvalidOptionError, "zookeeper is 'a:b', but it must be like host:port"),
    "nobody": (
        {"zookeeper": NOWHERE, "timeout": "0.3"},
        NotConnectedError,
        f"could not connect to {NOWHERE} within 0.3 s",
    ),
    "chroot": ({"chroot": "/nope"}, NoRegistryError, "/.*/nope does not exist in the ZooKeeper at "),
    "password": ({"digestUser": "ops", "passwordFile": "/no/such"}, InvalidOptionError, "passwordFile is '/no/such', "),
}


@pytest.mark.parametrize(("options", "kind", "said"), WRONG.values(), ids=WRONG.keys())
def test_failures_are_zkgroups_errors(
    read: Read, zookeeper_hosts: str, options: dict[str, str], kind: type[ZkgroupsException], said: str
) -> None:
    options = dict(options)
    if below := options.pop("chroot", ""):
        options["zookeeper"] = zookeeper_hosts + below
    with pytest.raises(AnalysisException, match=rf"zkgroups\.(exceptions|input_errors)\.{kind.__name__}: ") as caught:
        read(**options).count()
    assert caught.value.getCondition() == "PYTHON_DATA_SOURCE_ERROR"
    with pytest.raises(kind, match=f"^{said}") as ours, translated("it"):
        read(**options).count()
    assert isinstance(ours.value.__cause__, AnalysisException)


def test_a_missing_address_is_reported_with_the_right_option(spark: SparkSession) -> None:
    reader = spark.read.format("zkgroups")
    with pytest.raises(InvalidOptionError, match="it must be the address of ZooKeeper"), translated("it"):
        reader.load()
    with (
        pytest.raises(InvalidOptionError, match=r"use option\(\"zookeeper\", \"host:port/chroot\"\)"),
        translated("it"),
    ):
        reader.load("zk1:2181")


def test_another_schema_is_refused_and_the_table_s_own_is_accepted(
    read: Read, spark: SparkSession, some: None, zookeeper_hosts: str
) -> None:
    reader = spark.read.format("zkgroups").options(zookeeper=zookeeper_hosts, parallelism=1)
    assert reader.schema(read().schema).load().count() == 47
    others = reader.schema("group STRING, lag BIGINT").load()
    with pytest.raises(InvalidOptionError, match="each table has a fixed schema: do not set one"), translated("it"):
        others.count()


def test_a_server_lost_before_the_tasks_start_is_named(
    read: Read, spark: SparkSession, proxy: TcpProxy, zookeeper_hosts: str, some: None
) -> None:
    rows = read(zookeeper=through(proxy, zookeeper_hosts), timeout=5)
    planned(rows)
    proxy.refuse()
    with pytest.raises(NotConnectedError, match=r"^could not connect to .* within 5 s") as caught, translated("it"):
        rows.collect()
    assert isinstance(caught.value.__cause__, PythonException)


def test_other_errors_show_the_first_message_of_python_or_java(spark: SparkSession) -> None:
    with pytest.raises(SparkJobError, match=r"^it: .*no_such_column"), translated("it"):
        spark.range(1).select("no_such_column")
    with pytest.raises(SparkJobError, match=r"^it: .*DIVIDE_BY_ZERO"), translated("it"):
        spark.sql("SELECT 1 / id FROM range(1)").collect()
    with pytest.raises(SparkJobError, match=r"^it: .*org.apache.hadoop.*No FileSystem for scheme"), translated("it"):
        spark.range(1).write.parquet("nowhere://x/y")
    with pytest.raises(SparkJobError, match=r"^it: .*Parent path is not a directory: file:/dev/null"), translated("it"):
        spark.range(1).write.parquet("/dev/null/x")


def test_an_error_with_a_cause_is_converted_to_the_outer_error() -> None:
    text = (
        "Traceback (most recent call last):\nzkgroups.exceptions.NotFoundError: there is nothing\n\n"
        "The above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n"
        "zkgroups.exceptions.NotConnectedError: no connection\n\tat org.apache.spark.X\n"
    )
    with pytest.raises(NotConnectedError, match=r"^no connection$"), translated("it"):
        raise PythonException(text)


def test_a_task_whose_process_is_killed_is_repeated(
    read: Read, spark: SparkSession, proxy: TcpProxy, huge: str
) -> None:
    before = proxy.requests_by_type[Op.SYNC]
    rows = read(zookeeper=through(proxy, huge)).groupBy().agg(f.count("*"), f.sum("offset"))
    result: list[Any] = []
    proxy.delay(0.05, direction="replies")
    query = threading.Thread(target=lambda: result.extend(rows.collect()))
    query.start()
    assert eventually(lambda: proxy.requests_by_type[Op.MULTI_READ] > 20, timeout=60)
    proxy.delay(3600.0, direction="replies")  # the task is still running when it is killed
    [worker] = processes_connected_to(proxy)
    os.kill(worker, signal.SIGKILL)
    proxy.delay(0)
    query.join(60)
    assert [tuple(row) for row in result] == [(12_400, 4 * sum(range(3_000)) + 40 * sum(range(10)))]
    assert proxy.requests_by_type[Op.SYNC] - before == 2, "it was begun twice"


def processes_connected_to(proxy: TcpProxy) -> list[int]:
    """Return the other processes with a connection to the proxy."""
    port = int(proxy.address.rpartition(":")[2])
    sockets = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[2].rpartition(":")[2], 16) == port:
            sockets.add(f"socket:[{fields[9]}]")
    processes = [process for process in Path("/proc").iterdir() if process.name.isdigit()]
    return [int(process.name) for process in processes if sockets & open_files(process)]


def open_files(process: Path) -> set[str]:
    try:
        return {str(file.readlink()) for file in (process / "fd").iterdir()}
    except OSError:
        return set()
