"""Offsets are copied back from Kafka to ZooKeeper."""

from __future__ import annotations

import pytest

from zkgroups import Registry, TopicPartition
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.znodes.migration_mark import MarkState
from zkgroups.exceptions import GroupMigratedError
from zkgroups.kafka import Brokers
from zkgroups.zookeeper.admin import migration_marks as marks

from ..conftest import Join
from ..rows import PLAN, plan_of
from .following import (
    ALREADY_MOVED,
    BOTH,
    DONE,
    FOLLOWING,
    JUST_LEFT,
    LEFT,
    READABLE,
    UNREADABLE,
    Run,
    Running,
    commit,
    commit_as_member,
    detail_of,
    foreign,
    mark_as_moved,
    mark_of,
    offsets_of,
    state_of,
)

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]


@BOTH
def test_commits_of_native_members_are_copied_to_zookeeper_until_they_leave(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run, join: Join
) -> None:
    one, two, three = topic
    name = f"of {one.topic}"
    registry.group(name).offsets.set_many({one: 1, two: 50})
    commit(brokers, name, {three: 9})
    rows = plan_of(registry, brokers, {name: name})
    commit(brokers, name, {one: 1, two: 50})
    mark_as_moved(registry, name)
    with join(name, one.topic) as consumer:
        running = run(rows, to_zookeeper=True)
        for number in (4, 9):
            commit_as_member(consumer, {one: number})
            running.until(lambda number=number: offsets_of(registry, name)[one] == number)  # type: ignore[misc]
        with pytest.raises(GroupMigratedError):
            registry.group(name).instance("early").register([one.topic])
        commit_as_member(consumer, {one: 20, two: 60})
    [done] = running.end().values()
    assert (done.state, done.behind) == (DONE, 0)
    assert JUST_LEFT in {told.groups[0].detail for told in running.passes}
    assert offsets_of(registry, name) == {one: 20, two: 60}  # the previous offsets of the target do not matter here
    assert mark_of(registry, name) is None
    registry.group(name).instance("late").register([one.topic])


def test_following_back_writes_nothing_while_an_instance_is_registered_and_never_goes_back(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run, join: Join
) -> None:
    at, names = topic[0], [f"{which} {topic[0].topic}" for which in "abcd"]
    for name in names:
        registry.group(name).offsets.set(at, 5)
    rows = plan_of(registry, brokers, {name: name for name in names})
    for name in names:
        commit(brokers, name, {at: 8, topic[1]: 3})
    registry.group(names[1]).offsets.set(at, 9)
    registry.client.create(f"/consumers/{names[2]}/offsets/{at.topic}/1", b"three")
    mark_as_moved(registry, *names)
    with foreign(registry, names[0]), join(names[3], at.topic):
        running = run(rows, to_zookeeper=True)
        running.until(lambda: how_many_left(running) == 3)
        with foreign(registry, names[3]):
            found = running.end()
    assert [found[name].state for name in names] == [LEFT] * 4
    assert "legacy instances are registered: scala" in found[names[0]].detail
    assert found[names[1]].detail == f"{at}: expected 8, found 9"
    assert found[names[2]].detail == f"{topic[1]}: target unknown"
    assert "legacy instances are registered: scala" in found[names[3]].detail
    assert offsets_of(registry, names[0]) == {at: 5}
    assert offsets_of(registry, names[1]) == {at: 9, topic[1]: 3}
    assert registry.client.get(f"/consumers/{names[2]}/offsets/{at.topic}/1")[0] == b"three"


def test_following_back_leaves_groups_that_this_plan_has_not_moved(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run
) -> None:
    at, names = topic[0], [f"{which} {topic[0].topic}" for which in ("blocked", "theirs", "begun")]
    for name in names:
        registry.group(name).offsets.set(at, 5)
    rows = plan_of(registry, brokers, {name: name for name in names})
    mark_as_moved(registry, names[0])
    marks.put(registry._context, {names[2]: names[2]}, plan=PLAN, state=MarkState.MOVING)
    rows[0] = rows[0]._replace(obstacles=(Obstacle.of(ObstacleKind.NATIVE_MEMBERS, ["anna"]),))
    for name in names:
        commit(brokers, name, {at: 8})
    found = run(rows, to_zookeeper=True).end()
    assert [(found[name].state, found[name].detail) for name in names] == [
        (LEFT, "the group has active members on the brokers: anna"),
        (LEFT, "the group has no mark of this plan in ZooKeeper"),
        (DONE, ""),
    ]
    assert [offsets_of(registry, name)[at] for name in names] == [5, 5, 8]


def test_a_group_that_an_earlier_run_has_finished_is_reported_as_already_moved(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run, join: Join
) -> None:
    at, names = topic[0], [f"{which} {topic[0].topic}" for which in ("first", "second", "restored", "ahead")]
    for name in names:
        registry.group(name).offsets.set(at, 5)
    commit(brokers, names[2], {at: 3})
    rows = plan_of(registry, brokers, {name: name for name in names})
    mark_as_moved(registry, *names[:2])
    commit(brokers, names[0], {at: 8})
    commit(brokers, names[3], {at: 8})
    with join(names[1], at.topic) as consumer:
        commit_as_member(consumer, {at: 7})
        running = run(rows, to_zookeeper=True)
        running.until(lambda: mark_of(registry, names[0]) is None and offsets_of(registry, names[1]) == {at: 7})
        running.stop.set()
        assert running.end()[names[0]].state is DONE
    with foreign(registry, names[0]):
        registry.client.set(f"/consumers/{names[0]}/offsets/{at.topic}/0", b"9")
        found = run(rows, to_zookeeper=True).end()
    assert [found[name].state for name in names] == [ALREADY_MOVED, DONE, LEFT, LEFT]
    not_marked = str(Obstacle(ObstacleKind.NOT_MARKED))
    assert [found[name].detail for name in names] == ["", "", not_marked, not_marked]
    assert [offsets_of(registry, name)[at] for name in names] == [9, 7, 5, 5]


def test_following_back_reports_forbidden_topics_until_they_can_be_read(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run
) -> None:
    at, name = topic[0], f"of {topic[0].topic}"
    registry.group(name).offsets.set(at, 5)
    rows = plan_of(registry, brokers, {name: name})
    mark_as_moved(registry, name)
    commit(brokers, name, {at: 8})
    path = f"/consumers/{name}/offsets"
    registry.client.set_acls(path, UNREADABLE)
    running = run(rows, to_zookeeper=True)
    running.until(lambda: detail_of(running, name) == "no permission to read offsets in ZooKeeper: all")
    assert (state_of(running, name), registry.client.get(f"{path}/{at.topic}/0")[0]) == (FOLLOWING, b"8")
    registry.client.set_acls(path, READABLE)
    assert running.end()[name].state is DONE


def how_many_left(running: Running) -> int:
    return sum(each.state is LEFT for told in running.passes[-1:] for each in told.groups)
