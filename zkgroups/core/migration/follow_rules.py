"""The rules of following a group from one side to the other, and of moving it live."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ..kafka_values import NativeOffset
from ..znodes.group_description import RegisteredInstance
from ..znodes.topic_partition import TopicPartition
from ..znodes.values import CommittedOffset, CurrentOffset, Dialect, Registration, Side
from .obstacles import Obstacle, ObstacleKind, offset_refused, texts
from .offset_decision import Action, Decision, NoOffset, Reason, Unknown
from .plan_rows import Match, MatchRow, Outcome, PlanRow, ReportRow

# Following: copying offsets from the side where consumers still work (the leading side) to the other side.
#
# `FollowedOffsets` is the state of one group, in either direction: the last known offsets of both sides, and the
# offsets that are due. It keeps four rules:
#
# - Offsets only move forward, compared with a fresh read of the following side.
# - An offset stays due until it is written, and is due again after every commit.
# - A group is done when both sides agree after all members have left.
# - A planned offset is refused, not skipped, if the brokers no longer have its log. Otherwise it would be lost
#   silently.


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

    number: int | NoOffset
    stamp: int


ARRIVED: Final = (Reason.ALREADY_THERE, Reason.TARGET_AHEAD)
"""The following side has the offset, or a higher one."""

WITHOUT_LOG: Final = (Reason.NO_TOPIC, Reason.NO_PARTITION, Reason.OLDER)
"""The brokers do not have the messages of an offset. They had them when it was planned."""

OffsetRule = Callable[[TopicPartition, int | NoOffset, int | Unknown | None], Decision]
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
                self._due[at] = None
                if isinstance(leading.number, int):
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
        self._due = dict.fromkeys(self._leading)

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
        return bool(found) and all(
            not isinstance(number, int) or (there is not None and there >= number) for there, number in found
        )

    def stamp(self, at: TopicPartition) -> int:
        """Return the stamp of an offset of the leading side."""
        return self._leading[at].stamp

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
        decision = rule(at, self._leading[at].number, self._following[at])
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

    @property
    def behind(self) -> int:
        """How many messages the following side is behind, as far as known."""
        found = ((at, it.number) for at, it in self._leading.items() if at not in self._skipped)
        return sum(max(0, number - self._following_number(at)) for at, number in found if isinstance(number, int))

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


def copy_forward(_at: TopicPartition, leading: int | NoOffset, following: int | Unknown | None) -> Decision:
    """Decide on an offset on the way back to ZooKeeper: copy it unless ZooKeeper has as much."""
    assert isinstance(leading, int), "the brokers have only numbers"
    if isinstance(following, Unknown):
        return Decision(Action.REFUSE, Reason.TARGET_UNKNOWN)
    if following is None or following < leading:
        return Decision(Action.COMMIT, Reason.UNCHANGED, leading)
    return Decision(Action.SKIP, Reason.ALREADY_THERE if following == leading else Reason.TARGET_AHEAD)


# Moving one group live: which members and which offsets stop it.
#
# The offsets of the side that the group leaves are the truth, unless all its members read those of the brokers
# already: then these stay, and nothing is copied there. A higher offset on the other side would let the group skip
# messages, and lowering it would be an offset that goes back. So it stops the move.


_SHOWN = 3
_ARRIVED = (Outcome.WRITTEN, Outcome.THERE, Outcome.SKIPPED)
_AGREE = (Match.EQUAL, Match.NO_OFFSET)


def other_members(instances: Iterable[RegisteredInstance]) -> list[str]:
    """Return the members that cannot move with their group, each with its client."""
    return [f"{each.id} ({_client(each)})" for each in instances if not _can_move(each)]


def _can_move(instance: RegisteredInstance) -> bool:
    """True for a `Consumer`, a `Member` that leaves, and a member that comes through a gateway."""
    found = instance.registration
    return isinstance(found, Registration) and (found.moves or found.leaves or found.dialect is Dialect.GATEWAY)


def members_that_stay_out(instances: Iterable[RegisteredInstance]) -> list[str]:
    """Return the members that leave, and do not join on the brokers."""
    return [each.id for each in instances if isinstance(each.registration, Registration) and each.registration.leaves]


def _client(instance: RegisteredInstance) -> str:
    found = instance.registration
    return str(found.dialect) if isinstance(found, Registration) else "unknown client"


def truths(instances: Iterable[RegisteredInstance]) -> dict[str, Side]:
    """Return the side on which each member reads its offsets. Clients of a gateway have theirs in ZooKeeper."""
    found = {each.id: each.registration for each in instances}
    return {id: each.offsets.truth for id, each in found.items() if isinstance(each, Registration)}


def truth_problem(found: Mapping[str, Side], truth: Side) -> str:
    """Return which members read their offsets on another side; empty if none does."""
    others = [f"{id} ({side})" for id, side in found.items() if side is not truth]
    text = f"it moves with the offsets of {truth.shown}, but these members read others: {some(others)}; "
    return f"{text}restart them with the same options as the other members" if others else ""


def plan_problem(rows: Sequence[PlanRow], *, members_leave: bool) -> str:
    """Return why these offsets cannot be moved to the brokers; empty if they can.

    With `members_leave`, members that are still registered do not matter.
    """
    known: Sequence[Obstacle] = rows[0].obstacles if rows else ()
    if members_leave:
        known = [each for each in known if each.kind is not ObstacleKind.LEGACY_INSTANCES]
    if known:
        return texts(known)
    ahead = [f"{row.at} ({row.before} > {row.offset})" for row in rows if row.reason is Reason.TARGET_AHEAD]
    return f"the brokers have higher offsets: {some(ahead)}; delete the group on the brokers first" if ahead else ""


def apply_problem(report: Iterable[ReportRow]) -> str:
    """Return why offsets did not arrive at the brokers; empty if all did."""
    details = dict.fromkeys(row.detail or str(row.outcome) for row in report if row.outcome not in _ARRIVED)
    return "; ".join(details)


def verify_problem(rows: Iterable[MatchRow]) -> str:
    """Return how both sides differ after the copy; empty if they agree."""
    wrong = [f"{row.topic}-{row.partition} ({row.match})" for row in rows if row.match not in _AGREE]
    return f"both sides differ: {some(wrong)}" if wrong else ""


def return_problem(
    committed: Mapping[TopicPartition, NativeOffset], found: Mapping[TopicPartition, CurrentOffset]
) -> str:
    """Return why the offsets of the brokers cannot be copied to ZooKeeper; empty if they can."""
    ahead = [
        f"{at} ({now.offset} > {committed[at].offset})"
        for at, now in found.items()
        if isinstance(now, CommittedOffset) and now.offset > committed[at].offset
    ]
    return f"ZooKeeper has higher offsets: {some(ahead)}; delete these in ZooKeeper first" if ahead else ""


def offsets_to_return(
    committed: Mapping[TopicPartition, NativeOffset], found: Mapping[TopicPartition, CurrentOffset]
) -> dict[TopicPartition, int]:
    """Return the offsets of the brokers that ZooKeeper does not have yet."""
    return {
        at: native.offset
        for at, native in committed.items()
        if not isinstance(now := found[at], CommittedOffset) or now.offset != native.offset
    }


def some(names: Sequence[str]) -> str:
    """Return the first few names for a message.

    >>> some(["a", "b"]), some(["a", "b", "c", "d"])
    ('a, b', 'a, b, c and 1 more')
    """
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
