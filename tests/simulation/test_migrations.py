"""Migrations of two groups and their rollbacks, in any order of kills, lost answers, and other clients on both sides.

Offsets in ZooKeeper belong to the old clients: a migration never changes them. Offsets on the brokers belong to the new
consumers from their first commit on. Before that, they never tell a consumer to skip a message.

Old offsets are multiples of ten, and those of new consumers are not: brokers number no writes, so a rollback takes a
commit of the planned offset for its own.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.migration.rows import outcomes, plan_of
from tests.seeds import seeds
from zkgroups import Registry, TopicPartition
from zkgroups.core.kafka_values import NativeOffset
from zkgroups.core.migration.plan_rows import Outcome, PlanRow
from zkgroups.core.znodes.own_nodes import Mark, MarkState
from zkgroups.exceptions import GroupMigratedError
from zkgroups.migration.apply import apply_groups
from zkgroups.migration.rollback import rollback_groups
from zkgroups.zookeeper.admin import migration_marks as marks

from .brokers import Cluster, Write
from .histories import Step, check
from .world import HOSTS, World

HISTORIES, STEPS = 60, 30
GROUPS = ("billing", "invoices")
PARTITIONS = tuple(TopicPartition("orders", number) for number in range(2))
NATIVE, MIGRATION = "native", "migration"
DONE = {Outcome.WRITTEN, Outcome.THERE, Outcome.SKIPPED}

WEIGHTS = {
    "plan": 4,
    "apply": 8,
    "rollback": 4,
    "old_member_works": 5,
    "old_client_commits": 2,
    "native_works": 5,
    "native_joins": 2,
    "native_leaves": 4,
    "answers_are_lost": 2,
    "server_restarts": 1,
}


class MigrationModel:
    """Both sides, and what each offset may be."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.done: Counter[str] = Counter()
        self.cluster = Cluster(world, PARTITIONS)
        self.cluster.before_call = self._at_a_call
        self.cluster.on_write = self._check_write
        self.observer = world.connect("observer", session_timeout=300.0)
        self.foreign = KazooClient(HOSTS, timeout=300.0)
        self.foreign.start()
        self.old: dict[tuple[str, TopicPartition], int] = {}
        for group in GROUPS:
            self._old_commit(group, PARTITIONS[0], 50)
        self.first = {("invoices", PARTITIONS[0]): 2, ("invoices", PARTITIONS[1]): 1}
        for (group, at), offset in self.first.items():
            self.cluster.write(group, at, NativeOffset(group, at, offset, "metadata"))
        self.native: dict[tuple[str, TopicPartition], int] = {}
        """The last commit of a new consumer."""
        self.rows: list[PlanRow] = []
        self.plans = self.runs = 0
        self.points_left = 0
        """How many more points a run passes before something happens to it."""
        self.event: Callable[[], object] | None = None
        self.is_kill = False
        self.last_call = ""
        """What the run asked the brokers last."""
        self.came_between: set[str] = set()
        """The groups with a commit of an old client before the run looked for the last time."""
        world.before_write = self._at_a_write

    # Moves of the migration

    def plan(self, _step: Step) -> None:
        """Plan both groups again, unless a plan is under way."""
        if not self.marks():
            self.plans += 1
            names = {group: group for group in GROUPS}
            self.rows = plan_of(self.observer, self.cluster.brokers(), names, plan=f"plan-{self.plans}")

    def apply(self, step: Step) -> None:
        """Apply the plan. It may be killed at any point, or another client may come between."""
        before = dict(self.old)
        report = self._run(
            step, lambda registry: apply_groups(self.rows, self.cluster.brokers(), registry, execute=True)
        )
        if report is not None and "overtaken" in outcomes(report):
            self.done["commits in the middle of a run that were found"] += 1
        for group, state in self.marks().items():
            rows = [row for row in report or () if row.group == group]
            if state is MarkState.MOVED and rows and {row.outcome for row in rows} <= DONE:
                self.done["groups moved"] += 1
                assert group not in self.came_between, f"{group} was read before an old client's commit"
                for (name, at), offset in before.items():
                    if name == group and self.old[name, at] == offset and (name, at) not in self.native:
                        assert (self.cluster.number(group, at) or 0) >= offset, f"{at} of {group} was not copied"

    def rollback(self, step: Step) -> None:
        """Roll the plan back."""
        report = self._run(
            step, lambda registry: rollback_groups(self.rows, self.cluster.brokers(), registry, execute=True)
        )
        for group in GROUPS:
            rows = [row for row in report or () if row.group == group]
            if rows and {row.outcome for row in rows} <= {*DONE, Outcome.NEWER}:
                self.done["groups rolled back"] += 1
                assert group not in self.marks()
                earlier = {row.at: row.before for row in self.rows if row.group == group}
                for at, offset in earlier.items():
                    assert (group, at) in self.native or self.cluster.number(group, at) == offset

    def _run(self, step: Step, work: Callable[[Registry], Any]) -> Any:
        """Run in a process of its own, which something happens to at a point. Return None if it was killed."""
        if not self.rows:
            return None
        self.runs += 1
        self.last_call, self.came_between = "", set()
        process = f"{MIGRATION}-{self.runs}"
        result: list[Any] = []
        self.is_kill, comes_between = step.b % 3 == 0, step.b % 3 == 1
        self.points_left = step.a % (16 if self.is_kill else 8)
        if self.is_kill:
            self.event = lambda: self._kill(process)
        elif comes_between:
            self.event = lambda: self._come_between(step)

        def body() -> None:
            with self.world.connect(process, session_timeout=10.0) as registry:
                result.append(work(registry))

        with self.world.machine.process(process):
            thread = threading.Thread(target=body)
            thread.start()
        self.world.machine.until(lambda: not thread.is_alive() or process in self.world.machine.stalled, 300)
        self.event = None
        self.world.machine.sleep(20)  # the session of a killed process ends, and so do its locks
        return result[0] if result else None

    def _at_a_call(self, process: str, what: str) -> None:
        """Before a run calls the brokers."""
        if not process.startswith(MIGRATION):
            return
        before = dict(self.old)
        if self.event is not None:
            self._pass_a_point(self.event)
            while process in self.world.machine.stalled:
                self.world.machine.sleep(1)
        if (what, "commit") != ("committed", self.last_call):  # a run has looked at ZooKeeper for the last time
            self.came_between |= {
                group for (group, at), offset in self.old.items() if before.get((group, at)) != offset
            }
        self.last_call = what

    def _at_a_write(self, process: str) -> None:
        """Before a write of a run arrives at ZooKeeper. Nothing can wait here, so only a kill comes here."""
        if self.event is not None and self.is_kill and process.startswith(MIGRATION):
            self._pass_a_point(self.event)

    def _pass_a_point(self, event: Callable[[], object]) -> None:
        self.points_left -= 1
        if self.points_left < 0:
            self.event = None
            event()

    def _kill(self, process: str) -> None:
        self.world.kill(process)
        self.done["kills"] += 1

    def _come_between(self, step: Step) -> None:
        """Let another client do something in the middle of a run."""
        move = (self.old_member_works, self.old_client_commits, self.native_joins)[step.c % 3]
        with self.world.machine.process("other"):
            move(Step("", step.b, step.c, step.a))
        self.done["moves in the middle of a run"] += 1

    # Moves of the old clients

    def old_member_works(self, step: Step) -> None:
        """A zkgroups member joins, commits, and leaves. A mark keeps it out."""
        group, at = GROUPS[step.a % 2], PARTITIONS[step.b % 2]
        with self.world.connect("member", session_timeout=10.0) as registry, registry.group(group).instance("m") as me:
            try:
                me.register(["orders"])
            except GroupMigratedError:
                assert group in self.marks()
                self.done["members kept out"] += 1
                return
            assert group not in self.marks()
            with me.claim(at) as claim:
                offset = self.old.get((group, at), 0) + 10 * (1 + step.c % 5)
                claim.commit(offset)
                self.old[group, at] = offset
        self.done["commits of old members"] += 1

    def old_client_commits(self, step: Step) -> None:
        """A client that knows no marks commits without joining."""
        group, at = GROUPS[step.a % 2], PARTITIONS[step.b % 2]
        self._old_commit(group, at, self.old.get((group, at), 0) + 10 * (1 + step.c % 5))

    def _old_commit(self, group: str, at: TopicPartition, offset: int) -> None:
        path = f"/consumers/{group}/offsets/{at.topic}/{at.partition}"
        self.foreign.ensure_path(path)
        self.foreign.set(path, b"%d" % offset)
        self.old[group, at] = offset

    # Moves of the new consumers. They begin when the migration says that it has moved their group.

    def native_joins(self, step: Step) -> None:
        group = GROUPS[step.a % 2]
        if self.marks().get(group) is MarkState.MOVED:
            self.cluster.members[group].add(NATIVE)

    def native_works(self, step: Step) -> None:
        """A member commits further offsets."""
        group, at = GROUPS[step.a % 2], PARTITIONS[step.b % 2]
        self.native_joins(step)
        if NATIVE not in self.cluster.members[group]:
            return
        with self.world.machine.process(NATIVE):
            offset = (self.cluster.number(group, at) or 0) + 1 + step.c % 3
            offset += offset % 10 == 0
            self.cluster.write(group, at, NativeOffset(group, at, offset))
        self.native[group, at] = offset
        self.done["commits of new consumers"] += 1

    def native_leaves(self, step: Step) -> None:
        self.cluster.members[GROUPS[step.a % 2]].clear()

    # Faults

    def answers_are_lost(self, step: Step) -> None:
        self.cluster.lost_answers = step.a % 3

    def server_restarts(self, step: Step) -> None:
        self.world.stop()
        self.world.machine.sleep(step.a % 40 / 10)
        self.world.start()
        clients = [self.foreign, self.observer.client]
        self.world.machine.until(lambda: all(client.connected for client in clients))

    # The rules

    def marks(self) -> dict[str, MarkState]:
        """The states of the marks, straight from the server."""
        found = marks.read(self.observer._context, GROUPS)
        return {group: mark.state for group, mark in found.items() if isinstance(mark, Mark)}

    def _check_write(self, write: Write) -> None:
        key = write.group, write.at
        if write.process.startswith(MIGRATION):
            assert key not in self.native, f"a commit of a new consumer was overwritten: {write}"
            assert not self.cluster.members[write.group], f"the group has members: {write}"
            self.done["writes of migrations"] += 1

    def check(self) -> None:
        """No old offset was changed by a migration, and no offset on the brokers skips a message."""
        for (group, at), offset in self.old.items():
            data, _ = self.foreign.get(f"/consumers/{group}/offsets/{at.topic}/{at.partition}")
            assert int(data) == offset, f"{at} of {group}"
        for group in GROUPS:
            for at in PARTITIONS:
                most = max(found.get((group, at), 0) for found in (self.old, self.native, self.first))
                assert (self.cluster.number(group, at) or 0) <= most, f"{at} of {group} skips messages"

    def settle(self) -> None:
        """After all faults, both groups are moved, by rolling back a plan that cannot go on, and planning again."""
        self.cluster.lost_answers = 0
        self.cluster.members.clear()
        nothing = Step("", 0, 2, 0)  # nothing happens to a run
        for _ in range(2):
            self.apply(nothing)
            if self.marks() == dict.fromkeys(GROUPS, MarkState.MOVED):
                return
            self._run(nothing, lambda registry: self._forced_rollback(registry))
            assert not self.marks()
            self.native.clear()
            self.plan(nothing)
        raise AssertionError(f"the groups are not moved: {self.marks()}")

    def _forced_rollback(self, registry: Registry) -> Any:
        self.native.clear()
        report = rollback_groups(self.rows, self.cluster.brokers(), registry, execute=True, force=True)
        assert not outcomes(report) & {"failed", "left"}, report
        return report


def play(seed: int, history: Sequence[Step]) -> Counter[str]:
    """Play a history, and check the rules after each step."""
    with World(seed).running() as world:
        model = MigrationModel(world)
        for step in history:
            getattr(model, step.move)(step)
            model.check()
        model.settle()
        model.check()
        return model.done


def test_no_kill_no_fault_and_no_other_client_makes_a_migration_skip_a_message_or_overwrite_a_commit() -> None:
    done = check(play, WEIGHTS, seeds=range(HISTORIES), length=STEPS)
    # What the histories must have reached to prove anything.
    assert done["kills"] > HISTORIES / 3
    assert done["moves in the middle of a run"] > HISTORIES / 2
    assert done["commits in the middle of a run that were found"] > HISTORIES / 15
    assert done["members kept out"] > HISTORIES
    assert done["commits of new consumers"] > HISTORIES
    assert done["groups moved"] > 2 * HISTORIES
    assert done["groups rolled back"] > HISTORIES


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_any_histories() -> None:
    """The same with fresh histories, twenty times as many."""
    print(check(play, WEIGHTS, seeds=seeds(20 * HISTORIES), length=STEPS))
