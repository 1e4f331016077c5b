"""Targets restored on a real broker: exactly, after any kill, and with progress copied back to ZooKeeper.

tests/core/migration/test_apply_rules.py has the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.kafka.conftest import Writer
from tests.restoring import restorable
from tests.waiting import eventually
from zkgroups import Registry, TopicPartition
from zkgroups.core.kafka_values import NativeGroup, NativeOffset, NativeState
from zkgroups.core.migration.changes_since_plan import MigrationStage
from zkgroups.core.migration.follow_rules import FollowState
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.offset_decision import Action
from zkgroups.core.migration.plan_rows import MigrationStep, Outcome, ReportRow
from zkgroups.core.znodes.own_nodes import MarkState
from zkgroups.input_errors import InvalidOptionError, ZkgroupsException
from zkgroups.kafka import Brokers
from zkgroups.migration.apply import apply_groups, status_of_groups
from zkgroups.migration.follow import follow
from zkgroups.migration.rollback import rollback_groups
from zkgroups.zookeeper.admin import migration_marks as marks

from .conftest import BOTH, Join, MakeTopic, Sides
from .rows import PLAN, details, numbers, outcomes, plan_of, tree

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]

GROUP = "billing"

T = TypeVar("T")


class Moved:
    """A planned group of two partitions. Its target had an offset of the first partition, and an offset of another
    topic."""

    def __init__(self, sides: Sides, other: str) -> None:
        self.sides, self.registry, self.brokers = sides, sides.registry, sides.brokers
        self.first, self.second, self.other = sides.first, sides.second, TopicPartition(other, 0)
        self.target = sides.target(GROUP)
        self.old = sides.broker.release == "1.1.1"
        """It cannot delete single offsets, so a rollback deletes the whole group, and commits its offsets again."""
        self.before = {
            self.first: NativeOffset(self.target, self.first, 3, "größe\0", None if self.old else 4),
            self.other: NativeOffset(self.target, self.other, 5, "other"),
        }
        self.brokers.commit({self.target: self.before})
        self.rows = sides.plan(GROUP, offsets={self.first: 7, self.second: 9})

    def apply(self) -> None:
        assert "left" not in outcomes(self.sides.apply(self.rows))

    def commit(self, offsets: dict[TopicPartition, int]) -> None:
        self.brokers.commit({self.target: offsets})

    def roll_back(self, **chosen: Any) -> list[ReportRow]:
        return self.sides.rollback(**{"rows": self.rows} | chosen)

    @property
    def now(self) -> dict[TopicPartition, NativeOffset]:
        return self.brokers.committed([self.target])[self.target]

    @property
    def marked(self) -> bool:
        return GROUP in marks.read(self.registry._context, [GROUP])

    def offsets(self) -> dict[TopicPartition, int]:
        """The offsets in ZooKeeper."""
        found = self.registry.group(GROUP).offsets.fetch_many([self.first, self.second, self.other])
        return {at: each.offset for at, each in found.items() if each is not None}  # type: ignore[union-attr]


@pytest.fixture
def moved(sides: Sides, make_topic: MakeTopic) -> Moved:
    return Moved(sides, make_topic(1))


@BOTH
def test_a_target_is_restored_exactly_and_additional_offsets_are_deleted(moved: Moved) -> None:
    tree_before = tree(moved.registry.client, "/consumers")
    assert outcomes(moved.roll_back()) == {"already there"}
    moved.sides.mark(GROUP)  # by an apply that was killed right afterwards
    assert (outcomes(moved.roll_back()), moved.marked) == ({"already there"}, False)
    moved.apply()
    assert {at: each.offset for at, each in moved.now.items()} == {moved.first: 7, moved.second: 9, moved.other: 5}
    assert moved.brokers.can_delete_offsets() == (not moved.old)

    dry = moved.roll_back(execute=False)

    assert outcomes(dry) == ({"would write"} if moved.old else {"would write", "already there"})
    assert (moved.now[moved.first].offset, moved.marked) == (7, True)

    report = moved.roll_back()

    assert {(row.topic, row.partition): (row.outcome, row.found, row.written, row.detail) for row in report} == {
        (moved.first.topic, 0): (Outcome.WRITTEN, 7, 3, ""),
        (moved.first.topic, 1): (Outcome.WRITTEN, 9, None, "deleted"),
        (moved.other.topic, 0): (Outcome.WRITTEN, 5, 5, "") if moved.old else (Outcome.THERE, 5, None, ""),
    }
    assert moved.now == moved.before
    assert tree(moved.registry.client, "/consumers") == tree_before
    assert outcomes(moved.roll_back()) == {"already there"}
    assert moved.now == moved.before


def test_a_target_that_did_not_exist_is_deleted(sides: Sides) -> None:
    rows, target = sides.plan("new"), sides.target("new")
    sides.apply(rows)
    assert outcomes(sides.rollback(rows)) == {"written"}
    assert sides.brokers.groups([target]) == {target: NativeGroup(target, NativeState.DEAD)}
    assert outcomes(sides.rollback(rows)) == {"already there"}


def test_a_target_with_later_commits_is_left_unless_forced(moved: Moved) -> None:
    moved.apply()
    moved.commit({moved.second: 11})

    report = moved.roll_back()

    assert outcomes(report) == {"left"}
    why = f"offsets were committed on the target since the migration: {moved.second}"
    assert details(report, moved.target) == {why}
    assert (moved.now[moved.second].offset, moved.marked) == (11, True)

    rows = [row for row in moved.rows if row.at != moved.other]  # as if a consumer had begun to read that topic, too
    forced = moved.roll_back(rows=rows, force=True)

    assert {(f"{row.topic}/{row.partition}", row.found, row.written, row.detail) for row in forced} == {
        (str(moved.first), 7, 3, ""),
        (str(moved.second), 11, None, "deleted"),
        (str(moved.other), 5, None, "deleted"),
    }
    assert (moved.now, moved.marked) == ({moved.first: moved.before[moved.first]}, False)


def test_a_target_with_active_members_is_always_left(moved: Moved, join: Join) -> None:
    moved.apply()
    with join(moved.target, moved.other.topic):
        for force in (False, True):
            report = moved.roll_back(force=force)
            assert outcomes(report) == {"left"}
            [detail] = details(report, moved.target)
            assert "the group has active members on the brokers: anna-" in detail
    assert (moved.now[moved.first].offset, moved.marked) == (7, True)


def test_a_group_without_the_mark_of_this_plan_is_left_unless_forced(moved: Moved) -> None:
    """Even with the planned offsets. A plan that was blocked has moved nothing, unless the group was followed."""
    moved.commit({moved.first: 7, moved.second: 9})
    assert details(moved.roll_back(), moved.target) == {"the group has no mark of this plan in ZooKeeper"}
    native = Obstacle.of(ObstacleKind.NATIVE_MEMBERS, ["anna"])
    blocked = [row._replace(obstacles=(native,)) for row in moved.rows]
    for registry in (moved.registry, None):
        report = moved.roll_back(rows=blocked, registry=registry, force=True)
        assert outcomes(report) == {"left"}
        assert f"this plan has not moved the group: {native}" in details(report, moved.target)
    assert numbers(moved.brokers, moved.target) == {moved.first: 7, moved.second: 9, moved.other: 5}

    moved.sides.mark(GROUP, MarkState.MOVED, plan="plan-2", target="elsewhere")
    theirs = "the group was moved to Kafka's own offsets as 'elsewhere', by plan plan-2"
    assert details(moved.roll_back(), moved.target) == {theirs}
    moved.roll_back(force=True)
    assert (moved.now, moved.marked) == (moved.before, True)

    moved.commit({moved.other: 6})  # by the members that block the group
    there, report = moved.now, moved.roll_back(rows=blocked)
    assert (outcomes(report), moved.now) == ({"skipped"}, there), "it has nothing to roll back"

    marks.remove(moved.registry._context, [GROUP], plan="plan-2")
    legacy = Obstacle.of(ObstacleKind.LEGACY_INSTANCES, ["scala-1"])
    moved.sides.mark(GROUP)
    report = moved.roll_back(rows=[row._replace(obstacles=(legacy,)) for row in moved.rows], force=True)
    assert "left" not in outcomes(report)
    assert moved.now == moved.before


KILLS = {
    "kafka_broker": ("commit 0 before", "commit 0 while", "delete 0 before", "delete 0 after"),
    "legacy_kafka": (
        *("delete 0 before", "delete 0 after", "commit 0 before", "commit 0 while"),
        *("commit 1 before", "commit 1 while", "commit 1 after"),
    ),
}
"""The steps of a rollback in their order. After the last one, nothing is left to do but to remove the mark."""


@BOTH
def test_a_rollback_killed_at_any_step_can_be_repeated(moved: Moved) -> None:
    """Brokers before 2.4 delete the whole group, and get its offsets again."""
    kills = KILLS["legacy_kafka" if moved.old else "kafka_broker"]
    for kill in kills:
        steps: list[str] = []

        def act(name: str, request: Callable[[bool], T], kill: str = kill, steps: list[str] = steps) -> T:
            here = f"{name} {steps.count(name)}"
            steps.append(name)
            if kill == f"{here} before":
                raise KeyboardInterrupt
            found = request(kill == f"{here} while")
            if kill in (f"{here} while", f"{here} after"):
                raise KeyboardInterrupt
            return found

        def delete(usual: Any, those: Any, act: Any = act, **options: Any) -> Any:
            those = dict(those) if hasattr(those, "items") else list(those)
            return act("delete", lambda _partly: usual(those, **options)) if those else {}

        def commit(usual: Any, offsets: Any, act: Any = act, **options: Any) -> Any:
            first = {target: dict(list(those.items())[:1]) for target, those in offsets.items()}
            return act("commit", lambda partly: usual(first if partly else offsets, **options))

        moved.apply()
        dying = moved.sides.meddling(commit=commit, delete_groups=delete, delete_offsets=delete)
        with pytest.raises(KeyboardInterrupt):
            moved.roll_back(brokers=dying)
        assert (moved.now == moved.before) == (kill == kills[-1]), kill
        assert moved.marked

        assert "left" not in outcomes(moved.roll_back())
        assert (moved.now, moved.marked) == (moved.before, False), kill


@BOTH
def test_a_group_that_cannot_be_restored_completely_is_not_deleted_and_stays_marked(moved: Moved) -> None:
    moved.apply()

    def refusing(usual: Any, offsets: Any, **options: Any) -> Any:
        some = {target: {at: it for at, it in those.items() if at != moved.first} for target, those in offsets.items()}
        found = usual(some, **options)
        return {target: {**found[target], moved.first: ZkgroupsException("no")} for target in offsets}

    report = moved.roll_back(brokers=moved.sides.meddling(commit=refusing), force=True)

    what = "the group was" if moved.old else "offsets that are new since the plan were"
    kept = f"{what} not deleted: not all of its earlier offsets can be restored"
    assert {(row.topic, row.partition): (row.outcome, row.detail) for row in report} == {
        (moved.first.topic, 0): (Outcome.FAILED, "no"),
        (moved.first.topic, 1): (Outcome.FAILED, kept),
        (moved.other.topic, 0): (Outcome.WRITTEN if moved.old else Outcome.THERE, ""),
    }
    assert numbers(moved.brokers, moved.target) == {moved.first: 7, moved.second: 9, moved.other: 5}
    assert moved.marked


@pytest.mark.parametrize("force", [False, True])
def test_offsets_of_deleted_topics_are_skipped_and_the_rest_is_restored(moved: Moved, force: bool) -> None:
    moved.apply()
    writer = Writer(moved.sides.broker.address)
    writer.admin.delete_topics([moved.other.topic])[moved.other.topic].result()
    assert eventually(lambda: not moved.brokers.partitions([moved.other.topic]))
    assert eventually(lambda: moved.other not in moved.now)
    fewer = moved.rows[0]._replace(topic=moved.first.topic, partition=2, before=4, planned=None, action=Action.SKIP)

    report = moved.roll_back(rows=[*moved.rows, fewer], force=force)

    assert {(row.topic, row.partition): (row.outcome, row.detail) for row in report} == {
        (moved.first.topic, 0): (Outcome.WRITTEN, ""),
        (moved.first.topic, 1): (Outcome.WRITTEN, "deleted"),
        (moved.first.topic, 2): (Outcome.SKIPPED, "no such partition"),
        (moved.other.topic, 0): (Outcome.SKIPPED, "no such topic"),
    }
    assert (moved.now, moved.marked) == ({moved.first: moved.before[moved.first]}, False)


@BOTH
def test_a_commit_between_the_first_write_and_the_deletion_keeps_the_group(moved: Moved) -> None:
    moved.apply()

    def raced(usual: Any, offsets: Any, **options: Any) -> Any:
        found = usual(offsets, **options)
        moved.commit({moved.first: 95, moved.second: 96})
        return found

    report = moved.roll_back(brokers=moved.sides.meddling(commit=raced))

    assert numbers(moved.brokers, moved.target) == {moved.first: 95, moved.second: 96, moved.other: 5}
    why = f"offsets were committed on the target during the rollback: {moved.first}, {moved.second}"
    what = "the group was" if moved.old else "offsets that are new since the plan were"
    assert {(row.outcome, row.detail) for row in report if row.topic == moved.first.topic} == {
        (Outcome.FAILED, f"{what} not deleted: {why}")
    }
    assert moved.marked


@pytest.mark.parametrize("carried", [True, False])
def test_a_commit_after_the_first_read_is_not_deleted(moved: Moved, carried: bool) -> None:
    """Whether progress is copied to ZooKeeper before the deletion, or not."""
    moved.apply()
    if carried:
        moved.commit({moved.first: 20})
    looked: list[object] = []

    def raced(usual: Any, groups: Any) -> Any:
        found = usual(groups)
        if not looked:
            looked.append(found)
            moved.commit({moved.first: 21})
        return found

    report = moved.roll_back(brokers=moved.sides.meddling(committed_or_error=raced), to_zookeeper=carried)

    assert numbers(moved.brokers, moved.target)[moved.first] == 21
    assert {row.outcome for row in report if row.step is MigrationStep.ROLLBACK} == {Outcome.LEFT}
    assert moved.marked


def test_a_mark_that_cannot_be_removed_is_reported_in_each_row(moved: Moved) -> None:
    moved.apply()

    def raced(usual: Any, offsets: Any, **options: Any) -> Any:
        moved.registry.client.set(f"/consumers/{GROUP}/migration", b"scrambled")
        return usual(offsets, **options)

    report = moved.roll_back(brokers=moved.sides.meddling(delete_offsets=raced))

    assert outcomes(report) == {"failed"}
    [detail] = details(report, moved.target)
    assert detail.startswith("the migration mark could not be changed: ")
    assert {row.written for row in report} == {3, None}
    assert (moved.now, moved.marked) == (moved.before, True)


# To ZooKeeper


def test_offsets_that_a_legacy_client_has_committed_since_the_plan_are_kept_and_reported(moved: Moved) -> None:
    moved.apply()
    client, offsets = moved.registry.client, f"/consumers/{GROUP}/offsets"
    client.set(f"{offsets}/{moved.first.topic}/0", b"12")
    client.set(f"{offsets}/{moved.second.topic}/1", b"9")  # as on the brokers
    client.create(f"{offsets}/{moved.other.topic}/0", b"6", makepath=True)
    for execute in (False, True):
        report = moved.roll_back(execute=execute)
        newer = [row for row in report if row.outcome is Outcome.NEWER]
        assert {(row.topic, row.found, row.written) for row in newer} == {
            (moved.first.topic, 12, None),
            (moved.other.topic, 6, None),
        }
        kept = Obstacle.of(ObstacleKind.SOURCE_COMMITTED_SINCE, sorted(map(str, (moved.first, moved.other))))
        assert {row.detail for row in newer} == {str(kept)}
        assert Outcome.LEFT not in outcomes(report)
    assert (moved.now, moved.marked) == (moved.before, False)
    assert moved.offsets() == {moved.first: 12, moved.second: 9, moved.other: 6}
    assert outcomes(moved.roll_back()) == {"already there"}


def test_nothing_is_copied_to_a_group_that_is_not_of_this_plan_or_has_legacy_instances_even_by_force(
    moved: Moved,
) -> None:
    moved.apply()
    moved.commit({moved.first: 20})
    with pytest.raises(InvalidOptionError, match="to_zookeeper"):
        moved.roll_back(registry=None, to_zookeeper=True)

    def spoil_nothing(**chosen: Any) -> list[ReportRow]:
        report = moved.roll_back(to_zookeeper=True, **chosen)
        assert outcomes(report) == {"left"}
        assert (moved.offsets()[moved.first], moved.now[moved.first].offset) == (7, 20)
        return report

    moved.sides.register(GROUP)
    assert details(spoil_nothing(), moved.target) == {"legacy instances are registered: scala-1"}
    moved.registry.client.delete(f"/consumers/{GROUP}/ids/scala-1")
    marks.remove(moved.registry._context, [GROUP], plan=PLAN)
    spoil_nothing(force=True)
    moved.sides.mark(GROUP, MarkState.MOVED, plan="plan-2", target="elsewhere")
    spoil_nothing(force=True)


def test_progress_is_copied_to_zookeeper_forward_only_and_the_target_is_restored(moved: Moved) -> None:
    moved.apply()
    moved.commit({moved.first: 20, moved.other: 6})
    assert outcomes(moved.roll_back(execute=False, to_zookeeper=True)) == {"would write"}
    assert moved.offsets() == {moved.first: 7, moved.second: 9}

    report = moved.roll_back(to_zookeeper=True)

    carried = [row for row in report if row.step is MigrationStep.TO_ZOOKEEPER]
    assert {(row.topic, row.found, row.written) for row in carried} == {
        (moved.first.topic, 7, 20),
        (moved.other.topic, None, 6),
    }
    assert moved.offsets() == {moved.first: 20, moved.second: 9, moved.other: 6}
    assert (moved.now, moved.marked) == (moved.before, False)
    assert outcomes(moved.roll_back(to_zookeeper=True)) == {"already there"}
    assert moved.offsets() == {moved.first: 20, moved.second: 9, moved.other: 6}


# A restored ZooKeeper


def test_failure_19_a_plan_does_not_write_the_offsets_of_a_zookeeper_that_was_restored_or_wiped_since(
    brokers: Brokers, make_topic: MakeTopic, tmp_path: Path
) -> None:
    at = TopicPartition(make_topic(), 0)
    target = f"restored-{at.topic}"
    with restorable(tmp_path / "wiped") as other, restorable(tmp_path / "restored") as server:
        with Registry.connect(server.address) as registry:
            registry.group(GROUP).offsets.set(at, 7)
        server.back_up()
        with Registry.connect(server.address) as registry:
            registry.group(GROUP).offsets.set(at, 9)
            rows = plan_of(registry, brokers, {GROUP: target})
        server.restore()
        with Registry.connect(server.address) as registry, Registry.connect(other.address) as wiped:
            for source, words in ((registry, "were written since the plan"), (wiped, "group 'billing' does not exist")):
                report = apply_groups(rows, brokers, source, execute=True)
                assert outcomes(report) == {"left"}
                [detail] = details(report, target)
                assert words in detail
            [followed] = follow(rows, brokers, registry, execute=True)
            older = (
                f"the offset of {at} is older than in the plan: this is another ZooKeeper, or it was restored from a "
            )
            assert (followed.state, followed.detail) == (FollowState.LEFT, f"{older}backup")
            assert numbers(brokers, target) == {}
            rows = plan_of(registry, brokers, {GROUP: target})
            assert outcomes(apply_groups(rows, brokers, registry, execute=True)) == {Outcome.WRITTEN}
            assert [each.stage for each in status_of_groups(rows, brokers, registry)] == [MigrationStage.DONE]
        server.restore()  # the mark is gone
        with Registry.connect(server.address) as registry:
            assert [each.stage for each in status_of_groups(rows, brokers, registry)] == [MigrationStage.NOT_MARKED]
            report = rollback_groups(rows, brokers, registry, execute=True)
            assert outcomes(report) == {"left"}
            [detail] = details(report, target)
            assert "the group has no mark of this plan in ZooKeeper" in detail
        assert numbers(brokers, target) == {at: 7}
