"""Fixtures, trees and expected rows of the data source."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import make_digest_acl
from pyspark.sql import DataFrame

from tests.lasting import lasting_client
from zkgroups.exceptions import ZkgroupsException
from zkgroups.spark.errors import translated
from zkgroups.testing import TcpProxy, fresh_chroot

from ...core.znodes.old_clients import scala_offset
from ..conftest import plant

Rows = list[dict[str, Any]]


SECRET = "hunter2 of the operators"
OPERATORS = make_digest_acl("ops", SECRET, all=True)


SCALA = b'{"version":1,"subscription":{"orders":2},"pattern":"static","timestamp":"1795255170109"}'
WHITE_LIST = b'{"version":1,"subscription":{"ord.*":1},"pattern":"white_list","timestamp":"1795255170109"}'
KAZOO_GO = b'{"pattern":"static","subscription":{"orders":1,"tax":3},"timestamp":1795255543,"version":1}'


def told(read: DataFrame) -> Rows:
    """Return the rows sorted, with times in milliseconds and without `read_at`."""
    before = time.time()
    rows = [row.asDict() for row in read.collect()]
    for row in rows:
        assert before - 1 <= row.pop("read_at").timestamp() <= time.time() + 1
        for column, value in row.items():
            if isinstance(value, datetime):
                row[column] = round(value.timestamp() * 1000)
            elif isinstance(value, bytearray):
                row[column] = bytes(value)
    return in_order(rows)


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: [repr(row.get(key)) for key in ("group", "topic", "partition", "problem")])


def offset_row(client: Any, hosts: str, path: str, /, **different: object) -> dict[str, Any]:
    """Compute the row of an offset node with a plain client and Kafka's own consumer."""
    group, _, topic, name = path.split("/")
    data, stat = client.get(f"/consumers/{path}")
    row: dict[str, Any] = {"cluster": hosts, "group": group, "topic": topic, "owner": None, "raw": None}
    row |= {"layout": "legacy", "log_start": None, "log_end": None}
    row |= {"commit_count": stat.version, "committed_at": stat.mtime, "created_at": stat.ctime, "zxid": stat.mzxid}
    if "problem" not in different:
        row |= {"partition": int(name), "offset": scala_offset(data), "problem": None}
    return row | different


def denied(hosts: str, group: str, path: str, **known: object) -> dict[str, Any]:
    columns = ["topic", "partition", "offset", "commit_count", "committed_at", "created_at", "zxid", "owner", "raw"]
    columns += ["log_start", "log_end"]
    problem = f"/consumers/{path}: no permission to read it"
    return dict.fromkeys(columns) | {"cluster": hosts, "group": group, "layout": "legacy", "problem": problem} | known


HUGE = 3 * 3_000 + 40 * 10


def planned(rows: DataFrame) -> DataFrame:
    """The reader is planned only once."""
    assert rows._jdf.queryExecution().toRdd().getNumPartitions() == 1
    return rows


def spent(proxy: TcpProxy, act: Callable[[], object]) -> int:
    """Count the requests."""
    before = proxy.requests
    act()
    return proxy.requests - before


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(ZkgroupsException) as caught, translated("it"):
        act()
    return str(caught.value)


def through(proxy: TcpProxy, hosts: str) -> str:
    """Return the address of the proxy."""
    return f"{proxy.address}/{hosts.partition('/')[2]}"


# Fixtures


@pytest.fixture
def proxy(zookeeper: Any) -> Iterator[TcpProxy]:
    with TcpProxy(zookeeper.address) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def huge(zookeeper: Any) -> Iterator[str]:
    """A group with thousands of partitions in large and small topics, another group, and their owners."""
    with fresh_chroot(zookeeper) as hosts:
        with lasting_client(hosts) as client:
            large = {f"huge/offsets/large-{t}/{n}": b"%d" % n for t in range(3) for n in range(3_000)}
            small = {f"huge/offsets/small-{t:02}/{n}": b"%d" % n for t in range(40) for n in range(10)}
            other = {f"other/offsets/large-0/{n}": b"%d" % n for n in range(3_000)}
            plant(client, large | small | other)
        yield hosts


@pytest.fixture
def some(raw: Any) -> None:
    """Three groups with three topics, one with forbidden topics, and members."""
    groups, topics = ("alpha", "beta", "gamma"), ("orders", "refunds", "tax")
    plant(raw, {f"{g}/offsets/{t}/{n}": b"%d" % n for g in groups for t in topics for n in range(5)})
    plant(raw, {f"{g}/owners/{t}/{n}": b"anna" for g in groups for t in topics for n in range(5)}, ephemeral=True)
    plant(raw, {f"{g}/ids/{m}": SCALA for g in groups for m in ("anna", "ben")}, ephemeral=True)
    plant(raw, {"hidden/offsets/orders/0": b"7", "hidden/owners/orders/0": b"7", "alpha/offsets/orders/x": b"7"})
    for part in ("offsets", "owners"):
        raw.set_acls(f"/consumers/hidden/{part}", [OPERATORS])


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    return str(file)
