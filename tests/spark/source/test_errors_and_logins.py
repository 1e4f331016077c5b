"""Interpreters, wrong options, lost servers, killed tasks; and logins, on the driver and on workers."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme
from kazoo.security import make_digest_acl
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.lasting import lasting_client
from tests.waiting import eventually
from zkgroups.exceptions import (
    AuthenticationError,
    InvalidOptionError,
    MissingDependencyError,
    NoRegistryError,
    NotConnectedError,
    SparkJobError,
    SparkStoppedError,
    ZkgroupsException,
)
from zkgroups.spark import register
from zkgroups.spark.errors import translated
from zkgroups.testing import Op, TcpProxy, ZooKeeperServer
from zkgroups.testing import zookeeper_server as server_side

from ...testing.test_zookeeper_server import certificate
from ..conftest import ENVIRONMENT_PASSWORD, Read, plant
from .conftest import OPERATORS, SECRET, planned, refusal, through

pytestmark = pytest.mark.zookeeper


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


def test_a_configured_interpreter_is_used(read: Read, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is configured in the environment, or as a setting."""
    context = spark.sparkContext
    usual = context.pythonExec
    for said_by in ("environment", "setting"):
        session = spark.newSession()
        with monkeypatch.context() as patch:
            if said_by == "environment":
                patch.setenv("PYSPARK_PYTHON", "/no/such/python")
            else:
                patch.setattr(context, "_conf", context.getConf().set("spark.pyspark.python", "/no/such/python"))
            register(session)
            assert context.pythonExec == usual
            with pytest.raises(MissingDependencyError, match=r"Cannot run program ./no/such/python."), translated("it"):
                read(session=session)


# Errors

NOWHERE = "127.0.0.1:1"


WRONG: list[tuple[Mapping[str, str], type[ZkgroupsException], str]] = [
    ({"groop": "x"}, InvalidOptionError, "option is 'groop', but no such option exists"),
    ({"zookeeper": NOWHERE, "timeout": "0.3"}, NotConnectedError, f"could not connect to {NOWHERE} within 0.3 s"),
    ({"below": "/nope"}, NoRegistryError, "/.*/nope does not exist in the ZooKeeper at "),
    ({"digestUser": "ops", "passwordFile": "/no/such"}, InvalidOptionError, "passwordFile is '/no/such', "),
]


def test_failures_are_zkgroups_errors(read: Read, zookeeper_hosts: str) -> None:
    """tests/tables/test_source_options.py has all wrong options."""
    for given, kind, said in WRONG:
        options = {"zookeeper": zookeeper_hosts, **given}
        options["zookeeper"] += options.pop("below", "")
        name = rf"zkgroups\.(exceptions|input_errors)\.{kind.__name__}: "
        with pytest.raises(AnalysisException, match=name) as caught:
            read(**options).count()
        assert caught.value.getCondition() == "PYTHON_DATA_SOURCE_ERROR"
        with pytest.raises(kind, match=f"^{said}") as ours, translated("it"):
            read(**options).count()
        assert isinstance(ours.value.__cause__, AnalysisException)


def test_another_schema_is_refused_and_the_table_s_own_is_accepted(
    read: Read, spark: SparkSession, some: None, zookeeper_hosts: str
) -> None:
    reader = spark.read.format("zkgroups").options(zookeeper=zookeeper_hosts, parallelism=1)
    assert reader.schema(read().schema).load().count() == 47
    others = reader.schema("group STRING, lag BIGINT").load()
    with pytest.raises(InvalidOptionError, match="each table has a fixed schema: do not set one"), translated("it"):
        others.count()


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


def test_an_application_that_the_cluster_has_stopped_is_told_apart() -> None:
    """A real master says this if no executor can start."""
    said = "Job aborted: Master removed our application: FAILED\n\tat org.apache.spark.X\n"
    with pytest.raises(SparkStoppedError, match="needs the variable SPARK_SCALA_VERSION"), translated("it"):
        raise PythonException(said)


def test_a_task_whose_process_is_killed_is_repeated(
    read: Read, spark: SparkSession, proxy: TcpProxy, huge: str
) -> None:
    before = proxy.requests_by_type[Op.SYNC]
    rows = read(zookeeper=through(proxy, huge)).groupBy().agg(f.count("*"), f.sum("offset"))
    result: list[Any] = []
    proxy.delay(0.05, direction="replies")
    query = threading.Thread(target=lambda: result.extend(rows.collect()))
    query.start()
    assert eventually(lambda: proxy.requests_by_type[Op.MULTI_READ] > 20)
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


# Logins


@pytest.fixture
def guarded(raw: Any) -> None:
    """Offsets that only the user `ops` may read."""
    plant(raw, {"billing/offsets/orders/0": b"7"})
    acl = [OPERATORS, make_digest_acl("ops2", ENVIRONMENT_PASSWORD, all=True)]
    for path in ("", "/offsets", "/offsets/orders", "/offsets/orders/0"):
        raw.set_acls(f"/consumers/billing{path}", acl)


def test_workers_read_the_password_from_its_file_or_from_their_environment(
    read: Read, guarded: None, password_file: str
) -> None:
    for login in ({"digestUser": "ops", "passwordFile": password_file}, {"digestUser": "ops2"}):
        [row] = read(**login).collect()
        assert (row.offset, row.problem) == (7, None)
    for login in ({}, {"digestUser": "ops"}):
        [row] = read(**login).collect()
        assert (row.offset, row.problem) == (None, "/consumers/billing/offsets: no permission to read it")


def test_a_server_lost_before_the_tasks_start_is_named_and_no_secret_is_in_plans_logs_or_errors(
    read: Read,
    spark: SparkSession,
    spark_log: Path,
    guarded: None,
    password_file: str,
    proxy: TcpProxy,
    zookeeper_hosts: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    rows = read(digestUser="ops", passwordFile=password_file, zookeeper=through(proxy, zookeeper_hosts), timeout=5)
    start = spark_log.stat().st_size
    spark.sparkContext.setLogLevel("DEBUG")
    try:
        rows.explain(True)
        shown = [str(rows._jdf.queryExecution().toString()), str(rows.schema), repr(rows)]
        assert planned(rows).count() == 1
        proxy.refuse()
        with (
            pytest.raises(NotConnectedError, match=r"^could not connect to .* within 5 s") as lost,
            translated("it"),
        ):
            rows.collect()
        caught = lost.value.__cause__
        assert isinstance(caught, PythonException)
        shown += [str(caught), str(lost.value)]
    finally:
        spark.sparkContext.setLogLevel("OFF")
    log = spark_log.read_bytes()[start:].decode(errors="replace")
    assert "Physical Plan" in capfd.readouterr().out
    assert "zkgroups" in log
    assert len(log) > 50_000
    for text in (*shown, log, "".join(capfd.readouterr())):
        assert SECRET not in text
        assert ENVIRONMENT_PASSWORD not in text


def test_a_password_is_refused_as_an_option_and_not_repeated(read: Read) -> None:
    with pytest.raises(AnalysisException) as caught:
        read(digestUser="ops", password=SECRET)
    assert "put the password into a file or an environment variable" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_sasl_server_is_read_and_a_wrong_password_is_reported(read: Read, tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text(SECRET)
    wrong.write_text("something else")
    with ZooKeeperServer(sasl=server_side.Sasl({"ops": SECRET})) as server:
        with lasting_client(server.address) as client:
            plant(client, {"billing/offsets/orders/0": b"7"})
        login = {"zookeeper": server.address, "saslUser": "ops"}
        [row] = read(**login, passwordFile=right).collect()
        assert row.offset == 7
        with pytest.raises(AuthenticationError) as caught, translated("it"):
            read(**login, passwordFile=wrong).count()
        assert "\n" not in str(caught.value)
        assert "something else" not in str(caught.value)


def test_a_server_is_read_over_tls(read: Read, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    server_pem = certificate(authority, "127.0.0.1", tmp_path / "server.pem")
    ours = certificate(authority, "me@example.org", tmp_path / "ours.pem")
    with ZooKeeperServer(tls=server_side.Tls(Path(server_pem), tmp_path / "ca.pem")) as server:
        with lasting_client(server.address) as client:
            plant(client, {f"billing/offsets/orders/{n}": b"7" for n in range(30)})
        tls = {"zookeeper": server.secure_address, "tls": True, "tlsCa": tmp_path / "ca.pem"}
        assert read(**tls, tlsCert=ours).where("offset = 7").count() == 30
        # Spark may not learn why a worker ended while writing to it, so this fails sometimes.
        assert any("could not connect to" in refusal(lambda: read(**tls, timeout=1).count()) for _ in range(10))
