"""Following: copying offsets from the side where consumers still work (the leading side) to the other side.

`FollowedOffsets` is the state of one group, in either direction: the last known offsets of both sides, and the offsets
that are due. It keeps four rules:

- Offsets only move forward, compared with a fresh read of the following side.
- An offset stays due until it is written, and is due again after every commit.
- A group is done when both sides agree after all members have left.
- A planned offset is refused, not skipped, if the brokers no longer have its log. Otherwise it would be lost silently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ..znodes.topic_partition import TopicPartition
from .obstacles import Obstacle, ObstacleKind, offset_refused
from .offset_decision import Action, Decision, Reason, Unknown


class FollowState(StrEnum):
    """The state of a followed group."""

    FOLLOWING = "following"
    DONE = "done"
    """All members have left the leading side, and both sides agree."""
    ALREADY_MOVED = "already moved"
    """An earlier run has finished the group, and the following side has all offsets."""
    LEFT = "left"
    """An obstacle needs the operator."""


@dataclass(frozen=True, slots=True)
class FollowedGroup:
    """A followed group after a pass."""

    group: str
    target: str
    state: FollowState
    behind: int
    """How many messages the following side was behind at the last look."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class FollowPass:
    """The result of one pass over all groups."""

    number: int
    behind: int
    """The messages that all groups were behind, before anything was written."""
    written: int
    """The number of offsets written, or to write in a dry run."""
    groups: tuple[FollowedGroup, ...]
    trouble: str = ""
    """The error that ended the pass early, if a server was unavailable."""


@dataclass(frozen=True, slots=True)
class LeadingOffset:
    """An offset of the leading side, with a stamp that changes with every write."""

    number: int | None
    """None if the node holds no offset."""
    stamp: int


ARRIVED: Final = (Reason.ALREADY_THERE, Reason.TARGET_AHEAD)
"""The following side has the offset, or a higher one."""

WITHOUT_LOG: Final = (Reason.NO_TOPIC, Reason.NO_PARTITION, Reason.OLDER)
"""The brokers do not have the messages of an offset. They had them when it was planned."""

OffsetRule = Callable[[TopicPartition, int, int | Unknown | None], Decision]
"""Decide on an offset, given its value on the leading and on the following side."""


class FollowedOffsets:
    """The offsets of one group.

    `ahead` are offsets of the following side that were higher when the plan was made, and may stay so. `planned` are
    the offsets that the leading side had: deleting one of them is an obstacle.
    """

    def __init__(
        self, ahead: Mapping[TopicPartition, int] | None = None, planned: Iterable[TopicPartition] = ()
    ) -> None:
        self._ahead = dict(ahead or {})
        self._expected = set(planned)
        self._planned = frozenset(self._expected)
        self._deleted: set[TopicPartition] = set()
        self._leading: dict[TopicPartition, LeadingOffset] = {}
        self._following: dict[TopicPartition, int | Unknown | None] = {}
        self._due: dict[TopicPartition, None] = {}
        self._failed: dict[TopicPartition, Obstacle] = {}
        self._skipped: set[TopicPartition] = set()

    # Reading

    def update(self, found: Mapping[TopicPartition, LeadingOffset], *, complete: bool = True) -> bool:
        """Record the offsets of the leading side, and return whether any has changed. Changed offsets become due.

        If not all nodes could be read, pass `complete=False`: missing offsets then count as unchanged.
        """
        if not complete:
            found = {**self._leading, **found}
        changed = self._leading.keys() != found.keys()
        for at, leading in found.items():
            before = self._leading.get(at)
            if before is None or before.stamp != leading.stamp:
                changed = True
                self._failed.pop(at, None)
                self._skipped.discard(at)
                if leading.number is None:
                    self._due.pop(at, None)
                else:
                    self._due[at] = None
                    self._expected.add(at)
        for at in self._leading.keys() - found.keys():
            self._forget(at)
        self._leading = dict(found)
        self._deleted = self._expected - found.keys() if complete else set()
        return changed

    def _forget(self, at: TopicPartition) -> None:
        self._following.pop(at, None)
        self._due.pop(at, None)
        self._failed.pop(at, None)
        self._skipped.discard(at)

    def settle(self) -> None:
        """Record that both sides agree. Deleting an offset is then an obstacle only if the offset was written later."""
        self._expected.clear()
        self._planned = frozenset()

    def make_all_due(self) -> None:
        """Make all offsets due, whether they have changed or not."""
        self._due = dict.fromkeys(at for at, leading in self._leading.items() if leading.number is not None)

    @property
    def due(self) -> Sequence[TopicPartition]:
        """The offsets to decide on, in the order in which they changed."""
        return list(self._due)

    def __contains__(self, at: TopicPartition) -> bool:
        return at in self._leading

    @property
    def topics(self) -> set[str]:
        """The topics of the leading side."""
        return {at.topic for at in self._leading}

    def are_copied_to(self, following: Mapping[TopicPartition, int | None]) -> bool:
        """Return whether the following side has every offset of the leading side, or a higher one, and at least one."""
        found = [(following.get(at), leading.number) for at, leading in self._leading.items()]
        return bool(found) and all(number is None or (there is not None and there >= number) for there, number in found)

    def stamp(self, at: TopicPartition) -> int:
        """Return the stamp of an offset of the leading side."""
        return self._leading[at].stamp

    # Writing

    def decide(
        self, rule: OffsetRule, following: Mapping[TopicPartition, int | Unknown | None], limit: int | None = None
    ) -> dict[TopicPartition, int]:
        """Return the due offsets to write, at most `limit`, given the offsets of the following side."""
        writes: dict[TopicPartition, int] = {}
        for at in self.due:
            self._following[at] = following.get(at)
            decision = self._decide(rule, at)
            if decision.action is Action.COMMIT and decision.offset is not None:
                if limit is None or len(writes) < limit:
                    writes[at] = decision.offset
            elif decision.action is Action.REFUSE:
                self._failed[at] = offset_refused(at, decision.reason)
            else:
                del self._due[at]
                self._failed.pop(at, None)
                if decision.reason not in ARRIVED:
                    self._skipped.add(at)
        return writes

    def _decide(self, rule: OffsetRule, at: TopicPartition) -> Decision:
        number = self._leading[at].number
        assert number is not None
        decision = rule(at, number, self._following[at])
        if at in self._planned and decision.reason in WITHOUT_LOG:
            return Decision(Action.REFUSE, decision.reason)
        return decision

    def record_write(self, at: TopicPartition, number: int) -> None:
        self._following[at] = number
        self._due.pop(at, None)
        self._failed.pop(at, None)

    def record_failure(self, at: TopicPartition, error: object) -> None:
        """Record that an offset could not be written; it stays due."""
        self._failed[at] = Obstacle(ObstacleKind.OFFSET_NOT_WRITTEN, (str(at),), 1, detail=str(error))

    # Progress

    @property
    def behind(self) -> int:
        """How many messages the following side is behind, as far as known."""
        found = ((at, it.number) for at, it in self._leading.items() if it.number and at not in self._skipped)
        return sum(max(0, number - self._following_number(at)) for at, number in found)

    def _following_number(self, at: TopicPartition) -> int:
        number = self._following.get(at)
        return number if isinstance(number, int) else 0

    @property
    def failures(self) -> list[Obstacle]:
        """Why due offsets are not written yet, and which offsets were deleted."""
        return [*(failure for at, failure in self._failed.items() if at in self._due), *self._deletions()]

    def _deletions(self) -> list[Obstacle]:
        return [Obstacle(ObstacleKind.OFFSET_DELETED, (str(at),), 1) for at in sorted(self._deleted)]

    def check_agreement(self, rule: OffsetRule, following: Mapping[TopicPartition, int | Unknown | None]) -> Agreement:
        """Compare both sides, after all members have left the leading side."""
        found = Agreement(obstacles=self._deletions())
        for at, leading in self._leading.items():
            self._following[at] = following.get(at)
            if leading.number is None:
                found.skipped[Reason.NO_OFFSET] += 1
                continue
            decision = self._decide(rule, at)
            if decision.action is Action.COMMIT or decision.reason is Reason.LOG_UNKNOWN:
                found.open.append(at)
            elif decision.action is Action.REFUSE:
                found.obstacles.append(offset_refused(at, decision.reason))
            elif decision.reason is Reason.TARGET_AHEAD and self._following[at] != self._ahead.get(at):
                values = f"expected {leading.number}, found {self._following[at]}"
                found.obstacles.append(Obstacle(ObstacleKind.TARGET_DIFFERS, (str(at),), 1, detail=values))
            elif decision.reason is not Reason.ALREADY_THERE:
                found.skipped[decision.reason] += 1
        return found


@dataclass(slots=True)
class Agreement:
    """The comparison of both sides of a group before it is done."""

    open: list[TopicPartition] = field(default_factory=list)
    """Offsets still to be written: they were committed meanwhile, or could not be written."""
    obstacles: list[Obstacle] = field(default_factory=list)
    skipped: Counter[Reason] = field(default_factory=Counter)

    @property
    def summary(self) -> str:
        """The skipped offsets, for a message."""
        return "; ".join(f"{count} skipped: {reason}" for reason, count in sorted(self.skipped.items()))


def copy_forward(_at: TopicPartition, leading: int, following: int | Unknown | None) -> Decision:
    """Decide on an offset on the way back to ZooKeeper: copy it unless ZooKeeper has as much."""
    if isinstance(following, Unknown):
        return Decision(Action.REFUSE, Reason.TARGET_UNKNOWN)
    if following is None or following < leading:
        return Decision(Action.COMMIT, Reason.UNCHANGED, leading)
    return Decision(Action.SKIP, Reason.ALREADY_THERE if following == leading else Reason.TARGET_AHEAD)
