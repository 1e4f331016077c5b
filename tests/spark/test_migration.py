"""Plans and their execution: both engines make the same plans and reports, and each reads those of the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from tests.lasting import lasting_client
from tests.migration.rows import numbers
from zkgroups import Registry, TopicPartition
from zkgroups.core.kafka_values import NativeOffset
from zkgroups.core.migration.changes_since_plan import MigrationStage
from zkgroups.core.migration.offset_decision import Renaming
from zkgroups.core.migration.plan_rows import Match, MatchRow, PlanRow, ReportRow
from zkgroups.exceptions import NotFoundError
from zkgroups.input_errors import InvalidOptionError
from zkgroups.kafka import BrokerOptions, Brokers
from zkgroups.migration import arrow_rows, local, summaries
from zkgroups.migration.local import ZooKeeperSource
from zkgroups.migration.local_engine import LocalEngine
from zkgroups.migration.plan import Planner, PlanSettings, SourceNode
from zkgroups.spark import SourceOptions, take_snapshot
from zkgroups.spark import migration as by_spark
from zkgroups.spark.migration import engine
from zkgroups.spark.migration.engine import SparkEngine, schema
from zkgroups.testing import KafkaBroker

from .conftest import plant

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1000)]

TOPIC = "engines"
GROUPS = ("a größe: 日本", "ahead", "alive", "one", "odd", "past", "two")
RENAMING = Renaming({"one": "two"})


@pytest.fixture
def hosts(zookeeper_hosts: str, registry: Registry, kafka_broker: KafkaBroker) -> str:
    """Groups with every kind of offset, live and dead instances, and two with the same target."""
    if TOPIC not in kafka_topics(kafka_broker):
        kafka_broker.create_topic(TOPIC, 4)
        for partition in range(4):
            kafka_broker.write(TOPIC, partition, 10)
    nodes = {f"{group}/offsets/{TOPIC}/{partition}": b"5" for group in GROUPS for partition in range(2)}
    nodes |= {
        f"odd/offsets/{TOPIC}/{name}": data for name, data in (("2", b"-3"), ("3", b"abc"), ("9", b"+7"), ("x", b"1"))
    }
    nodes |= {f"past/offsets/{TOPIC}/2": b"11", "past/offsets/no-such-topic/0": b"1", f"past/offsets/{TOPIC}/3": b""}
    nodes |= {"past/ids/gone": b"{}"}
    with lasting_client(zookeeper_hosts) as client:
        plant(client, nodes)
        plant(client, {"empty/ids/late": b"{}"})
    registry.client.create("/consumers/alive/ids/scala-1", b"{}", ephemeral=True, makepath=True)
    with Brokers.connect(kafka_broker.address) as brokers:
        brokers.delete_groups([*GROUPS, "two"])
        there = {"ahead": 9, "odd": 5}
        note = {g: NativeOffset(g, TopicPartition(TOPIC, 0), offset, "a note") for g, offset in there.items()}
        brokers.commit({group: {each.at: each} for group, each in note.items()})
        brokers.commit({"odd": {TopicPartition(TOPIC, 3): 1}})
    return zookeeper_hosts


def kafka_topics(broker: KafkaBroker) -> Iterable[str]:
    with Brokers.connect(broker.address) as brokers:
        return brokers.partitions()


def schema_of(folder: Path) -> list[tuple[str, bool, Any]]:
    """Return the columns of all files in a folder: their names, whether they may be null, and their types."""
    [found] = {parquet.read_schema(file).remove_metadata() for file in folder.glob("part-*")}
    return [(field.name, field.nullable, field.type) for field in found]


def rows_of(engine: Any, folder: Path) -> list[PlanRow]:
    """Return the rows of a plan in order, without what differs between two plans of the same groups."""
    same: dict[str, Any] = {"plan": "", "planned_ms": 0}
    return [row._replace(**same) for row in summaries.plan_rows(engine, str(folder))]


def test_both_engines_make_the_same_plan(
    spark: SparkSession, hosts: str, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    source, brokers = ZooKeeperSource(zookeeper=hosts, topics=f"{TOPIC}|no.*"), BrokerOptions(kafka_broker.address)
    made = {
        "local": local.plan(str(tmp_path / "local"), source, brokers, renaming=RENAMING, stale_after=3600.0),
        "spark": by_spark.plan(spark, str(tmp_path / "spark"), source, brokers, renaming=RENAMING, stale_after=3600.0),
    }

    assert made["local"].counts == made["spark"].counts
    assert (made["local"].groups, made["local"].blocked) == (made["spark"].groups, made["spark"].blocked) == (7, 5)
    assert schema_of(tmp_path / "local" / "plan") == schema_of(tmp_path / "spark" / "plan")
    found = [rows_of(SparkEngine(spark), tmp_path / of) for of in made]
    assert len(found[0]) == sum(made["local"].counts[action] for action in ("commit", "skip", "refuse"))
    assert {row.reason for row in found[0]} >= {
        "negative",
        "no offset",
        "past the end",
        "target ahead",
        "no such topic",
    }
    assert found[0] == found[1]
    for of, planned in made.items():
        assert by_spark.summary(spark, str(tmp_path / of)) == planned
    assert local.groups(str(tmp_path / "local")) == local.groups(str(tmp_path / "spark"))


def test_a_plan_from_a_snapshot_is_the_plan_from_zookeeper(
    spark: SparkSession, hosts: str, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    brokers, (live, later) = BrokerOptions(kafka_broker.address), (str(tmp_path / name) for name in ("live", "later"))
    by_spark.plan(spark, live, SourceOptions(zookeeper=hosts), brokers, renaming=RENAMING)
    taken = take_snapshot(spark, str(tmp_path / "snapshots"), SourceOptions(zookeeper=hosts))
    source = by_spark.SnapshotSource(destination=str(tmp_path / "snapshots"))
    said = f"no snapshot 2001-01-01 in .*: the oldest is {taken.name}, the latest {taken.name}$"
    with pytest.raises(NotFoundError, match=said):
        by_spark.plan(spark, later, replace(source, at="2001-01-01"), brokers, renaming=RENAMING)

    again = by_spark.plan(spark, later, source, brokers, renaming=RENAMING)

    assert again.source == f"snapshot {taken.name} in {tmp_path / 'snapshots'}"
    found = [rows_of(SparkEngine(spark), Path(folder)) for folder in (live, later)]
    without = {"source": "", "stale": False}
    gone = {"empty"}  # a group without offsets is in no snapshot
    assert [row._replace(**without) for row in found[1]] == [
        row._replace(**without) for row in found[0] if row.group not in gone
    ]


def test_a_plan_in_one_file_with_a_split_group_is_processed_in_whole_groups(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As earlier versions of the local engine could write it."""
    names, path = ("a", "b", "a"), str(tmp_path / "plan")
    found = [SourceNode(name, name, False, None, TOPIC, at, 5, 100, 1000) for at, name in enumerate(names)]
    planned = [row for node in found for row in Planner(PlanSettings(plan="p", planned_ms=0), None).plan([node])]
    engine = LocalEngine()
    engine.rows(PlanRow, planned).write(path, "failed", engine.tally_sum())
    stored = SparkEngine(spark).read(PlanRow, path, "target", "partition").stored_by_target(count=3, files=1)
    assert stored.collect("failed").to_pylist() == [
        {"target": target, "partition": partition} for target, partition in (("a", 0), ("a", 2), ("b", 1))
    ]


def test_spark_and_arrow_have_the_same_columns() -> None:
    for kind in (SourceNode, PlanRow, ReportRow, MatchRow):
        assert arrow_rows.arrow_schema(kind).equals(to_arrow_schema(schema(kind)))


# Execution

_numbers = itertools.count()
MOVED = 6
ROWS = 3 * MOVED - 1
"""The number of offsets to write."""


class Migration:
    """Groups with three partitions, two of which had offsets on the target before; and their plan."""

    def __init__(self, spark: SparkSession, hosts: str, registry: Registry, broker: KafkaBroker, folder: Path) -> None:
        self.spark, self.registry, self.folder = spark, registry, str(folder / "move")
        self.source, self.options = SourceOptions(zookeeper=hosts), BrokerOptions(broker.address)
        self.topic, other = (f"carried-{next(_numbers)}" for _ in range(2))
        broker.create_topic(self.topic, 3)
        broker.create_topic(other, 1)
        self.names = [f"{self.topic}-{number}" for number in range(MOVED)]
        for name in self.names:
            registry.group(name).offsets.set_many({TopicPartition(self.topic, number): 0 for number in range(3)})
        note = NativeOffset(self.names[2], TopicPartition(other, 0), 3, "a note")
        with self.brokers() as brokers:
            brokers.commit({self.names[1]: {self.first: 0}, note.group: {note.at: note}})
        by_spark.plan(spark, self.folder, self.source, self.options)

    @property
    def first(self) -> TopicPartition:
        return TopicPartition(self.topic, 0)

    def brokers(self) -> Brokers:
        return self.options.connect()

    def call(self, function: Callable[..., Any], **options: Any) -> Any:
        return function(self.spark, self.folder, self.options, self.source, **options)


@pytest.fixture
def migration(
    spark: SparkSession, zookeeper_hosts: str, registry: Registry, kafka_broker: KafkaBroker, tmp_path: Path
) -> Migration:
    return Migration(spark, zookeeper_hosts, registry, kafka_broker, tmp_path)


def test_groups_with_obstacles_are_left_and_progress_is_copied_back(
    migration: Migration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several tasks."""
    monkeypatch.setattr(engine, "MIN_ROWS_PER_TASK", 9)
    live, written, moved, *free = migration.names
    migration.registry.client.create(f"/consumers/{live}/ids/scala-1", b"{}", ephemeral=True, makepath=True)
    migration.registry.group(written).offsets.set(migration.first, 1)
    with migration.brokers() as brokers:
        brokers.commit({moved: {migration.first: 5}})

        found = migration.call(by_spark.apply, execute=True)

        assert (found.groups, found.left, found.failed) == (MOVED, 3, 0)
        groups = {each.target: each for each in by_spark.group_results(migration.spark, migration.folder, found.report)}
        assert groups[live].details == ("legacy instances are registered: scala-1",)
        assert groups[free[0]].details == ()
        assert groups[free[0]].counts == {"written": 3}
        assert numbers(brokers, live) == {}
        verified = migration.call(by_spark.verify)
        assert verified.counts["equal"] < ROWS
        rows = list(by_spark.differing(migration.spark, migration.folder, verified.report))
        assert {row.target for row in rows} == {live, written, moved}
        assert {row.match for row in rows if row.target == live} == {Match.NOT_WRITTEN}

        stages = {each.target: each.stage for each in migration.call(by_spark.status)}
        assert (stages[live], stages[free[0]]) == (MigrationStage.NOT_BEGUN, MigrationStage.DONE)
        brokers.commit({free[0]: {migration.first: 8}})
        undone = migration.call(by_spark.rollback, execute=True, to_zookeeper=True)

        assert undone.left == 1
        assert numbers(brokers, free[0]) == {}
    found_again = migration.registry.group(free[0]).offsets.fetch(migration.first)
    assert found_again is not None
    assert found_again.offset == 8


def test_speculation_is_refused(spark: SparkSession, zookeeper_hosts: str, registry: Registry, tmp_path: Path) -> None:
    """Two tasks would write the same offsets."""
    registry.group("billing").offsets.set(TopicPartition("orders", 0), 7)
    source, nobody = SourceOptions(zookeeper=zookeeper_hosts), BrokerOptions("127.0.0.1:1", timeout=0.2)
    by_spark.plan(spark, str(tmp_path), replace(source, topics="ord.*"), None)
    assert [row["topics"] for row in by_spark.read_plan(spark, str(tmp_path)).collect()] == ["ord.*"]
    session = spark.newSession()
    session.conf.set("spark.sql.legacy.setCommandRejectsSparkCoreConfs", "false")
    session.conf.set("spark.speculation", "true")
    with pytest.raises(InvalidOptionError, match=r"spark\.speculation"):
        by_spark.apply(session, str(tmp_path), nobody, source, execute=True)
    with pytest.raises(NotFoundError, match="no report in"):
        by_spark.read_report(spark, str(tmp_path))
