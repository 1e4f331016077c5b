"""Applying plans to whole groups on a real broker: every check, every outcome, and repeated runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zkgroups import Registry, TopicPartition
from zkgroups.core.kafka_values import NativeOffset
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.offset_decision import Action, Reason
from zkgroups.core.migration.plan_rows import Outcome
from zkgroups.core.znodes.migration_mark import Mark, MarkState
from zkgroups.exceptions import GroupMigratedError, GuardFailedError, OutcomeUnknownError
from zkgroups.kafka import Brokers
from zkgroups.kafka.commit_offsets import Outcomes
from zkgroups.kafka.sendable import Offsets
from zkgroups.migration.apply import apply_groups
from zkgroups.migration.rollback import rollback_groups
from zkgroups.testing import KafkaBroker
from zkgroups.zookeeper.admin import migration_marks as marks

from .conftest import Join, MakeTopic
from .rows import PLAN, details, numbers, outcomes, plan_of, states, tree

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]


ODD = "größe: a b"


@pytest.fixture(params=["kafka_broker", pytest.param("legacy_kafka", marks=pytest.mark.soak)])
def either(request: pytest.FixtureRequest) -> KafkaBroker:
    """Each of both brokers."""
    found: KafkaBroker = request.getfixturevalue(request.param)
    return found


def test_groups_are_moved_and_marked_and_a_dry_run_changes_nothing(registry: Registry, either: KafkaBroker) -> None:
    topic = f"applied-{either.release}"
    either.create_topic(topic, 1100)
    large = {TopicPartition(topic, number): number for number in range(1100)}
    zero = TopicPartition(topic, 0)
    registry.group("large").offsets.set_many(large)
    registry.group(ODD).offsets.set(zero, 2**63 - 1)
    registry.client.create(f"/consumers/{ODD}/offsets/{topic}/1", b"-1")
    with Brokers.connect(either.address) as brokers:
        rows = plan_of(registry, brokers, {"large": f"large-{topic}", ODD: ODD})
        before = tree(registry.client, "/consumers")

        dry = apply_groups(rows, brokers, registry, execute=False)

        assert [row.outcome for row in dry[-2:]] == [Outcome.WOULD_WRITE, Outcome.SKIPPED]
        assert tree(registry.client, "/consumers") == before
        assert numbers(brokers, f"large-{topic}") == numbers(brokers, ODD) == {}

        report = apply_groups(rows, brokers, registry, execute=True)

        assert [(row.group, row.topic, row.partition) for row in report] == [
            (row.group, row.topic, row.partition) for row in rows
        ]
        assert {(row.outcome, row.written == plan.planned) for row, plan in zip(report, rows, strict=True)} == {
            (Outcome.WRITTEN, True),
            (Outcome.SKIPPED, True),
        }
        assert numbers(brokers, f"large-{topic}") == large
        assert numbers(brokers, ODD) == {zero: 2**63 - 1}
        again = apply_groups(rows, brokers, registry, execute=True)
        assert outcomes(again) == {"already there", "skipped"}
        assert numbers(brokers, f"large-{topic}") == large
    mark = marks.read(registry._context, ["large"])["large"]
    assert isinstance(mark, Mark)
    assert (mark.plan, mark.target, mark.state) == (PLAN, f"large-{topic}", MarkState.MOVED)
    with pytest.raises(GroupMigratedError), registry.group("large").instance() as instance:
        instance.register([topic])


def test_every_guard_leaves_its_group_and_no_other(
    registry: Registry, brokers: Brokers, make_topic: MakeTopic, join: Join
) -> None:
    topic, other = make_topic(), make_topic()
    at, unused = TopicPartition(topic, 0), TopicPartition(topic, 1)
    names = ["legacy", "rewritten", "gone", "new", "moved", "more", "marked", "blocked", "unasked", "live", "free"]
    targets = {name: f"{name}-{topic}" for name in names}
    brokers.commit({targets["moved"]: {at: 3}})
    for name in names:
        registry.group(name).offsets.set(at, 7)
    rows = plan_of(registry, brokers, targets)
    refused = Obstacle(ObstacleKind.REFUSED_OFFSETS, count=1, reason=Reason.PAST_END)
    rows = [replace(row, obstacles=(refused,)) if row.group == "blocked" else row for row in rows]
    marks.put(registry._context, {"marked": "elsewhere"}, plan="plan-2", state=MarkState.MOVING)
    registry.group("rewritten").offsets.set(at, 7)
    registry.group("gone").offsets.delete([at])
    registry.group("new").offsets.set(unused, 1)
    brokers.commit(
        {targets["moved"]: {at: NativeOffset(targets["moved"], at, 3, "seen")}, targets["more"]: {unused: 1}}
    )
    before = tree(registry.client, "/consumers")
    with registry.group("legacy").instance() as instance, join(targets["live"], other):
        instance.register([topic])

        report = apply_groups(rows, brokers, registry, execute=True)

        assert numbers(brokers, targets["live"]) == {}
    assert {row.target for row in report if row.outcome is Outcome.WRITTEN} == {targets["free"], targets["unasked"]}
    assert numbers(brokers, targets["moved"]) == {at: 3}
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
        [detail] = details(report, targets[name])
        assert words in detail
        assert outcomes(row for row in report if row.group == name) == {"left"}
    left = {path: data for path, data in tree(registry.client, "/consumers").items() if path in before}
    assert left == before
    found = marks.read(registry._context, names)
    assert sorted(found) == ["free", "marked", "unasked"]
    dry = apply_groups(rows, brokers, registry, execute=False)
    assert {row.target for row in dry if row.outcome is Outcome.THERE} == {targets["free"], targets["unasked"]}


def test_each_partition_has_its_answer_and_a_partly_written_group_stays_marked_as_moving(
    registry: Registry, brokers: Brokers, make_topic: MakeTopic
) -> None:
    at, beyond = TopicPartition(make_topic(), 0), TopicPartition("no-such-topic", 3)
    registry.group("some").offsets.set_many({at: 7, beyond: 8})
    registry.group("none").offsets.set(beyond, 8)
    targets = {name: f"{name}-{at.topic}" for name in ("some", "none")}

    report = apply_groups(plan_of(registry, brokers, targets), brokers, registry, execute=True)

    assert {(row.group, row.topic): (row.outcome, row.written, row.detail) for row in report} == {
        ("some", at.topic): (Outcome.WRITTEN, 7, ""),
        ("some", beyond.topic): (Outcome.FAILED, None, f"the brokers have no partition {beyond}"),
        ("none", beyond.topic): (Outcome.FAILED, None, f"the brokers have no partition {beyond}"),
    }
    assert states(registry, targets) == {"some": MarkState.MOVING}


def test_an_invalid_name_leaves_only_its_group(registry: Registry, brokers: Brokers, make_topic: MakeTopic) -> None:
    """As in a plan that was edited."""
    at = TopicPartition(make_topic(), 0)
    targets = {name: f"{name}-{at.topic}" for name in ("source", "target", "free")}
    for name in targets:
        registry.group(name).offsets.set(at, 7)
    bad = {"source": {"group": "a/b"}, "target": {"target": "a/b"}, "free": {}}
    rows = [replace(row, **bad[row.group]) for row in plan_of(registry, brokers, targets)]

    for execute, done in ((False, Outcome.WOULD_WRITE), (True, Outcome.WRITTEN)):
        report = apply_groups(rows, brokers, registry, execute=execute)
        assert [row.outcome for row in report] == [Outcome.LEFT, Outcome.LEFT, done]
        assert "not a valid group name: group 'a/b'" in report[0].detail
    report = rollback_groups(rows, brokers, registry, execute=True)
    assert [row.outcome for row in report] == [Outcome.LEFT, Outcome.LEFT, Outcome.WRITTEN]


def test_a_group_whose_messages_were_deleted_since_the_plan_is_left(
    registry: Registry, brokers: Brokers, make_topic: MakeTopic
) -> None:
    """The log was truncated, or the topic recreated, so the offset means other messages or none."""
    cut, anew = (TopicPartition(make_topic(), 0) for _ in range(2))
    targets = {name: f"{name}-{cut.topic}" for name in ("cut", "anew")}
    registry.group("cut").offsets.set(cut, 7)
    registry.group("anew").offsets.set(anew, 0)
    rows = plan_of(registry, brokers, targets, log_start=0, log_end=9)
    registry.client.create(f"/brokers/topics/{anew.topic}", b'{"version":1,"partitions":{"0":[0]}}', makepath=True)

    report = apply_groups(rows, brokers, registry, execute=True)

    assert outcomes(report) == {"left"}
    assert details(report, targets["cut"]) == {f"offsets are no longer in the log: {cut}"}
    assert details(report, targets["anew"]) == {f"topics were recreated since the plan: {anew}"}
    assert states(registry, targets) == {}


def test_a_group_with_only_skipped_offsets_is_not_marked(
    registry: Registry, brokers: Brokers, make_topic: MakeTopic
) -> None:
    at = TopicPartition(make_topic(), 0)
    registry.group("skipped").offsets.set(at, 7)
    targets = {"skipped": f"skipped-{at.topic}"}
    rows = plan_of(registry, brokers, targets)
    nothing = [replace(row, action=Action.SKIP, reason=Reason.NO_TOPIC, planned=None) for row in rows]

    assert outcomes(apply_groups(nothing, brokers, registry, execute=True)) == {"skipped"}

    assert states(registry, targets) == {}


def test_a_group_with_an_unknown_outcome_stays_marked(
    registry: Registry, broker: KafkaBroker, make_topic: MakeTopic
) -> None:
    at = TopicPartition(make_topic(), 0)
    registry.group("unknown").offsets.set(at, 7)
    targets = {"unknown": f"unknown-{at.topic}"}

    class Silent(Brokers):
        def commit(self, offsets: Offsets) -> Outcomes:
            super().commit(offsets)
            return {group: dict.fromkeys(those, OutcomeUnknownError("no answer")) for group, those in offsets.items()}

    with Silent.connect(broker.address) as brokers:
        assert outcomes(apply_groups(plan_of(registry, brokers, targets), brokers, registry, execute=True)) == {
            "failed"
        }

    assert states(registry, targets) == {"unknown": MarkState.MOVING}


def test_a_repeated_run_finishes_or_leaves_the_group_of_a_killed_run(
    registry: Registry, broker: KafkaBroker, make_topic: MakeTopic
) -> None:
    topic = make_topic(3)
    wanted = {TopicPartition(topic, number): number + 5 for number in range(3)}
    targets = {name: f"{name}-{topic}" for name in ("first", "second")}
    for name in targets:
        registry.group(name).offsets.set_many(wanted)

    class Killed(Brokers):
        def commit(self, offsets: Offsets) -> Outcomes:
            some = dict(list(offsets[targets["first"]].items())[:1])
            super().commit({targets["first"]: some})
            raise KeyboardInterrupt

    with Killed.connect(broker.address) as dying, Brokers.connect(broker.address) as brokers:
        rows = plan_of(registry, brokers, targets)
        with pytest.raises(KeyboardInterrupt):
            apply_groups(rows, dying, registry, execute=True)
        assert states(registry, targets) == {"first": MarkState.MOVING, "second": MarkState.MOVING}
        registry.group("second").offsets.set(TopicPartition(topic, 0), 9)

        report = apply_groups(rows, brokers, registry, execute=True)

        assert outcomes(row for row in report if row.group == "first") == {"written", "already there"}
        assert outcomes(row for row in report if row.group == "second") == {"left"}
        assert numbers(brokers, targets["first"]) == wanted
        assert numbers(brokers, targets["second"]) == {}
    assert states(registry, targets) == {"first": MarkState.MOVED}


def test_without_zookeeper_its_checks_are_skipped(registry: Registry, brokers: Brokers, make_topic: MakeTopic) -> None:
    at = TopicPartition(make_topic(), 0)
    registry.group("lost").offsets.set(at, 7)
    rows = plan_of(registry, brokers, {"lost": f"lost-{at.topic}"})
    registry.group("lost").offsets.set(at, 8)

    assert outcomes(apply_groups(rows, brokers, None, execute=True)) == {"written"}

    assert numbers(brokers, f"lost-{at.topic}") == {at: 7}
    assert states(registry, ["lost"]) == {}
    assert apply_groups([], brokers, registry, execute=True) == []


def test_a_new_offset_of_a_topic_outside_the_plan_is_not_an_obstacle(
    registry: Registry, brokers: Brokers, make_topic: MakeTopic
) -> None:
    at = TopicPartition(make_topic(), 0)
    registry.group("chosen").offsets.set(at, 7)
    rows = plan_of(registry, brokers, {"chosen": f"chosen-{at.topic}"}, topics="moved-.*")
    registry.group("chosen").offsets.set(TopicPartition("other", 0), 7)

    assert outcomes(apply_groups(rows, brokers, registry, execute=True)) == {"written"}


def test_a_plan_made_without_brokers_is_refused(registry: Registry, brokers: Brokers, make_topic: MakeTopic) -> None:
    at = TopicPartition(make_topic(), 0)
    registry.group("unasked").offsets.set(at, 7)
    [row] = plan_of(registry, brokers, {"unasked": f"unasked-{at.topic}"})

    with pytest.raises(GuardFailedError, match="plan plan-1 was made without brokers"):
        apply_groups([replace(row, brokers=None)], brokers, registry, execute=True)
