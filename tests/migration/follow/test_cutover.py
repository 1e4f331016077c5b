"""The cutover: when a group counts as moved, and what prevents it."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from zkgroups import Registry, TopicPartition
from zkgroups.core.migration.follow_rules import FollowPass
from zkgroups.kafka import Brokers

from ..conftest import Join
from ..rows import numbers, plan_of
from .following import (
    ALREADY_MOVED,
    DONE,
    FOLLOWING,
    JUST_LEFT,
    LEFT,
    Meddling,
    Run,
    commit_as_member,
    detail_of,
    foreign,
    mark_of,
    state_of,
)

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]


def test_an_instance_that_registers_during_the_cutover_is_followed(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run, meddling: type[Meddling]
) -> None:
    """Another client ignores the mark and commits."""
    at, name = topic[0], f"of {topic[0].topic}"
    registry.group(name).offsets.set(at, 5)
    rows = plan_of(registry, brokers, {name: name})
    marked: list[str | None] = []

    def come() -> None:
        marked.append(mark_of(registry, name))
        registry.client.create(f"/consumers/{name}/ids/scala", b"{}", ephemeral=True, makepath=True)
        registry.group(name).offsets.set(at, 6)

    def arm() -> None:
        registry.group(name).offsets.set(topic[1], 2)
        meddling.before = come

    meddling.before = arm  # the first commit is that of an ordinary pass
    running = run(rows, kind=meddling)
    running.until(lambda: numbers(brokers, name) == {at: 6, topic[1]: 2})
    running.more_passes()
    assert marked == ["moving"]
    assert running.passes[-1].groups[0].state is FOLLOWING
    assert mark_of(registry, name) is None
    registry.client.delete(f"/consumers/{name}/ids/scala")
    assert running.end()[name].state is DONE


def test_a_native_member_that_joins_during_the_cutover_prevents_done(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run, meddling: type[Meddling], join: Join
) -> None:
    at, name = topic[0], f"of {topic[0].topic}"
    registry.group(name).offsets.set(at, 5)
    rows = plan_of(registry, brokers, {name: name})
    with ExitStack() as stack:
        meddling.after = lambda: stack.enter_context(join(name, at.topic))
        [left] = run(rows, kind=meddling).end().values()
    assert left.state is LEFT
    assert "anna" in left.detail
    assert numbers(brokers, name) == {at: 5}
    assert mark_of(registry, name) is None


def test_a_commit_during_the_cutover_is_copied_by_the_next_pass(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run, meddling: type[Meddling]
) -> None:
    at, name = topic[0], f"of {topic[0].topic}"
    registry.group(name).offsets.set(at, 5)
    rows = plan_of(registry, brokers, {name: name})
    offsets = registry.group(name).offsets

    def arm() -> None:
        offsets.set(topic[1], 2)
        meddling.before = lambda: setattr(meddling, "after", late)

    def late() -> None:
        assert mark_of(registry, name) == "moving"
        offsets.set_many({at: 7, topic[2]: 6})

    meddling.before = arm
    [done] = run(rows, kind=meddling).end().values()
    assert done.state is DONE
    assert numbers(brokers, name) == {at: 7, topic[1]: 2, topic[2]: 6}


def test_a_done_group_is_followed_again_if_an_instance_comes_back_while_others_are_followed(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run
) -> None:
    at, names = topic[0], [f"{which} {topic[0].topic}" for which in "ab"]
    for name in names:
        registry.group(name).offsets.set(at, 5)
    rows = plan_of(registry, brokers, {name: name for name in names})
    with foreign(registry, names[1]):
        running = run(rows)
        running.until(lambda: state_of(running, names[0]) is DONE)
        with foreign(registry, names[0]):
            running.until(lambda: state_of(running, names[0]) is FOLLOWING)
            registry.group(names[0]).offsets.set(at, 6)
            running.until(lambda: numbers(brokers, names[0]) == {at: 6})
        running.until(lambda: state_of(running, names[0]) is DONE)
        registry.group(names[0]).offsets.set(at, 7)  # without being registered
        running.until(lambda: numbers(brokers, names[0]) == {at: 7})
        assert mark_of(registry, names[0]) == "moved"
    assert {each.state for each in running.end().values()} == {DONE}


def test_a_moved_group_with_new_consumers_is_reported_as_already_moved_by_the_next_run(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run, join: Join
) -> None:
    at, names = topic[0], [f"{which} {topic[0].topic}" for which in "ab"]
    for name in names:
        registry.group(name).offsets.set(at, 5)
    rows = plan_of(registry, brokers, {name: name for name in names})
    assert {each.state for each in run(rows).end().values()} == {DONE}
    with join(names[0], at.topic) as consumer:
        commit_as_member(consumer, {at: 8})
        registry.client.set(f"/consumers/{names[1]}/offsets/{at.topic}/0", b"6")  # by a legacy client
        found = run(rows).end()
        assert [found[name].state for name in names] == [ALREADY_MOVED, DONE]
    assert [numbers(brokers, name)[at] for name in names] == [8, 6]
    assert [mark_of(registry, name) for name in names] == ["moved", "moved"]


def test_a_member_that_is_back_in_the_next_pass_is_not_cut_over(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run
) -> None:
    at, name = topic[0], f"of {topic[0].topic}"
    registry.group(name).offsets.set(at, 5)
    rows = plan_of(registry, brokers, {name: name})
    passes: list[FollowPass] = []
    with ExitStack() as first, ExitStack() as second:

        def on_progress(found: FollowPass) -> None:
            passes.append(found)
            if len(passes) == 1:
                first.close()
            elif len(passes) == 2:
                second.enter_context(foreign(registry, name))

        first.enter_context(foreign(registry, name))
        running = run(rows, on_progress=on_progress)
        running.until(lambda: len(passes) >= 4)
        assert [each.groups[0].detail for each in passes[:4]] == ["", JUST_LEFT, "", ""]
        assert {each.groups[0].state for each in passes[:4]} == {FOLLOWING}
        assert mark_of(registry, name) is None
        second.close()
        assert running.end()[name].state is DONE
    assert JUST_LEFT in [each.groups[0].detail for each in passes[4:]]


def test_deleted_offsets_prevent_the_cutover_but_not_after_a_group_is_done(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run
) -> None:
    one, two, _ = topic
    names = [f"{which} {one.topic}" for which in ("planned", "seen", "done")]
    planned, seen, done = (registry.group(name) for name in names)
    for group in (planned, seen, done):
        group.offsets.set(one, 5)
    rows = plan_of(registry, brokers, {name: name for name in names})
    registry.client.delete(f"/consumers/{planned.name}/offsets/{one.topic}/0")
    seen.offsets.set(two, 7)
    with foreign(registry, seen.name):
        running = run(rows)
        running.until(lambda: numbers(brokers, seen.name) == {one: 5, two: 7})
        running.until(lambda: state_of(running, planned.name) is LEFT and state_of(running, done.name) is DONE)
        registry.client.delete(f"/consumers/{done.name}/offsets/{one.topic}/0")
        registry.client.delete(f"/consumers/{seen.name}/offsets/{one.topic}/1")
        running.until(lambda: detail_of(running, seen.name) == f"{two}: the offset was deleted")
    found = running.end()
    assert [found[name].state for name in names] == [LEFT, LEFT, DONE]
    assert found[planned.name].detail == f"{one}: the offset was deleted"
    assert found[seen.name].detail == f"{two}: the offset was deleted"
    assert [mark_of(registry, name) for name in names] == [None, None, "moved"]
