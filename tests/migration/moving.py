"""Moving one group without Spark: plan, apply, verify, roll back, follow."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tests.testing.waiting import eventually
from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.core.kafka_values import NativeOffset
from zkgroups.core.migration.follow_rules import FollowedGroup, FollowPass
from zkgroups.core.migration.obstacles import Obstacle
from zkgroups.core.migration.offset_decision import Rule
from zkgroups.core.migration.plan_rows import Match, Outcome, PlanRow, ReportRow
from zkgroups.kafka import Brokers
from zkgroups.migration.apply import apply_groups
from zkgroups.migration.following.follow import follow
from zkgroups.migration.log_ranges import topic_creation_zxids
from zkgroups.migration.plan import Planner, PlanSettings, SourceNode
from zkgroups.migration.rollback import rollback_groups
from zkgroups.migration.verify import verify_groups
from zkgroups.zookeeper.admin import migration_marks as marks

_LONGEST = 60.0


class Move:
    """The migration of one group."""

    def __init__(self, registry: Registry, address: str, group: str, *, rule: Rule | None = None) -> None:
        self._registry = registry
        self._address = address
        self.group = group
        self._rule = rule or Rule()
        self.rows: list[PlanRow] = []
        self.reports: list[ReportRow] = []

    def plan(self) -> list[PlanRow]:
        """Make a new plan."""
        now = time.time_ns()
        planning = PlanSettings(
            plan=f"plan-{now}",
            planned_ms=now // 1_000_000,
            brokers=self._address,
            rule=self._rule,
            topics_created=topic_creation_zxids(self._registry),
        )
        with Brokers.connect(self._address) as brokers:
            self.rows = Planner(planning, brokers).plan(list(self._found()))
        return self.rows

    def _found(self) -> Iterator[SourceNode]:
        group = self._registry.group(self.group)
        for each in group.offsets.fetch_all():
            assert isinstance(each, CommittedOffset), each
            yield self._node(topic=each.at.topic, partition=each.at.partition, offset=each.offset, zxid=each.zxid)
        for instance in group.instances():
            yield self._node(member=True, instance=instance.id)

    def _node(self, *, member: bool = False, **known: Any) -> SourceNode:
        return SourceNode(group=self.group, target=self.group, member=member, **known)

    def commit_to_source(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit like a legacy consumer."""
        self._registry.group(self.group).offsets.set_many(offsets)

    @property
    def obstacles(self) -> tuple[Obstacle, ...]:
        return self.rows[0].obstacles

    def apply(self, *, execute: bool = True) -> Counter[Outcome]:
        """Apply the plan, and count the outcomes."""
        with Brokers.connect(self._address) as brokers:
            self.reports = apply_groups(self.rows, brokers, self._registry, execute=execute)
        return Counter(row.outcome for row in self.reports)

    def verify(self) -> Counter[Match]:
        with Brokers.connect(self._address) as brokers:
            return Counter(row.match for row in verify_groups(self.rows, brokers, self._registry))

    def roll_back(self, *, to_zookeeper: bool = False, force: bool = False) -> Counter[Outcome]:
        how: dict[str, Any] = {"to_zookeeper": to_zookeeper, "force": force}
        with Brokers.connect(self._address) as brokers:
            self.reports = rollback_groups(self.rows, brokers, self._registry, execute=True, **how)
        return Counter(row.outcome for row in self.reports)

    @contextmanager
    def following(self, *, to_zookeeper: bool = False) -> Iterator[Following]:
        """Follow the group until the block ends, or all is done."""
        with Brokers.connect(self._address) as brokers, Following() as following:
            following.start(self.rows, brokers, self._registry, to_zookeeper=to_zookeeper)
            yield following

    def mark(self) -> object:
        """Return the migration mark of the group."""
        return marks.read(self._registry._context, [self.group]).get(self.group)

    def on_target(self) -> dict[TopicPartition, NativeOffset]:
        """Return the offsets of the target."""
        with Brokers.connect(self._address) as brokers:
            return brokers.committed([self.group])[self.group]


class Following:
    """`follow` in a thread."""

    def __init__(self) -> None:
        self.passes: list[FollowPass] = []
        self._groups: list[FollowedGroup] = []
        self._stop = threading.Event()
        self._thread = threading.Thread()

    def start(self, rows: Sequence[PlanRow], brokers: Brokers, registry: Registry, *, to_zookeeper: bool) -> None:
        def run() -> None:
            options: dict[str, Any] = {"every": 0.2, "on_progress": self.passes.append, "stop": self._stop}
            self._groups = follow(rows, brokers, registry, execute=True, to_zookeeper=to_zookeeper, **options)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        assert eventually(lambda: self.passes, timeout=_LONGEST)

    def until_written(self) -> None:
        """Wait until an offset was copied, while members still work."""
        assert eventually(lambda: any(each.written for each in self.passes), timeout=_LONGEST), self.passes

    def end(self) -> list[FollowedGroup]:
        """Wait until all is done, and return the groups."""
        self._thread.join(_LONGEST)
        assert not self._thread.is_alive(), self.passes[-3:]
        return self._groups

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_LONGEST)
