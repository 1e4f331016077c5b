"""Groups that are followed in a thread, on either broker, and the members and marks around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Partition
from kazoo.security import make_acl

from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.core.migration.follow_rules import FollowedGroup, FollowState
from zkgroups.core.migration.obstacles import Obstacle, ObstacleKind
from zkgroups.core.migration.plan_rows import PlanRow
from zkgroups.core.znodes.own_nodes import Mark, MarkState
from zkgroups.kafka import Brokers
from zkgroups.testing import KafkaBroker
from zkgroups.zookeeper.admin import migration_marks as marks

from ..conftest import MakeTopic
from ..moving import Running
from ..rows import PLAN, numbers, plan_of

FOLLOWING, DONE, ALREADY_MOVED, LEFT = FollowState
UNREADABLE = [make_acl("world", "anyone", create=True, write=True, delete=True, admin=True)]
READABLE = [make_acl("world", "anyone", all=True)]
LIVE = (Obstacle.of(ObstacleKind.LEGACY_INSTANCES, ["a"]),)
JUST_LEFT = str(Obstacle(ObstacleKind.ALL_MEMBERS_LEFT))


class Meddling(Brokers):
    """Calls a function just before, or just after, offsets are committed."""

    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None

    def commit(self, offsets: Any, **options: Any) -> Any:
        kind = type(self)
        before, kind.before = kind.before, None
        if before is not None:
            before()
        found = super().commit(offsets, **options)
        after, kind.after = kind.after, None
        if after is not None:
            after()
        return found


class Scene:
    """Both sides, a topic of three partitions with a hundred messages in each, and runs of `follow`."""

    def __init__(self, registry: Registry, broker: KafkaBroker, brokers: Brokers, topic: str) -> None:
        self.registry, self.brokers, self.topic = registry, brokers, topic
        self.ats = [TopicPartition(topic, number) for number in range(3)]
        for at in self.ats:
            broker.write(topic, at.partition, 100)
        self._broker = broker
        self.started: list[Running] = []

    def names(self, kinds: str = "a") -> list[str]:
        """Names of groups that no other test uses, one for each letter or word."""
        return [f"{kind} {self.topic}" for kind in (kinds.split() if " " in kinds else kinds)]

    def plan(self, *names: str, offsets: Mapping[TopicPartition, int] | None = None, **options: Any) -> list[PlanRow]:
        """Plan groups with these offsets; without any, with one of 5."""
        for name in names:
            self.set(name, offsets or {self.ats[0]: 5})
        return plan_of(self.registry, self.brokers, {name: name for name in names}, **options)

    def run(self, rows: list[PlanRow], *, kind: Any = Brokers, on: Registry | None = None, **options: Any) -> Running:
        """Follow in the background, with separate connections to the brokers."""
        self.started.append(Running(rows, kind.connect(self._broker.address), on or self.registry, **options))
        return self.started[-1]

    # ZooKeeper

    def set(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.registry.group(name).offsets.set_many(offsets)

    def offsets(self, name: str) -> dict[TopicPartition, int]:
        return offsets_of(self.registry, name)

    def mark_of(self, name: str) -> str | None:
        found = marks.read(self.registry._context, [name]).get(name)
        return found.state.value if isinstance(found, Mark) else None

    def mark(self, *names: str, plan: str = PLAN, state: MarkState = MarkState.MOVED) -> None:
        """Mark groups like apply and follow."""
        assert not any(
            marks.put(self.registry._context, {name: name for name in names}, plan=plan, state=state).values()
        )

    @contextmanager
    def foreign(self, name: str) -> Iterator[None]:
        """Register a member of another client, which ignores marks."""
        path, registered = f"/consumers/{name}/ids/scala", b'{"version":1,"subscription":{},"pattern":"static"}'
        self.registry.client.create(path, registered, ephemeral=True, makepath=True)
        yield
        self.registry.client.delete(path)

    # The brokers

    def commit(self, name: str, offsets: dict[TopicPartition, int]) -> None:
        assert not any(self.brokers.commit({name: offsets})[name].values())

    def numbers(self, name: str) -> dict[TopicPartition, int]:
        return numbers(self.brokers, name)


def offsets_of(registry: Registry, group: str) -> dict[TopicPartition, int]:
    found = registry.group(group).offsets
    return {each.at: each.offset for each in found if isinstance(each, CommittedOffset)}


def commit_as_member(consumer: Any, offsets: dict[TopicPartition, int]) -> None:
    given = [Partition(at.topic, at.partition, number) for at, number in offsets.items()]
    assert all(each.error is None for each in consumer.commit(offsets=given, asynchronous=False))


def last(running: Running, group: str) -> FollowedGroup | None:
    """A group after the last pass."""
    return next((each for told in running.passes[-1:] for each in told.groups if each.group == group), None)


def state_of(running: Running, group: str) -> FollowState | None:
    return found.state if (found := last(running, group)) else None


def detail_of(running: Running, group: str) -> str:
    return found.detail if (found := last(running, group)) else ""


@pytest.fixture
def scene(registry: Registry, broker: KafkaBroker, brokers: Brokers, make_topic: MakeTopic) -> Iterator[Scene]:
    scene = Scene(registry, broker, brokers, make_topic(3))
    yield scene
    for each in scene.started:
        each.close()
    Meddling.before = Meddling.after = None
