"""Rolling back: which earlier offsets cannot be restored, and which changes since the plan count."""

from __future__ import annotations

from tests.migration.rows import row
from zkgroups import TopicPartition
from zkgroups.core.kafka_values import NativeOffset
from zkgroups.core.migration.obstacles import ObstacleKind
from zkgroups.core.migration.offset_decision import Action, Decision, Reason
from zkgroups.core.migration.plan_rows import PlanRow
from zkgroups.core.migration.rollback_rules import (
    changed_obstacles,
    changed_partitions,
    newer_offsets,
    restoration,
    unrestorable_offsets,
)
from zkgroups.core.migration.source_and_target_state import OffsetNode, OffsetNodes, SourceState, TargetState

P0, P1, PAID = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("paid", 0)
COMMIT = Decision(Action.COMMIT, Reason.UNCHANGED, 7)
TARGET = "billing"


def there(offset: int, at: TopicPartition = P0) -> NativeOffset:
    return NativeOffset(TARGET, at, offset)


def planned(at: TopicPartition = P0, before: int | None = 3) -> PlanRow:
    return row("legacy", TARGET, at, COMMIT, None if before is None else there(before, at), 7, 100)


def test_an_earlier_offset_of_a_partition_that_the_brokers_no_longer_have_cannot_be_restored() -> None:
    rows = [planned(P0), planned(P1), planned(PAID)]
    lost = unrestorable_offsets(rows, {}, {"orders": [0]})
    assert [lost.reason(at) for at in (P0, P1, PAID, None)] == [None, Reason.NO_PARTITION, Reason.NO_TOPIC, None]
    assert unrestorable_offsets(rows, {}, {"orders": [0]}, kept={P1, PAID}).missing == {}
    assert unrestorable_offsets([planned(P1, before=None)], {}, {}).missing == {}


def test_an_earlier_offset_of_a_recreated_topic_cannot_be_restored() -> None:
    rows = [planned(P0)._replace(topic_id="old")]
    assert unrestorable_offsets(rows, {"orders": "new"}, {"orders": [0]}).reason(P0) is Reason.RECREATED
    assert unrestorable_offsets(rows, {"orders": "old"}, {"orders": [0]}).reason(P0) is None
    older = unrestorable_offsets([planned(P0)], {}, {"orders": [0]}, created={"orders": 101})
    assert older.reason(P0) is Reason.RECREATED


def test_commits_since_the_plan_are_found_and_those_that_moved_back_are_named() -> None:
    rows = [planned(P0), planned(P1)]
    found = restoration(rows, {P0: there(7), P1: there(6, P1), PAID: there(1, PAID)}, single=True)
    assert (found.committed_since, found.moved_back) == ({P1, PAID}, {P1})
    assert (found.removed, found.deletes_group) == ({PAID}, False)
    assert found.commits == {P0: there(3), P1: there(3, P1)}
    assert found.touched == {P0, P1, PAID}


def test_a_commit_of_the_same_offset_with_another_note_did_not_move_back() -> None:
    kept = row("legacy", TARGET, P0, Decision(Action.SKIP, Reason.TARGET_AHEAD), there(9), 7, 100)
    found = restoration([kept], {P0: there(9)._replace(metadata="new")}, single=True)
    assert (found.committed_since, found.moved_back) == ({P0}, frozenset())


def test_a_group_is_deleted_if_it_would_have_no_offsets_left_or_its_brokers_cannot_delete_single_offsets() -> None:
    new = [planned(P0, before=None)]
    assert restoration(new, {P0: there(7)}, single=True).deletes_group
    both = [planned(P0), planned(P1, before=None)]
    target = {P0: there(7), P1: there(7, P1)}
    assert not restoration(both, target, single=True).deletes_group
    assert restoration(both, target, single=False).deletes_group
    assert restoration(both, target, single=False).commits == {P0: there(3)}
    assert not restoration([planned(P0)], {P0: there(7)}, single=False).deletes_group


def test_a_target_that_has_changed_during_a_rollback_is_an_obstacle() -> None:
    before = TargetState(committed={P0: there(7), P1: there(7, P1)})
    assert changed_obstacles(before, before) == []
    now = TargetState(("anna",), {P0: there(8), PAID: there(1, PAID)})
    assert changed_partitions(before, now) == [P0, P1, PAID]
    kinds = [each.kind for each in changed_obstacles(before, now)]
    assert kinds == [ObstacleKind.NATIVE_MEMBERS, ObstacleKind.COMMITTED_DURING_ROLLBACK]
    assert changed_partitions(before, TargetState(unreadable="no answer")) == []


def test_offsets_that_legacy_clients_have_committed_since_the_plan_are_newer() -> None:
    rows = [planned(P0), planned(P1)]

    def newer(zxid: int, offset: int, now: int | None) -> dict[TopicPartition, int]:
        nodes = {("orders", 0): OffsetNode(zxid, offset), ("orders", 1): OffsetNode(100, 7)}
        return newer_offsets(rows, SourceState((), OffsetNodes(nodes)), {} if now is None else {P0: there(now)})

    assert newer(101, 9, 7) == newer(101, 9, None) == {P0: 9}
    assert newer(101, 0, None) == {P0: 0}
    assert newer(100, 9, 7) == newer(101, 7, 7) == {}
    added = SourceState((), OffsetNodes({("paid", 0): OffsetNode(5, 4)}))
    assert newer_offsets(rows, added, {}) == {PAID: 4}
