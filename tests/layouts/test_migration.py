"""Groups of other systems are moved to Kafka: which message comes next, what is marked, and what is never written."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.core.layouts.written import WRITERS, storm_value
from tests.migration.consumers import NativeReader, NumberedProducer, judge
from tests.zookeeper.tree import dump_all
from zkgroups import Registry, TopicPartition
from zkgroups.core.migration.changes_since_plan import MigrationStage
from zkgroups.core.migration.follow_rules import FollowState
from zkgroups.core.migration.plan_rows import Outcome
from zkgroups.core.znodes.paths import layout_mark_path
from zkgroups.exceptions import InvalidOptionError
from zkgroups.kafka import BrokerOptions, Brokers
from zkgroups.migration import follow, local
from zkgroups.migration.local import ZooKeeperSource
from zkgroups.migration.snapshot_source import SnapshotSource
from zkgroups.snapshots.local_snapshot import take_snapshot
from zkgroups.tables.source_options import SourceOptions
from zkgroups.testing import KafkaBroker

pytestmark = pytest.mark.zookeeper

PARTITIONS = 2
STORM = "storm:/kafkastorm"

_numbers = itertools.count()


class Job:
    """A job of another system, which keeps offsets in ZooKeeper, and a plan to move it."""

    def __init__(self, registry: Registry, hosts: str, broker: KafkaBroker, folder: Path, layout: str) -> None:
        self.registry, self.layout, self.folder = registry, layout, str(folder)
        self.topic = f"job-{next(_numbers)}"
        self.group = f"group-{self.topic}"
        broker.create_topic(self.topic, PARTITIONS)
        self.producer = NumberedProducer(self.topic, PARTITIONS, broker.address)
        self.address = broker.address
        self.source = ZooKeeperSource(zookeeper=hosts, layout=layout, topics=self.topic)
        self.options = BrokerOptions(broker.address)

    def at(self, number: int) -> TopicPartition:
        return TopicPartition(self.topic, number)

    def commit(self, *offsets: int, write: Callable[..., Mapping[str, bytes]] | None = None) -> None:
        """Write the next message of each partition, in the format of the layout."""
        client, known = self.registry.client, {self.at(number): offset for number, offset in enumerate(offsets)}
        for path, data in (write or WRITERS[self.layout])(self.group, known).items():
            if client.exists(path):
                client.set(path, data)
            else:
                client.create(path, data, makepath=True)

    def plan(self) -> local.PlanSummary:
        return local.plan(self.folder, self.source, self.options)

    def apply(self, **chosen: Any) -> Any:
        return local.apply(self.folder, self.options, self.source, **{"execute": True, **chosen}).counts

    def rollback(self, **chosen: Any) -> Any:
        return local.rollback(self.folder, self.options, self.source, execute=True, **chosen).counts

    def stage(self) -> MigrationStage:
        [status] = local.status(self.folder, self.options, self.source)
        return status.stage

    def differences(self) -> dict[str, int]:
        return dict(local.verify(self.folder, self.options, self.source).counts)

    def details(self) -> set[str]:
        return {row.detail for row in local.report_rows(self.folder)}

    def native(self) -> NativeReader:
        return NativeReader(self.address, self.group, self.topic, PARTITIONS)

    def on_target(self, brokers: Brokers) -> dict[int, int]:
        return {at.partition: it.offset for at, it in brokers.committed([self.group])[self.group].items()}

    def nodes(self) -> dict[str, Any]:
        """The nodes outside of zkgroups' own directory."""
        return {path: node for path, node in dump_all(self.registry.client).items() if not path.startswith("/zkgroups")}


@pytest.fixture
def make(registry: Registry, zookeeper_hosts: str, kafka_broker: KafkaBroker, tmp_path: Path) -> Callable[[str], Job]:
    return lambda layout: Job(registry, zookeeper_hosts, kafka_broker, tmp_path / "plan", layout)


@pytest.fixture
def job(make: Callable[[str], Job]) -> Job:
    """A Storm spout."""
    job = make(STORM)
    job.producer.write(40)
    job.commit(10, 7)
    return job


@pytest.fixture
def brokers(kafka: str) -> Iterator[Brokers]:
    with Brokers.connect(kafka) as found:
        yield found


@pytest.mark.parametrize("layout", [text for text in WRITERS if text not in ("legacy", "kafka-1.1.0")])
def test_a_kafka_consumer_continues_with_the_next_message(make: Callable[[str], Job], layout: str) -> None:
    """`from` of Spark is the same number, but the job itself would read its last batch again, and so does Kafka."""
    job = make(layout)
    job.producer.write(40)
    half = job.producer.written[:20]
    ends = {message.at: message.offset + 1 for message in half}
    job.commit(*(ends[job.at(number)] for number in range(PARTITIONS)))
    before = job.nodes()
    assert job.plan().counts["commit"] == PARTITIONS
    assert job.apply(writers_stopped=True) == {Outcome.WRITTEN: PARTITIONS}
    assert job.differences() == {"equal": PARTITIONS}
    assert job.stage() is MigrationStage.DONE
    assert job.nodes() == before
    with job.native() as native:
        judge(job.producer.written, half, native.do_all())


def test_a_plan_from_a_snapshot_has_the_layout_of_the_snapshot(job: Job, brokers: Brokers, tmp_path: Path) -> None:
    """So the later steps read the same nodes, and refuse while writers may run."""
    groups = str(tmp_path / "groups")
    take_snapshot(groups, SourceOptions(zookeeper=job.source.zookeeper, layout=STORM, topics=job.topic))
    planned = local.plan(job.folder, SnapshotSource(destination=groups), job.options)
    assert (planned.layout, planned.groups, planned.counts) == (
        STORM,
        1,
        {"commit": PARTITIONS, "unchanged": PARTITIONS},
    )
    assert local.summary(job.folder).layout == STORM
    assert job.apply() == {Outcome.LEFT: PARTITIONS}
    assert job.apply(writers_stopped=True) == {Outcome.WRITTEN: PARTITIONS}
    assert job.on_target(brokers) == {0: 10, 1: 7}


# Jobs that may still run


def test_nothing_is_written_until_the_writers_are_declared_stopped(job: Job, brokers: Brokers) -> None:
    """Nothing in ZooKeeper shows whether a topology runs."""
    job.plan()
    assert job.apply(execute=False) == {Outcome.WOULD_WRITE: PARTITIONS}
    assert job.apply() == {Outcome.LEFT: PARTITIONS}
    assert job.details() == {
        "nothing in ZooKeeper shows whether the offsets of layout storm:/kafkastorm are still written"
    }
    assert (job.on_target(brokers), job.registry.client.exists("/zkgroups/moved")) == ({}, None)
    assert job.apply(writers_stopped=True) == {Outcome.WRITTEN: PARTITIONS}
    assert job.on_target(brokers) == {0: 10, 1: 7}


# Marks


def test_a_rollback_restores_the_target_and_removes_the_mark_and_nothing_else(job: Job, brokers: Brokers) -> None:
    before = job.nodes()
    job.plan()
    job.apply(writers_stopped=True)
    assert Outcome.LEFT not in job.rollback()
    assert (job.on_target(brokers), job.nodes()) == ({}, before)
    assert job.registry.client.exists(layout_mark_path(STORM, job.group)) is None
    assert job.stage() is MigrationStage.ROLLED_BACK


# The way back


def moved_on(job: Job) -> None:
    """Move the job, and let a Kafka consumer read a few more messages."""
    job.plan()
    job.apply(writers_stopped=True)
    with job.native() as native:
        native.do(5)


def test_progress_is_written_back_only_when_asked_and_only_if_the_writers_are_stopped(
    job: Job, brokers: Brokers
) -> None:
    moved_on(job)
    before, target = job.nodes(), job.on_target(brokers)
    assert Outcome.LEFT in job.rollback()
    assert Outcome.LEFT in job.rollback(to_zookeeper=True)
    assert (job.nodes(), job.on_target(brokers)) == (before, target)

    assert Outcome.LEFT not in job.rollback(to_zookeeper=True, writers_stopped=True)
    found = {each.at.partition: each.offset for each in job.registry.offsets([job.group], layout=STORM)}  # type: ignore[union-attr]
    assert found == target
    [path] = [path for path in before if path.endswith("partition_0")]
    assert json.loads(job.registry.client.get(path)[0]) == storm_value(job.at(0), target[0])


def test_an_offset_that_a_job_writes_during_the_way_back_is_kept(job: Job) -> None:
    moved_on(job)
    job.commit(99, 99)
    job.rollback(to_zookeeper=True, writers_stopped=True, force=True)
    found = {each.offset for each in job.registry.offsets([job.group], layout=STORM)}  # type: ignore[union-attr]
    assert found == {99}


@pytest.mark.parametrize("layout", ["spark:/spark/{group} --stored until", "trident:/transactional"])
def test_progress_is_never_written_back_to_nodes_that_belong_together(make: Callable[[str], Job], layout: str) -> None:
    job = make(layout)
    job.producer.write(40)
    job.commit(10, 7)
    moved_on(job)
    before = job.nodes()
    with pytest.raises(InvalidOptionError, match="cannot be written back"):
        job.rollback(to_zookeeper=True, writers_stopped=True)
    assert job.nodes() == before


# Following


def test_a_running_job_is_followed_until_it_is_declared_stopped(job: Job, brokers: Brokers) -> None:
    job.plan()
    rows = list(local.plan_rows(job.folder))
    seen: list[dict[int, int]] = []

    def progress(_pass: object) -> None:
        seen.append(job.on_target(brokers))
        if len(seen) == 1:
            job.commit(12, 7)
        elif seen[-1].get(0) == 12:
            stop.set()

    stop = threading.Event()
    [group] = follow(rows, brokers, job.registry, execute=True, every=0.1, on_progress=progress, stop=stop)
    assert group.state is FollowState.FOLLOWING
    assert "nothing in ZooKeeper shows" in group.detail
    assert seen[0] == {0: 10, 1: 7}
    assert job.registry.client.exists(layout_mark_path(STORM, job.group)) is None

    job.commit(13, 8)
    [group] = follow(rows, brokers, job.registry, execute=True, every=0.1, writers_stopped=True)
    assert (group.state, job.on_target(brokers)) == (FollowState.DONE, {0: 13, 1: 8})
    with pytest.raises(InvalidOptionError, match="cannot be followed back"):
        follow(rows, brokers, job.registry, execute=True, to_zookeeper=True)
    assert job.registry.client.exists(layout_mark_path(STORM, job.group))
