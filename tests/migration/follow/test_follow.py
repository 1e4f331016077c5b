"""Offsets are copied from ZooKeeper to Kafka while members work, until the cutover, and back.

tests/core/migration/test_follow_rules.py has the rules.
"""

from __future__ import annotations

import random
from contextlib import ExitStack

import pytest

from zkgroups import Member, TopicPartition
from zkgroups.core.migration.follow_rules import FollowPass
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.offset_decision import Action, Policy, Reason, Rule
from zkgroups.core.znodes.own_nodes import MarkState
from zkgroups.exceptions import GroupMigratedError
from zkgroups.zookeeper.admin.migration_marks import MigrationTargetLocks

from ...seeds import seed
from ..conftest import BOTH, Join
from .conftest import (
    ALREADY_MOVED,
    DONE,
    FOLLOWING,
    JUST_LEFT,
    LEFT,
    LIVE,
    READABLE,
    UNREADABLE,
    Meddling,
    Scene,
    commit_as_member,
    detail_of,
    state_of,
)

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]


@BOTH
def test_commits_of_a_member_are_copied_until_it_leaves_and_then_both_sides_agree(scene: Scene) -> None:
    one, two, three = scene.ats
    [name] = scene.names()
    group = scene.registry.group(name)
    rows = scene.plan(name, offsets={one: 1}, obstacles=LIVE)
    with Member(group, [one.topic], partitions=lambda _: range(3)) as member:
        generation = next(member.generations())
        running = scene.run(rows)
        running.more_passes(1)
        for number in (3, 30):
            generation.commit({one: number, two: number - 1})
            running.until(lambda number=number: scene.numbers(name).get(two) == number - 1)  # type: ignore[misc]
        assert scene.numbers(name) == {one: 30, two: 29}
        assert {each.state for told in running.passes for each in told.groups} == {FOLLOWING}
        assert scene.mark_of(name) is None
        generation.commit({three: 7})
    [done] = running.end().values()
    assert (done.state, done.behind, done.detail) == (DONE, 0, "")
    assert scene.numbers(name) == {one: 30, two: 29, three: 7}
    assert scene.mark_of(name) == "moved"
    assert running.passes[0].behind == 1
    with pytest.raises(GroupMigratedError):
        group.instance("late").register([one.topic])


def test_a_target_locked_by_another_plan_is_left_and_locks_are_released_at_the_end(scene: Scene) -> None:
    taken, free = scene.names("ab")
    rows = scene.plan(taken, free)
    locks = MigrationTargetLocks(scene.registry._context, cluster=None, plan="plan-2")
    assert locks.take([taken]) == {taken: None}

    found = scene.run(rows).end()

    assert (found[taken].state, found[free].state) == (LEFT, DONE)
    assert "plan plan-2 is writing to" in found[taken].detail
    assert (scene.numbers(taken), scene.numbers(free)) == ({}, {scene.ats[0]: 5})
    assert scene.registry.client.get_children("/zkgroups/targets") == [f":{taken}"]


def test_a_group_with_a_native_member_is_left_and_others_are_followed(scene: Scene, join: Join) -> None:
    at, names = scene.ats[0], scene.names("abc")
    rows = scene.plan(*names)
    scene.commit(names[2], {at: 5})  # there is nothing to write
    with scene.foreign(names[1]), join(names[0], at.topic), join(names[2], at.topic):
        with scene.foreign(names[0]):
            running = scene.run(rows)
            running.until(lambda: scene.numbers(names[1]) == {at: 5})
            running.more_passes()
            assert [state_of(running, name) for name in names] == [LEFT, FOLLOWING, LEFT]
            assert "anna" in detail_of(running, names[0])
            scene.set(names[1], {at: 6})
            running.until(lambda: scene.numbers(names[1]) == {at: 6})
        assert (scene.numbers(names[0]), scene.numbers(names[2])) == ({}, {at: 5})
    found = running.end()
    assert [found[name].state for name in names] == [LEFT, DONE, LEFT]
    assert [scene.mark_of(name) for name in names] == [None, "moved", None]


def test_nodes_that_become_forbidden_are_reported_and_prevent_done(scene: Scene) -> None:
    at, other = scene.ats[0], TopicPartition("other", 0)
    parts = ("offsets", f"offsets/{at.topic}", f"offsets/{at.topic}/0", "ids", "offsets/other")
    names = scene.names("abcde")
    paths = [f"/consumers/{name}/{part}" for name, part in zip(names, parts, strict=True)]
    rows = [row for row in scene.plan(*names, offsets={at: 5, other: 1}, topics="moved.*") if row.topic == at.topic]
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(scene.foreign(name))
        running = scene.run(rows)
        running.until(lambda: all(scene.numbers(name) == {at: 5} for name in names))
        for name, path in zip(names, paths, strict=True):
            scene.set(name, {at: 9})
            scene.registry.client.set_acls(path, UNREADABLE)
    running.until(lambda: state_of(running, names[4]) is DONE)  # nodes of topics that are not followed may be forbidden
    running.more_passes(4)
    told = [f"no permission to read offsets in ZooKeeper: {place}" for place in ("all", at.topic, at)]
    assert [detail_of(running, name) for name in names[:3]] == told
    assert paths[3] in detail_of(running, names[3])
    assert [state_of(running, name) for name in names[:4]] == [FOLLOWING] * 4
    assert [scene.mark_of(name) for name in names[:4]] == [None] * 4
    for path in paths:
        scene.registry.client.set_acls(path, READABLE)
    assert {each.state for each in running.end().values()} == {DONE}
    assert [scene.numbers(name) for name in names] == [{at: 9}] * 5


def test_offsets_that_are_older_than_their_topic_are_not_copied(scene: Scene) -> None:
    at, later, _ = scene.ats
    [name] = scene.names()
    rows = scene.plan(name)
    created = b'{"version":1,"partitions":{"0":[1]}}'
    scene.registry.client.create(f"/brokers/topics/{at.topic}", created, makepath=True)
    scene.set(name, {later: 3})
    found = scene.run(rows).end()[name]
    assert (found.state, found.detail) == (LEFT, f"{at}: older than its topic")
    assert scene.numbers(name) == {later: 3}
    skipped = {"action": Action.SKIP, "reason": Reason.OLDER, "rule": str(Rule(Policy.SKIP))}
    found = scene.run([row._replace(**skipped) for row in rows]).end()[name]
    assert (found.state, found.detail) == (DONE, "1 skipped: older than its topic"), "the plan says so"


@pytest.mark.parametrize("steps", [15, pytest.param(300, marks=pytest.mark.soak)])
def test_with_random_members_and_commits_no_offset_goes_back_and_both_sides_agree_at_the_end(
    scene: Scene, steps: int
) -> None:
    chance, names = random.Random(seed()), scene.names("abc")
    rows = scene.plan(*names, offsets={scene.ats[0]: 0})
    highest = {name: scene.numbers(name) for name in names}
    with ExitStack() as last, scene.foreign(names[2]):  # so that following continues
        working = {name: last.enter_context(ExitStack()) for name in names[:2]}
        running = scene.run(rows, every=0.02)
        for _ in range(steps):
            name = chance.choice(names)
            if name in working and chance.random() < 0.5:
                working[name].close()
                if chance.random() < 0.6:
                    working[name].enter_context(scene.foreign(name))
            now = scene.offsets(name)
            scene.set(name, {at: min(100, now.get(at, 0) + chance.randint(0, 9)) for at in chance.sample(scene.ats, 2)})
            if chance.random() < 0.5:
                running.more_passes(1)
            found = {name: scene.numbers(name) for name in names}
            assert all(found[name].get(at, -1) >= was for name in names for at, was in highest[name].items())
            highest = found
    assert {each.state for each in running.end().values()} == {DONE}
    for name in names:
        assert scene.numbers(name) == scene.offsets(name)
        assert scene.mark_of(name) == "moved"


# The cutover


def test_an_instance_that_registers_during_the_cutover_is_followed(scene: Scene) -> None:
    """Another client ignores the mark and commits."""
    at, other, _ = scene.ats
    [name] = scene.names()
    rows = scene.plan(name)
    marked: list[str | None] = []

    def come() -> None:
        marked.append(scene.mark_of(name))
        scene.registry.client.create(f"/consumers/{name}/ids/scala", b"{}", ephemeral=True, makepath=True)
        scene.set(name, {at: 6})

    def arm() -> None:
        scene.set(name, {other: 2})
        Meddling.before = come

    Meddling.before = arm  # the first commit is that of an ordinary pass
    running = scene.run(rows, kind=Meddling)
    running.until(lambda: scene.numbers(name) == {at: 6, other: 2})
    running.more_passes()
    assert marked == ["moving"]
    assert (state_of(running, name), scene.mark_of(name)) == (FOLLOWING, None)
    scene.registry.client.delete(f"/consumers/{name}/ids/scala")
    assert running.end()[name].state is DONE


def test_a_native_member_that_joins_during_the_cutover_prevents_done(scene: Scene, join: Join) -> None:
    at, [name] = scene.ats[0], scene.names()
    rows = scene.plan(name)
    with ExitStack() as stack:
        Meddling.after = lambda: stack.enter_context(join(name, at.topic))
        [left] = scene.run(rows, kind=Meddling).end().values()
    assert (left.state, "anna" in left.detail) == (LEFT, True)
    assert (scene.numbers(name), scene.mark_of(name)) == ({at: 5}, None)


def test_a_commit_during_the_cutover_is_copied_by_the_next_pass(scene: Scene) -> None:
    (one, two, three), [name] = scene.ats, scene.names()

    def arm() -> None:
        scene.set(name, {two: 2})
        Meddling.before = lambda: setattr(Meddling, "after", late)

    def late() -> None:
        assert scene.mark_of(name) == "moving"
        scene.set(name, {one: 7, three: 6})

    Meddling.before = arm
    [done] = scene.run(scene.plan(name), kind=Meddling).end().values()
    assert done.state is DONE
    assert scene.numbers(name) == {one: 7, two: 2, three: 6}


def test_a_done_group_is_followed_again_if_an_instance_comes_back_while_others_are_followed(scene: Scene) -> None:
    at, (name, other) = scene.ats[0], scene.names("ab")
    rows = scene.plan(name, other)
    with scene.foreign(other):
        running = scene.run(rows)
        running.until(lambda: state_of(running, name) is DONE)
        with scene.foreign(name):
            running.until(lambda: state_of(running, name) is FOLLOWING)
            scene.set(name, {at: 6})
            running.until(lambda: scene.numbers(name) == {at: 6})
        running.until(lambda: state_of(running, name) is DONE)
        scene.set(name, {at: 7})  # without being registered
        running.until(lambda: scene.numbers(name) == {at: 7})
        assert scene.mark_of(name) == "moved"
    assert {each.state for each in running.end().values()} == {DONE}


def test_a_moved_group_with_new_consumers_is_reported_as_already_moved_by_the_next_run(
    scene: Scene, join: Join
) -> None:
    at, names = scene.ats[0], scene.names("ab")
    rows = scene.plan(*names)
    assert {each.state for each in scene.run(rows).end().values()} == {DONE}
    with join(names[0], at.topic) as consumer:
        commit_as_member(consumer, {at: 8})
        scene.registry.client.set(f"/consumers/{names[1]}/offsets/{at.topic}/0", b"6")  # by a legacy client
        found = scene.run(rows).end()
        assert [found[name].state for name in names] == [ALREADY_MOVED, DONE]
    assert [scene.numbers(name)[at] for name in names] == [8, 6]
    assert [scene.mark_of(name) for name in names] == ["moved", "moved"]


def test_a_member_that_is_back_in_the_next_pass_is_not_cut_over(scene: Scene) -> None:
    [name] = scene.names()
    rows, passes = scene.plan(name), list[FollowPass]()
    with ExitStack() as first, ExitStack() as second:

        def on_progress(found: FollowPass) -> None:
            passes.append(found)
            if len(passes) == 1:
                first.close()
            elif len(passes) == 2:
                second.enter_context(scene.foreign(name))

        first.enter_context(scene.foreign(name))
        running = scene.run(rows, on_progress=on_progress)
        running.until(lambda: len(passes) >= 4)
        assert [each.groups[0].detail for each in passes[:4]] == ["", JUST_LEFT, "", ""]
        assert {each.groups[0].state for each in passes[:4]} == {FOLLOWING}
        assert scene.mark_of(name) is None
        second.close()
        assert running.end()[name].state is DONE
    assert JUST_LEFT in [each.groups[0].detail for each in passes[4:]]


# Back to ZooKeeper


@BOTH
def test_commits_of_native_members_are_copied_to_zookeeper_until_they_leave(scene: Scene, join: Join) -> None:
    one, two, three = scene.ats
    [name] = scene.names()
    scene.commit(name, {three: 9})
    rows = scene.plan(name, offsets={one: 1, two: 50})
    scene.commit(name, {one: 1, two: 50})
    scene.mark(name)
    with join(name, one.topic) as consumer:
        running = scene.run(rows, to_zookeeper=True)
        for number in (4, 9):
            commit_as_member(consumer, {one: number})
            running.until(lambda number=number: scene.offsets(name)[one] == number)  # type: ignore[misc]
        with pytest.raises(GroupMigratedError):
            scene.registry.group(name).instance("early").register([one.topic])
        commit_as_member(consumer, {one: 20, two: 60})
    [done] = running.end().values()
    assert (done.state, done.behind) == (DONE, 0)
    assert JUST_LEFT in {told.groups[0].detail for told in running.passes}
    assert scene.offsets(name) == {one: 20, two: 60}  # the previous offsets of the target do not matter here
    assert scene.mark_of(name) is None
    scene.registry.group(name).instance("late").register([one.topic])


def test_following_back_writes_nothing_while_an_instance_is_registered_and_never_goes_back(
    scene: Scene, join: Join
) -> None:
    (at, other, _), names = scene.ats, scene.names("abcd")
    rows = scene.plan(*names)
    for name in names:
        scene.commit(name, {at: 8, other: 3})
    scene.set(names[1], {at: 9})
    unreadable = f"/consumers/{names[2]}/offsets/{at.topic}/1"
    scene.registry.client.create(unreadable, b"three")
    scene.mark(*names)
    with scene.foreign(names[0]), join(names[3], at.topic):
        running = scene.run(rows, to_zookeeper=True)
        running.until(lambda: [state_of(running, name) for name in names[:3]] == [LEFT] * 3)
        with scene.foreign(names[3]):
            found = running.end()
    registered = "legacy instances are registered: scala"
    for name, words in zip(
        names, (registered, f"{at}: expected 8, found 9", f"{other}: target unknown", registered), strict=True
    ):
        assert (found[name].state, words in found[name].detail) == (LEFT, True)
    assert (scene.offsets(names[0]), scene.offsets(names[1])) == ({at: 5}, {at: 9, other: 3})
    assert scene.registry.client.get(unreadable)[0] == b"three"


def test_following_back_leaves_groups_that_this_plan_has_not_moved(scene: Scene) -> None:
    at, names = scene.ats[0], scene.names("abc")
    rows = scene.plan(*names)
    scene.mark(names[0])
    scene.mark(names[2], state=MarkState.MOVING)
    rows[0] = rows[0]._replace(obstacles=(Obstacle.of(ObstacleKind.NATIVE_MEMBERS, ["anna"]),))
    for name in names:
        scene.commit(name, {at: 8})
    found = scene.run(rows, to_zookeeper=True).end()
    assert [(found[name].state, found[name].detail) for name in names] == [
        (LEFT, "the group has active members on the brokers: anna"),
        (LEFT, str(Obstacle(ObstacleKind.NOT_MARKED))),
        (DONE, ""),
    ]
    assert [scene.offsets(name)[at] for name in names] == [5, 5, 8]


def test_a_group_that_an_earlier_run_has_finished_is_reported_as_already_moved(scene: Scene, join: Join) -> None:
    at, names = scene.ats[0], scene.names("first second restored ahead")
    scene.commit(names[2], {at: 3})
    rows = scene.plan(*names)
    scene.mark(*names[:2])
    for name in (names[0], names[3]):
        scene.commit(name, {at: 8})
    with join(names[1], at.topic) as consumer:
        commit_as_member(consumer, {at: 7})
        running = scene.run(rows, to_zookeeper=True)
        running.until(lambda: scene.mark_of(names[0]) is None and scene.offsets(names[1]) == {at: 7})
        running.stop.set()
        assert running.end()[names[0]].state is DONE
    with scene.foreign(names[0]):
        scene.registry.client.set(f"/consumers/{names[0]}/offsets/{at.topic}/0", b"9")
        found = scene.run(rows, to_zookeeper=True).end()
    assert [found[name].state for name in names] == [ALREADY_MOVED, DONE, LEFT, LEFT]
    not_marked = str(Obstacle(ObstacleKind.NOT_MARKED))
    assert [found[name].detail for name in names] == ["", "", not_marked, not_marked]
    assert [scene.offsets(name)[at] for name in names] == [9, 7, 5, 5]
