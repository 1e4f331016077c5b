"""Apply, verify, status and rollback with Spark on a real broker, with reports."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.migration.rows import numbers, tree
from zkgroups import Registry, TopicPartition
from zkgroups.core.kafka_values import NativeOffset
from zkgroups.core.migration.group_status import MigrationStage
from zkgroups.core.migration.plan_rows import Match, MigrationStep
from zkgroups.exceptions import GuardFailedError, NotConnectedError, NotFoundError, SparkJobError
from zkgroups.input_errors import InvalidOptionError
from zkgroups.kafka import BrokerOptions, Brokers
from zkgroups.migration.engines.tasks import MigrationConnections
from zkgroups.migration.steps import STEPS
from zkgroups.spark import SourceOptions
from zkgroups.spark.migration import (
    apply,
    differing,
    engine,
    group_results,
    plan,
    read_plan,
    read_report,
    rollback,
    status,
    verify,
)
from zkgroups.spark.storage.hadoop_files import HadoopFiles
from zkgroups.testing import KafkaBroker

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1000)]

_numbers = itertools.count()
GROUPS = 6
ROWS = 3 * GROUPS - 1
"""The number of offsets to write."""
SECRET = "the-s3cret"


class Migration:
    """Groups with three partitions, two of which had offsets on the target before; a plan made with a secret."""

    def __init__(self, spark: SparkSession, hosts: str, registry: Registry, broker: KafkaBroker, folder: Path) -> None:
        self.spark, self.registry, self.folder = spark, registry, str(folder / "move")
        settings = folder / "client.properties"
        settings.write_text(f"sasl.jaas.config={SECRET}\n")
        self.source, self.options = SourceOptions(zookeeper=hosts), BrokerOptions(broker.address, str(settings))
        self.topic, other = (f"carried-{next(_numbers)}" for _ in range(2))
        broker.create_topic(self.topic, 3)
        broker.create_topic(other, 1)
        self.names = [f"{self.topic}-{number}" for number in range(GROUPS)]
        for name in self.names:
            registry.group(name).offsets.set_many({TopicPartition(self.topic, number): 0 for number in range(3)})
        note = NativeOffset(self.names[2], TopicPartition(other, 0), 3, "a note")
        with self.brokers() as brokers:
            brokers.commit({self.names[1]: {self.first: 0}, note.group: {note.at: note}})
        plan(spark, self.folder, self.source, self.options)

    @property
    def first(self) -> TopicPartition:
        return TopicPartition(self.topic, 0)

    def brokers(self) -> Brokers:
        return self.options.connect()

    def sides(self) -> tuple[Any, Any]:
        """Return the offsets of both sides."""
        with self.brokers() as brokers:
            return tree(self.registry.client, "/consumers"), brokers.committed(self.names)

    def call(self, function: Callable[..., Any], **options: Any) -> Any:
        return function(self.spark, self.folder, self.options, self.source, **options)

    def stages(self) -> list[MigrationStage]:
        return [each.stage for each in self.call(status)]


@pytest.fixture
def migration(
    spark: SparkSession, zookeeper_hosts: str, registry: Registry, kafka_broker: KafkaBroker, tmp_path: Path
) -> Migration:
    return Migration(spark, zookeeper_hosts, registry, kafka_broker, tmp_path)


def test_a_plan_is_applied_verified_and_rolled_back_with_a_report_of_each_run(migration: Migration) -> None:
    before = migration.sides()
    heard: list[str] = []

    dry = migration.call(apply, execute=False, on_progress=heard.append)

    assert (dry.groups, dry.left, dry.failed, dry.executed) == (GROUPS, 0, 0, False)
    assert dry.counts == {"would write": ROWS, "skipped": 2}
    assert len(heard) == STEPS
    assert migration.sides() == before
    with pytest.raises(GuardFailedError, match="the plan was made for Kafka cluster staging"):
        MigrationConnections(migration.options, None).check("staging")
    assert {group.target for group in group_results(migration.spark, migration.folder)} == set(migration.names)

    applied = migration.call(apply, execute=True)

    assert applied.counts == {"written": ROWS, "skipped": 2}
    assert applied.report.endswith("-apply")
    with migration.brokers() as brokers:
        for name in migration.names:
            assert {at.partition for at in numbers(brokers, name) if at.topic == migration.topic} == {0, 1, 2}
    assert migration.stages() == [MigrationStage.DONE] * GROUPS
    assert migration.call(verify).counts == {"equal": 3 * GROUPS + 1}
    assert list(differing(migration.spark, migration.folder)) == []

    undone = migration.call(rollback, execute=True)

    assert (undone.step, undone.left) == (MigrationStep.ROLLBACK, 0)
    assert migration.sides() == before
    assert migration.stages() == [MigrationStage.ROLLED_BACK] * GROUPS
    rows = read_report(migration.spark, migration.folder, applied.report).where("outcome = 'written'")
    assert rows.count() == ROWS
    assert not any(SECRET.encode() in path.read_bytes() for path in Path(migration.folder).rglob("*") if path.is_file())


def test_a_report_that_cannot_be_written_is_detected_before_the_work_or_has_advice(
    migration: Migration, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = migration.sides()

    def full(*_arguments: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(HadoopFiles, "write_text", full)
        with pytest.raises(SparkJobError, match="cannot be written to: No space") as early:
            migration.call(apply, execute=True)
    assert not hasattr(early.value, "__notes__")
    assert migration.sides() == before

    reports = Path(migration.folder, "reports")
    reports.write_text("not a folder")
    with pytest.raises(SparkJobError, match="could not be moved") as late:
        migration.call(apply, execute=True)
    assert "offsets may have been written" in late.value.__notes__[0]
    reports.unlink()
    assert migration.stages() == [MigrationStage.DONE] * GROUPS
    assert migration.call(apply, execute=True).failed == 0


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

        found = migration.call(apply, execute=True)

        assert (found.groups, found.left, found.failed) == (GROUPS, 3, 0)
        groups = {each.target: each for each in group_results(migration.spark, migration.folder, found.report)}
        assert groups[live].details == ("legacy instances are registered: scala-1",)
        assert groups[free[0]].details == ()
        assert groups[free[0]].counts == {"written": 3}
        assert numbers(brokers, live) == {}
        verified = migration.call(verify)
        assert verified.counts["equal"] < ROWS
        rows = list(differing(migration.spark, migration.folder, verified.report))
        assert {row.target for row in rows} == {live, written, moved}
        assert {row.match for row in rows if row.target == live} == {Match.NOT_WRITTEN}

        brokers.commit({free[0]: {migration.first: 8}})
        undone = migration.call(rollback, execute=True, to_zookeeper=True)

        assert undone.left == 1
        assert numbers(brokers, free[0]) == {}
    found_again = migration.registry.group(free[0]).offsets.fetch(migration.first)
    assert found_again is not None
    assert found_again.offset == 8


def test_impossible_requests_are_refused_at_once(
    spark: SparkSession, zookeeper_hosts: str, registry: Registry, tmp_path: Path
) -> None:
    registry.group("billing").offsets.set(TopicPartition("orders", 0), 7)
    source, nobody = SourceOptions(zookeeper=zookeeper_hosts), BrokerOptions("127.0.0.1:1", timeout=0.2)
    with pytest.raises(NotFoundError, match="no plan in"):
        apply(spark, str(tmp_path), nobody, source, execute=True)
    plan(spark, str(tmp_path), replace(source, topics="ord.*"), None)
    assert [row["topics"] for row in read_plan(spark, str(tmp_path)).collect()] == ["ord.*"]
    with pytest.raises(GuardFailedError, match="was made without brokers"):
        rollback(spark, str(tmp_path), nobody, source, execute=True)
    with pytest.raises(InvalidOptionError, match="to_zookeeper"):
        rollback(spark, str(tmp_path), nobody, None, execute=True, to_zookeeper=True)
    with pytest.raises(InvalidOptionError, match=r"spark\.speculation"):
        apply(_speculating(spark), str(tmp_path), nobody, source, execute=True)
    with pytest.raises(NotFoundError, match="no report in"):
        read_report(spark, str(tmp_path))
    with pytest.raises(NotConnectedError):
        MigrationConnections(nobody, source).check(None)


def _speculating(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.sql.legacy.setCommandRejectsSparkCoreConfs", "false")
    session.conf.set("spark.speculation", "true")
    return session
