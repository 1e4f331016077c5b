"""Offsets are copied from ZooKeeper to Kafka while members work."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import Any

import pytest

from tests.kafka.conftest import Writer
from tests.testing.waiting import eventually
from zkgroups import Member, Registry, TopicPartition
from zkgroups.core.migration.offset_decision import Action, OutOfRange, Reason, Rule
from zkgroups.exceptions import GroupMigratedError
from zkgroups.kafka import Brokers
from zkgroups.testing import KafkaBroker
from zkgroups.zookeeper.admin.migration_target_locks import MigrationTargetLocks

from ...seeds import seed
from ..conftest import Join
from ..rows import numbers, plan_of
from .following import (
    _LONGEST,
    BOTH,
    DONE,
    FOLLOWING,
    LEFT,
    LIVE,
    READABLE,
    UNREADABLE,
    Run,
    commit,
    detail_of,
    foreign,
    mark_of,
    offsets_of,
    remove_mark,
    state_of,
)

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]


@BOTH
def test_commits_of_a_member_are_copied_until_it_leaves_and_then_both_sides_agree(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run
) -> None:
    one, two, three = topic
    name = f"of {one.topic}"
    group = registry.group(name)
    group.offsets.set(one, 1)
    rows = plan_of(registry, brokers, {name: name}, obstacles=LIVE)
    with Member(group, [one.topic], partitions=lambda _: range(3)) as member:
        generation = next(member.generations())
        running = run(rows)
        running.more_passes(1)
        for number in (3, 8, 30):
            generation.commit({one: number, two: number - 1})
            running.until(lambda number=number: numbers(brokers, name).get(two) == number - 1)  # type: ignore[misc]
        assert numbers(brokers, name) == {one: 30, two: 29}
        assert {each.state for told in running.passes for each in told.groups} == {FOLLOWING}
        assert mark_of(registry, name) is None
        generation.commit({three: 7})
    [done] = running.end().values()
    assert (done.state, done.behind, done.detail) == (DONE, 0, "")
    assert numbers(brokers, name) == {one: 30, two: 29, three: 7}
    assert mark_of(registry, name) == "moved"
    assert running.passes[0].behind == 1
    with pytest.raises(GroupMigratedError):
        group.instance("late").register([one.topic])


@BOTH
def test_a_target_locked_by_another_plan_is_left_and_locks_are_released_at_the_end(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run
) -> None:
    at = topic[0]
    targets = {name: f"{name}-{at.topic}" for name in ("taken", "free")}
    for name in targets:
        registry.group(name).offsets.set(at, 7)
    rows = plan_of(registry, brokers, targets)
    locks = MigrationTargetLocks(registry._context, cluster=None, plan="plan-2")
    assert locks.take([targets["taken"]]) == {targets["taken"]: None}

    found = run(rows).end()

    assert (found["taken"].state, found["free"].state) == (LEFT, DONE)
    assert "plan plan-2 is writing to" in found["taken"].detail
    assert (numbers(brokers, targets["taken"]), numbers(brokers, targets["free"])) == ({}, {at: 7})
    assert registry.client.get_children("/zkgroups/targets") == [f":{targets['taken']}"]


def test_a_group_with_a_native_member_is_left_and_others_are_followed(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run, join: Join
) -> None:
    at, names = topic[0], [f"{which} {topic[0].topic}" for which in "abc"]
    for name in names:
        registry.group(name).offsets.set(at, 5)
    commit(brokers, names[2], {at: 5})  # there is nothing to write
    rows = plan_of(registry, brokers, {name: name for name in names})
    with foreign(registry, names[1]), join(names[0], at.topic), join(names[2], at.topic):
        with foreign(registry, names[0]):
            running = run(rows)
            running.until(lambda: numbers(brokers, names[1]) == {at: 5})
            running.more_passes()
            [a, b, c] = running.passes[-1].groups
            assert (a.state, b.state, c.state) == (LEFT, FOLLOWING, LEFT)
            assert "anna" in a.detail
            registry.group(names[1]).offsets.set(at, 6)
            running.until(lambda: numbers(brokers, names[1]) == {at: 6})
        assert (numbers(brokers, names[0]), numbers(brokers, names[2])) == ({}, {at: 5})
        assert [mark_of(registry, name) for name in names] == [None] * 3
    found = running.end()
    assert [found[name].state for name in names] == [LEFT, DONE, LEFT]
    assert [mark_of(registry, name) for name in names] == [None, "moved", None]


def test_offsets_that_become_forbidden_are_reported_and_prevent_done(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run
) -> None:
    at, parts = topic[0], ("offsets", f"offsets/{topic[0].topic}", f"offsets/{topic[0].topic}/0", "offsets/other")
    names = [f"{number} {at.topic}" for number in range(len(parts))]
    paths = [f"/consumers/{name}/{part}" for name, part in zip(names, parts, strict=True)]
    for name in names:
        registry.group(name).offsets.set_many({at: 5, TopicPartition("other", 0): 1})
    rows = plan_of(registry, brokers, {name: name for name in names}, topics="moved.*")
    rows = [row for row in rows if row.topic == at.topic]
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(foreign(registry, name))
        running = run(rows)
        running.until(lambda: all(numbers(brokers, name) == {at: 5} for name in names))
        for name, path in zip(names, paths, strict=True):
            registry.group(name).offsets.set(at, 9)
            registry.client.set_acls(path, UNREADABLE)
    running.until(lambda: state_of(running, names[3]) is DONE)  # nodes of groups that are not followed may be forbidden
    running.more_passes(4)
    told = [f"no permission to read offsets in ZooKeeper: {place}" for place in ("all", at.topic, at)]
    assert [detail_of(running, name) for name in names[:3]] == told
    assert [state_of(running, name) for name in names[:3]] == [FOLLOWING] * 3
    assert [mark_of(registry, name) for name in names[:3]] == [None] * 3
    for path in paths:
        registry.client.set_acls(path, READABLE)
    assert {each.state for each in running.end().values()} == {DONE}
    assert [numbers(brokers, name) for name in names] == [{at: 9}] * 4


def test_a_group_whose_instances_become_forbidden_is_reported_and_not_cut_over(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run
) -> None:
    at, name = topic[0], f"of {topic[0].topic}"
    ids = f"/consumers/{name}/ids"
    registry.group(name).offsets.set(at, 5)
    rows = plan_of(registry, brokers, {name: name})
    with foreign(registry, name):
        running = run(rows)
        running.until(lambda: numbers(brokers, name) == {at: 5})
        registry.client.set_acls(ids, UNREADABLE)
    running.more_passes(3)
    assert (state_of(running, name), mark_of(registry, name)) == (FOLLOWING, None)
    assert ids in detail_of(running, name)
    registry.client.set_acls(ids, READABLE)
    assert running.end()[name].state is DONE


def test_skipped_offsets_are_reported_and_refused_offsets_end_following_at_the_cutover(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run
) -> None:
    """Past the end, moved back, missing, stale, not selected, target ahead; and offsets that become valid meanwhile."""
    one, two, three = topic
    names = dict(zip(("past", "back", "fine"), (f"{which} {one.topic}" for which in ("p", "b", "f")), strict=True))
    past, back, fine = (registry.group(name).offsets for name in names.values())
    past.set_many({one: 101, two: 1})
    back.set(one, 9)
    fine.set_many({one: 5, two: 6, three: 7, TopicPartition("not-there", 0): 8})
    registry.group(names["fine"]).offsets.set(TopicPartition("not-chosen", 0), 9)
    commit(brokers, names["fine"], {three: 8})
    rows = plan_of(registry, brokers, {name: name for name in names.values()}, topics="moved.*|not-there")
    skipped = {6: Reason.STALE, 8: Reason.NO_TOPIC}
    rows = [
        each._replace(action=Action.SKIP, reason=skipped[each.offset]) if each.offset in skipped else each
        for each in rows
    ]
    rows = [each for each in rows if each.topic != "not-chosen"]
    with foreign(registry, names["past"]), foreign(registry, names["back"]):
        running = run(rows)
        running.until(lambda: numbers(brokers, names["back"]) == {one: 9} and mark_of(registry, names["fine"]))
        running.more_passes(1)
        assert numbers(brokers, names["past"]) == {two: 1}
        assert f"{one}: past the end" in running.passes[-1].groups[0].detail
        back.reset({one: 4}, force=True)
    found = running.end()
    assert [found[name].state for name in names.values()] == [LEFT, LEFT, DONE]
    assert found[names["past"]].detail == f"{one}: past the end"
    assert found[names["back"]].detail == f"{one}: expected 4, found 9"
    assert found[names["fine"]].detail == "1 skipped: no such topic; 1 skipped: target ahead"
    assert numbers(brokers, names["fine"]) == {one: 5, three: 8}
    assert numbers(brokers, names["back"]) == {one: 9}
    assert mark_of(registry, names["past"]) is mark_of(registry, names["back"]) is None
    past.reset({one: 99})
    fine.set(two, 7)  # no longer stale
    remove_mark(registry, names["fine"])
    assert {each.state for each in run(rows).end().values()} == {DONE, LEFT}
    assert numbers(brokers, names["past"]) == {one: 99, two: 1}
    assert numbers(brokers, names["fine"])[two] == 7
    last = run([row for row in rows if row.group == names["back"]], rule=Rule(OutOfRange.LATEST, backward=True))
    assert last.end()[names["back"]].state is LEFT
    assert numbers(brokers, names["back"]) == {one: 9}


def test_a_group_whose_planned_topic_is_deleted_is_left(
    registry: Registry, broker: KafkaBroker, brokers: Brokers, topic: list[TopicPartition], run: Run
) -> None:
    name = f"of {topic[0].topic}"
    registry.group(name).offsets.set_many(dict.fromkeys(topic, 10))
    rows = plan_of(registry, brokers, {name: name})
    writer = Writer(broker.address)
    with foreign(registry, name):
        running = run(rows)
        running.until(lambda: len(numbers(brokers, name)) == len(topic))
        writer.admin.delete_topics([topic[0].topic])[topic[0].topic].result()
        assert eventually(lambda: not brokers.partitions([topic[0].topic]), timeout=_LONGEST)
        registry.group(name).offsets.set(topic[1], 20)
        running.until(lambda: running.passes[-1].groups[0].detail == f"{topic[1]}: no such topic")
    found = running.end()[name]
    assert (found.state, found.detail) == (LEFT, "; ".join(f"{at}: no such topic" for at in topic))
    assert mark_of(registry, name) is None


def test_offsets_that_are_older_than_their_topic_are_not_copied(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run
) -> None:
    at, name = topic[0], f"of {topic[0].topic}"
    registry.group(name).offsets.set(at, 5)
    rows = plan_of(registry, brokers, {name: name})
    registry.client.create(f"/brokers/topics/{at.topic}", b'{"version":1,"partitions":{"0":[1]}}', makepath=True)
    registry.group(name).offsets.set(topic[1], 3)
    found = run(rows).end()[name]
    assert (found.state, found.detail) == (LEFT, f"{at}: older than its topic")
    assert numbers(brokers, name) == {topic[1]: 3}
    found = run([row._replace(action=Action.SKIP, reason=Reason.OLDER) for row in rows]).end()[name]
    assert (found.state, found.detail) == (DONE, "1 skipped: older than its topic"), "the plan says so"


@pytest.mark.parametrize("steps", [15, pytest.param(300, marks=pytest.mark.soak)])
def test_with_random_members_and_commits_no_offset_goes_back_and_both_sides_agree_at_the_end(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run, steps: int
) -> None:
    chance = random.Random(seed())
    names = [f"{which} {topic[0].topic}" for which in "abc"]
    for name in names:
        registry.group(name).offsets.set(topic[0], 0)
    rows = plan_of(registry, brokers, {name: name for name in names})
    highest = {name: numbers(brokers, name) for name in names}
    with ExitStack() as last, foreign(registry, names[2]):  # so that following continues
        working = {name: last.enter_context(ExitStack()) for name in names[:2]}
        running = run(rows, every=0.02)
        for _ in range(steps):
            name = chance.choice(names)
            if name in working and chance.random() < 0.5:
                working[name].close()
                if chance.random() < 0.6:
                    working[name].enter_context(foreign(registry, name))
            go_on(registry.group(name).offsets, chance.sample(topic, 2), chance)
            if chance.random() < 0.5:
                running.more_passes(1)
            found = {name: numbers(brokers, name) for name in names}
            assert all(found[name].get(at, -1) >= was for name in names for at, was in highest[name].items())
            highest = found
    assert {each.state for each in running.end().values()} == {DONE}
    for name in names:
        assert numbers(brokers, name) == offsets_of(registry, name)
        assert mark_of(registry, name) == "moved"


def go_on(offsets: Any, partitions: list[TopicPartition], chance: random.Random) -> None:
    """Commit random progress."""
    for at in partitions:
        found = offsets.fetch(at)
        last = found.offset if found else 0
        offsets.set(at, chance.randint(last, min(100, last + 9)))
