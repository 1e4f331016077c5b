"""Following groups on real servers, while members work, come back, and leave."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Partition
from kazoo.security import make_acl

from tests.kafka.conftest import Writer
from tests.testing.waiting import eventually
from zkgroups import CommittedOffset, Member, Registry, TopicPartition
from zkgroups.core.kafka_values import NativeGroup, NativeOffset
from zkgroups.core.migration.follow_rules import FollowedGroup, FollowPass, FollowState
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.offset_decision import Action, OutOfRange, Reason, Rule
from zkgroups.core.migration.plan_rows import PlanRow
from zkgroups.core.znodes.migration_mark import Mark, MarkState
from zkgroups.exceptions import GroupMigratedError, GuardFailedError, NotConnectedError
from zkgroups.input_errors import InvalidOptionError, ZkgroupsException
from zkgroups.kafka import Brokers
from zkgroups.kafka.commit_offsets import Offsets, Outcomes
from zkgroups.migration.follow import follow
from zkgroups.testing import KafkaBroker, TcpProxy
from zkgroups.zookeeper.admin import migration_marks as marks
from zkgroups.zookeeper.admin.migration_target_locks import MigrationTargetLocks

from .conftest import Join, MakeTopic
from .rows import PLAN, numbers, plan_of, tree

pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(1000)]

_LONGEST = 60.0
FOLLOWING, DONE, LEFT = FollowState
BOTH = pytest.mark.parametrize("broker", ["kafka_broker", "legacy_kafka"], indirect=True)
UNREADABLE = [make_acl("world", "anyone", create=True, write=True, delete=True, admin=True)]
READABLE = [make_acl("world", "anyone", all=True)]
LIVE = (Obstacle.of(ObstacleKind.LEGACY_INSTANCES, ["a"]),)
JUST_LEFT = str(Obstacle(ObstacleKind.ALL_MEMBERS_LEFT))


Run = Callable[..., "Running"]


class Running:
    """`follow` in a background thread."""

    def __init__(self, rows: list[PlanRow], brokers: Brokers, registry: Registry, **options: Any) -> None:
        self.passes: list[FollowPass] = []
        self.stop = threading.Event()
        self._brokers = brokers
        self._found: list[FollowedGroup] = []
        self._error: BaseException | None = None
        given = {"execute": True, "every": 0.1, "on_progress": self.passes.append, "stop": self.stop, **options}

        def run() -> None:
            try:
                self._found = follow(rows, brokers, registry, **given)
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def until(self, so: Callable[[], object]) -> None:
        eventually(lambda: so() or not self._thread.is_alive(), timeout=_LONGEST)
        assert so(), (self._error, self.passes[-2:])

    def more_passes(self, count: int = 2) -> None:
        """Wait for more passes."""
        wanted = len(self.passes) + count
        self.until(lambda: len(self.passes) >= wanted)

    def close(self) -> None:
        self.stop.set()
        self._thread.join(_LONGEST)
        self._brokers.close()

    def end(self) -> dict[str, FollowedGroup]:
        """Wait for the end, and return the groups."""
        self._thread.join(_LONGEST)
        assert not self._thread.is_alive(), self.passes[-2:]
        if self._error is not None:
            raise self._error
        return {each.group: each for each in self._found}


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> KafkaBroker:
    """The current release, or the parameter of the test."""
    found: KafkaBroker = request.getfixturevalue(getattr(request, "param", "kafka_broker"))
    return found


@pytest.fixture
def run(broker: KafkaBroker, registry: Registry) -> Iterator[Run]:
    """Follow in the background, with separate connections to the brokers."""
    started: list[Running] = []

    def run(rows: list[PlanRow], *, on: Registry = registry, kind: Any = Brokers, **options: Any) -> Running:
        started.append(Running(rows, kind.connect(broker.address), on, **options))
        return started[-1]

    yield run
    for each in started:
        each.close()


@pytest.fixture
def topic(broker: KafkaBroker, make_topic: MakeTopic) -> list[TopicPartition]:
    """A topic of three partitions, with a hundred messages in each."""
    name = make_topic(3)
    producer = Producer({"bootstrap.servers": broker.address, "log_level": 0})
    for number in range(300):
        producer.produce(name, b"message", partition=number % 3)
    assert producer.flush(30) == 0
    return [TopicPartition(name, number) for number in range(3)]


def state_of(running: Running, group: str) -> FollowState | None:
    """Return the value after the last pass."""
    found = [each for told in running.passes[-1:] for each in told.groups if each.group == group]
    return found[0].state if found else None


def mark_of(registry: Registry, group: str) -> str | None:
    found = marks.read(registry._context, [group]).get(group)
    return found.state.value if isinstance(found, Mark) else None


def detail_of(running: Running, group: str) -> str:
    """Return the value after the last pass."""
    return "".join(each.detail for told in running.passes[-1:] for each in told.groups if each.group == group)


def mark_as_moved(registry: Registry, *groups: str) -> None:
    """Mark groups like apply and follow."""
    answers = marks.put(registry._context, dict(zip(groups, groups, strict=True)), plan=PLAN, state=MarkState.MOVED)
    assert not any(answers.values())


@contextmanager
def foreign(registry: Registry, group: str) -> Iterator[None]:
    """Register a member of another client, which ignores marks."""
    path = f"/consumers/{group}/ids/scala"
    registry.client.create(path, b'{"version":1,"subscription":{},"pattern":"static"}', ephemeral=True, makepath=True)
    yield
    registry.client.delete(path)


# From ZooKeeper to Kafka


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


class Meddling(Brokers):
    """Calls a function just before, or just after, offsets are committed."""

    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None

    def commit(self, offsets: Offsets) -> Outcomes:
        kind = type(self)
        before, kind.before = kind.before, None
        if before is not None:
            before()
        found = super().commit(offsets)
        after, kind.after = kind.after, None
        if after is not None:
            after()
        return found


@pytest.fixture
def meddling() -> Iterator[type[Meddling]]:
    yield Meddling
    Meddling.before = Meddling.after = None


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
    running.until(lambda: state_of(running, names[3]) is DONE)  # what is not followed may be hidden
    running.more_passes(4)
    told = [f"no permission to read offsets in ZooKeeper: {place}" for place in ("all", at.topic, at)]
    assert [detail_of(running, name) for name in names[:3]] == told
    assert [state_of(running, name) for name in names[:3]] == [FOLLOWING] * 3
    assert [mark_of(registry, name) for name in names[:3]] == [None] * 3
    for path in paths:
        registry.client.set_acls(path, READABLE)
    assert {each.state for each in running.end().values()} == {DONE}
    assert [numbers(brokers, name) for name in names] == [{at: 9}] * 4


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
        replace(each, action=Action.SKIP, reason=skipped[each.offset]) if each.offset in skipped else each
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
    fine.set(two, 7)  # not stale any more
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
    found = run([replace(row, action=Action.SKIP, reason=Reason.OLDER) for row in rows]).end()[name]
    assert (found.state, found.detail) == (DONE, "1 skipped: older than its topic"), "the plan says so"


@pytest.mark.parametrize("steps", [15, pytest.param(300, marks=pytest.mark.soak)])
def test_with_random_members_and_commits_no_offset_goes_back_and_both_sides_agree_at_the_end(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run, steps: int
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    names = [f"{which} {topic[0].topic}" for which in "abc"]
    for name in names:
        registry.group(name).offsets.set(topic[0], 0)
    rows = plan_of(registry, brokers, {name: name for name in names})
    highest = {name: numbers(brokers, name) for name in names}
    with ExitStack() as last, foreign(registry, names[2]):  # so that it goes on
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


# What is in the way, and what is not


def test_a_dry_run_reads_once_and_changes_nothing(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run, join: Join
) -> None:
    at, names = topic[0], [f"{which} {topic[0].topic}" for which in "abc"]
    for name in names:
        registry.group(name).offsets.set_many({at: 5, topic[1]: 7})
    rows = plan_of(registry, brokers, {name: name for name in names})
    with foreign(registry, names[0]), join(names[2], at.topic):
        before = tree(registry.client, "/consumers")
        running = run(rows, execute=False)
        found = running.end()
        assert tree(registry.client, "/consumers") == before
        assert [found[name].detail for name in names[:2]] == [
            "2 offsets would be written",
            "2 offsets would be written, and the group would be cut over",
        ]
        assert found[names[2]].state is LEFT
        assert [(told.behind, told.written) for told in running.passes] == [(24, 4)]
        mark_as_moved(registry, *names)
        before = tree(registry.client, "/consumers")
        back = run(rows, execute=False, to_zookeeper=True).end()
        assert [back[name].state for name in names] == [LEFT, FOLLOWING, FOLLOWING]
        assert tree(registry.client, "/consumers") == before
    assert [numbers(brokers, name) for name in names] == [{}] * 3


def test_marks_of_other_plans_and_obstacles_in_the_plan_are_reported(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run
) -> None:
    at, names = topic[0], [f"{which} {topic[0].topic}" for which in "abc"]
    for name in names:
        registry.group(name).offsets.set(at, 5)
    rows = plan_of(registry, brokers, {name: name for name in names})
    blocked = [
        replace(each, obstacles=(Obstacle(ObstacleKind.REFUSED_OFFSETS, count=1, reason=Reason.PAST_END),))
        for each in rows
        if each.group == names[2]
    ]
    marks.put(registry._context, {names[0]: "x"}, plan="another", state=MarkState.MOVING)
    marks.put(registry._context, {names[1]: names[1]}, plan=PLAN, state=MarkState.MOVING)  # of a run that was killed
    found = run([*rows[:2], *blocked]).end()
    assert [found[name].state for name in names] == [LEFT, DONE, LEFT]
    assert "another" in found[names[0]].detail
    assert found[names[2]].detail == "1 refused: past the end"
    with pytest.raises(GuardFailedError, match="without brokers"):
        follow([replace(each, brokers=None) for each in rows], brokers, registry, execute=True)
    for wrong in ({"every": 0.0}, {"rate": float("inf")}):
        with pytest.raises(InvalidOptionError):
            follow(rows, brokers, registry, execute=True, **wrong)


def test_a_stop_leaves_no_mark_on_groups_that_are_not_moved(
    registry: Registry, brokers: Brokers, topic: list[TopicPartition], run: Run, meddling: type[Meddling]
) -> None:
    """Stopped during the cutover: members may join again, and the next run continues."""
    at, name = topic[0], f"of {topic[0].topic}"
    registry.group(name).offsets.set(at, 5)
    rows = plan_of(registry, brokers, {name: name})
    marked: list[str | None] = []

    def interrupt() -> None:
        marked.append(mark_of(registry, name))
        raise KeyboardInterrupt

    def arm() -> None:
        registry.group(name).offsets.set(topic[1], 6)
        meddling.before = interrupt

    meddling.before = arm
    with pytest.raises(KeyboardInterrupt):
        run(rows, kind=meddling).end()
    assert marked == ["moving"]
    assert mark_of(registry, name) is None
    with foreign(registry, name):
        running = run(rows)
        running.until(lambda: running.passes)
        running.stop.set()
        assert running.end()[name].state is FOLLOWING
    assert run(rows).end()[name].state is DONE
    assert numbers(brokers, name) == {at: 5, topic[1]: 6}


class Away(Brokers):
    """Brokers that do not answer the first request of each kind."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._asked: set[str] = set()

    def _first(self, kind: str) -> None:
        if kind not in self._asked:
            self._asked.add(kind)
            raise NotConnectedError(f"no answer to {kind}")

    def partitions(self, topics: Iterable[str] | None = None) -> dict[str, tuple[int, ...]]:
        self._first("partitions")
        return super().partitions(topics)

    def committed_or_error(
        self, groups: Iterable[str]
    ) -> dict[str, dict[TopicPartition, NativeOffset] | ZkgroupsException]:
        self._first("committed")
        return super().committed_or_error(groups)

    def groups(self, names: Iterable[str]) -> dict[str, NativeGroup | ZkgroupsException]:
        self._first("groups")
        return super().groups(names)

    def commit(self, offsets: Offsets) -> Outcomes:
        self._first("commit")
        return super().commit(offsets)


@pytest.mark.parametrize("to_zookeeper", [False, True])
def test_unavailable_servers_are_reported_and_retried(
    registry: Registry,
    zookeeper: Any,
    zookeeper_hosts: str,
    brokers: Brokers,
    topic: list[TopicPartition],
    run: Run,
    to_zookeeper: bool,
) -> None:
    at, name = topic[0], f"of {topic[0].topic}"
    registry.group(name).offsets.set(at, 5)
    commit(brokers, name, {topic[1]: 6})
    rows = plan_of(registry, brokers, {name: name})
    commit(brokers, name, {topic[1]: 7})
    if to_zookeeper:
        mark_as_moved(registry, name)
    with (
        TcpProxy(zookeeper.address) as proxy,
        Registry.connect(f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}", timeout=3.0) as far,
    ):
        proxy.refuse()
        proxy.cut()
        running = run(rows, on=far, kind=Away, to_zookeeper=to_zookeeper)
        running.until(lambda: any(told.trouble for told in running.passes))
        proxy.accept()
        [done] = running.end().values()
    assert done.state is DONE
    troubles = {told.trouble for told in running.passes}
    assert {"", "no answer to groups", "no answer to committed"} <= troubles
    assert numbers(brokers, name) == ({topic[1]: 7} if to_zookeeper else {at: 5, topic[1]: 7})
    assert offsets_of(registry, name) == ({at: 5, topic[1]: 7} if to_zookeeper else {at: 5})


def test_a_pass_without_changes_asks_no_broker_and_reads_zookeeper_in_bulk(
    registry: Registry,
    zookeeper: Any,
    zookeeper_hosts: str,
    brokers: Brokers,
    topic: list[TopicPartition],
    run: Run,
) -> None:
    names = [f"{number} {topic[0].topic}" for number in range(40)]
    for name in names:
        registry.group(name).offsets.set_many(dict.fromkeys(topic, 5))
        registry.client.create(f"/consumers/{name}/ids/scala", b"{}", ephemeral=True, makepath=True)
    rows = plan_of(registry, brokers, {name: name for name in names})
    with (
        TcpProxy(zookeeper.address) as proxy,
        Registry.connect(f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}") as far,
    ):
        running = run(rows, on=far, kind=Counted, rate=300.0)
        running.until(lambda: sum(told.written for told in running.passes) == 120)
        assert max(told.written for told in running.passes) <= 30
        running.more_passes(1)
        asked, requests, passes = Counted.asked, proxy.requests, len(running.passes)
        running.more_passes(5)
        made = len(running.passes) - passes
        assert Counted.asked == asked
        assert proxy.requests - requests <= 12 * (made + 1)
        registry.group(names[20]).offsets.set(topic[0], 6)
        running.until(lambda: running.passes[-1].behind == 0 and sum(told.written for told in running.passes) == 121)
        assert Counted.asked - asked <= 2


class Counted(Brokers):
    """Counts the requests about groups."""

    asked = 0

    def committed_or_error(
        self, groups: Iterable[str]
    ) -> dict[str, dict[TopicPartition, NativeOffset] | ZkgroupsException]:
        Counted.asked += 1
        return super().committed_or_error(groups)

    def commit(self, offsets: Offsets) -> Outcomes:
        Counted.asked += 1
        return super().commit(offsets)


# And back


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
    assert offsets_of(registry, name) == {one: 20, two: 60}  # what the target had before is of no use here
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
    rows[0] = replace(rows[0], obstacles=(Obstacle.of(ObstacleKind.NATIVE_MEMBERS, ["anna"]),))
    for name in names:
        commit(brokers, name, {at: 8})
    found = run(rows, to_zookeeper=True).end()
    assert [(found[name].state, found[name].detail) for name in names] == [
        (LEFT, "the group has active members on the brokers: anna"),
        (LEFT, "the group has no mark of this plan in ZooKeeper"),
        (DONE, ""),
    ]
    assert [offsets_of(registry, name)[at] for name in names] == [5, 5, 8]


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


def commit(brokers: Brokers, group: str, offsets: dict[TopicPartition, int]) -> None:
    assert not any(brokers.commit({group: offsets})[group].values())


def commit_as_member(consumer: Any, offsets: dict[TopicPartition, int]) -> None:
    given = [Partition(at.topic, at.partition, number) for at, number in offsets.items()]
    assert all(each.error is None for each in consumer.commit(offsets=given, asynchronous=False))


def offsets_of(registry: Registry, group: str) -> dict[TopicPartition, int]:
    found = registry.group(group).offsets
    return {each.at: each.offset for each in found if isinstance(each, CommittedOffset)}


def remove_mark(registry: Registry, group: str) -> None:
    assert marks.remove(registry._context, [group], plan=PLAN) == {group: None}
