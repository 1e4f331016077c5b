"""Forbidden nodes and invalid clocks in an audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl
from pyspark.sql import SparkSession

from zkgroups.core.tables import Table
from zkgroups.spark import AuditStep, run_audit
from zkgroups.spark.audit.journal import Journal
from zkgroups.spark.audit.ledger import Counts, Ledger, read_audit
from zkgroups.spark.source.tables import SCHEMAS

from .conftest import plant

SCHEMA = SCHEMAS[Table.OFFSETS]

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]


def test_commits_to_forbidden_nodes_are_recorded_once_readable(
    spark: SparkSession, zookeeper_hosts: str, raw: Any, tmp_path: Path
) -> None:
    """A forbidden node, and a topic that may not be listed. Other offsets are not recorded twice."""
    plant(raw, {"g/offsets/t/0": b"5", "g/offsets/t/1": b"6", "h/offsets/t/0": b"7", "i/offsets/t/0": b"8"})
    closed = ("/consumers/g/offsets/t/0", "/consumers/h/offsets/t")
    raw.add_auth("digest", "ops:secret")
    told: list[AuditStep] = []

    def look() -> AuditStep:
        done = run_audit(spark, str(tmp_path), zookeeper_hosts, once=True, on_progress=told.append)
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
    found = read_audit(spark, str(tmp_path)).where("batch > 0").orderBy("batch", "zxid")
    assert [tuple(row) for row in found.select("group", "partition", "before", "offset").collect()] == [
        ("g", 1, 6, 16),
        ("g", 0, 5, 15),
        ("h", 0, 7, 17),
    ]


def test_forbidden_groups_are_known_for_a_repeated_batch(spark: SparkSession, tmp_path: Path) -> None:
    journal = Journal(spark, str(tmp_path))
    journal.write_forbidden_groups([], 2)
    assert list(tmp_path.iterdir()) == []
    for batch, groups in ((3, ["g"]), (4, ["g"]), (5, ["g", "h/"]), (5, [])):
        journal.write_forbidden_groups(groups, batch)
        assert journal.forbidden_groups(batch + 1) == groups
    assert [journal.forbidden_groups(batch) for batch in range(3, 7)] == [[], ["g"], ["g"], []]


def test_a_commit_with_an_invalid_time_is_recorded_once(spark: SparkSession, tmp_path: Path) -> None:
    values = {"group": "'g'", "topic": "'t'", "partition": "0", "offset": "5L", "zxid": "7L", "read_at": "now()"}
    columns = (f"cast({values.get(each.name, 'null')} as {each.dataType.simpleString()})" for each in SCHEMA)
    found = spark.range(1).selectExpr(
        *(f"{column} as `{each.name}`" for column, each in zip(columns, SCHEMA, strict=True))
    )
    ledger = Ledger(spark, str(tmp_path))
    nothing_denied: Any = None
    assert [ledger.add(found, batch, nothing_denied) for batch in (0, 1)] == [Counts(1, 0), Counts(0, 0)]
