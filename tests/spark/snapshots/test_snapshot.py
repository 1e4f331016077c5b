"""Snapshots: contents, times, names, and the session of the caller."""

from __future__ import annotations

import signal
import threading
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import zkgroups
from zkgroups.exceptions import (
    InvalidOptionError,
    NotFoundError,
)
from zkgroups.spark import SourceOptions, Survey, Table, read_snapshot, snapshot_names, survey, take_snapshot

from ..commands import command_on
from ..model import Model, assert_is, files, parquet, plant, spoil
from .conftest import Engine, Take
from .runs import NOT_SO_LONG_AGO, left

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]


# Contents


def test_a_snapshot_equals_the_tree(take: Take, zookeeper_hosts: str, kazoo: Any, tmp_path: Path) -> None:
    """With malformed and forbidden nodes."""
    model = plant(kazoo, ["billing", "shipping", "зака зы"])
    spoil(model, kazoo)
    heard: list[tuple[str, threading.Thread]] = []
    source = SourceOptions(zookeeper=zookeeper_hosts, cluster="blue", parallelism=3)
    before = datetime.now(UTC)
    taken = take(str(tmp_path), source, on_progress=lambda step: heard.append((step, threading.current_thread())))
    after = datetime.now(UTC)
    assert_is(model, tmp_path, taken.name)
    assert model.counts().items() <= asdict(taken).items()
    assert model.counts()["forbidden"] == 3
    assert (taken.destination, len(left(tmp_path))) == (f"file:{tmp_path}", 3)
    assert heard == [(step, threading.current_thread()) for step in ("writing", "moving into place")]
    for table in Table:
        rows = parquet(tmp_path, table, taken.name)
        assert {row["cluster"] for row in rows} == {"blue"}
        assert all(before <= row["read_at"] <= after for row in rows)
    owners, members = len(model.rows[Table.OWNERS]), len(model.rows[Table.MEMBERS])
    # The forbidden topic and instances are known by name only.
    assert survey(source) == Survey(4, 7 + 1, len(model.rows[Table.OFFSETS]) - 1, owners, members - 1, 2)


def test_only_selected_groups_and_topics_are_in_a_snapshot(
    take: Take, zookeeper_hosts: str, kazoo: Any, tmp_path: Path
) -> None:
    model = plant(kazoo, ["billing", "bill", "shipping"])
    taken = take(str(tmp_path), SourceOptions(zookeeper=zookeeper_hosts, groups="bil.*", topics="t1"))
    for table, rows in model.rows.items():
        model.rows[table] = [row for row in rows if row["group"] != "shipping" and row.get("topic", "t1") == "t1"]
    assert_is(model, tmp_path, taken.name)
    assert taken.groups == 2


def test_a_snapshot_without_groups_has_all_columns(
    take: Take, spark: SparkSession, zookeeper_hosts: str, tmp_path: Path
) -> None:
    taken = take(str(tmp_path), zookeeper_hosts)
    assert Model().counts().items() <= asdict(taken).items()
    for table in Table:
        rows = read_snapshot(spark, str(tmp_path), table=table)
        assert rows.count() == 0
        assert rows.schema["cluster"].metadata["comment"], "the comments are in the files"
        assert "read_at" in pq.ParquetFile(files(tmp_path, table, taken.name)[0]).schema.names


def test_forbidden_nodes_are_reported_with_exit_code_9(
    engine: Engine, spark: SparkSession, zookeeper_hosts: str, kazoo: Any, model: Model, tmp_path: Path
) -> None:
    spoil(model, kazoo)
    with command_on(spark, zookeeper_hosts) as zkgroups:
        ended = zkgroups("snapshot", tmp_path, *engine.options)
    assert ended.code == 9
    starting = f"Starting Spark to write a snapshot of {zookeeper_hosts} to {tmp_path}."
    assert ended.err.splitlines() == [
        *([starting] if engine.name == "spark" else []),
        "3 nodes are forbidden: the column `problem` names the path. Log in as a user who may read it.",
    ]
    header, line = (line.split() for line in ended.lines)
    assert " ".join(header) == "SNAPSHOT GROUPS OFFSETS OWNERS MEMBERS PROBLEMS FORBIDDEN LAG SECONDS DESTINATION"
    taken = dict(zip(header, line, strict=True))
    assert {name.lower(): int(taken[name]) for name in header[1:7]} == model.counts()
    assert taken["DESTINATION"] == f"file:{tmp_path}"
    assert_is(model, tmp_path, taken["SNAPSHOT"])


def test_a_snapshot_without_groups_suggests_a_chroot(
    engine: Engine, spark: SparkSession, zookeeper_hosts: str, raw: Any, tmp_path: Path
) -> None:
    raw.ensure_path("/brokers/ids")
    with command_on(spark, zookeeper_hosts) as zkgroups:
        ended = zkgroups("snapshot", tmp_path, "-q", *engine.options)
    assert ended.code == 0
    assert ended.err == "zkgroups: the snapshot has no groups: if they are below a chroot, add it to the address\n"


def test_times_are_stored_as_microseconds_in_utc(
    take: Take, spark: SparkSession, zookeeper_hosts: str, model: Model, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        taken = take(str(tmp_path), zookeeper_hosts)
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    schema = pq.ParquetFile(files(tmp_path, Table.OFFSETS, taken.name)[0]).schema
    kinds = {schema.column(at).name: schema.column(at) for at in range(len(schema))}
    assert {name: column.physical_type for name, column in kinds.items()} == {
        **dict.fromkeys(("cluster", "group", "topic", "owner", "layout", "raw", "problem"), "BYTE_ARRAY"),
        **dict.fromkeys(("partition", "commit_count"), "INT32"),
        **dict.fromkeys(("offset", "zxid", "committed_at", "created_at", "log_start", "log_end", "read_at"), "INT64"),
    }
    for name in ("committed_at", "created_at", "read_at"):
        assert "isAdjustedToUTC=true, timeUnit=microseconds" in str(kinds[name].logical_type)
    assert kinds["group"].logical_type.type == "STRING"


# Visibility


def test_several_snapshots_coexist_and_each_can_be_read(
    take: Take, spark: SparkSession, zookeeper_hosts: str, kazoo: Any, model: Model, tmp_path: Path
) -> None:
    destination = str(tmp_path)
    assert snapshot_names(spark, destination) == []
    with pytest.raises(NotFoundError, match=f"no snapshot in file:{tmp_path}: write one with `zkgroups snapshot`$"):
        read_snapshot(spark, destination)
    first = take(destination, zookeeper_hosts)
    kazoo.set("/consumers/billing/offsets/t0/1", b"99")
    second = take(destination, zookeeper_hosts)
    assert_is(model, tmp_path, first.name)
    assert snapshot_names(spark, destination) == [first.name, second.name]
    _is_as_hive_has_it(spark, tmp_path, [first.name, second.name])

    def offset(name: str | None = None) -> int:
        rows = read_snapshot(spark, destination, name).where("`group` = 'billing' and topic = 't0' and partition = 1")
        return int(rows.collect()[0].offset)

    assert (offset(first.name), offset(second.name), offset()) == (7, 99, 99)
    assert read_snapshot(spark, destination, table="members").count() == 2
    for table in Table:
        rows = read_snapshot(spark, destination, table=table)
        assert sorted(map(repr, zkgroups.read_snapshot(destination, table=table).to_pylist())) == sorted(
            repr(row) for row in rows.toArrow().to_pylist()
        )
    assert read_snapshot(spark, destination, first.name, table=Table.OWNERS).count() == 4

    (tmp_path / "table=offsets" / f"snapshot={second.name}" / "_SUCCESS").unlink()
    assert snapshot_names(spark, destination) == [first.name]
    assert offset() == 7
    for name in (second.name, NOT_SO_LONG_AGO, "yesterday", "", "../x", "a:b"):
        with pytest.raises(NotFoundError, match="no snapshot"):
            read_snapshot(spark, destination, name)
    with pytest.raises(InvalidOptionError, match="it must be one of offsets, owners, members"):
        read_snapshot(spark, destination, table="groups")


def _is_as_hive_has_it(spark: SparkSession, destination: Path, names: list[str]) -> None:
    """Other programs read the snapshots as partitions, with text names."""
    offsets = destination / "table=offsets"
    frame = spark.read.parquet(str(offsets))
    assert dict(frame.dtypes)["snapshot"] == "string"
    assert sorted(row.snapshot for row in frame.select("snapshot").distinct().collect()) == names
    table = ds.dataset(offsets, partitioning="hive").to_table()
    assert str(table.schema.field("snapshot").type) in {"string", "dictionary<values=string, indices=int32, ordered=0>"}
    assert sorted(set(table["snapshot"].to_pylist())) == names


def test_a_destination_may_contain_spaces_and_special_characters(
    take: Take, spark: SparkSession, zookeeper_hosts: str, model: Model, tmp_path: Path
) -> None:
    odd = tmp_path / "a b=ü%20+c[1]{x}*"
    taken = take(str(odd), zookeeper_hosts)
    assert_is(model, odd, taken.name)
    assert read_snapshot(spark, str(odd)).count() == len(model.rows[Table.OFFSETS])


# The caller's session


def test_the_session_of_the_caller_is_unchanged(
    spark: SparkSession, zookeeper_hosts: str, model: Model, tmp_path: Path
) -> None:
    callers = spark.newSession()
    other = spark.newSession()
    SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(other._jsparkSession)
    context = spark.sparkContext
    context.setJobGroup("mine", "my jobs")
    callers.range(3).createOrReplaceTempView("numbers")

    def seen() -> dict[str, Any]:
        active = SparkSession.getActiveSession()
        assert active is not None
        return {
            "settings": dict(callers.conf.getAll),
            "views": [table.name for table in callers.catalog.listTables()],
            "sources": callers._jsparkSession.sessionState().dataSourceManager().dataSourceExists("zkgroups"),
            "active": active._jsparkSession.sessionUUID(),
            "group": context.getLocalProperty("spark.jobGroup.id"),
            "tags": context.getJobTags(),
            "python": context.pythonExec,
            "ctrl-c": signal.getsignal(signal.SIGINT),
        }

    try:
        before = seen()
        take_snapshot(callers, str(tmp_path), zookeeper_hosts)
        assert seen() == before
        assert context.statusTracker().getJobIdsForGroup("mine"), "the jobs are in the group of the caller"
    finally:
        context._jsc.clearJobGroup()
