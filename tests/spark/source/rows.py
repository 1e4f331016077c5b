"""Rows of the tables, as tests expect them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from kazoo.security import make_digest_acl
from pyspark.sql import DataFrame

from zkgroups.exceptions import (
    ZkgroupsException,
)
from zkgroups.spark.errors import translated
from zkgroups.testing import TcpProxy

from ...core.old_clients import scala_offset

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
