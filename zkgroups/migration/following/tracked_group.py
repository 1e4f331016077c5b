"""One group that is followed, in either direction: its offsets, its obstacles, and whether it may be cut over."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from ...core.layouts.parse_layout import parse_layout
from ...core.migration.changes_since_plan import by_target, is_of_source
from ...core.migration.follow_rules import ARRIVED, FollowedGroup, FollowedOffsets, FollowState, LeadingOffset
from ...core.migration.obstacles import Obstacle, ObstacleKind, some_texts
from ...core.migration.offset_decision import Action, Reason
from ...core.migration.plan_rows import PlanRow
from ...core.migration.source_and_target_state import SourceState, TargetState, TopicIds, is_recreated, key_text
from ...core.migration.target_names import name_error
from ...core.znodes.topic_partition import TopicPartition
from ..run_context import invalid_name

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

    # State

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

    # Topics

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

    # Offsets

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
                found[at] = LeadingOffset(node.offset, node.zxid)
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
