"""Applying plans to whole groups on a real broker, and comparing both sides afterwards.

tests/core/migration/test_apply_rules.py has the rules, and runs that are killed after any step.
"""

from __future__ import annotations

from typing import Any

import pytest

from zkgroups import TopicPartition
from zkgroups.core.kafka_values import NativeOffset
from zkgroups.core.migration.changes_since_plan import MigrationStage
from zkgroups.core.migration.follow_rules import FollowState
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.offset_decision import Reason
from zkgroups.core.migration.plan_rows import Match, Outcome
from zkgroups.core.znodes.own_nodes import Mark, MarkState
from zkgroups.exceptions import GroupMigratedError, GuardFailedError, OutcomeUnknownError, UnknownPartitionError
from zkgroups.migration.apply import status_of_groups, verify_groups
from zkgroups.migration.follow import follow
from zkgroups.zookeeper.admin import migration_marks as marks

from .conftest import Join, MakeTopic, Sides
from .rows import PLAN, details, outcomes, tree

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]

ODD = "größe: a b"


@pytest.mark.parametrize(
    "broker", ["kafka_broker", pytest.param("legacy_kafka", marks=pytest.mark.soak)], indirect=True
)
def test_groups_are_moved_and_marked_and_a_dry_run_changes_nothing(sides: Sides, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    large = {TopicPartition(topic, number): number for number in range(3)}
    odd = TopicPartition(topic, 0)
    sides.registry.client.create(f"/consumers/{ODD}/offsets/{topic}/1", b"-1", makepath=True)
    sides.registry.group(ODD).offsets.set(odd, 2**63 - 1)
    rows = [*sides.plan("large", offsets=large), *sides.plan(ODD, offsets={odd: 2**63 - 1})]
    before = tree(sides.registry.client, "/consumers")

    dry = sides.apply(rows, execute=False)

    assert [row.outcome for row in dry[-2:]] == [Outcome.WOULD_WRITE, Outcome.SKIPPED]
    assert tree(sides.registry.client, "/consumers") == before
    assert sides.numbers("large") == sides.numbers(ODD) == {}

    report = sides.apply(rows)

    assert [(row.group, row.topic, row.partition) for row in report] == [
        (row.group, row.topic, row.partition) for row in rows
    ]
    assert {(row.outcome, row.written == plan.planned) for row, plan in zip(report, rows, strict=True)} == {
        (Outcome.WRITTEN, True),
        (Outcome.SKIPPED, True),
    }
    assert (sides.numbers("large"), sides.numbers(ODD)) == (large, {odd: 2**63 - 1})
    assert outcomes(sides.apply(rows)) == {"already there", "skipped"}
    assert sides.numbers("large") == large
    mark = marks.read(sides.registry._context, ["large"])["large"]
    assert isinstance(mark, Mark)
    assert (mark.plan, mark.target, mark.state) == (PLAN, sides.target("large"), MarkState.MOVED)
    with pytest.raises(GroupMigratedError), sides.registry.group("large").instance() as instance:
        instance.register([topic])


def test_every_guard_leaves_its_group_and_no_other(sides: Sides, make_topic: MakeTopic, join: Join) -> None:
    at, unused = sides.first, sides.second
    names = ["legacy", "rewritten", "gone", "new", "moved", "more", "marked", "blocked", "unasked", "live", "free"]
    brokers, registry = sides.brokers, sides.registry
    brokers.commit({sides.target("moved"): {at: 3}})
    refused = Obstacle(ObstacleKind.REFUSED_OFFSETS, count=1, reason=Reason.PAST_END)
    rows = [row._replace(obstacles=(refused,)) if row.group == "blocked" else row for row in sides.plan(*names)]
    sides.mark("marked", plan="plan-2", target="elsewhere")
    registry.group("rewritten").offsets.set(at, 7)
    registry.group("gone").offsets.delete([at])
    registry.group("new").offsets.set(unused, 1)
    seen = NativeOffset(sides.target("moved"), at, 3, "seen")
    brokers.commit({seen.group: {at: seen}, sides.target("more"): {unused: 1}})
    before = tree(registry.client, "/consumers")
    with registry.group("legacy").instance() as instance, join(sides.target("live"), make_topic()):
        instance.register([at.topic])

        report = sides.apply(rows)

        assert sides.numbers("live") == {}
    assert {row.group for row in report if row.outcome is Outcome.WRITTEN} == {"free", "unasked"}
    assert sides.numbers("moved") == {at: 3}
    for name, words in {
        "legacy": f"legacy instances are registered: {instance.id}",
        "rewritten": f"offsets in ZooKeeper were written since the plan: {at}",
        "gone": f"offsets in ZooKeeper were deleted since the plan: {at}",
        "new": f"offsets in ZooKeeper are new since the plan: {unused}",
        "moved": f"offsets of the target have changed since the plan: {at}",
        "more": f"offsets of the target are new since the plan: {unused}",
        "marked": "the group is being moved to Kafka's own offsets as 'elsewhere', by plan plan-2",
        "blocked": "1 refused: past the end",
        "live": "the group has active members on the brokers: anna-",
    }.items():
        [detail] = details(report, sides.target(name))
        assert words in detail
        assert outcomes(row for row in report if row.group == name) == {"left"}
    left = {path: data for path, data in tree(registry.client, "/consumers").items() if path in before}
    assert left == before
    assert sorted(marks.read(registry._context, names)) == ["free", "marked", "unasked"]
    dry = sides.apply(rows, execute=False)
    assert {row.group for row in dry if row.outcome is Outcome.THERE} == {"free", "unasked"}
    with pytest.raises(GuardFailedError, match="plan plan-1 was made without brokers"):
        sides.apply([row._replace(brokers=None) for row in rows])


def test_each_partition_has_its_answer_and_a_partly_written_group_stays_marked_as_moving(sides: Sides) -> None:
    at, beyond = sides.first, TopicPartition("no-such-topic", 3)
    rows = [*sides.plan("some", offsets={at: 7, beyond: 8}), *sides.plan("none", offsets={beyond: 8})]

    assert {(row.group, row.topic): (row.outcome, row.written, row.detail) for row in sides.apply(rows)} == {
        ("some", at.topic): (Outcome.WRITTEN, 7, ""),
        ("some", beyond.topic): (Outcome.FAILED, None, str(UnknownPartitionError(beyond))),
        ("none", beyond.topic): (Outcome.FAILED, None, str(UnknownPartitionError(beyond))),
    }
    assert sides.states("some", "none") == {"some": MarkState.MOVING}


def test_a_group_with_an_unknown_outcome_stays_marked(sides: Sides) -> None:
    def silent(usual: Any, offsets: Any, **options: Any) -> Any:
        usual(offsets, **options)
        return {group: dict.fromkeys(those, OutcomeUnknownError("no answer")) for group, those in offsets.items()}

    report = sides.apply(sides.plan("unknown"), brokers=sides.meddling(commit=silent))
    assert (outcomes(report), sides.states("unknown")) == ({"failed"}, {"unknown": MarkState.MOVING})


def test_an_invalid_name_leaves_only_its_group(sides: Sides) -> None:
    """As in a plan that was edited."""
    bad = {"source": {"group": "a/b"}, "target": {"target": "a/b"}, "free": {}}
    rows = [row._replace(**bad[row.group]) for row in sides.plan(*bad)]

    for run, done in (
        (lambda: sides.apply(rows, execute=False), Outcome.WOULD_WRITE),
        (lambda: sides.apply(rows), Outcome.WRITTEN),
        (lambda: sides.rollback(rows), Outcome.WRITTEN),
    ):
        report = run()
        assert [row.outcome for row in report] == [Outcome.LEFT, Outcome.LEFT, done]
        assert "'a/b' cannot be a group name" in report[0].detail


def test_a_group_whose_messages_were_deleted_since_the_plan_is_left(sides: Sides, make_topic: MakeTopic) -> None:
    """The log was truncated, or the topic recreated, so the offset means other messages or none."""
    cut, anew = sides.first, TopicPartition(make_topic(), 0)
    log = {"log_start": 0, "log_end": 9}
    rows = [*sides.plan("cut", **log), *sides.plan("anew", offsets={anew: 0}, **log)]
    created = b'{"version":1,"partitions":{"0":[0]}}'
    sides.registry.client.create(f"/brokers/topics/{anew.topic}", created, makepath=True)

    report = sides.apply(rows)

    assert outcomes(report) == {"left"}
    assert details(report, sides.target("cut")) == {f"offsets are no longer in the log: {cut}"}
    assert details(report, sides.target("anew")) == {f"topics were recreated since the plan: {anew}"}
    assert sides.states("cut", "anew") == {}


def test_without_zookeeper_its_checks_are_skipped(sides: Sides) -> None:
    rows = sides.plan("lost")
    sides.registry.group("lost").offsets.set(sides.first, 8)
    assert outcomes(sides.apply(rows, registry=None)) == {"written"}
    assert (sides.numbers("lost"), sides.states("lost")) == ({sides.first: 7}, {})
    assert sides.apply([]) == []


# Comparing both sides with the plan


def test_every_row_that_differs_is_reported_with_the_offsets_of_both_sides(sides: Sides, make_topic: MakeTopic) -> None:
    ats = [TopicPartition(topic, number) for topic in [make_topic(6)] for number in range(6)]
    rows = sides.plan("verified", offsets=dict.fromkeys(ats[:5], 7))
    both = sides.brokers, sides.registry
    assert {row.match for row in verify_groups(rows, *both)} == {Match.NOT_WRITTEN}
    assert [it.stage for it in status_of_groups(rows, *both)] == [MigrationStage.NOT_BEGUN]
    sides.apply(rows)
    assert {row.match for row in verify_groups(rows, *both)} == {Match.EQUAL}
    assert [it.stage for it in status_of_groups(rows, *both)] == [MigrationStage.DONE]
    another = [row._replace(plan="another") for row in rows]  # no mark shows that the plan has moved the group
    assert [it.stage for it in status_of_groups(another, *both)] == [MigrationStage.NOT_MARKED]
    assert [it.stage for it in status_of_groups(another, sides.brokers, None)] == [MigrationStage.DONE]

    offsets = sides.registry.group("verified").offsets
    offsets.set_many({ats[1]: 8, ats[5]: 1})
    offsets.delete([ats[2]])
    sides.brokers.commit({sides.target("verified"): {ats[3]: 9, ats[4]: 5}})

    found = {row.partition: row for row in verify_groups(rows, *both)}
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
    asked = verify_groups(rows, sides.brokers, None)
    assert {row.dual_commit for row in asked} == {""}
    without = {row.partition: row.match for row in asked}
    assert without == {**dict.fromkeys(range(3), Match.EQUAL), 3: Match.AHEAD, 4: Match.BEHIND}
    [status] = status_of_groups(rows, *both)
    assert (status.stage, status.as_planned, status.otherwise) == (MigrationStage.MOVED_ON, 3, 2)
    assert status.mark == f"was moved to Kafka's own offsets as {sides.target('verified')!r}, by plan plan-1"


def test_a_group_that_was_followed_does_not_count_as_blocked_when_its_offsets_are_lost(sides: Sides) -> None:
    """It had members when the plan was made. Its offsets on the brokers were deleted later, as by their age."""
    blocked, both = Obstacle.of(ObstacleKind.LEGACY_INSTANCES, ["anna"]), (sides.brokers, sides.registry)
    rows = sides.plan("followed", offsets={sides.first: 0, sides.second: 0}, obstacles=(blocked,))
    assert {row.match for row in verify_groups(rows, *both)} == {Match.BLOCKED}
    [followed] = follow(rows, *both, execute=True, every=0.1)
    assert followed.state is FollowState.DONE
    assert {row.match for row in verify_groups(rows, *both)} == {Match.EQUAL}

    assert not any(sides.brokers.delete_groups([sides.target("followed")]).values())
    assert {row.match for row in verify_groups(rows, *both)} == {Match.NOT_WRITTEN}
    assert [it.stage for it in status_of_groups(rows, *both)] == [MigrationStage.PARTLY]
    sides.rollback(rows)
    assert [it.stage for it in status_of_groups(rows, *both)] == [MigrationStage.BLOCKED]
