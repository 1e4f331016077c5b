"""The base of both directions of following: groups, marks, locks, and reading ZooKeeper."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from ...core.layouts.legacy import LEGACY
from ...core.migration.follow_rules import FollowedGroup
from ...core.migration.obstacles import Obstacle, ObstacleKind, offset_refused
from ...core.migration.offset_decision import Reason, Rule
from ...core.migration.source_and_target_state import SourceState
from ...core.znodes.migration_mark import Mark, MarkState
from ...input_errors import ZkgroupsException
from ...kafka import Brokers
from ...zookeeper.admin import migration_marks as marks
from ...zookeeper.admin.migration_target_locks import MigrationTargetLocks
from ...zookeeper.registry import Registry
from ...zookeeper.session.registry_context import context_of
from ..current_state import read_sources
from .tracked_group import TrackedGroup

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

    # Marks

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

    # Locks

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

    # Reading

    def leave_recreated(self, groups: Iterable[TrackedGroup]) -> None:
        """Leave groups whose topics were recreated: their offsets do not apply to the new topics."""
        following = [group for group in groups if group.following]
        names = {topic for group in following for topic in group.topics}
        ids = self.brokers.topic_ids(self.brokers.partitions(names)) if names else {}
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
