"""Following: copy commits from one side to the other, pass after pass, while consumers still work.

Moving a group then takes only as long as stopping its consumers on one side and starting them on the other. Each pass
reads the leading side in bulk and writes changed offsets, forward only. A group without members on the leading side is
cut over: read again, written for the last time, and compared.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final

from ..core.kafka_values import NativeGroup, NativeOffset
from ..core.layouts.legacy import LEGACY
from ..core.migration.changes_since_plan import SourceState, TargetState, instance_obstacles, member_obstacles
from ..core.migration.follow_rules import FollowedGroup, FollowPass, FollowState, OffsetRule, copy_forward
from ..core.migration.obstacles import Obstacle, ObstacleKind
from ..core.migration.offset_decision import Decision, NoOffset, Rule, Unknown, decide
from ..core.migration.plan_rows import PlanRow
from ..core.znodes.own_nodes import MarkState
from ..core.znodes.topic_partition import TopicPartition, known_partition
from ..core.znodes.values import CurrentOffset, UnreadableNode
from ..exceptions import UnavailableError, UnknownPartitionError
from ..input_errors import InvalidOptionError, ZkgroupsException
from ..kafka import Brokers
from ..zookeeper.admin import migration_marks as marks
from ..zookeeper.registry import Registry
from ..zookeeper.session.session import context_of
from .apply import check_cluster, check_made_with_brokers
from .current_state import LogRanges, active_members, read_targets, topic_creation_zxids
from .follower import Follower, TrackedGroup, tracked_groups

# Following legacy instances: copy their commits from ZooKeeper to the brokers until no instance is registered.
#
# A group is cut over if two consecutive passes find no instance. It is marked, so that no zkgroups member joins. Then
# it is read again, and the rest is written. Then it is read once more, because other clients ignore marks. It is done
# if no instance has registered, all offsets could be read, none was deleted, and both sides agree. If an instance
# registers or commits later, while other groups are still followed, the group is followed again and stays marked.


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

        def offset_rule(at: TopicPartition, number: int | NoOffset, target: int | Unknown | None) -> Decision:
            log = logs.log(at, group.offsets.stamp(at), group.topic_id(at.topic))
            return decide(number, log, target, rule, newer=logs.ranges([at])[0])

        return offset_rule

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


# Following native members: copy their commits from the brokers to ZooKeeper until no member is left.
#
# Offsets are only copied forward, and only while no legacy instance is registered. Groups without the mark of this
# plan are left: their commits on the brokers have nothing to do with the group in ZooKeeper.
#
# When no member is left, both sides are compared once more. If they agree, the mark is removed, so that legacy
# members may register again.


class FollowToZooKeeper(Follower):
    """Follows groups from the brokers to ZooKeeper."""

    def run_pass(self, limit: int) -> None:
        """Read all groups, write changed offsets, and finish groups without members."""
        self.read_marks()
        # Also groups that an earlier run was moving: zkgroups members stay out until the group is done.
        self.marked_as_moved |= self.marked_as_moving
        self.marked_as_moving.clear()
        for group in self.following:
            if group.group not in self.marked_as_moved:
                group.leave(Obstacle(ObstacleKind.NOT_MARKED))
        ready = self._read_groups()
        self.behind = 0
        for group in self.following:
            group.measure()
            if limit > self.written and not self.stop.is_set():
                self._copy(group, limit - self.written)
            self.behind += group.behind
        if not self.execute:
            self._note_dry_run(ready)
        elif not self.stop.is_set():
            self._finish([group for group in ready if group.following])

    def end_moved_groups(self) -> None:
        """Groups without a mark, without members on the brokers, and without progress there that ZooKeeper lacks."""
        marked = self.marked_as_moved | self.marked_as_moving
        unmarked = [group for group in self.following if group.group not in marked]
        targets = read_targets(self.brokers, [group.target for group in unmarked])
        for group, source in self.read_sources(unmarked):
            target = targets[group.target]
            if target.members or target.unreadable or source.unreadable or not group.has_planned_offsets(target):
                continue
            group.update_from_target(target)
            there = {known_partition(*key): node.offset for key, node in source.offsets.items()}
            if group.offsets.are_copied_to({at: number for at, number in there.items() if at is not None}):
                group.end_as_moved()

    def _read_groups(self) -> list[TrackedGroup]:
        """Update all groups. Return the groups without members."""
        targets = read_targets(self.brokers, [group.target for group in self.following])
        for group, source in self.read_sources(self.following):
            if obstacles := instance_obstacles(source):
                group.leave(*obstacles)
        for group in self.following:
            self._update(group, targets[group.target])
        self.leave_recreated(self.following)
        return [
            group for group in self.following if group.may_cut_over(has_members=bool(targets[group.target].members))
        ]

    def _update(self, group: TrackedGroup, target: TargetState) -> bool:
        unreadable = Obstacle(ObstacleKind.UNREADABLE, detail=target.unreadable)
        group.obstacles = [unreadable] if target.unreadable else []
        changed = not target.unreadable and group.update_from_target(target)
        group.due_since = (group.due_since or self.number) if group.offsets.due else 0
        return changed

    def _copy(self, group: TrackedGroup, limit: int | None) -> None:
        """Write due offsets if ZooKeeper still has the offsets just read. Refused while an instance is registered."""
        due = group.offsets.due
        if not due:
            return
        offsets = self.registry.group(group.group).offsets
        try:
            found = offsets.fetch_many(due)
            writes = group.offsets.decide(copy_forward, {at: _number(it) for at, it in found.items()}, limit)
            group.measure()
            errors = offsets.replace(writes, expected=found) if writes and self.execute else {}
        except UnavailableError:
            raise
        except ZkgroupsException as error:
            group.leave(Obstacle(ObstacleKind.REQUEST_FAILED, detail=str(error)))
            return
        self.written += len(writes.keys() - errors.keys())
        for at, number in writes.items() if self.execute else ():
            if at in errors:  # another client has written it: the next pass reads it again
                group.offsets.record_failure(at, errors[at])
            else:
                group.offsets.record_write(at, number)

    def _note_dry_run(self, ready: Sequence[TrackedGroup]) -> None:
        for group in self.following:
            done = ", and the group would be done" if group in ready else ""
            group.note = f"changed offsets would be written{done}"

    def _finish(self, ready: Sequence[TrackedGroup]) -> None:
        """Write the rest of these groups, and remove the marks of those where both sides agree."""
        if not ready:
            return
        for group in ready:
            group.offsets.make_all_due()
            self._copy(group, None)
        remaining = [group for group in ready if group.following]
        targets = read_targets(self.brokers, [group.target for group in remaining])
        self.leave_recreated(remaining)
        remaining = [group for group in remaining if group.following]
        done = [
            group
            for group, source in self.read_sources(remaining)
            if self._is_done(group, source, targets[group.target])
        ]
        answers = marks.remove(context_of(self.registry), [group.group for group in done], plan=self.plan)
        for group in done:
            if (error := answers[group.group]) is not None:
                group.leave(Obstacle(ObstacleKind.MARK_FAILED, detail=str(error)))

    def _is_done(self, group: TrackedGroup, source: SourceState, target: TargetState) -> bool:
        changed = self._update(group, target)
        if not group.may_cut_over(has_members=bool(target.members)) or changed:
            return False  # a member has joined or committed: the next pass continues
        offsets = {
            TopicPartition.checked(topic, partition): Unknown.TARGET if node.offset is None else node.offset
            for (topic, partition), node in source.offsets.items()
            if topic is not None and partition is not None
        }
        agreement = group.offsets.check_agreement(copy_forward, offsets)
        if obstacles := [*instance_obstacles(source), *agreement.obstacles]:
            group.leave(*obstacles)
        elif not agreement.open:
            group.finish(agreement.summary)
        else:
            group.update_forbidden(source)
            group.obstacles = list(group.forbidden)  # the offsets may be there, but cannot be read
        return group.state is FollowState.DONE


def _number(found: CurrentOffset) -> int | Unknown | None:
    if isinstance(found, UnreadableNode):
        return Unknown.TARGET
    return None if found is None else found.offset


log = logging.getLogger("zkgroups.migration")

OnProgress = Callable[[FollowPass], object]

MIN_PAUSE: Final = 0.5
"""The shortest pause after a pass, relative to its duration: other clients need the servers, too."""


def follow(
    rows: Sequence[PlanRow],
    brokers: Brokers,
    registry: Registry,
    *,
    execute: bool,
    to_zookeeper: bool = False,
    writers_stopped: bool = False,
    rule: Rule | None = None,
    every: float = 1.0,
    rate: float = 20_000.0,
    on_progress: OnProgress | None = None,
    stop: threading.Event | None = None,
) -> list[FollowedGroup]:
    """Follow all groups of a plan until each is done or left, or `stop` is set.

    Without `execute`, run one pass that only reads. Follow from ZooKeeper to Kafka while legacy instances are
    registered; with `to_zookeeper`, back while native members are active, for groups that this plan has moved.

    Nothing in ZooKeeper shows whether the jobs of other systems still run. So their groups are followed until `stop` is
    set, or cut over at once if `writers_stopped` declares that the jobs do not run.

    Without a `rule`, that of the plan decides. `every` is the time between passes in seconds, and `rate` the most
    offsets to write per second. `on_progress` is called with a `FollowPass` after each pass. Passes are retried while a
    server is unavailable.
    """
    check_made_with_brokers(rows)
    if rows and rows[0].cluster is not None:
        check_cluster(rows[0].cluster, brokers)
    for option, number in (("every", every), ("rate", rate)):
        if not 0 < number < float("inf"):
            raise InvalidOptionError(option, number, "it must be more than 0")
    groups = tracked_groups(rows, to_zookeeper=to_zookeeper)
    if to_zookeeper and (other := next((group.layout for group in groups if group.layout != LEGACY), None)):
        reason = f"offsets of layout {other.location} cannot be followed back: use `migrate rollback --to-zookeeper`"
        raise InvalidOptionError("to_zookeeper", True, reason)
    kind = FollowToZooKeeper if to_zookeeper else FollowToKafka
    options = {"execute": execute, "writers_stopped": writers_stopped}
    rule = rule or Rule.parse(rows[0].rule if rows else None)
    follower = kind(groups, brokers, registry, rule, stop or threading.Event(), **options)
    try:
        _run_passes(follower, every, max(1, int(rate * every)), on_progress)
    finally:
        follower.close()
    return follower.results()


def _run_passes(follower: Follower, every: float, limit: int, on_progress: OnProgress | None) -> None:
    number = 0
    while not follower.stop.is_set():
        number, began, trouble = number + 1, time.monotonic(), ""
        follower.begin_pass()
        try:
            follower.run_pass(limit)
        except UnavailableError as error:
            if not follower.execute:
                raise
            log.warning("could not update offsets, retrying: %s", error)
            trouble = str(error)
        if on_progress is not None:
            on_progress(FollowPass(number, follower.behind, follower.written, tuple(follower.results()), trouble))
        if follower.is_finished or not follower.execute:
            return
        took = time.monotonic() - began
        follower.stop.wait(max(every - took, MIN_PAUSE * took))
