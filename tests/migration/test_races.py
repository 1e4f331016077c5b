"""Plans, members and other clients that act while a plan is applied: only one run writes, and the others report it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest

from zkgroups import CommittedOffset, TopicPartition
from zkgroups.core.kafka_values import NativeOffset
from zkgroups.core.migration.plan_rows import Outcome, ReportRow
from zkgroups.core.znodes.own_nodes import MarkState, RouteState
from zkgroups.core.znodes.values import CurrentOffset
from zkgroups.exceptions import RefusedError
from zkgroups.migration.live_move import MoveOutcome, MoveStep, Side, move_live
from zkgroups.zookeeper.admin import migration_marks as marks
from zkgroups.zookeeper.admin.migration_marks import MigrationTargetLocks, read_route
from zkgroups.zookeeper.offsets import Offsets
from zkgroups.zookeeper.session.session import context_of

from .conftest import Sides
from .rows import PLAN, details, outcomes

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]

LOST = "the lock of this target was lost"


def locks_of(registry: Any, **options: Any) -> MigrationTargetLocks:
    return MigrationTargetLocks(registry._context, cluster=None, plan=PLAN, **options)


def lose_lock(sides: Sides, group: str) -> None:
    """Delete the lock of a target, as the end of the session does."""
    sides.registry.client.delete(f"/zkgroups/targets/:{sides.target(group)}")


# Two runs


def test_if_two_plans_write_to_one_target_at_once_only_one_writes(sides: Sides) -> None:
    """Two groups have the same target, but each has its own mark."""
    target = sides.target("same")
    first = [row._replace(target=target) for row in sides.plan("first")]
    second = [row._replace(target=target, plan="plan-2") for row in sides.plan("second", offsets={sides.first: 9})]
    others: list[ReportRow] = []

    def raced(usual: Any, offsets: Any, **options: Any) -> Any:
        if not others:
            others.extend(sides.apply(second))
        return usual(offsets, **options)

    report = sides.apply(first, brokers=sides.meddling(commit=raced))

    assert (outcomes(report), outcomes(others)) == ({"written"}, {"left"})
    assert details(others, target) == {f"plan plan-1 is writing to {target!r}: try again later"}
    assert sides.numbers("same") == {sides.first: 7}
    again = sides.apply(second)
    assert details(again, target) == {f"offsets of the target have changed since the plan: {sides.first}"}
    assert sides.states("first", "second") == {"first": MarkState.MOVED}


def test_if_two_plans_move_one_group_at_once_only_one_writes(sides: Sides) -> None:
    planned = sides.plan("once")
    plans = [[row._replace(target=sides.target(f"{n}"), plan=f"plan-{n}") for row in planned] for n in range(2)]
    registries, brokers = [sides.another() for _ in plans], [sides.meddling() for _ in plans]
    reports: list[ReportRow] = []
    begin = threading.Barrier(2)

    def run(number: int) -> None:
        begin.wait(60)
        reports.extend(sides.apply(plans[number], brokers=brokers[number], registry=registries[number]))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(row.outcome.value for row in reports) == ["left", "written"]
    for row in reports:
        assert sides.numbers(row.plan[-1]) == ({sides.first: 7} if row.outcome is Outcome.WRITTEN else {})


def test_a_killed_run_can_be_repeated_and_releases_its_locks(sides: Sides) -> None:
    rows, target = sides.plan("killed"), sides.target("killed")
    locks = locks_of(sides.another())
    assert locks.take([target]) == {target: None}

    for run in (sides.apply, sides.rollback):
        assert outcomes(run(rows)) == {"written"}
        assert sides.registry.client.get_children("/zkgroups/targets") == []
        assert locks.lost([target]) == [target]


@pytest.mark.parametrize("moment", ["before", "while"])
def test_an_apply_that_lost_its_lock_is_reported_as_overtaken(sides: Sides, moment: str) -> None:
    """As after a pause that is longer than the session timeout."""
    rows, target, other = sides.plan("paused"), sides.target("paused"), sides.another()
    quick = [row._replace(plan="plan-2", target=target) for row in sides.plan("quick", offsets={sides.first: 9})]

    def paused(usual: Any, offsets: Any, **options: Any) -> Any:
        lose_lock(sides, "paused")
        assert outcomes(sides.apply(quick, registry=other)) == {"written"}
        return usual(offsets, **options)

    def late(usual: Any, topics: Any = None) -> Any:
        found = usual(topics)
        locks_of(other).take([target])
        return found

    around = {"commit": paused} if moment == "while" else {"partitions": late}
    report = sides.apply(rows, brokers=sides.meddling(**around))

    [detail] = details(report, target)
    if moment == "before":
        assert (outcomes(report), sides.numbers("paused")) == ({"left"}, {})
        assert detail == f"{LOST}, and nothing was written: try again"
    else:
        assert (outcomes(report), LOST in detail) == ({"overtaken"}, True)
        assert sides.states("paused") == {"paused": MarkState.MOVING}


def test_a_run_whose_lock_was_taken_over_keeps_the_mark_of_the_run_that_took_it(sides: Sides) -> None:
    """As if the driver is killed and the plan applied again, while a worker of the first run still works."""
    rows, other, runs = sides.plan("twice"), sides.another(), []

    def slow(usual: Any, groups: Any) -> Any:
        found = usual(groups)
        if not runs:
            runs.append(sides.apply(rows, registry=other))
        return found

    report = sides.apply(rows, brokers=sides.meddling(committed_or_error=slow))

    assert (outcomes(runs[0]), outcomes(report)) == ({"written"}, {"left"})
    assert (sides.numbers("twice"), sides.states("twice")) == ({sides.first: 7}, {"twice": MarkState.MOVED})


# Other clients


def test_an_instance_that_registers_during_the_write_is_reported_and_the_group_is_not_marked_as_moved(
    sides: Sides,
) -> None:
    def raced(usual: Any, offsets: Any, **options: Any) -> Any:
        sides.register("raced")
        return usual(offsets, **options)

    report = sides.apply(sides.plan("raced"), brokers=sides.meddling(commit=raced))

    assert outcomes(report) == {"overtaken"}
    assert {row.detail for row in report} == {"while offsets were written: legacy instances are registered: scala-1"}
    assert sides.states("raced") == {"raced": MarkState.MOVING}


@pytest.mark.parametrize("lost", [False, True])
def test_offsets_overwritten_by_other_clients_are_reported_as_overtaken(sides: Sides, lost: bool) -> None:
    """Programs that ignore locks: a plan of another ZooKeeper, or Kafka's own tool."""
    at, target = sides.first if lost else sides.second, sides.target("over")

    def raced(usual: Any, offsets: Any, **options: Any) -> Any:
        found = usual(offsets, **options)
        usual({target: {at: 9}})
        return found

    rows = sides.plan("over")
    report = sides.apply(rows, brokers=sides.meddling(commit=raced))
    what = "overwritten offsets of the target" if lost else "added offsets to the target"
    assert outcomes(report) == {"overtaken"}
    assert details(report, target) == {f"while offsets were written: another client has {what}: {at}"}
    assert sides.states("over") == {"over": MarkState.MOVING}
    assert outcomes(sides.apply(rows, registry=None)) == {"left"}


def test_a_commit_just_after_zookeeper_was_read_is_not_overwritten_by_a_lower_offset(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client ignores the route of a group that is moved live. Its commit makes the move fail, and a later one
    refuses it."""
    at, name = sides.first, sides.target("live")
    sides.broker.write(at.topic, 0, 300)
    offsets, both = sides.registry.group(name).offsets, (sides.brokers, sides.registry)
    offsets.set(at, 100)
    assert move_live(name, Side.KAFKA, *both, execute=True).outcome is MoveOutcome.MOVED
    assert not any(sides.brokers.commit({name: {at: 200}})[name].values())
    fetch_many = Offsets.fetch_many

    def fetch_and_commit(self: Offsets, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, CurrentOffset]:
        found = fetch_many(self, partitions)
        monkeypatch.undo()
        self.set(at, 250)
        return found

    def on_step(step: MoveStep) -> None:
        if step is MoveStep.LEFT:
            monkeypatch.setattr(Offsets, "fetch_many", fetch_and_commit)

    for words in ("is now 250", r"ZooKeeper has higher offsets: .* \(250 > 200\)"):
        with pytest.raises(RefusedError, match=words):
            move_live(name, Side.ZOOKEEPER, *both, execute=True, on_step=on_step)
        now = offsets.fetch(at)
        assert isinstance(now, CommittedOffset)
        assert now.offset == 250
        assert (route := read_route(context_of(sides.registry), name).route) is not None
        assert route.state is RouteState.KAFKA


# Rollbacks


def test_a_group_that_another_run_rolls_back_before_it_is_marked_as_moved_is_reported_as_overtaken(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, other, put, runs = sides.plan("undone"), sides.another(), marks.put, []

    def late(context: Any, targets: Any, **options: Any) -> Any:
        if options["state"] is MarkState.MOVED:
            lose_lock(sides, "undone")
            runs.append(sides.rollback(rows, registry=other))
        return put(context, targets, **options)

    monkeypatch.setattr(marks, "put", late)
    report = sides.apply(rows)

    assert (outcomes(runs[0]), outcomes(report)) == ({"written"}, {"overtaken"})
    [detail] = details(report, sides.target("undone"))
    assert detail.endswith("the mark of group 'undone' was removed meanwhile: run `zkgroups migrate status`")
    assert (sides.numbers("undone"), sides.states("undone")) == ({}, {})


@pytest.mark.parametrize("nth", [0, 1])
def test_a_rollback_that_lost_its_lock_is_reported_as_overtaken(sides: Sides, nth: int) -> None:
    rows, target, other, commits = sides.plan("paused"), sides.target("paused"), sides.another(), []

    def paused(usual: Any, offsets: Any, **options: Any) -> Any:
        if len(commits) == nth:
            locks_of(other, rollback=True).take([target])
        commits.append(offsets)
        return usual(offsets, **options)

    assert outcomes(sides.apply(rows)) == {"written"}
    report = sides.rollback(rows, brokers=sides.meddling(commit=paused))

    [detail] = details(report, target)
    assert LOST in detail
    expected = (({"failed"}, {sides.first: 7}), ({"overtaken"}, {}))[nth]
    assert (outcomes(report), sides.numbers("paused")) == expected
    assert sides.states("paused") == {"paused": MarkState.MOVED}


@pytest.mark.parametrize("step", ["commit", "delete_offsets"])
def test_an_apply_during_a_rollback_of_its_plan_leaves_the_group_to_the_rollback(sides: Sides, step: str) -> None:
    """Otherwise it would write the offsets again that were just restored, and the rollback would delete the others."""
    target, other, runs = sides.target("both"), sides.another(), []

    def meanwhile(usual: Any, offsets: Any, **options: Any) -> Any:
        if not runs:
            runs.append(sides.apply(rows, registry=other))
        return usual(offsets, **options)

    sides.brokers.commit({target: {sides.first: NativeOffset(target, sides.first, 3)}})
    rows = sides.plan("both", offsets={sides.first: 7, sides.second: 9})
    assert outcomes(sides.apply(rows)) == {"written"}
    report = sides.rollback(rows, brokers=sides.meddling(**{step: meanwhile}))

    assert details(runs[0], target) == {f"plan {PLAN} (rollback) is writing to {target!r}: try again later"}
    assert (outcomes(runs[0]), outcomes(report)) == ({"left"}, {"written"})
    assert (sides.numbers("both"), sides.states("both")) == ({sides.first: 3}, {})
