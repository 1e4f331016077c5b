"""The base of both directions of following: groups, marks, locks, and reading ZooKeeper."""

from __future__ import annotations

import logging
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from ..core.layouts.legacy import LEGACY
from ..core.layouts.template import parse_layout
from ..core.migration.changes_since_plan import (
    SourceState,
    TargetState,
    TopicIds,
    by_target,
    is_of_source,
    is_recreated,
    key_text,
)
from ..core.migration.follow_rules import ARRIVED, FollowedGroup, FollowedOffsets, FollowState, LeadingOffset
from ..core.migration.obstacles import Obstacle, ObstacleKind, offset_refused, some_texts
from ..core.migration.offset_decision import Action, NoOffset, Reason, Rule, name_error
from ..core.migration.plan_rows import PlanRow
from ..core.znodes.own_nodes import Mark, MarkState
from ..core.znodes.topic_partition import TopicPartition
from ..input_errors import ZkgroupsException
from ..kafka import Brokers
from ..zookeeper.admin import migration_marks as marks
from ..zookeeper.admin.migration_marks import MigrationTargetLocks
from ..zookeeper.registry import Registry
from ..zookeeper.session.session import context_of
from .apply import invalid_name
from .current_state import read_sources

# One group that is followed, in either direction: its offsets, its obstacles, and whether it may be cut over.


_OTHER_ZOOKEEPER: Final = "this is another ZooKeeper, or it was restored from a backup"


class TrackedGroup:
    """A followed group, updated by each pass."""

    def __init__(self, rows: Sequence[PlanRow], *, to_zookeeper: bool) -> None:
        self.group, self.target, self.plan = rows[0].group, rows[0].target, rows[0].plan
        self.cluster = rows[0].cluster
        self.layout = parse_layout(rows[0].layout)
        self.state = FollowState.FOLLOWING
        self.obstacles: list[Obstacle] = []
        """Why the group was left, or why it cannot be cut over in this pass."""
        self.note = ""
        """A summary for people: the skipped offsets of a group that is done, or the result of a dry run."""
        self.behind = 0
        self.due_since = 0
        """The first of the passes in a row with a due offset; 0 if no offset is due now."""
        self.had_members = False
        """Whether the leading side had members at the last look."""
        self.forbidden: list[Obstacle] = []
        """The offsets in ZooKeeper that may not be read."""
        self.offsets = FollowedOffsets() if to_zookeeper else FollowedOffsets(_targets_ahead(rows), _planned(rows))
        self._topic_ids = {row.topic: row.topic_id for row in rows if row.topic and row.topic_id is not None}
        self._moved_topics = frozenset(self._topic_ids if to_zookeeper else ())
        self._topic_pattern = None if rows[0].topics is None else re.compile(rows[0].topics, re.DOTALL)
        self._before = {row.at: row.before for row in rows if row.action is not Action.COMMIT}
        self._planned = {row.at: row.planned for row in rows if row.at is not None and row.is_commit}
        self._zxids = {(row.topic, row.partition): row.zxid for row in rows if row.zxid is not None}
        self._stale = {row.at: row.zxid for row in rows if row.reason is Reason.STALE}
        self._check_plan(rows)

    def _check_plan(self, rows: Sequence[PlanRow]) -> None:
        """Leave the group if its plan has obstacles, other than legacy instances: these stop while it is followed."""
        if found := [each for each in rows[0].obstacles if each.kind is not ObstacleKind.LEGACY_INSTANCES]:
            self.leave(*found)
        for name in (self.group, self.target):
            if (error := name_error(name)) is not None:
                self.leave(invalid_name(name, error))

    @property
    def following(self) -> bool:
        """Whether the group is neither done nor left."""
        return self.state is FollowState.FOLLOWING

    def leave(self, *obstacles: Obstacle) -> None:
        """Stop following the group: these obstacles need the operator."""
        self.state, self.obstacles, self.note = FollowState.LEFT, list(obstacles), ""

    def finish(self, note: str) -> None:
        """Record that both sides agree, and that the leading side has no members."""
        self.state, self.obstacles, self.note = FollowState.DONE, [], note
        self.offsets.settle()
        self.measure()

    def end_as_moved(self) -> None:
        """Record that an earlier run has moved the group."""
        self.state, self.obstacles, self.note = FollowState.ALREADY_MOVED, [], ""
        self.offsets.settle()

    def resume(self) -> None:
        """Follow the group again after it was done."""
        self.state, self.obstacles, self.note = FollowState.FOLLOWING, [], ""

    def measure(self) -> None:
        """Update the number of messages that the following side is behind."""
        self.behind = self.offsets.behind

    def may_cut_over(self, *, has_members: bool) -> bool:
        """Return whether the group can be cut over now.

        After members have left, a second look must find none either: a member that was restarted, or whose session
        expired, comes back soon.
        """
        if has_members:
            self.had_members = True
        elif self.had_members and not self.obstacles:
            self.had_members, self.obstacles = False, [Obstacle(ObstacleKind.ALL_MEMBERS_LEFT)]
        return not has_members and not self.obstacles

    def result(self) -> FollowedGroup:
        """Return the state of the group for the user."""
        parts = [some_texts(self.obstacles)]
        if self.following and (self.note or not self.obstacles):
            parts.append(some_texts(self.offsets.failures))
        detail = "; ".join(filter(None, [*parts, self.note]))
        return FollowedGroup(self.group, self.target, self.state, self.behind, detail)

    @property
    def topics(self) -> set[str]:
        """The topics of its offsets; on the way back, also the topics that the plan has moved."""
        return self.offsets.topics | self._moved_topics

    def has_topic(self, topic: str) -> bool:
        """Return whether the plan covers a topic."""
        return self._topic_pattern is None or self._topic_pattern.fullmatch(topic) is not None

    def topic_id(self, topic: str) -> str | None:
        """Return the id of a topic in the plan, or else at the first look."""
        return self._topic_ids.get(topic)

    def find_recreated(self, ids: TopicIds) -> list[str]:
        """Compare the current topic ids with the earlier ones. Return the topics that were recreated."""
        known = self.topics
        for topic in known & ids.keys():
            self._topic_ids.setdefault(topic, ids[topic])
        return sorted(topic for topic in known if is_recreated(topic, self._topic_ids.get(topic), ids))

    def update_from_source(self, state: SourceState) -> bool:
        """Record the offsets in ZooKeeper as the leading side. Return whether any has changed.

        Offsets that were stale when the plan was made are ignored until they are written again. Leave the group if an
        offset is older than in the plan: the zxids of one ensemble only grow.
        """
        if older := self._older_than_planned(state):
            detail = f"the offset of {older[0]} is older than in the plan: {_OTHER_ZOOKEEPER}"
            self.leave(Obstacle(ObstacleKind.REQUEST_FAILED, detail=detail))
            return False
        self.update_forbidden(state)
        found = {}
        for (topic, partition), node in state.offsets.items():
            if topic is None or partition is None or node.zxid is None or not self.has_topic(topic):
                continue
            at = TopicPartition.checked(topic, partition)
            if self._stale.get(at) != node.zxid:
                found[at] = LeadingOffset(NoOffset.UNREADABLE if node.offset is None else node.offset, node.zxid)
        return self.offsets.update(found, complete=not self.forbidden)

    def _older_than_planned(self, state: SourceState) -> list[str]:
        """Return the names of the offsets in ZooKeeper that were written before those in the plan."""
        zxids = ((key, node.zxid) for key, node in state.offsets.items() if node.zxid is not None)
        return [key_text(key) for key, zxid in zxids if zxid < self._zxids.get(key, 0)]

    def update_forbidden(self, state: SourceState) -> None:
        """Record the forbidden offsets in ZooKeeper. Taking them for missing would lose them."""
        keys = (key for key, node in state.offsets.items() if node.zxid is None)
        names = [key_text(key) for key in keys if key[0] is None or self.has_topic(key[0])]
        self.forbidden = [Obstacle.of(ObstacleKind.FORBIDDEN_OFFSETS, names)] if names else []

    def has_planned_offsets(self, state: TargetState) -> bool:
        """Return whether the brokers have all planned offsets, or higher ones."""
        there = {at: found.offset for at, found in state.committed.items()}
        return all(there.get(at, -1) >= (planned or 0) for at, planned in self._planned.items())

    def update_from_target(self, state: TargetState) -> bool:
        """Record the offsets of the brokers as the leading side. Return whether any has changed.

        Offsets from before the plan are ignored until they are written.
        """
        wanted = ((at, found.offset) for at, found in state.committed.items() if self.has_topic(at.topic))
        news = ((at, number) for at, number in wanted if self._before.get(at) != number or at in self.offsets)
        return self.offsets.update({at: LeadingOffset(number, number) for at, number in news})


def tracked_groups(rows: Sequence[PlanRow], *, to_zookeeper: bool) -> list[TrackedGroup]:
    """Return the groups of a plan that have offsets in ZooKeeper."""
    found = (of_target for of_target in by_target(rows).values() if any(map(is_of_source, of_target)))
    return [TrackedGroup(of_target, to_zookeeper=to_zookeeper) for of_target in found]


def _targets_ahead(rows: Iterable[PlanRow]) -> dict[TopicPartition, int]:
    """Return the offsets of the target that were higher when the plan was made, and may stay so."""
    return {
        row.at: row.before
        for row in rows
        if row.at is not None and row.before is not None and row.reason is Reason.TARGET_AHEAD
    }


def _planned(rows: Iterable[PlanRow]) -> list[TopicPartition]:
    """Return the partitions whose offsets must be on the target at the end."""
    return [row.at for row in rows if row.at is not None and (row.action is Action.COMMIT or row.reason in ARRIVED)]


log = logging.getLogger("zkgroups.migration")

GROUPS_PER_READ: Final = 200
"""How many groups to read from ZooKeeper at a time, to limit memory."""


class Follower(ABC):
    """Follows groups in one direction, over as many passes as needed."""

    def __init__(
        self,
        groups: Sequence[TrackedGroup],
        brokers: Brokers,
        registry: Registry,
        rule: Rule,
        stop: threading.Event,
        *,
        execute: bool,
        writers_stopped: bool = False,
    ) -> None:
        self.groups = groups
        self.plan = groups[0].plan if groups else ""
        self.layout = groups[0].layout if groups else LEGACY
        self.writers_are_known = writers_stopped or self.layout.has_registrations
        self.by_target = {group.target: group for group in groups}
        self.brokers = brokers
        self.registry = registry
        self.rule = rule
        self.stop = stop
        self.execute = execute
        self.number = 0
        """The number of the current pass."""
        self.behind = 0
        self.written = 0
        self.marked_as_moving: set[str] = set()
        """Groups that this run has marked as moving. They are unmarked at the end."""
        self.marked_as_moved: set[str] = set()
        """Groups that stay marked as moved."""
        self._marks_read = False
        self._locks: MigrationTargetLocks | None = None
        self._locks_session: int | None = None
        self._locked: set[str] = set()
        """The targets that are locked in the session `_locks_session`."""
        self._unchecked: set[str] = set()
        """Targets that were written, and whose locks have not been checked since."""

    def begin_pass(self) -> None:
        self.number += 1
        self.written = 0

    @abstractmethod
    def run_pass(self, limit: int) -> None:
        """Read all groups, and write at most `limit` offsets, not counting groups that are cut over."""

    @property
    def following(self) -> list[TrackedGroup]:
        """The groups that are neither done nor left, those with the oldest due offsets first."""
        found = [group for group in self.groups if group.following]
        return sorted(found, key=lambda group: group.due_since or self.number)

    @property
    def is_finished(self) -> bool:
        """Whether all groups are done or left."""
        return not any(group.following for group in self.groups)

    def results(self) -> list[FollowedGroup]:
        """Return the state of each group."""
        return [group.result() for group in self.groups]

    def read_marks(self) -> None:
        """In the first pass, leave groups that another plan has marked, and adopt the marks of earlier runs."""
        if self._marks_read:
            return
        groups = {group.group: group for group in self.following}
        for name, mark in marks.read(context_of(self.registry), groups, self.layout).items():
            group = groups[name]
            if not isinstance(mark, Mark) or mark.plan != group.plan:
                error = marks.migrated(name, mark, self.layout)
                group.leave(Obstacle(ObstacleKind.OTHER_MARK, detail=str(error)))
            elif mark.state is MarkState.MOVED:
                self.marked_as_moved.add(name)
            else:  # an earlier run was killed
                self.marked_as_moving.add(name)
        self.end_moved_groups()
        self._marks_read = True

    @abstractmethod
    def end_moved_groups(self) -> None:
        """Do not follow groups that an earlier run has finished. Called once, after marks were read."""

    def unmark(self, groups: Iterable[TrackedGroup]) -> None:
        """Remove the marks of groups that are not cut over after all."""
        if names := self.marked_as_moving & {group.group for group in groups}:
            context = context_of(self.registry)
            answers = marks.remove(context, names, plan=self.plan, state=MarkState.MOVING, layout=self.layout)
            for name, error in answers.items():
                if error is not None:
                    log.warning("could not remove the migration mark of group %r: %s; run migrate unmark", name, error)
            self.marked_as_moving -= names

    def close(self) -> None:
        """Remove the marks of groups that were not cut over, and release all locks, if a server answers."""
        if self.execute:
            with suppress(ZkgroupsException):
                self.unmark(self.groups)
                if self._locks is not None:
                    self._locks.release(self._locked)

    def lock(self) -> None:
        """Lock all followed targets against other plans. Leave groups whose target another plan has locked."""
        if not self.execute:
            return
        self.check_locks()
        session = context_of(self.registry).session.id
        if self._locks_session != session or self._locks is None:
            self._locked.clear()
            self._locks_session = session
            self._locks = MigrationTargetLocks(
                context_of(self.registry), cluster=self.groups[0].cluster, plan=self.plan
            )
        wanted = {group.target: group for group in self.following if group.target not in self._locked}
        if not wanted:
            return
        for target, error in self._locks.take(wanted).items():
            if error is None:
                self._locked.add(target)
            else:
                wanted[target].leave(Obstacle(ObstacleKind.LOCKED, detail=str(error)))

    def still_locked(self, targets: Iterable[str]) -> set[str]:
        """Return the targets that may be written now. Leave groups whose locks another run has taken."""
        names = set(targets)
        lost = set(self._locks.lost(names)) if self._locks is not None else set()
        if self._locks_session == context_of(self.registry).session.id:
            for target in lost:
                taken = "another run of this plan has taken the lock of the target"
                group = self.by_target[target]
                group.leave(Obstacle(ObstacleKind.LOCKED, detail=taken))
                self.marked_as_moving.discard(group.group)  # the mark is now that of the other run
        self._unchecked |= names - lost
        return names - lost

    def check_locks(self) -> None:
        """Leave groups that were written without a lock: another plan may have written to their targets."""
        if self._locks is not None and self._unchecked:
            for target in self._locks.lost(self._unchecked):
                self.by_target[target].leave(Obstacle(ObstacleKind.LOCK_LOST_AFTER_WRITE))
        self._unchecked.clear()

    def leave_recreated(self, groups: Iterable[TrackedGroup]) -> None:
        """Leave groups whose topics were recreated: their offsets do not apply to the new topics."""
        following = [group for group in groups if group.following]
        names = {topic for group in following for topic in group.topics}
        ids = self.brokers.topic_ids(self.brokers.partitions(names))
        for group in following:
            if recreated := group.find_recreated(ids):
                group.leave(*(offset_refused(topic, Reason.RECREATED) for topic in recreated))

    def read_sources(self, groups: Iterable[TrackedGroup]) -> Iterator[tuple[TrackedGroup, SourceState]]:
        """Yield the current state of these groups in ZooKeeper."""
        wanted = list(groups)
        for first in range(0, len(wanted), GROUPS_PER_READ):
            chunk = wanted[first : first + GROUPS_PER_READ]
            states = read_sources(self.registry, (group.group for group in chunk), self.layout)
            yield from ((group, states[group.group]) for group in chunk)
