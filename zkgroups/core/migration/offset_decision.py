"""The decision for one offset: copy it to Kafka, skip it, or refuse to move its group.

ZooKeeper and Kafka both store the next message to read, so an offset is copied unchanged. `decide` applies the first
row that matches:

    | the znode                 | the log                | on the target        | action | reason               |
    |---------------------------|------------------------|----------------------|--------|----------------------|
    | missing                   |                        | an offset            | skip   | only on the target   |
    | a negative number         |                        |                      | skip   | negative             |
    | unreadable                |                        |                      | skip   | no offset            |
    | stale, with skip_stale    |                        |                      | skip   | stale                |
    | an offset                 | the topic is missing   |                      | skip   | no such topic        |
    | an offset                 | no such partition      |                      | skip   | no such partition    |
    | an offset                 | newer than the offset  |                      | skip   | older than its topic |
    | an offset                 | newer than the plan    |                      | refuse | topic recreated      |
    | an offset                 | could not be read      |                      | refuse | log unknown          |
    | an offset                 | was not read           |                      | commit | log not checked      |
    | before the log start      | on_out_of_range:       |                      |        | before the start     |
    |   or past the log end     |   refuse               |                      | refuse |   or past the end    |
    |                           |   skip                 |                      | skip   |   or past the end    |
    |                           |   earliest or latest: go on with the log start or end, below   |
    | the number to write       |                        | could not be read    | refuse | target unknown       |
    |                           |                        | equal                | skip   | already there        |
    |                           |                        | higher, and backward | commit | backward             |
    |                           |                        | higher               | skip   | target ahead         |
    |                           |                        | lower, or none       | commit | unchanged or clamped |

A skipped offset does not stop its group: nothing needs to be written. A refused offset stops the whole group, because
its consumer would skip messages of that partition or read them twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..kafka_values import OffsetRange
from ..znodes.offset_codec import is_negative_offset
from ..znodes.values import MalformedNode, UnreadableNode


class Action(StrEnum):
    """The action planned for one offset."""

    COMMIT = "commit"
    SKIP = "skip"
    REFUSE = "refuse"


class OutOfRange(StrEnum):
    """How to treat an offset outside its log. Brokers accept any; a consumer would jump to the log start or end."""

    REFUSE = "refuse"
    EARLIEST = "earliest"
    LATEST = "latest"
    SKIP = "skip"


class Reason(StrEnum):
    """The reason for a decision, in the words of the table above."""

    UNCHANGED = "unchanged"
    CLAMPED = "clamped"
    BACKWARD = "backward"
    NEGATIVE = "negative"
    NO_OFFSET = "no offset"
    NO_TOPIC = "no such topic"
    NO_PARTITION = "no such partition"
    OLDER = "older than its topic"
    RECREATED = "topic recreated"
    STALE = "stale"
    LOG_UNKNOWN = "log unknown"
    LOG_NOT_CHECKED = "log not checked"
    ONLY_ON_TARGET = "only on the target"
    TARGET_UNKNOWN = "target unknown"
    BEFORE_START = "before the start"
    PAST_END = "past the end"
    ALREADY_THERE = "already there"
    TARGET_AHEAD = "target ahead"


class NoOffset(StrEnum):
    """Why an offset node holds no offset."""

    NEGATIVE = "negative"
    UNREADABLE = "unreadable"

    @classmethod
    def of(cls, node: UnreadableNode) -> NoOffset:
        """Classify an offset node that could not be read or decoded."""
        negative = isinstance(node, MalformedNode) and is_negative_offset(node.data)
        return cls.NEGATIVE if negative else cls.UNREADABLE


class NoLog(StrEnum):
    """Why the range of a partition's log is unknown or irrelevant."""

    NO_TOPIC = "no such topic"
    NO_PARTITION = "no such partition"
    NEWER = "older than its topic"
    """The topic was recreated after the offset was written, so the messages of the offset were deleted."""
    RECREATED = "topic recreated"
    """The topic was recreated after the plan was made: its id differs."""
    UNKNOWN = "log unknown"
    NOT_CHECKED = "log not checked"


class Unknown(StrEnum):
    """A value that could not be read."""

    TARGET = "target unknown"


@dataclass(frozen=True, slots=True)
class Rule:
    """The operator's choices for all offsets of a plan.

    - `on_out_of_range`: for an offset outside of its log: refuse to move the group, skip the offset, or go on with the
      log start (earliest) or the log end (latest).
    - `backward`: also write an offset that is lower than that of the target.
    - `skip_stale`: skip offsets whose last commit is too old.
    """

    on_out_of_range: OutOfRange = OutOfRange.REFUSE
    backward: bool = False
    skip_stale: bool = False

    def __str__(self) -> str:
        """Return the text that plans store.

        >>> str(Rule()), str(Rule(OutOfRange.LATEST, backward=True))
        ('on-out-of-range=refuse', 'on-out-of-range=latest, backward')
        """
        flags = {"backward": self.backward, "skip-stale": self.skip_stale}
        return ", ".join([f"on-out-of-range={self.on_out_of_range}", *(name for name in flags if flags[name])])


@dataclass(frozen=True, slots=True)
class Decision:
    """The action for one offset, its reason, and the number to write (None if nothing is written)."""

    action: Action
    reason: Reason
    offset: int | None = None


def decide(
    source: int | NoOffset | None,
    log: OffsetRange | NoLog,
    target: int | Unknown | None,
    rule: Rule | None = None,
    *,
    stale: bool = False,
) -> Decision:
    """Decide what to do with one offset, by the table at the top of this file. None stands for a missing offset.

    >>> decision = decide(17, OffsetRange(0, 20), None)
    >>> decision.action.value, decision.offset
    ('commit', 17)
    >>> decide(17, OffsetRange(0, 20), 18).reason, decide(25, OffsetRange(0, 20), None).action
    (<Reason.TARGET_AHEAD: 'target ahead'>, <Action.REFUSE: 'refuse'>)
    >>> decide(3, OffsetRange(5, 20), None, Rule(OutOfRange.EARLIEST)).offset
    5
    """
    rule = rule or Rule()
    if source is None:
        return Decision(Action.SKIP, Reason.ONLY_ON_TARGET)
    if isinstance(source, NoOffset):
        return Decision(Action.SKIP, Reason.NEGATIVE if source is NoOffset.NEGATIVE else Reason.NO_OFFSET)
    if stale and rule.skip_stale:
        return Decision(Action.SKIP, Reason.STALE)
    if isinstance(log, NoLog):
        return _without_log(source, log)
    if source in log:
        return _against_target(source, target, rule, Reason.UNCHANGED)
    return _out_of_range(source, log, target, rule)


def _without_log(source: int, log: NoLog) -> Decision:
    match log:
        case NoLog.NOT_CHECKED:
            return Decision(Action.COMMIT, Reason.LOG_NOT_CHECKED, source)
        case NoLog.UNKNOWN | NoLog.RECREATED:
            return Decision(Action.REFUSE, Reason(log.value))
        case NoLog.NO_TOPIC | NoLog.NO_PARTITION | NoLog.NEWER:
            return Decision(Action.SKIP, Reason(log.value))


def _out_of_range(source: int, log: OffsetRange, target: int | Unknown | None, rule: Rule) -> Decision:
    outside = Reason.BEFORE_START if source < log.start else Reason.PAST_END
    match rule.on_out_of_range:
        case OutOfRange.REFUSE:
            return Decision(Action.REFUSE, outside)
        case OutOfRange.SKIP:
            return Decision(Action.SKIP, outside)
        case OutOfRange.EARLIEST:
            return _against_target(log.start, target, rule, Reason.CLAMPED)
        case OutOfRange.LATEST:
            return _against_target(log.end, target, rule, Reason.CLAMPED)


def _against_target(offset: int, target: int | Unknown | None, rule: Rule, reason: Reason) -> Decision:
    if isinstance(target, Unknown):
        return Decision(Action.REFUSE, Reason.TARGET_UNKNOWN)
    if target is None or target < offset:
        return Decision(Action.COMMIT, reason, offset)
    if target == offset:
        return Decision(Action.SKIP, Reason.ALREADY_THERE)
    if rule.backward:
        return Decision(Action.COMMIT, Reason.BACKWARD, offset)
    return Decision(Action.SKIP, Reason.TARGET_AHEAD)
