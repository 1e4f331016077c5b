"""Following legacy instances: copy their commits from ZooKeeper to the brokers until no instance is registered.

A group is cut over if two consecutive passes find no instance. It is marked, so that no zkgroups member joins. Then it
is read again, and the rest is written. Then it is read once more, because other clients ignore marks. It is done if no
instance has registered, all offsets could be read, none was deleted, and both sides agree. If an instance registers or
commits later, while other groups are still followed, the group is followed again and stays marked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final

from ...core.kafka_values import NativeGroup, NativeOffset
from ...core.migration.changes_since_plan import member_obstacles
from ...core.migration.follow_rules import FollowState, OffsetRule
from ...core.migration.obstacles import Obstacle, ObstacleKind
from ...core.migration.offset_decision import Decision, Unknown, decide
from ...core.migration.source_and_target_state import SourceState, TargetState
from ...core.znodes.migration_mark import MarkState
from ...core.znodes.topic_partition import TopicPartition
from ...exceptions import UnavailableError, UnknownPartitionError
from ...input_errors import ZkgroupsException
from ...zookeeper.admin import migration_marks as marks
from ...zookeeper.session.registry_context import context_of
from ..current_state import active_members, read_targets
from ..log_ranges import LogRanges, topic_creation_zxids
from .follower import Follower
from .tracked_group import TrackedGroup

Writes = Mapping[str, Mapping[TopicPartition, int]]
"""The offsets to write, by target."""

PASSES_PER_MEMBER_CHECK: Final = 10
"""The number of passes between two looks for members on the brokers. Brokers refuse commits to a group with members
anyway, so this only reports them earlier, and for groups without commits."""


class FollowToKafka(Follower):
    """Follows groups from ZooKeeper to the brokers."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._before: dict[str, Mapping[TopicPartition, NativeOffset]] = {}
        """The offsets of the targets at the last look."""

    def run_pass(self, limit: int) -> None:
        """Read all groups, write changed offsets, and cut over groups without instances."""
        self.read_marks()
        self.lock()
        if self.number % PASSES_PER_MEMBER_CHECK == 1:
            self._leave_active_targets()
        ready = self._read_groups()
        chosen = _up_to_limit([group for group in self.following if group.offsets.due], limit)
        writes = self._decide(chosen, self._read_logs(chosen), limit)
        for group in self.following:
            group.measure()
        self.behind = sum(group.behind for group in self.following)
        if not self.execute:
            self._note_dry_run(writes, ready)
            return
        if not self.stop.is_set():
            self._write(writes)
        if not self.stop.is_set():
            self._cut_over([group for group in ready if group.following])

    # Reading

    def end_moved_groups(self) -> None:
        """Groups that are marked as moved, unless legacy clients have come back."""
        moved = [group for group in self.following if group.group in self.marked_as_moved]
        committed = self.brokers.committed_or_error(group.target for group in moved)
        for group, source in self.read_sources(moved):
            there = committed[group.target]
            if source.instances or source.unreadable or isinstance(there, ZkgroupsException):
                continue
            group.update_from_source(source)
            if (
                group.following
                and not group.forbidden
                and group.offsets.are_copied_to({at: it.offset for at, it in there.items()})
            ):
                group.end_as_moved()

    def _leave_active_targets(self) -> None:
        found = self.brokers.groups(group.target for group in self.following)
        for group in self.following:
            native = found[group.target]
            if isinstance(native, NativeGroup) and (members := active_members(native)):
                group.leave(*member_obstacles(TargetState(members)))

    def _read_groups(self) -> list[TrackedGroup]:
        """Update all groups. Return the groups that can be cut over."""
        ready: list[TrackedGroup] = []
        active: list[TrackedGroup] = []
        for group, source in self.read_sources(group for group in self.groups if group.state is not FollowState.LEFT):
            if not group.following:
                if not source.instances and not group.update_from_source(source):
                    continue
                group.resume()
                self.marked_as_moved.add(group.group)  # it stays marked: the new client ignores marks
            self._update(group, source)
            if group.may_cut_over(has_members=bool(source.instances)):
                ready.append(group)
            elif source.instances:
                active.append(group)
        if self.execute:
            self.unmark(active)
        return ready

    def _update(self, group: TrackedGroup, source: SourceState) -> bool:
        changed = group.update_from_source(source)
        if group.state is FollowState.LEFT:
            return changed
        group.obstacles = list(group.forbidden)
        if source.unreadable:
            group.obstacles.insert(0, Obstacle(ObstacleKind.UNREADABLE, detail=source.unreadable))
        if not self.writers_are_known:
            group.obstacles.append(Obstacle(ObstacleKind.WRITERS_UNKNOWN, detail=self.layout.location))
        group.due_since = (group.due_since or self.number) if group.offsets.due else 0
        return changed

    def _read_logs(self, groups: Sequence[TrackedGroup]) -> LogRanges:
        due = {at for group in groups for at in group.offsets.due}
        logs = LogRanges(self.brokers, topic_creation_zxids(self.registry, {at.topic for at in due}))
        logs.read(due)
        for group in groups:
            group.find_recreated(logs.topic_ids)
        return logs

    def _offset_rule(self, group: TrackedGroup, logs: LogRanges) -> OffsetRule:
        rule = replace(self.rule, backward=False)

        def offset_rule(at: TopicPartition, number: int, target: int | Unknown | None) -> Decision:
            log = logs.log(at, group.offsets.stamp(at), group.topic_id(at.topic))
            return decide(number, log, target, rule)

        return offset_rule

    # Writing

    def _decide(self, groups: Sequence[TrackedGroup], logs: LogRanges, limit: int | None) -> Writes:
        """Return the offsets to write, given the current offsets of the targets."""
        writes: dict[str, Mapping[TopicPartition, int]] = {}
        if not groups:
            return writes
        left = limit
        for target, found in self.brokers.committed_or_error(group.target for group in groups).items():
            group = self.by_target[target]
            if isinstance(found, ZkgroupsException):
                _record_error(group, found)
                continue
            self._before[target] = found
            committed = {at: offset.offset for at, offset in found.items()}
            writes[target] = group.offsets.decide(self._offset_rule(group, logs), committed, left)
            left = None if left is None else left - len(writes[target])
        return writes

    def _write(self, writes: Writes) -> None:
        """Commit these offsets. Failed offsets stay due; leave groups whose errors are permanent."""
        locked = self.still_locked(target for target, of_target in writes.items() if of_target)
        offsets = {target: of_target for target, of_target in writes.items() if target in locked}
        answered = self.brokers.commit(offsets, before=self._before) if offsets else {}
        for target, answers in answered.items():
            group = self.by_target[target]
            for at, error in answers.items():
                if error is None:
                    self.written += 1
                    group.offsets.record_write(at, offsets[target][at])
                elif group.following:
                    group.offsets.record_failure(at, error)
                    _record_error(group, error)
        self.check_locks()

    def _note_dry_run(self, writes: Writes, ready: Sequence[TrackedGroup]) -> None:
        for group in self.following:
            count = len(writes.get(group.target, ()))
            self.written += count
            cut_over = ", and the group would be cut over" if group in ready else ""
            group.note = f"{count} {'offset' if count == 1 else 'offsets'} would be written{cut_over}"

    # Cutting over

    def _cut_over(self, groups: Sequence[TrackedGroup]) -> None:
        if not groups:
            return
        marked = self._mark_as_moving(groups)
        ready = []
        for group, source in self.read_sources(marked):
            self._update(group, source)
            if group.may_cut_over(has_members=bool(source.instances)):
                group.offsets.make_all_due()
                ready.append(group)
        logs = self._read_logs(ready)
        self._write(self._decide(ready, logs, None))
        self._finish([group for group in ready if group.following], logs)
        self.unmark(group for group in marked if group.state is not FollowState.DONE)

    def _mark_as_moving(self, groups: Sequence[TrackedGroup]) -> list[TrackedGroup]:
        targets = {group.group: group.target for group in groups if group.group not in self.marked_as_moved}
        context, layout = context_of(self.registry), self.layout
        self.marked_as_moving |= targets.keys()  # before the first of several requests, because a later one may fail
        errors = marks.put(context, targets, plan=self.plan, state=MarkState.MOVING, layout=layout)
        for group in groups:
            error = errors.get(group.group)
            if error is not None:
                group.leave(Obstacle(ObstacleKind.MARK_FAILED, detail=str(error)))
                self.marked_as_moving.discard(group.group)
        return [group for group in groups if group.following]

    def _finish(self, groups: Sequence[TrackedGroup], logs: LogRanges) -> None:
        """Finish the groups where both sides agree and no instance has registered.

        A group is done only when its mark is written. If that fails, the next pass cuts it over again.
        """
        self.leave_recreated(groups)
        groups = [group for group in groups if group.following]
        targets = read_targets(self.brokers, [group.target for group in groups])
        agreed: dict[str, tuple[TrackedGroup, str]] = {}
        for group, source in self.read_sources(groups):
            if (summary := self._agreement(group, source, targets[group.target], logs)) is not None:
                agreed[group.group] = group, summary
        put = {name: group.target for name, (group, _summary) in agreed.items()}
        context, layout = context_of(self.registry), self.layout
        answers = marks.put(context, put, plan=self.plan, state=MarkState.MOVED, replace=True, layout=layout)
        for name, error in answers.items():
            group, summary = agreed[name]
            if error is None:
                self.marked_as_moving.discard(name)
                group.finish(summary)
            else:
                group.leave(Obstacle(ObstacleKind.MARK_FAILED, detail=str(error)))

    def _agreement(self, group: TrackedGroup, source: SourceState, target: TargetState, logs: LogRanges) -> str | None:
        """Return a summary if both sides agree and the group has no members; otherwise None."""
        changed = self._update(group, source)
        if not group.may_cut_over(has_members=bool(source.instances)) or changed:
            return None  # an instance has registered or committed: the next pass continues
        if obstacles := member_obstacles(target):
            group.leave(*obstacles)
            return None
        committed = {at: offset.offset for at, offset in target.committed.items()}
        agreement = group.offsets.check_agreement(self._offset_rule(group, logs), committed)
        if agreement.obstacles:
            group.leave(*agreement.obstacles)
            return None
        return None if agreement.open else agreement.summary


def _up_to_limit(groups: Sequence[TrackedGroup], limit: int) -> list[TrackedGroup]:
    """Return the first groups that have `limit` due offsets together; the last of them may exceed it."""
    before = accumulate((len(group.offsets.due) for group in groups), initial=0)
    return [group for group, count in zip(groups, before, strict=False) if count < limit]


def _record_error(group: TrackedGroup, error: ZkgroupsException) -> None:
    """Leave the group unless the error is temporary."""
    obstacle = Obstacle(ObstacleKind.REQUEST_FAILED, detail=str(error))
    if isinstance(error, UnavailableError | UnknownPartitionError):
        group.obstacles = [obstacle]
    else:
        group.leave(obstacle)
