"""Log ends in snapshots, audits and the data source of Spark: the same as without Spark.

tests/snapshots/test_log_ends.py has the rules.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from zkgroups import Registry, TopicPartition
from zkgroups.snapshots.local_snapshot import take_snapshot as take_local_snapshot
from zkgroups.spark import SourceOptions, list_snapshots, read_audit, read_snapshot, run_audit, take_snapshot
from zkgroups.spark.snapshots.timeline import timeline
from zkgroups.spark.source.stream import StreamReader
from zkgroups.testing import KafkaBroker

from .test_history_diff import compared, found

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]


@pytest.fixture
def topic(kafka_broker: KafkaBroker) -> str:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(name, partitions=2)
    kafka_broker.write(name, 0, 9)
    return name


@pytest.fixture
def source(zookeeper_hosts: str, kafka_broker: KafkaBroker) -> SourceOptions:
    return SourceOptions(zookeeper=zookeeper_hosts, bootstrap_servers=kafka_broker.address, parallelism=2)


def test_both_engines_record_and_compare_the_same_log_ends(
    spark: SparkSession,
    source: SourceOptions,
    topic: str,
    kafka_broker: KafkaBroker,
    registry: Registry,
    tmp_path: Path,
) -> None:
    """In a folder that also has a snapshot without log ends."""
    destination, stuck, idle = str(tmp_path), *(TopicPartition(topic, number) for number in range(2))
    offsets = registry.group("billing").offsets
    offsets.set_many({stuck: 4, idle: 0, TopicPartition("gone", 0): 1})
    registry.group("lost").offsets.set(stuck, 99)
    old = take_snapshot(spark, destination, source.without_brokers())
    first = take_snapshot(spark, destination, source)
    same = take_local_snapshot(destination, source)
    kafka_broker.write(topic, 0, 3)
    last = take_snapshot(spark, destination, source)

    assert [(each.lag, each.unknown_lags) for each in (old, first, same, last)] == [
        (None, None),
        (5, 2),
        (5, 2),
        (8, 2),
    ]
    listed = list_snapshots(spark, destination).select("name", "lag", "unknown_lags").collect()
    assert [tuple(row) for row in listed] == [
        (each.name, each.lag, each.unknown_lags) for each in (old, first, same, last)
    ]
    tables = [read_snapshot(spark, destination, each.name).drop("read_at") for each in (first, same)]
    assert tables[0].exceptAll(tables[1]).union(tables[1].exceptAll(tables[0])).collect() == []
    assert tables[0].where("log_end = 9 and log_start = 0").count() == 2

    rows = found(compared(spark, tmp_path, same.name, last.name, by="partition"))
    states = {name: (row["state"], row["stalled"], row["lag"], row["lag_delta"]) for name, row in rows.items()}
    assert states == {
        f"billing/{topic}/0": ("unchanged", True, 8, 3),
        f"billing/{topic}/1": ("unchanged", False, 0, 0),
        "billing/gone/0": ("unchanged", None, None, None),
        f"lost/{topic}/0": ("unchanged", False, None, None),
    }
    groups = found(compared(spark, tmp_path, first.name, last.name))
    assert [groups["billing"][name] for name in ("stalled", "lag", "lag_delta")] == [1, 8, 3]
    unknown = found(compared(spark, tmp_path, old.name, last.name))
    assert [unknown["billing"][name] for name in ("stalled", "lag", "lag_delta")] == [None, 8, None]

    drawn = timeline(spark, destination, "billing", topics={topic: None})
    assert {line.name: [point.lag for point in line.points] for line in drawn.lines} == {
        f"{topic}/0": [None, 5, 5, 8],
        f"{topic}/1": [None, 0, 0, 0],
    }


def test_audits_streams_and_reads_from_a_transaction_have_log_ends(
    spark: SparkSession, source: SourceOptions, topic: str, registry: Registry, tmp_path: Path
) -> None:
    at, offsets = TopicPartition(topic, 0), registry.group("billing").offsets
    offsets.set(at, 2)
    first = offsets.fetch(at)
    assert run_audit(spark, str(tmp_path), source, once=True).log_ends_problem is None
    offsets.set(at, 9)
    offsets.set(TopicPartition(topic, 1), 0)
    run_audit(spark, str(tmp_path), source, once=True)
    assert first is not None

    def shown(rows: Any) -> list[tuple[Any, ...]]:
        return [
            tuple(row) for row in rows.select("partition", "offset", "log_start", "log_end").sort("offset").collect()
        ]

    later = [(1, 0, 0, 0), (0, 9, 0, 9)]
    assert shown(read_audit(spark, str(tmp_path)).where("before is null or before = 2")) == [
        later[0],
        (0, 2, 0, 9),
        later[1],
    ]
    options = source.as_text() | {"startingZxid": str(first.zxid)}
    assert shown(spark.read.format("zkgroups").options(**options).load()) == later
    stream = StreamReader(source)
    begin, end = stream.initialOffset(), stream.latestOffset()
    streamed = [
        row for share in stream.partitions(begin, end) for batch in stream.read(share) for row in batch.to_pylist()
    ]
    stream.stop()
    assert sorted((row["offset"], row["log_end"]) for row in streamed) == [(0, 0), (9, 9)]
