"""Forbidden nodes and invalid clocks in an audit, with both engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl
from pyspark.sql import SparkSession

from zkgroups.audit.audit import Batch
from zkgroups.audit.local_ledger import LocalLedger
from zkgroups.audit.pieces import Piece
from zkgroups.core.audit_columns import COMMITS, READ
from zkgroups.spark import AuditResult, AuditStep, SourceOptions
from zkgroups.spark.audit.ledger import SparkLedger
from zkgroups.tables.arrow_schema import arrow_schema

from ..conftest import plant

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]


def test_commits_to_forbidden_nodes_are_recorded_once_readable(
    record: Callable[..., AuditResult], rows: Callable[[], list[dict[str, Any]]], zookeeper_hosts: str, raw: Any
) -> None:
    """A forbidden node, and a topic that may not be listed. Other offsets are not recorded twice."""
    plant(raw, {"g/offsets/t/0": b"5", "g/offsets/t/1": b"6", "h/offsets/t/0": b"7", "i/offsets/t/0": b"8"})
    closed = ("/consumers/g/offsets/t/0", "/consumers/h/offsets/t")
    raw.add_auth("digest", "ops:secret")
    told: list[AuditStep] = []

    def look() -> AuditStep:
        done = record(zookeeper_hosts, on_progress=told.append)
        assert done.forbidden == told[-1].forbidden
        return told[-1]

    assert look() == AuditStep(0, 4)
    for path in closed:
        raw.set_acls(path, [make_digest_acl("ops", "secret", all=True)])
    raw.set("/consumers/g/offsets/t/0", b"15")
    raw.set("/consumers/h/offsets/t/0", b"17")
    assert look() == AuditStep(1, commits=0, forbidden=2)
    raw.set("/consumers/g/offsets/t/1", b"16")
    assert look() == AuditStep(2, commits=1, forbidden=2)
    for path in closed:
        raw.set_acls(path, OPEN_ACL_UNSAFE)
    assert look() == AuditStep(3, commits=2)
    assert [tuple(row[name] for name in ("group", "partition", "before", "offset")) for row in rows()[4:]] == [
        ("g", 1, 6, 16),
        ("g", 0, 5, 15),
        ("h", 0, 7, 17),
    ]


def test_a_commit_with_an_invalid_time_is_recorded_once(spark: SparkSession, tmp_path: Path) -> None:
    """Its time is null. A server with such a clock cannot be started, so the engines get the rows."""
    source, schema = SourceOptions(zookeeper="127.0.0.1:1"), arrow_schema(COMMITS)
    with_spark = SparkLedger(spark, str(tmp_path), source)
    local = LocalLedger(str(tmp_path), source, Event())
    recorded = {"group": "g", "topic": "t", "partition": 0, "offset": 5, "zxid": 7, "batch": 0}
    local.journal.write_commits(pa.Table.from_pylist([recorded], schema), Piece(0, 0))
    again = pa.Table.from_pylist([recorded, recorded | {"partition": 1}, recorded | {"zxid": 8}], schema).select(READ)
    batch = Batch(1, 0, (), 0)
    new = [(1, None, 7), (0, 5, 8)]
    for found in (local._new(again, batch), with_spark._new(spark.createDataFrame(again), batch, few=True).toArrow()):
        rows = found.sort_by("zxid").to_pylist()
        assert [(row["partition"], row["before"], row["zxid"]) for row in rows] == new
