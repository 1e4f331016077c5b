"""Obstacles: why a group must not be written now.

Code decides by `Obstacle.kind`. The sentence for people is `str(obstacle)`, made where it is shown. Plans store the
fields of obstacles and never the sentence. `NEXT_STEPS` has what to do about each kind; docs/migration.md lists it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from .offset_decision import Action, Decision, Reason

_NAMES_SHOWN: Final = 3


class ObstacleKind(StrEnum):
    """The kinds of obstacles. Plans store these values: a change needs a new `PLAN_VERSION`."""

    # When a plan is made
    UNREADABLE = "unreadable"
    LEGACY_INSTANCES = "legacy-instances"
    WRITERS_UNKNOWN = "writers-unknown"
    NATIVE_MEMBERS = "native-members"
    INVALID_NAME = "invalid-name"
    TARGET_CONFLICT = "target-conflict"
    REFUSED_OFFSETS = "refused-offsets"

    # Changes since the plan
    SOURCE_OFFSETS_DELETED = "source-offsets-deleted"
    SOURCE_OFFSETS_WRITTEN = "source-offsets-written"
    SOURCE_OFFSETS_ADDED = "source-offsets-added"
    TARGET_OFFSETS_CHANGED = "target-offsets-changed"
    TARGET_OFFSETS_ADDED = "target-offsets-added"
    TARGET_OVERWRITTEN = "target-overwritten"
    TARGET_OVERWRITTEN_ADDED = "target-overwritten-added"
    OFFSETS_NOT_IN_LOG = "offsets-not-in-log"
    TOPICS_RECREATED = "topics-recreated"

    # Marks and locks
    NOT_MARKED = "not-marked"
    OTHER_MARK = "other-mark"
    MARK_FAILED = "mark-failed"
    LOCKED = "locked"
    LOCK_LOST = "lock-lost"
    LOCK_LOST_AFTER_WRITE = "lock-lost-after-write"

    # Rollback
    NOT_MOVED = "not-moved"
    COMMITTED_SINCE = "committed-since"
    SOURCE_COMMITTED_SINCE = "source-committed-since"
    COMMITTED_DURING_ROLLBACK = "committed-during-rollback"
    MOVED_BACK = "moved-back"
    TOPICS_CHANGED_DURING_ROLLBACK = "topics-changed-during-rollback"
    COPY_BACK_FAILED = "copy-back-failed"

    # Following
    ALL_MEMBERS_LEFT = "all-members-left"
    OFFSET_DELETED = "offset-deleted"
    OFFSET_REFUSED = "offset-refused"
    OFFSET_NOT_WRITTEN = "offset-not-written"
    TARGET_DIFFERS = "target-differs"
    FORBIDDEN_OFFSETS = "forbidden-offsets"
    REQUEST_FAILED = "request-failed"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One reason why a group must not be written now.

    >>> print(Obstacle.of(ObstacleKind.LEGACY_INSTANCES, ["anna", "ben", "cleo", "dora"]))
    legacy instances are registered: anna, ben, cleo and 1 more
    >>> print(Obstacle(ObstacleKind.REFUSED_OFFSETS, count=2, reason=Reason.PAST_END))
    2 refused: past the end
    """

    kind: ObstacleKind
    names: tuple[str, ...] = ()
    """The first few instances, members, groups, partitions or topics concerned."""
    count: int = 0
    """The number of all that are concerned, including those not in `names`."""
    reason: Reason | None = None
    """Why offsets were refused."""
    detail: str = ""
    """The message of an error, or the values that differ."""

    @classmethod
    def of(cls, kind: ObstacleKind, names: Iterable[str]) -> Obstacle:
        """Create an obstacle that concerns these names, of which the first few are kept."""
        known = tuple(names)
        return cls(kind, known[:_NAMES_SHOWN], len(known))

    def __str__(self) -> str:
        names = ", ".join(self.names)
        if self.names and self.count > len(self.names):
            names += f" and {self.count - len(self.names)} more"
        return _TEXTS[self.kind].format(names=names, count=self.count, reason=self.reason, detail=self.detail)


_TEXTS: Final = {
    ObstacleKind.UNREADABLE: "the state of the group could not be read: {detail}",
    ObstacleKind.LEGACY_INSTANCES: "legacy instances are registered: {names}",
    ObstacleKind.WRITERS_UNKNOWN: "nothing in ZooKeeper shows whether the offsets of layout {detail} are still written",
    ObstacleKind.NATIVE_MEMBERS: "the group has active members on the brokers: {names}",
    ObstacleKind.INVALID_NAME: "{detail}",
    ObstacleKind.TARGET_CONFLICT: "other groups have the same target: {names}",
    ObstacleKind.REFUSED_OFFSETS: "{count} refused: {reason}",
    ObstacleKind.SOURCE_OFFSETS_DELETED: "offsets in ZooKeeper were deleted since the plan: {names}",
    ObstacleKind.SOURCE_OFFSETS_WRITTEN: "offsets in ZooKeeper were written since the plan: {names}",
    ObstacleKind.SOURCE_OFFSETS_ADDED: "offsets in ZooKeeper are new since the plan: {names}",
    ObstacleKind.TARGET_OFFSETS_CHANGED: "offsets of the target have changed since the plan: {names}",
    ObstacleKind.TARGET_OFFSETS_ADDED: "offsets of the target are new since the plan: {names}",
    ObstacleKind.TARGET_OVERWRITTEN: "another client has overwritten offsets of the target: {names}",
    ObstacleKind.TARGET_OVERWRITTEN_ADDED: "another client has added offsets to the target: {names}",
    ObstacleKind.OFFSETS_NOT_IN_LOG: "offsets are no longer in the log: {names}",
    ObstacleKind.TOPICS_RECREATED: "topics were recreated since the plan: {names}",
    ObstacleKind.NOT_MARKED: "the group has no mark of this plan in ZooKeeper",
    ObstacleKind.OTHER_MARK: "{detail}",
    ObstacleKind.MARK_FAILED: "the migration mark could not be changed: {detail}",
    ObstacleKind.LOCKED: "{detail}",
    ObstacleKind.LOCK_LOST: "the lock of this target was lost, and nothing was written: try again",
    ObstacleKind.LOCK_LOST_AFTER_WRITE: (
        "the lock of this target was lost, and another run may have written to it: run migrate verify"
    ),
    ObstacleKind.NOT_MOVED: "this plan has not moved the group: {detail}",
    ObstacleKind.COMMITTED_SINCE: "offsets were committed on the target since the migration: {names}",
    ObstacleKind.SOURCE_COMMITTED_SINCE: "offsets in ZooKeeper are newer than the plan, and are kept: {names}",
    ObstacleKind.COMMITTED_DURING_ROLLBACK: "offsets were committed on the target during the rollback: {names}",
    ObstacleKind.MOVED_BACK: "offsets of the target were moved back, and ZooKeeper keeps the higher ones: {names}",
    ObstacleKind.TOPICS_CHANGED_DURING_ROLLBACK: "topics were deleted or recreated during the rollback",
    ObstacleKind.COPY_BACK_FAILED: "not all offsets could be copied to ZooKeeper: {detail}",
    ObstacleKind.ALL_MEMBERS_LEFT: "all members have left: the group is cut over if the next pass finds none either",
    ObstacleKind.OFFSET_DELETED: "{names}: the offset was deleted",
    ObstacleKind.OFFSET_REFUSED: "{names}: {reason}",
    ObstacleKind.OFFSET_NOT_WRITTEN: "{names}: {detail}",
    ObstacleKind.TARGET_DIFFERS: "{names}: {detail}",
    ObstacleKind.FORBIDDEN_OFFSETS: "no permission to read offsets in ZooKeeper: {names}",
    ObstacleKind.REQUEST_FAILED: "{detail}",
}


_NEW_PLAN: Final = "make a new plan in another folder"

NEXT_STEPS: Final = {
    ObstacleKind.UNREADABLE: "Remove the cause that the message names, then try again.",
    ObstacleKind.LEGACY_INSTANCES: "Stop these instances, or use `migrate follow`, which waits until they stop.",
    ObstacleKind.WRITERS_UNKNOWN: "Stop the jobs that write them, then add `--writers-stopped`.",
    ObstacleKind.NATIVE_MEMBERS: "Stop these consumers on the brokers.",
    ObstacleKind.INVALID_NAME: "Give the group another name on the brokers: `--rename` or `--rename-regex`.",
    ObstacleKind.TARGET_CONFLICT: "Give each group its own name on the brokers: `--rename` or `--rename-regex`.",
    ObstacleKind.REFUSED_OFFSETS: "List them with `migrate show --offsets`. No offset, or negative: use "
    "`--on-unreadable`. Outside the log, or older than its topic: use `--on-out-of-range`. Missing on the brokers: "
    "check the address of the brokers, or create the partitions. Log unknown: plan again when the partition has a "
    "leader.",
    ObstacleKind.SOURCE_OFFSETS_DELETED: f"If the deletion is right, {_NEW_PLAN}.",
    ObstacleKind.SOURCE_OFFSETS_WRITTEN: f"Stop the legacy members, then {_NEW_PLAN}.",
    ObstacleKind.SOURCE_OFFSETS_ADDED: f"Stop the legacy members, then {_NEW_PLAN}.",
    ObstacleKind.TARGET_OFFSETS_CHANGED: f"Stop the clients that commit to the target, then {_NEW_PLAN}.",
    ObstacleKind.TARGET_OFFSETS_ADDED: f"Stop the clients that commit to the target, then {_NEW_PLAN}.",
    ObstacleKind.TARGET_OVERWRITTEN: "Stop the other client. `migrate verify` shows which side is ahead.",
    ObstacleKind.TARGET_OVERWRITTEN_ADDED: "Stop the other client. `migrate verify` shows which side is ahead.",
    ObstacleKind.OFFSETS_NOT_IN_LOG: f"With `--on-out-of-range`, {_NEW_PLAN}.",
    ObstacleKind.TOPICS_RECREATED: f"To leave out the old offsets, {_NEW_PLAN}.",
    ObstacleKind.NOT_MARKED: "Check with `migrate status`. `migrate rollback --force` restores the group anyway.",
    ObstacleKind.OTHER_MARK: "Finish or roll back the plan of that mark, or remove the mark with `migrate unmark`.",
    ObstacleKind.MARK_FAILED: "Remove the cause that the message names, then run the command again.",
    ObstacleKind.LOCKED: "Wait until the other run has ended, then run the command again.",
    ObstacleKind.LOCK_LOST: "Run the command again.",
    ObstacleKind.LOCK_LOST_AFTER_WRITE: "Run `migrate verify`, which compares both sides.",
    ObstacleKind.NOT_MOVED: "Do nothing: there is nothing to roll back.",
    ObstacleKind.COMMITTED_SINCE: "Keep this progress with `--to-zookeeper`, or discard it with `--force`.",
    ObstacleKind.SOURCE_COMMITTED_SINCE: f"Legacy members continue from there. To move the group later, {_NEW_PLAN}.",
    ObstacleKind.COMMITTED_DURING_ROLLBACK: "Stop the new consumers, then run `migrate rollback` again.",
    ObstacleKind.MOVED_BACK: "To go on, use `--force`: ZooKeeper then keeps the higher offsets.",
    ObstacleKind.TOPICS_CHANGED_DURING_ROLLBACK: "Run `migrate rollback` again.",
    ObstacleKind.COPY_BACK_FAILED: "Remove the cause that the message names, then run `migrate rollback` again.",
    ObstacleKind.ALL_MEMBERS_LEFT: "Wait for the next pass.",
    ObstacleKind.OFFSET_DELETED: f"If the deletion is right, {_NEW_PLAN}.",
    ObstacleKind.OFFSET_REFUSED: "Run `migrate follow` again: with `--on-unreadable` for no offset, with "
    "`--on-out-of-range` outside the log, or older than its topic.",
    ObstacleKind.OFFSET_NOT_WRITTEN: "Remove the cause that the message names. Each pass tries again.",
    ObstacleKind.TARGET_DIFFERS: "Stop the client that commits to the target, then run `migrate follow` again.",
    ObstacleKind.FORBIDDEN_OFFSETS: "Log in as a user who may read them.",
    ObstacleKind.REQUEST_FAILED: "Remove the cause that the message names, then run the command again.",
}
"""For each kind, what an operator should do next."""


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The state of a group apart from its offsets."""

    legacy: tuple[str, ...] = ()
    """Instances registered in ZooKeeper, which brokers cannot see."""
    native: tuple[str, ...] = ()
    """Members on the brokers."""
    rivals: tuple[str, ...] = ()
    """Other groups with the same target."""
    name_error: str | None = None
    """Why the name of the target is not valid."""
    unreadable: str = ""
    """Why the instances in ZooKeeper or the state of the target could not be read."""


def obstacles(facts: GroupFacts, decisions: Iterable[Decision] = ()) -> list[Obstacle]:
    """Return why a group cannot be moved now; empty if it can."""
    refused = Counter(decision.reason for decision in decisions if decision.action is Action.REFUSE)
    found = [
        Obstacle.of(kind, names)
        for kind, names in (
            (ObstacleKind.LEGACY_INSTANCES, facts.legacy),
            (ObstacleKind.NATIVE_MEMBERS, facts.native),
        )
        if names
    ]
    if facts.unreadable:
        found.insert(0, Obstacle(ObstacleKind.UNREADABLE, detail=facts.unreadable))
    if facts.name_error:
        found.append(Obstacle(ObstacleKind.INVALID_NAME, detail=facts.name_error))
    if facts.rivals:
        found.append(Obstacle.of(ObstacleKind.TARGET_CONFLICT, facts.rivals))
    return found + [
        Obstacle(ObstacleKind.REFUSED_OFFSETS, count=count, reason=reason) for reason, count in sorted(refused.items())
    ]


def offset_refused(at: object, reason: Reason) -> Obstacle:
    """Return the obstacle for one refused offset."""
    return Obstacle(ObstacleKind.OFFSET_REFUSED, (str(at),), 1, reason)


def texts(found: Iterable[Obstacle]) -> str:
    """Return the sentences of all obstacles, for a message."""
    return "; ".join(map(str, found))


def some_texts(found: Iterable[Obstacle]) -> str:
    """Return the first few sentences, for a message with at most one line."""
    known = list(found)
    more = len(known) - _NAMES_SHOWN
    return texts(known[:_NAMES_SHOWN]) + (f"; and {more} more" if more > 0 else "")
