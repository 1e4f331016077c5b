"""Following native members: copy their commits from the brokers to ZooKeeper until no member is left.

Offsets are only copied forward, and only while no legacy instance is registered. Groups without the mark of this plan
are left: their commits on the brokers have nothing to do with the group in ZooKeeper.

When no member is left, both sides are compared once more. If they agree, the mark is removed, so that legacy members
may register again.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.migration.changes_since_plan import instance_obstacles
from ...core.migration.follow_rules import FollowState, copy_forward
from ...core.migration.obstacles import Obstacle, ObstacleKind
from ...core.migration.offset_decision import Unknown
from ...core.migration.source_and_target_state import SourceState, TargetState
from ...core.znodes.topic_partition import TopicPartition, known_partition
from ...core.znodes.values import CurrentOffset, UnreadableNode
from ...exceptions import UnavailableError
from ...input_errors import ZkgroupsException
from ...zookeeper.admin import migration_marks as marks
from ...zookeeper.session.registry_context import context_of
from ..current_state import read_targets
from .follower import Follower
from .tracked_group import TrackedGroup


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

    # Writing

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

    # Finishing

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
