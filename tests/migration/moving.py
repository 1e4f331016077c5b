"""Moving one group without Spark: plan, apply, verify, roll back, follow."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tests.waiting import LONGEST, eventually
from zkgroups import CommittedOffset, Registry, TopicPartition
from zkgroups.core.kafka_values import NativeOffset
from zkgroups.core.migration.follow_rules import FollowedGroup, FollowPass
from zkgroups.core.migration.obstacles import Obstacle
from zkgroups.core.migration.offset_decision import Rule
from zkgroups.core.migration.plan_rows import Match, Outcome, PlanRow, ReportRow
from zkgroups.kafka import Brokers
from zkgroups.migration.apply import apply_groups, verify_groups
from zkgroups.migration.current_state import topic_creation_zxids
from zkgroups.migration.follow import follow
from zkgroups.migration.plan import Planner, PlanSettings, SourceNode
from zkgroups.migration.rollback import rollback_groups
from zkgroups.zookeeper.admin import migration_marks as marks


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
    def following(self, *, to_zookeeper: bool = False) -> Iterator[Running]:
        """Follow the group until the block ends, or all is done."""
        running = Running(self.rows, Brokers.connect(self._address), self._registry, to_zookeeper=to_zookeeper)
        try:
            running.until(lambda: running.passes)
            yield running
        finally:
            running.close()

    def mark(self) -> object:
        """Return the migration mark of the group."""
        return marks.read(self._registry._context, [self.group]).get(self.group)

    def on_target(self) -> dict[TopicPartition, NativeOffset]:
        """Return the offsets of the target."""
        with Brokers.connect(self._address) as brokers:
            return brokers.committed([self.group])[self.group]


class Running:
    """`follow` in a thread, with its passes so far."""

    def __init__(self, rows: Sequence[PlanRow], brokers: Brokers, registry: Registry, **options: Any) -> None:
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
        assert eventually(lambda: so() or not self._thread.is_alive())
        assert so(), (self._error, self.passes[-2:])

    def more_passes(self, count: int = 2) -> None:
        """Wait for more passes."""
        wanted = len(self.passes) + count
        self.until(lambda: len(self.passes) >= wanted)

    def end(self) -> dict[str, FollowedGroup]:
        """Wait for the end, and return the groups."""
        self._thread.join(LONGEST)
        assert not self._thread.is_alive(), self.passes[-2:]
        if self._error is not None:
            raise self._error
        return {each.group: each for each in self._found}

    def close(self) -> None:
        self.stop.set()
        self._thread.join(LONGEST)
        self._brokers.close()
