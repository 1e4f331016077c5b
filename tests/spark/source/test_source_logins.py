"""Passwords, SASL and TLS, on the driver and on workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trustme
from kazoo.security import make_digest_acl
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession

from tests.lasting import lasting_client
from zkgroups.exceptions import (
    AuthenticationError,
)
from zkgroups.spark.errors import translated
from zkgroups.testing import TcpProxy, ZooKeeperServer
from zkgroups.testing import zookeeper_configuration as server_side

from ...testing.test_zookeeper_server_security import certificate
from ..conftest import ENVIRONMENT_PASSWORD, Read, plant
from .rows import OPERATORS, SECRET, planned, refusal, through

pytestmark = pytest.mark.zookeeper


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


def test_secrets_appear_in_no_plan_log_or_error(
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
        with pytest.raises(PythonException) as caught:
            rows.collect()
        shown.append(str(caught.value))
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
