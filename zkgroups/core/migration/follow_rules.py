"""Following: one side of a group is ahead because somebody works there, and what it commits is carried to the other.

`Carried` is all that is known of one group, on the way from ZooKeeper to Kafka or back: what the side ahead has, as far
as it was seen, what the other one has, and what is due. Three rules hold whatever comes in between:

- What is written is what a `Judge` says, and that is forward only, against what was read just before.
- What could not be written stays due; what was committed again meanwhile is due again.
- A group is done when nothing is to be written any more by what both sides have after everybody has left.
- A planned offset is refused, and not skipped, if the brokers no longer have its log: nothing may arrive on the target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ..znodes.topic_partition import TopicPartition
from .rules import Action, Decision, Reason, Unknown


class FollowState(StrEnum):
    """How far a group is."""

    FOLLOWING = "following"
    DONE = "done"
    """Nobody works on the side that was ahead any more, and both have the same."""
    LEFT = "left"
    """Something is in the way that does not go by itself."""


@dataclass(frozen=True, slots=True)
class FollowedGroup:
    """Where one group is."""

    group: str
    target: str
    state: FollowState
    behind: int
    """How many messages the side that follows had less, when it was last looked at."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class FollowPass:
    """What one pass over all groups has found and done."""

    number: int
    behind: int
    """As of the groups, all together: before anything was written."""
    written: int
    """Offsets; in a dry run those that would be."""
    groups: tuple[FollowedGroup, ...]
    trouble: str = ""
    """Why nothing more was done, where a server was away."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """An offset of the side that is ahead; the sign is another one whenever it was written."""

    number: int | None
    """None where the node holds no offset."""
    sign: int


ARRIVED: Final = (Reason.ALREADY_THERE, Reason.TARGET_AHEAD)
"""The side that follows has it, or is further."""

WITHOUT_LOG: Final = (Reason.NO_TOPIC, Reason.NO_PARTITION, Reason.OLDER)
"""The brokers do not have the messages of an offset. Such an offset is not planned, so they had them then."""

GONE: Final = "there was an offset, and it is gone"

Judge = Callable[[TopicPartition, int, int | Unknown | None], Decision]
"""What becomes of an offset, by what the side ahead has and what the other one has."""


class Carried:
    """What is known of one group; `further` is where the side that follows may be ahead: as it was planned.

    `planned` is what the side ahead had then: what is gone from it was not carried to its end.
    """

    def __init__(
        self, further: Mapping[TopicPartition, int] | None = None, planned: Iterable[TopicPartition] = ()
    ) -> None:
        self._further = dict(further or {})
        self._known = set(planned)
        self._planned = frozenset(self._known)
        self._gone: set[TopicPartition] = set()
        self._ahead: dict[TopicPartition, Ahead] = {}
        self._there: dict[TopicPartition, int | Unknown | None] = {}
        self._due: dict[TopicPartition, None] = {}
        self._failed: dict[TopicPartition, str] = {}
        self._skipped: set[TopicPartition] = set()

    # What is found

    def see(self, found: Mapping[TopicPartition, Ahead], *, whole: bool = True) -> bool:
        """The side ahead has this, and nothing else: what has another sign than before is due. Whether anything has.

        Where not the `whole` could be looked at, what is not found is as it was.
        """
        if not whole:
            found = {**self._ahead, **found}
        changed = self._ahead.keys() != found.keys()
        for at, ahead in found.items():
            before = self._ahead.get(at)
            if before is None or before.sign != ahead.sign:
                changed = True
                self._failed.pop(at, None)
                self._skipped.discard(at)
                if ahead.number is None:
                    self._due.pop(at, None)
                else:
                    self._due[at] = None
                    self._known.add(at)
        for at in self._ahead.keys() - found.keys():
            self._forget(at)
        self._ahead = dict(found)
        self._gone = self._known - found.keys() if whole else set()
        return changed

    def _forget(self, at: TopicPartition) -> None:
        self._there.pop(at, None)
        self._due.pop(at, None)
        self._failed.pop(at, None)
        self._skipped.discard(at)

    def settle(self) -> None:
        """Both sides are at one: what goes away from now on was carried to its end, unless it is written again."""
        self._known.clear()
        self._planned = frozenset()

    def again(self) -> None:
        """All of it is due, whether it has changed or not."""
        self._due = dict.fromkeys(at for at, ahead in self._ahead.items() if ahead.number is not None)

    @property
    def due(self) -> Sequence[TopicPartition]:
        """What is to be decided, in the order in which it was seen."""
        return list(self._due)

    def has(self, at: TopicPartition) -> bool:
        """Whether the side ahead had it when it was seen last."""
        return at in self._ahead

    @property
    def topics(self) -> set[str]:
        """The topics of what the side ahead had when it was seen last."""
        return {at.topic for at in self._ahead}

    def sign(self, at: TopicPartition) -> int:
        """The sign of what was seen last."""
        return self._ahead[at].sign

    # What is done

    def decide(
        self, judge: Judge, there: Mapping[TopicPartition, int | Unknown | None], limit: int | None = None
    ) -> dict[TopicPartition, int]:
        """What is to be written of what is due, at most so many, by what the other side has now."""
        writes: dict[TopicPartition, int] = {}
        for at in self.due:
            self._there[at] = there.get(at)
            decision = self._judged(judge, at)
            if decision.action is Action.COMMIT and decision.offset is not None:
                if limit is None or len(writes) < limit:
                    writes[at] = decision.offset
            elif decision.action is Action.REFUSE:
                self._failed[at] = decision.reason
            else:
                del self._due[at]
                self._failed.pop(at, None)
                if decision.reason not in ARRIVED:
                    self._skipped.add(at)
        return writes

    def _judged(self, judge: Judge, at: TopicPartition) -> Decision:
        number = self._ahead[at].number
        assert number is not None
        decision = judge(at, number, self._there[at])
        if at in self._planned and decision.reason in WITHOUT_LOG:
            return Decision(Action.REFUSE, decision.reason)
        return decision

    def wrote(self, at: TopicPartition, number: int) -> None:
        """It is there now."""
        self._there[at] = number
        self._due.pop(at, None)
        self._failed.pop(at, None)

    def failed(self, at: TopicPartition, why: str) -> None:
        """It could not be written, and stays due."""
        self._failed[at] = why

    # What is left

    @property
    def behind(self) -> int:
        """How many messages the side that follows has less, as far as is known."""
        found = ((at, ahead.number) for at, ahead in self._ahead.items() if ahead.number and at not in self._skipped)
        return sum(max(0, number - self._number(at)) for at, number in found)

    def _number(self, at: TopicPartition) -> int:
        there = self._there.get(at)
        return there if isinstance(there, int) else 0

    @property
    def failures(self) -> str:
        """Why offsets are not carried that are due, or were there, in few words."""
        return some([*(f"{at}: {why}" for at, why in self._failed.items() if at in self._due), *self._vanished()])

    def _vanished(self) -> list[str]:
        return [f"{at}: {GONE}" for at in sorted(self._gone)]

    def verdict(self, judge: Judge, there: Mapping[TopicPartition, int | Unknown | None]) -> Verdict:
        """Whether both sides are at one; to be asked when nobody works on the side ahead any more."""
        found = Verdict(obstacles=self._vanished())
        for at, ahead in self._ahead.items():
            self._there[at] = there.get(at)
            if ahead.number is None:
                found.skipped[Reason.NO_OFFSET] += 1
                continue
            decision = self._judged(judge, at)
            if decision.action is Action.COMMIT or decision.reason is Reason.LOG_UNKNOWN:
                found.open.append(at)
            elif decision.action is Action.REFUSE:
                found.obstacles.append(f"{at}: {decision.reason}")
            elif decision.reason is Reason.TARGET_AHEAD and self._there[at] != self._further.get(at):
                found.obstacles.append(f"{at}: {self._there[at]}, and it was {ahead.number} that was to be there")
            elif decision.reason is not Reason.ALREADY_THERE:
                found.skipped[decision.reason] += 1
        return found


@dataclass(slots=True)
class Verdict:
    """What is found of a group when it is to be done."""

    open: list[TopicPartition] = field(default_factory=list)
    """What is still to be written: somebody has committed meanwhile, or it could not be."""
    obstacles: list[str] = field(default_factory=list)
    """What does not go by itself."""
    skipped: Counter[Reason] = field(default_factory=Counter)

    @property
    def detail(self) -> str:
        """What was left out, for a message."""
        return "; ".join(f"{count} skipped: {reason}" for reason, count in sorted(self.skipped.items()))


def forward(_at: TopicPartition, ahead: int, there: int | Unknown | None) -> Decision:
    """The judge of the way back to ZooKeeper: what consumers have committed is copied, and never goes back."""
    if isinstance(there, Unknown):
        return Decision(Action.REFUSE, Reason.TARGET_UNKNOWN)
    if there is None or there < ahead:
        return Decision(Action.COMMIT, Reason.AS_IT_IS, ahead)
    return Decision(Action.SKIP, Reason.ALREADY_THERE if there == ahead else Reason.TARGET_AHEAD)


def some(reasons: Iterable[str]) -> str:
    """A few of them, for a message."""
    found = list(reasons)
    return "; ".join(found[:3]) + (f"; and {len(found) - 3} more" if len(found) > 3 else "")
