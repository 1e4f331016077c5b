"""Both engines make the same plans and reports, and each reads those of the other."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from pyspark.sql import SparkSession

from tests.lasting import lasting_client
from zkgroups import Registry, TopicPartition
from zkgroups.core.kafka_values import NativeOffset
from zkgroups.core.migration.group_status import MigrationStage
from zkgroups.core.migration.plan_rows import MatchRow, PlanRow, ReportRow
from zkgroups.core.migration.target_names import Renaming
from zkgroups.kafka import BrokerOptions, Brokers
from zkgroups.migration import local, summaries
from zkgroups.migration.engines.local_engine import LocalEngine
from zkgroups.migration.local import ZooKeeperSource
from zkgroups.migration.plan import Planner, PlanSettings, SourceNode
from zkgroups.spark import migration as by_spark
from zkgroups.spark.migration.engine import SparkEngine
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


def report_of(engine: Any, folder: Path) -> list[ReportRow | MatchRow]:
    found = summaries.report_rows(engine, str(folder))
    return [row._replace(plan="", **({"reported_ms": 0} if isinstance(row, ReportRow) else {})) for row in found]


def test_both_engines_make_the_same_plan_and_read_that_of_the_other(
    spark: SparkSession, hosts: str, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    source, brokers = ZooKeeperSource(zookeeper=hosts, topics=f"{TOPIC}|no.*"), BrokerOptions(kafka_broker.address)
    engines = {"local": LocalEngine(), "spark": SparkEngine(spark)}
    made = {
        "local": local.plan(str(tmp_path / "local"), source, brokers, renaming=RENAMING, stale_after=3600.0),
        "spark": by_spark.plan(spark, str(tmp_path / "spark"), source, brokers, renaming=RENAMING, stale_after=3600.0),
    }

    assert made["local"].counts == made["spark"].counts
    assert (made["local"].groups, made["local"].blocked) == (made["spark"].groups, made["spark"].blocked) == (7, 4)
    assert schema_of(tmp_path / "local" / "plan") == schema_of(tmp_path / "spark" / "plan")
    found = [rows_of(engine, tmp_path / of) for engine in engines.values() for of in engines]
    assert len(found[0]) == sum(made["local"].counts[action] for action in ("commit", "skip", "refuse"))
    assert {row.reason for row in found[0]} >= {
        "negative",
        "no offset",
        "past the end",
        "target ahead",
        "no such topic",
    }
    assert all(each == found[0] for each in found)
    for of, planned in made.items():
        assert local.summary(str(tmp_path / of)) == by_spark.summary(spark, str(tmp_path / of)) == planned
        assert local.groups(str(tmp_path / of)) == by_spark.groups(spark, str(tmp_path / of))
    assert local.groups(str(tmp_path / "local")) == local.groups(str(tmp_path / "spark"))


def test_a_plan_in_one_file_with_a_split_group_is_processed_in_whole_groups(
    spark: SparkSession, tmp_path: Path
) -> None:
    """As earlier versions of the local engine could write it."""
    names, path = ("a", "b", "a"), str(tmp_path / "plan")
    found = [SourceNode(name, name, False, None, TOPIC, at, 5, 100, 1000) for at, name in enumerate(names)]
    planned = [row for node in found for row in Planner(PlanSettings(plan="p", planned_ms=0), None).plan([node])]
    engine = LocalEngine()
    engine.rows(PlanRow, planned).write(path, "failed", engine.tally_sum())
    stored = SparkEngine(spark).read(PlanRow, path).stored_by_target(count=len(planned), files=1)
    assert stored.select("target", "partition").collect("failed").to_pylist() == [
        {"target": target, "partition": partition} for target, partition in (("a", 0), ("a", 2), ("b", 1))
    ]


@pytest.mark.parametrize("planner", ["local", "spark"])
def test_each_engine_applies_verifies_and_rolls_back_the_plan_of_the_other(
    spark: SparkSession, hosts: str, kafka_broker: KafkaBroker, tmp_path: Path, planner: str
) -> None:
    """They take turns, and have the same results and reports."""
    source, brokers, folder = ZooKeeperSource(zookeeper=hosts), BrokerOptions(kafka_broker.address), str(tmp_path)
    modules = {"local": local, "spark": by_spark}
    calls: dict[str, Any] = {
        name: lambda step, name=name, **options: (
            getattr(local, step)(folder, brokers, source, **options)
            if name == "local"
            else getattr(by_spark, step)(spark, folder, brokers, source, **options)
        )
        for name in modules
    }
    first, second = (calls[planner], calls["spark" if planner == "local" else "local"])
    plan = partial(local.plan, folder) if planner == "local" else partial(by_spark.plan, spark, folder)
    plan(source, brokers)

    dry = [call("apply", execute=False) for call in calls.values()]
    reports = [report_of(engine, tmp_path) for engine in (LocalEngine(), SparkEngine(spark))]
    assert reports[0] == reports[1]
    assert dry[0].counts == dry[1].counts
    assert schema_of(tmp_path / "reports" / dry[0].report) == schema_of(tmp_path / "reports" / dry[1].report)

    applied = second("apply", execute=True)
    assert (applied.left, applied.failed) == (2, 0)
    again = first("apply", execute=True)
    assert again.counts["already there"] == applied.counts["written"]
    results = [
        list(local.group_results(folder, applied.report)),
        list(by_spark.group_results(spark, folder, applied.report)),
    ]
    assert results[0] == results[1]
    verified = [call("verify") for call in calls.values()]
    assert verified[0].counts == verified[1].counts
    differing = [list(local.differing(folder)), list(by_spark.differing(spark, folder))]
    assert differing[0] == differing[1] != []
    states = [call("status") for call in calls.values()]
    assert states[0] == states[1]
    assert {each.stage for each in states[0]} == {MigrationStage.BLOCKED, MigrationStage.DONE}

    undone = second("rollback", execute=True)
    assert undone.failed == 0
    states = [call("status") for call in calls.values()]
    assert states[0] == states[1]
    assert MigrationStage.ROLLED_BACK in {each.stage for each in states[0]}
