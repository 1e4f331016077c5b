"""Plans, members and other clients that act while a plan is applied: only one run writes, and the others report it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from zkgroups import Registry, TopicPartition
from zkgroups.core.kafka_values import NativeOffset
from zkgroups.core.migration.plan_rows import Outcome, ReportRow
from zkgroups.core.znodes.migration_mark import MarkState
from zkgroups.kafka import Brokers
from zkgroups.kafka.requests.commit_offsets import Outcomes
from zkgroups.kafka.sendable import Offsets
from zkgroups.migration.apply import apply_groups
from zkgroups.migration.rollback import rollback_groups
from zkgroups.testing import KafkaBroker
from zkgroups.zookeeper.admin import migration_marks as marks
from zkgroups.zookeeper.admin.migration_target_locks import MigrationTargetLocks

from .conftest import MakeTopic
from .rows import PLAN, details, numbers, outcomes, plan_of, states

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]


def test_an_instance_that_registers_during_the_write_is_reported_and_the_group_is_not_marked_as_moved(
    registry: Registry, broker: KafkaBroker, make_topic: MakeTopic
) -> None:
    """Other clients ignore marks."""
    at = TopicPartition(make_topic(), 0)
    registry.group("raced").offsets.set(at, 7)
    target = {"raced": f"raced-{at.topic}"}

    class Raced(Brokers):
        def commit(self, offsets: Offsets, **options: Any) -> Outcomes:
            registry.client.create("/consumers/raced/ids/scala-1", b"{}", ephemeral=True, makepath=True)
            return super().commit(offsets, **options)

    with Raced.connect(broker.address) as brokers:
        report = apply_groups(plan_of(registry, brokers, target), brokers, registry, execute=True)

    assert outcomes(report) == {"overtaken"}
    assert details(report, target["raced"]) == {"while offsets were written: legacy instances are registered: scala-1"}
    assert states(registry, target) == {"raced": MarkState.MOVING}


def test_if_two_plans_write_to_one_target_at_once_only_one_writes(
    registry: Registry, broker: KafkaBroker, make_topic: MakeTopic
) -> None:
    """Two groups have the same target, but each has its own mark."""
    at = TopicPartition(make_topic(), 0)
    target = f"same-{at.topic}"
    registry.group("first").offsets.set(at, 7)
    registry.group("second").offsets.set(at, 9)
    others: list[ReportRow] = []

    class Raced(Brokers):
        def commit(self, offsets: Offsets, **options: Any) -> Outcomes:
            if not others:
                others.extend(apply_groups(second, brokers, registry, execute=True))
            return super().commit(offsets, **options)

    with Raced.connect(broker.address) as raced, Brokers.connect(broker.address) as brokers:
        first = plan_of(registry, brokers, {"first": target}, plan="plan-1")
        second = plan_of(registry, brokers, {"second": target}, plan="plan-2")

        report = apply_groups(first, raced, registry, execute=True)

        assert outcomes(report) == {"written"}
        assert outcomes(others) == {"left"}
        assert details(others, target) == {f"plan plan-1 is writing to {target!r}: try again later"}
        assert numbers(brokers, target) == {at: 7}
        again = apply_groups(second, brokers, registry, execute=True)
        assert details(again, target) == {f"offsets of the target have changed since the plan: {at}"}
    assert states(registry, ["first", "second"]) == {"first": MarkState.MOVED}


def test_if_two_plans_move_one_group_at_once_only_one_writes(
    registry: Registry, broker: KafkaBroker, make_topic: MakeTopic
) -> None:
    at = TopicPartition(make_topic(), 0)
    registry.group("once").offsets.set(at, 7)
    targets = [f"{number}-{at.topic}" for number in range(2)]
    reports: list[list[ReportRow]] = []
    begin = threading.Barrier(2)

    def run(number: int) -> None:
        with Registry.connect(hosts_of(registry)) as own, Brokers.connect(broker.address) as brokers:
            rows = plan_of(own, brokers, {"once": targets[number]}, plan=f"plan-{number}")
            begin.wait(60)
            reports.append(apply_groups(rows, brokers, own, execute=True))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)

    found = {row.target: row for report in reports for row in report}
    assert sorted(row.outcome.value for row in found.values()) == ["left", "written"]
    with Brokers.connect(broker.address) as brokers:
        there = {target: numbers(brokers, target) for target in targets}
    assert there == {target: {at: 7} if row.outcome is Outcome.WRITTEN else {} for target, row in found.items()}


@pytest.mark.parametrize("lost", [False, True])
def test_offsets_overwritten_by_other_clients_are_reported_as_overtaken(
    registry: Registry, broker: KafkaBroker, make_topic: MakeTopic, lost: bool
) -> None:
    """Programs that ignore locks: a plan of another ZooKeeper, or Kafka's own tool."""
    topic = make_topic()
    at, beside = TopicPartition(topic, 0), TopicPartition(topic, 1)
    registry.group("over").offsets.set(at, 7)
    target = {"over": f"over-{topic}"}

    class Raced(Brokers):
        def commit(self, offsets: Offsets, **options: Any) -> Outcomes:
            found = super().commit(offsets, **options)
            super().commit({target["over"]: {at: 9} if lost else {beside: 9}})
            return found

    with Raced.connect(broker.address) as brokers:
        rows = plan_of(registry, brokers, target)
        report = apply_groups(rows, brokers, registry, execute=True)
        what = f"overwritten offsets of the target: {at}" if lost else f"added offsets to the target: {beside}"
        assert outcomes(report) == {"overtaken"}
        assert details(report, target["over"]) == {f"while offsets were written: another client has {what}"}
        assert states(registry, target) == {"over": MarkState.MOVING}
        assert outcomes(apply_groups(rows, brokers, None, execute=True)) == {"left"}


def test_a_killed_run_can_be_repeated_and_releases_its_locks(
    registry: Registry, broker: KafkaBroker, make_topic: MakeTopic
) -> None:
    at = TopicPartition(make_topic(), 0)
    registry.group("killed").offsets.set(at, 7)
    target = f"killed-{at.topic}"
    with Brokers.connect(broker.address) as brokers, Registry.connect(hosts_of(registry)) as dead:
        rows = plan_of(registry, brokers, {"killed": target})
        locks = MigrationTargetLocks(dead._context, cluster=None, plan=PLAN)
        assert locks.take([target]) == {target: None}

        assert outcomes(apply_groups(rows, brokers, registry, execute=True)) == {"written"}
        assert registry.client.get_children("/zkgroups/targets") == []
        assert locks.lost([target]) == [target]
        back = rollback_groups(rows, brokers, registry, execute=True)
        assert outcomes(back) == {"written"}
    assert registry.client.get_children("/zkgroups/targets") == []


@pytest.mark.parametrize("moment", ["before", "while"])
def test_an_apply_that_lost_its_lock_is_reported_as_overtaken(
    registry: Registry, broker: KafkaBroker, make_topic: MakeTopic, moment: str
) -> None:
    """As after a pause that is longer than the session timeout."""
    at = TopicPartition(make_topic(), 0)
    registry.group("paused").offsets.set(at, 7)
    registry.group("quick").offsets.set(at, 9)
    target = f"paused-{at.topic}"

    with Registry.connect(hosts_of(registry)) as other, Brokers.connect(broker.address) as plain:
        rows = plan_of(registry, plain, {"paused": target})
        quick = [row._replace(plan="plan-2") for row in plan_of(registry, plain, {"quick": target})]

        def paused() -> None:
            registry.client.delete(f"/zkgroups/targets/:{target}")  # as the end of the session does
            assert outcomes(apply_groups(quick, plain, other, execute=True)) == {"written"}

        class Paused(Brokers):
            def partitions(self, topics: Iterable[str] | None = None) -> dict[str, tuple[int, ...]]:
                found = super().partitions(topics)
                if moment == "before":
                    MigrationTargetLocks(other._context, cluster=None, plan=PLAN).take([target])
                return found

            def commit(self, offsets: Offsets, **options: Any) -> Outcomes:
                if moment == "while":
                    paused()
                return super().commit(offsets, **options)

        with Paused.connect(broker.address) as brokers:
            report = apply_groups(rows, brokers, registry, execute=True)

        lost = "the lock of this target was lost"
        [detail] = details(report, target)
        if moment == "before":
            assert (outcomes(report), numbers(plain, target)) == ({"left"}, {})
            assert detail == f"{lost}, and nothing was written: try again"
        else:
            assert outcomes(report) == {"overtaken"}
            assert lost in detail
            assert states(registry, {"paused": ""}) == {"paused": MarkState.MOVING}


def test_a_run_whose_lock_was_taken_over_keeps_the_mark_of_the_run_that_took_it(
    registry: Registry, broker: KafkaBroker, make_topic: MakeTopic
) -> None:
    """As if the driver is killed and the plan applied again, while a worker of the first run still works."""
    at = TopicPartition(make_topic(), 0)
    registry.group("twice").offsets.set(at, 7)
    target = f"twice-{at.topic}"
    runs = []

    class Slow(Brokers):
        def committed_or_error(self, groups: Iterable[str]) -> Any:
            found = super().committed_or_error(groups)
            if not runs:
                runs.append(apply_groups(rows, plain, other, execute=True))
            return found

    with Registry.connect(hosts_of(registry)) as other, Brokers.connect(broker.address) as plain:
        rows = plan_of(registry, plain, {"twice": target})
        with Slow.connect(broker.address) as brokers:
            report = apply_groups(rows, brokers, registry, execute=True)

        assert (outcomes(runs[0]), outcomes(report)) == ({"written"}, {"left"})
        assert numbers(plain, target) == {at: 7}
        assert states(registry, {"twice": ""}) == {"twice": MarkState.MOVED}


def test_a_group_that_another_run_rolls_back_before_it_is_marked_as_moved_is_reported_as_overtaken(
    registry: Registry, broker: KafkaBroker, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = TopicPartition(make_topic(), 0)
    registry.group("undone").offsets.set(at, 7)
    target = f"undone-{at.topic}"
    put, runs = marks.put, []

    def late(context: Any, targets: Any, **options: Any) -> Any:
        if options["state"] is MarkState.MOVED:
            registry.client.delete(f"/zkgroups/targets/:{target}")  # as the end of the session does
            runs.append(rollback_groups(rows, brokers, other, execute=True))
        return put(context, targets, **options)

    monkeypatch.setattr(marks, "put", late)
    with Registry.connect(hosts_of(registry)) as other, Brokers.connect(broker.address) as brokers:
        rows = plan_of(registry, brokers, {"undone": target})
        report = apply_groups(rows, brokers, registry, execute=True)

        assert (outcomes(runs[0]), outcomes(report)) == ({"written"}, {"overtaken"})
        [detail] = details(report, target)
        assert detail.endswith("the mark of group 'undone' was removed meanwhile: run `zkgroups migrate status`")
        assert (numbers(brokers, target), states(registry, {"undone": ""})) == ({}, {})


@pytest.mark.parametrize("nth", [0, 1])
def test_a_rollback_that_lost_its_lock_is_reported_as_overtaken(
    registry: Registry, broker: KafkaBroker, make_topic: MakeTopic, nth: int
) -> None:
    at = TopicPartition(make_topic(), 0)
    registry.group("paused").offsets.set(at, 7)
    target = f"paused-{at.topic}"
    commits = []

    class Paused(Brokers):
        def commit(self, offsets: Offsets, **options: Any) -> Outcomes:
            if len(commits) == nth:
                MigrationTargetLocks(other._context, cluster=None, plan=PLAN, rollback=True).take([target])
            commits.append(offsets)
            return super().commit(offsets, **options)

    with Registry.connect(hosts_of(registry)) as other, Paused.connect(broker.address) as brokers:
        rows = plan_of(registry, brokers, {"paused": target})
        with Brokers.connect(broker.address) as plain:
            assert outcomes(apply_groups(rows, plain, registry, execute=True)) == {"written"}

        report = rollback_groups(rows, brokers, registry, execute=True)

        [detail] = details(report, target)
        assert "the lock of this target was lost" in detail
        assert (outcomes(report), numbers(brokers, target)) == (({"failed"}, {at: 7}), ({"overtaken"}, {}))[nth]
        assert states(registry, {"paused": ""}) == {"paused": MarkState.MOVED}


@pytest.mark.parametrize("step", ["commit", "delete"])
def test_an_apply_during_a_rollback_of_its_plan_leaves_the_group_to_the_rollback(
    registry: Registry, broker: KafkaBroker, make_topic: MakeTopic, step: str
) -> None:
    """Otherwise it would write the offsets again that were just restored, and the rollback would delete the others."""
    topic, runs = make_topic(), []
    first, second = (TopicPartition(topic, number) for number in range(2))
    registry.group("both").offsets.set_many({first: 7, second: 9})
    target = f"both-{topic}"

    class Meanwhile(Brokers):
        def commit(self, offsets: Offsets, **options: Any) -> Outcomes:
            if step == "commit" and not runs:
                runs.append(apply_groups(rows, plain, other, execute=True))
            return super().commit(offsets, **options)

        def delete_offsets(self, offsets: Mapping[str, Iterable[TopicPartition]], **options: Any) -> Outcomes:
            if step == "delete" and not runs:
                runs.append(apply_groups(rows, plain, other, execute=True))
            return super().delete_offsets(offsets, **options)

    with Registry.connect(hosts_of(registry)) as other, Brokers.connect(broker.address) as plain:
        plain.commit({target: {first: NativeOffset(target, first, 3)}})
        rows = plan_of(registry, plain, {"both": target})
        assert outcomes(apply_groups(rows, plain, registry, execute=True)) == {"written"}
        with Meanwhile.connect(broker.address) as brokers:
            report = rollback_groups(rows, brokers, registry, execute=True)

        assert details(runs[0], target) == {f"plan {PLAN} (rollback) is writing to {target!r}: try again later"}
        assert (outcomes(runs[0]), outcomes(report)) == ({"left"}, {"written"})
        assert (numbers(plain, target), states(registry, {"both": ""})) == ({first: 3}, {})


def hosts_of(registry: Registry) -> str:
    """The address for a second session."""
    hosts = ",".join(f"{host}:{port}" for host, port in registry.client.hosts)
    return f"{hosts}{registry.client.chroot}"
