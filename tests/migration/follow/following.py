"""A run of `follow` in a thread, and the members and marks around it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Partition
from kazoo.security import make_acl

from tests.testing.waiting import eventually
from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.core.migration.follow_rules import FollowedGroup, FollowPass, FollowState
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.plan_rows import PlanRow
from zkgroups.core.znodes.migration_mark import Mark, MarkState
from zkgroups.kafka import Brokers
from zkgroups.kafka.requests.commit_offsets import Outcomes
from zkgroups.kafka.sendable import Offsets
from zkgroups.migration.following.follow import follow
from zkgroups.zookeeper.admin import migration_marks as marks

from ..rows import PLAN

_LONGEST = 60.0
FOLLOWING, DONE, ALREADY_MOVED, LEFT = FollowState
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


class Meddling(Brokers):
    """Calls a function just before, or just after, offsets are committed."""

    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None

    def commit(self, offsets: Offsets, **options: Any) -> Outcomes:
        kind = type(self)
        before, kind.before = kind.before, None
        if before is not None:
            before()
        found = super().commit(offsets, **options)
        after, kind.after = kind.after, None
        if after is not None:
            after()
        return found


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
