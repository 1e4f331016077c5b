"""Both sides of a migration on real servers, compared with the plan."""

from __future__ import annotations

import pytest

from zkgroups import Registry, TopicPartition
from zkgroups.core.migration.follow_rules import FollowState
from zkgroups.core.migration.group_status import MigrationStage
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.plan_rows import Match
from zkgroups.kafka import Brokers
from zkgroups.migration.apply import apply_groups
from zkgroups.migration.following.follow import follow
from zkgroups.migration.rollback import rollback_groups
from zkgroups.migration.verify import status_of_groups, verify_groups

from .conftest import MakeTopic
from .rows import plan_of

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]


def test_every_row_that_differs_is_reported_with_the_offsets_of_both_sides(
    registry: Registry, brokers: Brokers, make_topic: MakeTopic
) -> None:
    topic = make_topic(6)
    ats = [TopicPartition(topic, number) for number in range(6)]
    target = f"verified-{topic}"
    registry.group("verified").offsets.set_many(dict.fromkeys(ats[:5], 7))
    rows = plan_of(registry, brokers, {"verified": target, "other": f"other-{topic}"})
    assert {row.match for row in verify_groups(rows, brokers, registry)} == {Match.NOT_WRITTEN}
    assert [it.stage for it in status_of_groups(rows, brokers, registry)] == [MigrationStage.NOT_BEGUN]
    apply_groups(rows, brokers, registry, execute=True)
    assert {row.match for row in verify_groups(rows, brokers, registry)} == {Match.EQUAL}
    assert [it.stage for it in status_of_groups(rows, brokers, registry)] == [MigrationStage.DONE]
    another = [row._replace(plan="another") for row in rows]  # no mark shows that the plan has moved the group
    assert [it.stage for it in status_of_groups(another, brokers, registry)] == [MigrationStage.NOT_MARKED]
    assert [it.stage for it in status_of_groups(another, brokers, None)] == [MigrationStage.DONE]

    registry.group("verified").offsets.set(ats[1], 8)
    registry.group("verified").offsets.delete([ats[2]])
    registry.group("verified").offsets.set(ats[5], 1)
    brokers.commit({target: {ats[3]: 9, ats[4]: 5}})

    found = {row.partition: row for row in verify_groups(rows, brokers, registry)}
    assert {number: (row.offset, row.native, row.expected, row.match) for number, row in found.items()} == {
        0: (7, 7, 7, Match.EQUAL),
        1: (8, 7, 7, Match.SOURCE_MOVED),
        2: (None, 7, 7, Match.SOURCE_GONE),
        3: (7, 9, 7, Match.AHEAD),
        4: (7, 5, 7, Match.BEHIND),
        5: (1, None, None, Match.SOURCE_MOVED),
    }
    assert [found[number].dual_commit for number in range(6)] == [
        *("either", "zookeeper", "kafka", "kafka", "zookeeper", "zookeeper")
    ]
    asked = verify_groups(rows, brokers, None)
    assert {row.dual_commit for row in asked} == {""}
    without = {row.partition: row.match for row in asked}
    assert without == {**dict.fromkeys(range(3), Match.EQUAL), 3: Match.AHEAD, 4: Match.BEHIND}
    [status] = status_of_groups(rows, brokers, registry)
    assert (status.stage, status.as_planned, status.otherwise) == (MigrationStage.MOVED_ON, 3, 2)
    assert status.mark == f"was moved to Kafka's own offsets as {target!r}, by plan plan-1"


def test_a_group_that_was_followed_does_not_count_as_blocked_when_its_offsets_are_lost(
    registry: Registry, brokers: Brokers, make_topic: MakeTopic
) -> None:
    """It had members when the plan was made. Its offsets on the brokers were deleted later, as by their age."""
    ats = [TopicPartition(topic, number) for topic in [make_topic(2)] for number in range(2)]
    target = f"followed-{ats[0].topic}"
    registry.group("followed").offsets.set_many(dict.fromkeys(ats, 0))
    blocked = Obstacle.of(ObstacleKind.LEGACY_INSTANCES, ["anna"])
    rows = plan_of(registry, brokers, {"followed": target}, obstacles=(blocked,))
    assert {row.match for row in verify_groups(rows, brokers, registry)} == {Match.BLOCKED}
    [followed] = follow(rows, brokers, registry, execute=True, every=0.1)
    assert followed.state is FollowState.DONE
    assert {row.match for row in verify_groups(rows, brokers, registry)} == {Match.EQUAL}

    assert brokers.delete_groups([target]) == {target: None}
    assert {row.match for row in verify_groups(rows, brokers, registry)} == {Match.NOT_WRITTEN}
    assert [it.stage for it in status_of_groups(rows, brokers, registry)] == [MigrationStage.PARTLY]
    rollback_groups(rows, brokers, registry, execute=True)
    assert [it.stage for it in status_of_groups(rows, brokers, registry)] == [MigrationStage.BLOCKED]
