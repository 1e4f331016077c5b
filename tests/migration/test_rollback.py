"""Targets restored on a real broker: exactly, after any kill, and with progress copied back to ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import pytest

from tests.kafka.conftest import Writer
from tests.testing.waiting import eventually
from zkgroups import Registry, TopicPartition
from zkgroups.core.kafka_values import NativeGroup, NativeOffset, NativeState
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.offset_decision import Action
from zkgroups.core.migration.plan_rows import MigrationStep, Outcome
from zkgroups.core.znodes.migration_mark import MarkState
from zkgroups.input_errors import InvalidOptionError, ZkgroupsException
from zkgroups.kafka import Brokers
from zkgroups.kafka.requests.commit_offsets import Outcomes
from zkgroups.kafka.sendable import Offsets
from zkgroups.migration.apply import apply_groups
from zkgroups.migration.rollback import rollback_groups
from zkgroups.testing import KafkaBroker
from zkgroups.zookeeper.admin import migration_marks as marks

from .conftest import Join, MakeTopic
from .rows import PLAN, details, numbers, outcomes, plan_of, tree

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]

T = TypeVar("T")


class Moved:
    """A planned group of two partitions. Its target had an offset of the first partition, and an offset of another
    topic."""

    def __init__(self, registry: Registry, broker: KafkaBroker, brokers: Brokers, topic: str, other: str) -> None:
        self.registry, self.broker, self.brokers = registry, broker, brokers
        self.first, self.second, self.other = (
            TopicPartition(topic, 0),
            TopicPartition(topic, 1),
            TopicPartition(other, 0),
        )
        self.group, self.target = "billing", f"billing: {topic}"
        epoch = None if broker.release == "1.1.1" else 4
        self.before = {
            self.first: NativeOffset(self.target, self.first, 3, "größe\0", epoch),
            self.other: NativeOffset(self.target, self.other, 5, "other"),
        }
        brokers.commit({self.target: self.before})
        registry.group(self.group).offsets.set_many({self.first: 7, self.second: 9})
        self.rows = plan_of(registry, brokers, {self.group: self.target})

    def mark(self) -> None:
        """Mark the group, as an apply does that is killed right afterwards."""
        marks.put(self.registry._context, {self.group: self.target}, plan=PLAN, state=MarkState.MOVING)

    def apply(self) -> None:
        assert "left" not in outcomes(apply_groups(self.rows, self.brokers, self.registry, execute=True))

    @property
    def now(self) -> dict[TopicPartition, NativeOffset]:
        return self.brokers.committed([self.target])[self.target]

    @property
    def marked(self) -> bool:
        return self.group in marks.read(self.registry._context, [self.group])

    def offsets(self) -> dict[TopicPartition, int]:
        """The offsets in ZooKeeper."""
        found = self.registry.group(self.group).offsets.fetch_many([self.first, self.second, self.other])
        return {at: each.offset for at, each in found.items() if each is not None}  # type: ignore[union-attr]


@pytest.fixture
def moved(registry: Registry, broker: KafkaBroker, brokers: Brokers, make_topic: MakeTopic) -> Moved:
    return Moved(registry, broker, brokers, make_topic(), make_topic(1))


@pytest.mark.parametrize("broker", ["kafka_broker", "legacy_kafka"], indirect=True)
def test_a_target_is_restored_exactly_and_additional_offsets_are_deleted(moved: Moved) -> None:
    tree_before = tree(moved.registry.client, "/consumers")
    moved.apply()
    assert {at: each.offset for at, each in moved.now.items()} == {moved.first: 7, moved.second: 9, moved.other: 5}

    single = moved.brokers.can_delete_offsets()
    assert single == (moved.broker.release != "1.1.1")

    dry = rollback_groups(moved.rows, moved.brokers, moved.registry, execute=False)

    assert outcomes(dry) == ({"would write", "already there"} if single else {"would write"})
    assert (moved.now[moved.first].offset, moved.marked) == (7, True)

    report = rollback_groups(moved.rows, moved.brokers, moved.registry, execute=True)

    assert {(row.topic, row.partition): (row.outcome, row.found, row.written, row.detail) for row in report} == {
        (moved.first.topic, 0): (Outcome.WRITTEN, 7, 3, ""),
        (moved.first.topic, 1): (Outcome.WRITTEN, 9, None, "deleted"),
        (moved.other.topic, 0): (Outcome.THERE, 5, None, "") if single else (Outcome.WRITTEN, 5, 5, ""),
    }
    assert moved.now == moved.before
    assert tree(moved.registry.client, "/consumers") == tree_before
    assert outcomes(rollback_groups(moved.rows, moved.brokers, moved.registry, execute=True)) == {"already there"}
    assert moved.now == moved.before


def test_a_target_that_did_not_exist_is_deleted(registry: Registry, brokers: Brokers, make_topic: MakeTopic) -> None:
    at = TopicPartition(make_topic(), 0)
    registry.group("new").offsets.set(at, 7)
    target = f"new-{at.topic}"
    rows = plan_of(registry, brokers, {"new": target})
    apply_groups(rows, brokers, registry, execute=True)

    assert outcomes(rollback_groups(rows, brokers, registry, execute=True)) == {"written"}

    assert brokers.groups([target]) == {target: NativeGroup(target, NativeState.DEAD)}
    assert outcomes(rollback_groups(rows, brokers, registry, execute=True)) == {"already there"}


def test_changed_offsets_are_restored_without_deleting_the_group(moved: Moved) -> None:
    rows = [row for row in moved.rows if row.at != moved.second]

    class NeverDeletes(Brokers):
        def delete_groups(self, names: Iterable[str], **_options: Any) -> dict[str, ZkgroupsException | None]:
            assert not list(names)
            return {}

        def delete_offsets(self, offsets: Mapping[str, Iterable[TopicPartition]], **_options: Any) -> Outcomes:
            assert not offsets
            return {}

    moved.mark()
    moved.brokers.commit({moved.target: {moved.first: 7}})
    with NeverDeletes.connect(moved.broker.address) as brokers:
        report = rollback_groups(rows, brokers, moved.registry, execute=True)
    assert {(row.topic, row.partition): row.outcome for row in report} == {
        (moved.first.topic, 0): Outcome.WRITTEN,
        (moved.other.topic, 0): Outcome.THERE,
        (moved.second.topic, 1): Outcome.NEWER,  # not in this plan
    }
    assert moved.now == moved.before


def test_a_target_with_later_commits_is_left_unless_forced(moved: Moved) -> None:
    moved.apply()
    beyond = TopicPartition(moved.other.topic, 0)
    moved.brokers.commit({moved.target: {moved.second: 11}})

    report = rollback_groups(moved.rows, moved.brokers, moved.registry, execute=True)

    assert outcomes(report) == {"left"}
    assert details(report, moved.target) == {
        f"offsets were committed on the target since the migration: {moved.second}"
    }
    assert (moved.now[moved.second].offset, moved.marked) == (11, True)

    rows = [row for row in moved.rows if row.at != beyond]  # as if a consumer had begun to read that topic, too
    forced = rollback_groups(rows, moved.brokers, moved.registry, execute=True, force=True)

    assert {(f"{row.topic}/{row.partition}", row.found, row.written, row.detail) for row in forced} == {
        (str(moved.first), 7, 3, ""),
        (str(moved.second), 11, None, "deleted"),
        (str(beyond), 5, None, "deleted"),
    }
    assert moved.now == {moved.first: moved.before[moved.first]}
    assert not moved.marked


def test_a_target_with_active_members_is_always_left(moved: Moved, join: Join) -> None:
    moved.apply()
    with join(moved.target, moved.other.topic):
        for force in (False, True):
            report = rollback_groups(moved.rows, moved.brokers, moved.registry, execute=True, force=force)
            assert outcomes(report) == {"left"}
            [detail] = details(report, moved.target)
            assert "the group has active members on the brokers: anna-" in detail
    assert (moved.now[moved.first].offset, moved.marked) == (7, True)


def test_a_group_marked_by_another_plan_is_left_unless_forced(moved: Moved) -> None:
    moved.brokers.commit({moved.target: {moved.first: 7}})
    marks.put(moved.registry._context, {moved.group: "elsewhere"}, plan="plan-2", state=MarkState.MOVED)

    report = rollback_groups(moved.rows, moved.brokers, moved.registry, execute=True)

    assert details(report, moved.target) == {
        "the group was moved to Kafka's own offsets as 'elsewhere', by plan plan-2"
    }
    rollback_groups(moved.rows, moved.brokers, moved.registry, execute=True, force=True)
    assert (moved.now, moved.marked) == (moved.before, True)


def test_a_group_that_this_plan_has_not_moved_is_left_even_with_the_planned_offsets(moved: Moved) -> None:
    moved.brokers.commit({moved.target: {moved.first: 7, moved.second: 9}})
    native = Obstacle.of(ObstacleKind.NATIVE_MEMBERS, ["anna"])
    blocked = [row._replace(obstacles=(native,)) for row in moved.rows]

    report = rollback_groups(moved.rows, moved.brokers, moved.registry, execute=True)
    assert details(report, moved.target) == {"the group has no mark of this plan in ZooKeeper"}
    for registry in (moved.registry, None):
        report = rollback_groups(blocked, moved.brokers, registry, execute=True, force=True)
        assert outcomes(report) == {"left"}
        assert f"this plan has not moved the group: {native}" in details(report, moved.target)
    assert numbers(moved.brokers, moved.target) == {moved.first: 7, moved.second: 9, moved.other: 5}

    legacy = Obstacle.of(ObstacleKind.LEGACY_INSTANCES, ["scala-1"])
    followed = [row._replace(obstacles=(legacy,)) for row in moved.rows]
    moved.mark()
    report = rollback_groups(followed, moved.brokers, moved.registry, execute=True)
    assert outcomes(report) == {"written", "already there"}
    assert moved.now == moved.before


def test_a_blocked_group_that_was_never_moved_has_nothing_to_roll_back(moved: Moved) -> None:
    moved.brokers.commit({moved.target: {moved.other: 6}})  # by the members that block the group
    native = Obstacle.of(ObstacleKind.NATIVE_MEMBERS, ["anna"])
    blocked = [row._replace(obstacles=(native,)) for row in moved.rows]
    there = moved.now

    report = rollback_groups(blocked, moved.brokers, moved.registry, execute=True)

    assert outcomes(report) == {"skipped"}
    assert details(report, moved.target) == {f"this plan has not moved the group: {native}"}
    assert moved.now == there


def test_a_group_of_an_apply_killed_before_the_write_is_as_before(moved: Moved) -> None:
    assert outcomes(rollback_groups(moved.rows, moved.brokers, moved.registry, execute=True)) == {"already there"}
    moved.mark()
    assert outcomes(rollback_groups(moved.rows, moved.brokers, moved.registry, execute=True)) == {"already there"}
    assert (moved.now, moved.marked) == (moved.before, False)


KILLS = {
    "kafka_broker": [
        ("commit", 0, "before"),
        ("commit", 0, "while"),
        ("delete", 0, "before"),
        ("delete", 0, "after"),
    ],
    "legacy_kafka": [
        ("delete", 0, "before"),
        ("delete", 0, "after"),
        ("commit", 0, "before"),
        ("commit", 0, "while"),
        ("commit", 1, "before"),
        ("commit", 1, "while"),
        ("commit", 1, "after"),
    ],
}


@pytest.mark.parametrize(
    ("broker", "step", "nth", "moment"),
    [(broker, *kill) for broker, kills in KILLS.items() for kill in kills],
    indirect=["broker"],
)
def test_a_rollback_killed_at_any_step_can_be_repeated(moved: Moved, step: str, nth: int, moment: str) -> None:
    """Brokers before 2.4 delete the whole group, and get its offsets again."""
    moved.apply()
    last = KILLS["legacy_kafka" if moved.broker.release == "1.1.1" else "kafka_broker"][-1]
    steps: list[str] = []

    def dies(now: str) -> bool:
        return (steps[-1], steps.count(steps[-1]) - 1, now) == (step, nth, moment)

    def act(name: str, request: Callable[[], T]) -> T:
        steps.append(name)
        if dies("before"):
            raise KeyboardInterrupt
        found = request()
        if dies("while") or dies("after"):
            raise KeyboardInterrupt
        return found

    class Killed(Brokers):
        def delete_groups(self, names: Iterable[str], **options: Any) -> dict[str, ZkgroupsException | None]:
            some = list(names)
            return act("delete", lambda: Brokers.delete_groups(self, some, **options)) if some else {}

        def delete_offsets(self, offsets: Mapping[str, Iterable[TopicPartition]], **options: Any) -> Outcomes:
            return act("delete", lambda: Brokers.delete_offsets(self, offsets, **options)) if offsets else {}

        def commit(self, offsets: Offsets, **options: Any) -> Outcomes:
            first = {target: dict(list(those.items())[:1]) for target, those in offsets.items()}
            return act("commit", lambda: Brokers.commit(self, first if dies("while") else offsets, **options))

    with Killed.connect(moved.broker.address) as dying, pytest.raises(KeyboardInterrupt):
        rollback_groups(moved.rows, dying, moved.registry, execute=True)
    assert (moved.now == moved.before) == ((step, nth, moment) == last)
    assert moved.marked

    assert "left" not in outcomes(rollback_groups(moved.rows, moved.brokers, moved.registry, execute=True))

    assert (moved.now, moved.marked) == (moved.before, False)


@pytest.mark.parametrize("broker", ["kafka_broker", "legacy_kafka"], indirect=True)
def test_a_group_that_cannot_be_restored_completely_is_not_deleted_and_stays_marked(moved: Moved) -> None:
    moved.apply()

    class Refusing(Brokers):
        def commit(self, offsets: Offsets, **options: Any) -> Outcomes:
            wrong = {
                target: {at: it for at, it in those.items() if at != moved.first} for target, those in offsets.items()
            }
            found = super().commit(wrong, **options)
            refused = {moved.first: ZkgroupsException("no")}
            return {target: {**found[target], **refused} for target in offsets}

    with Refusing.connect(moved.broker.address) as brokers:
        report = rollback_groups(moved.rows, brokers, moved.registry, execute=True, force=True)

    old = moved.broker.release == "1.1.1"
    what = "the group was" if old else "offsets that are new since the plan were"
    assert {(row.topic, row.partition): (row.outcome, row.detail) for row in report} == {
        (moved.first.topic, 0): (Outcome.FAILED, "no"),
        (moved.first.topic, 1): (
            Outcome.FAILED,
            f"{what} not deleted: not all of its earlier offsets can be restored",
        ),
        (moved.other.topic, 0): (Outcome.WRITTEN if old else Outcome.THERE, ""),
    }
    assert numbers(moved.brokers, moved.target) == {moved.first: 7, moved.second: 9, moved.other: 5}
    assert moved.marked


@pytest.mark.parametrize("force", [False, True])
def test_offsets_of_deleted_topics_are_skipped_and_the_rest_is_restored(moved: Moved, force: bool) -> None:
    moved.apply()
    writer = Writer(moved.broker.address)
    writer.admin.delete_topics([moved.other.topic])[moved.other.topic].result()
    assert eventually(lambda: not moved.brokers.partitions([moved.other.topic]))
    assert eventually(lambda: moved.other not in moved.now)
    fewer = moved.rows[0]._replace(topic=moved.first.topic, partition=2, before=4, planned=None, action=Action.SKIP)

    report = rollback_groups([*moved.rows, fewer], moved.brokers, moved.registry, execute=True, force=force)

    assert {(row.topic, row.partition): (row.outcome, row.detail) for row in report} == {
        (moved.first.topic, 0): (Outcome.WRITTEN, ""),
        (moved.first.topic, 1): (Outcome.WRITTEN, "deleted"),
        (moved.first.topic, 2): (Outcome.SKIPPED, "no such partition"),
        (moved.other.topic, 0): (Outcome.SKIPPED, "no such topic"),
    }
    assert (moved.now, moved.marked) == ({moved.first: moved.before[moved.first]}, False)


@pytest.mark.parametrize("broker", ["kafka_broker", "legacy_kafka"], indirect=True)
def test_a_commit_between_the_first_write_and_the_deletion_keeps_the_group(moved: Moved) -> None:
    moved.apply()

    class Raced(Brokers):
        def commit(self, offsets: Offsets, **options: Any) -> Outcomes:
            found = super().commit(offsets, **options)
            moved.brokers.commit({moved.target: {moved.first: 95, moved.second: 96}})
            return found

    with Raced.connect(moved.broker.address) as brokers:
        report = rollback_groups(moved.rows, brokers, moved.registry, execute=True)

    assert numbers(moved.brokers, moved.target) == {moved.first: 95, moved.second: 96, moved.other: 5}
    why = f"offsets were committed on the target during the rollback: {moved.first}, {moved.second}"
    what = "the group was" if moved.broker.release == "1.1.1" else "offsets that are new since the plan were"
    assert {(row.outcome, row.detail) for row in report if row.topic == moved.first.topic} == {
        (Outcome.FAILED, f"{what} not deleted: {why}")
    }
    assert moved.marked


def test_a_mark_that_cannot_be_removed_is_reported_in_each_row(moved: Moved) -> None:
    moved.apply()

    class Raced(Brokers):
        def delete_offsets(self, offsets: Mapping[str, Iterable[TopicPartition]], **options: Any) -> Outcomes:
            moved.registry.client.set(f"/consumers/{moved.group}/migration", b"scrambled")
            return super().delete_offsets(offsets, **options)

    with Raced.connect(moved.broker.address) as brokers:
        report = rollback_groups(moved.rows, brokers, moved.registry, execute=True)

    assert outcomes(report) == {"failed"}
    [detail] = details(report, moved.target)
    assert detail.startswith("the migration mark could not be changed: ")
    assert {row.written for row in report} == {3, None}
    assert (moved.now, moved.marked) == (moved.before, True)


# To ZooKeeper


def test_offsets_that_a_legacy_client_has_committed_since_the_plan_are_kept_and_reported(moved: Moved) -> None:
    moved.apply()
    client, offsets = moved.registry.client, f"/consumers/{moved.group}/offsets"
    client.set(f"{offsets}/{moved.first.topic}/0", b"12")
    client.set(f"{offsets}/{moved.second.topic}/1", b"9")  # as on the brokers
    client.create(f"{offsets}/{moved.other.topic}/0", b"6", makepath=True)
    for execute in (False, True):
        report = rollback_groups(moved.rows, moved.brokers, moved.registry, execute=execute)
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
    assert outcomes(rollback_groups(moved.rows, moved.brokers, moved.registry, execute=True)) == {"already there"}


def test_nothing_is_copied_to_a_group_without_the_mark_of_this_plan_even_by_force(moved: Moved) -> None:
    moved.apply()
    moved.brokers.commit({moved.target: {moved.first: 20}})
    for other in (False, True):
        marks.remove(moved.registry._context, [moved.group], plan=PLAN)
        if other:
            marks.put(moved.registry._context, {moved.group: "elsewhere"}, plan="plan-2", state=MarkState.MOVED)
        report = rollback_groups(moved.rows, moved.brokers, moved.registry, execute=True, force=True, to_zookeeper=True)
        assert outcomes(report) == {"left"}
        assert (moved.offsets()[moved.first], moved.now[moved.first].offset) == (7, 20)


def test_progress_is_copied_to_zookeeper_forward_only_and_the_target_is_restored(moved: Moved) -> None:
    moved.apply()
    moved.brokers.commit({moved.target: {moved.first: 20, moved.other: 6}})

    dry = rollback_groups(moved.rows, moved.brokers, moved.registry, execute=False, to_zookeeper=True)

    assert outcomes(dry) == {"would write"}
    assert moved.offsets() == {moved.first: 7, moved.second: 9}

    report = rollback_groups(moved.rows, moved.brokers, moved.registry, execute=True, to_zookeeper=True)

    carried = [row for row in report if row.step is MigrationStep.TO_ZOOKEEPER]
    assert {(row.topic, row.found, row.written) for row in carried} == {
        (moved.first.topic, 7, 20),
        (moved.other.topic, None, 6),
    }
    assert moved.offsets() == {moved.first: 20, moved.second: 9, moved.other: 6}
    assert (moved.now, moved.marked) == (moved.before, False)
    again = rollback_groups(moved.rows, moved.brokers, moved.registry, execute=True, to_zookeeper=True)
    assert outcomes(again) == {"already there"}
    assert moved.offsets() == {moved.first: 20, moved.second: 9, moved.other: 6}


def test_a_target_that_was_moved_back_is_left_because_zookeeper_keeps_the_higher_offset(moved: Moved) -> None:
    moved.apply()
    moved.brokers.commit({moved.target: {moved.first: 20, moved.second: 2}})

    report = rollback_groups(moved.rows, moved.brokers, moved.registry, execute=True, to_zookeeper=True)

    why = "offsets of the target were moved back, and ZooKeeper keeps the higher ones"
    assert (outcomes(report), details(report, moved.target)) == ({"left"}, {f"{why}: {moved.second}"})
    assert numbers(moved.brokers, moved.target) == {moved.first: 20, moved.second: 2, moved.other: 5}
    assert (moved.offsets(), moved.marked) == ({moved.first: 7, moved.second: 9}, True)

    rollback_groups(moved.rows, moved.brokers, moved.registry, execute=True, to_zookeeper=True, force=True)
    assert (moved.now, moved.marked) == (moved.before, False)
    assert moved.offsets() == {moved.first: 20, moved.second: 9}


def test_nothing_is_copied_to_a_group_with_legacy_instances_and_its_target_stays(moved: Moved) -> None:
    moved.apply()
    moved.brokers.commit({moved.target: {moved.first: 20}})
    moved.registry.client.create("/consumers/billing/ids/scala-1", b"{}", ephemeral=True, makepath=True)

    report = rollback_groups(moved.rows, moved.brokers, moved.registry, execute=True, to_zookeeper=True)

    assert details(report, moved.target) == {"legacy instances are registered: scala-1"}
    assert (moved.offsets()[moved.first], moved.now[moved.first].offset) == (7, 20)
    with pytest.raises(InvalidOptionError, match="to_zookeeper"):
        rollback_groups(moved.rows, moved.brokers, None, execute=True, to_zookeeper=True)


@pytest.mark.parametrize(
    ("carried", "to_zookeeper"),
    [(20, True), (None, True), (None, False)],
    ids=["something is carried", "nothing is", "nothing is to be"],
)
def test_a_commit_after_the_first_read_is_not_deleted(moved: Moved, carried: int | None, to_zookeeper: bool) -> None:
    moved.apply()
    if carried is not None:
        moved.brokers.commit({moved.target: {moved.first: carried}})

    class Raced(Brokers):
        looked = False

        def committed_or_error(
            self, groups: Iterable[str]
        ) -> dict[str, dict[TopicPartition, NativeOffset] | ZkgroupsException]:
            found = super().committed_or_error(groups)
            if not self.looked:
                self.looked = True
                moved.brokers.commit({moved.target: {moved.first: 21}})
            return found

    with Raced.connect(moved.broker.address) as brokers:
        report = rollback_groups(moved.rows, brokers, moved.registry, execute=True, to_zookeeper=to_zookeeper)

    assert numbers(moved.brokers, moved.target)[moved.first] == 21
    assert {row.outcome for row in report if row.step is MigrationStep.ROLLBACK} == {Outcome.LEFT}
    assert moved.marked
