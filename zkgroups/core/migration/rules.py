"""What becomes of an offset when its group moves to Kafka's own offsets: one rule, applied to each by itself.

Both stores keep the next message to read, so the number is copied as it is. What is decided, from top to bottom:

    | the znode                 | the log               | on the target        | action | reason              |
    |---------------------------|-----------------------|----------------------|--------|---------------------|
    | none                      |                       | an offset            | skip   | only on the target  |
    | negative                  |                       |                      | skip   | negative            |
    | anything else, no offset  |                       |                      | skip   | no offset           |
    | stale, with skip_stale    |                       |                      | skip   | stale               |
    | an offset                 | no such topic         |                      | skip   | no such topic       |
    | an offset                 | no such partition     |                      | skip   | no such partition   |
    | an offset                 | made after the offset |                      | skip   | older than its topic|
    | an offset                 | made after the plan   |                      | refuse | topic recreated     |
    | an offset                 | could not be asked    |                      | refuse | log unknown         |
    | an offset                 | nobody was asked      |                      | commit | not asked           |
    | before the first message  | on_out_of_range       |                      | refuse | before the start    |
    |   or past the end         |   is refuse           |                      |        |   or past the end   |
    |                           |   is skip             |                      | skip   | the same            |
    |                           |   is earliest, latest |                      |        | go on with that     |
    | the number to write       |                       | could not be asked   | refuse | target unknown      |
    |                           |                       | the same             | skip   | already there       |
    |                           |                       | higher               | skip   | target ahead        |
    |                           |                       | higher, and backward | commit | backward            |
    |                           |                       | lower, or none       | commit | as it is, or clamped|

Skipped rows stop nothing: there is nothing to move, or nothing to gain. A refused row stops its whole group, because
whoever reads on there would skip messages or read them twice.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ...exceptions import InvalidNameError, InvalidOptionError
from ..kafka_values import OffsetRange
from ..znodes.names import check_group
from ..znodes.values import UnreadableNode


class Action(StrEnum):
    """What is done with one offset."""

    COMMIT = "commit"
    SKIP = "skip"
    REFUSE = "refuse"


class OutOfRange(StrEnum):
    """What to do with an offset that the log does not have: Kafka accepts any, and its consumers then jump."""

    REFUSE = "refuse"
    EARLIEST = "earliest"
    LATEST = "latest"
    SKIP = "skip"


class Reason(StrEnum):
    """Why, in the words of the table above."""

    AS_IT_IS = "as it is"
    CLAMPED = "clamped"
    BACKWARD = "backward"
    NEGATIVE = "negative"
    NO_OFFSET = "no offset"
    NO_TOPIC = "no such topic"
    NO_PARTITION = "no such partition"
    OLDER = "older than its topic"
    MADE_ANEW = "topic recreated"
    STALE = "stale"
    LOG_UNKNOWN = "log unknown"
    NOT_ASKED = "not asked"
    ONLY_ON_TARGET = "only on the target"
    TARGET_UNKNOWN = "target unknown"
    BEFORE_START = "before the start"
    PAST_END = "past the end"
    ALREADY_THERE = "already there"
    TARGET_AHEAD = "target ahead"


class Log(StrEnum):
    """Why there is no range of a partition's log."""

    NO_TOPIC = "no such topic"
    NO_PARTITION = "no such partition"
    YOUNGER = "older than its topic"
    """The topic was deleted and recreated since: the offset is of messages that are gone."""
    MADE_ANEW = "topic recreated"
    """The topic was deleted and recreated since the plan: its id is another one."""
    UNKNOWN = "log unknown"
    NOT_ASKED = "not asked"


class Unknown(StrEnum):
    """Where the target could not be asked."""

    TARGET = "target unknown"


@dataclass(frozen=True, slots=True)
class Rule:
    """What the operator has said about all offsets."""

    on_out_of_range: OutOfRange = OutOfRange.REFUSE
    backward: bool = False
    skip_stale: bool = False

    def __str__(self) -> str:
        """As plans have it.

        >>> str(Rule()), str(Rule(OutOfRange.LATEST, backward=True))
        ('on-out-of-range=refuse', 'on-out-of-range=latest, backward')
        """
        flags = {"backward": self.backward, "skip-stale": self.skip_stale}
        return ", ".join([f"on-out-of-range={self.on_out_of_range}", *(name for name in flags if flags[name])])


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done with one offset, why, and the number to write where one is written."""

    action: Action
    reason: Reason
    offset: int | None = None


def decide(
    source: int | UnreadableNode | None,
    log: OffsetRange | Log,
    target: int | Unknown | None,
    rule: Rule | None = None,
    *,
    stale: bool = False,
) -> Decision:
    """What becomes of one offset, by the table at the top of this file; None is where there is nothing.

    >>> found = decide(17, OffsetRange(0, 20), None)
    >>> found.action.value, found.offset
    ('commit', 17)
    >>> decide(17, OffsetRange(0, 20), 18).reason, decide(25, OffsetRange(0, 20), None).action
    (<Reason.TARGET_AHEAD: 'target ahead'>, <Action.REFUSE: 'refuse'>)
    >>> decide(3, OffsetRange(5, 20), None, Rule(OutOfRange.EARLIEST)).offset
    5
    """
    rule = rule or Rule()
    if source is None:
        return Decision(Action.SKIP, Reason.ONLY_ON_TARGET)
    if isinstance(source, UnreadableNode):
        return Decision(Action.SKIP, Reason.NEGATIVE if source.reason == "negative" else Reason.NO_OFFSET)
    if stale and rule.skip_stale:
        return Decision(Action.SKIP, Reason.STALE)
    if isinstance(log, Log):
        return _without_log(source, log)
    if source in log:
        return _against_target(source, target, rule, Reason.AS_IT_IS)
    return _out_of_range(source, log, target, rule)


def _without_log(source: int, log: Log) -> Decision:
    match log:
        case Log.NOT_ASKED:
            return Decision(Action.COMMIT, Reason.NOT_ASKED, source)
        case Log.UNKNOWN:
            return Decision(Action.REFUSE, Reason.LOG_UNKNOWN)
        case Log.MADE_ANEW:
            return Decision(Action.REFUSE, Reason.MADE_ANEW)
        case Log.NO_TOPIC | Log.NO_PARTITION | Log.YOUNGER:
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


# Names

MAX_GROUP_BYTES: Final = 32_767  # its length goes as a short


@dataclass(frozen=True, slots=True)
class Renaming:
    """What groups are called on the target: by a map of names first, then by an expression, else as they are.

    >>> renaming = Renaming({"billing": "accounts"}, r"team-(.*)", r"\\1")
    >>> [renaming.target(name) for name in ("billing", "team-orders", "other")]
    ['accounts', 'orders', 'other']
    """

    names: Mapping[str, str] = field(default_factory=dict)
    pattern: str = ""
    replacement: str = ""

    def __post_init__(self) -> None:
        for old, new in self.names.items():
            if reason := bad_target(new):
                raise InvalidOptionError("rename", f"{old}={new}", f"that can be no group: {reason}")
        try:
            re.compile(self.pattern).sub(self.replacement, "")
            self.replacement.encode()
        except (re.error, IndexError, UnicodeEncodeError) as error:
            raise InvalidOptionError("rename", self.pattern, f"it is no regular expression: {error}") from error

    def target(self, group: str) -> str:
        """The name of a group on the target; an expression may make one of it that can be none: see `bad_target`."""
        if group in self.names:
            return self.names[group]
        found = re.fullmatch(self.pattern, group) if self.pattern else None
        return group if found is None else found.expand(self.replacement)


def bad_target(name: str) -> str | None:
    """Why no group can be called that on the target; None where one can."""
    try:
        check_group(name)
    except InvalidNameError as error:
        return str(error)
    return f"it has more than {MAX_GROUP_BYTES} bytes" if len(name.encode()) > MAX_GROUP_BYTES else None


def conflicts(targets: Mapping[str, str]) -> dict[str, list[str]]:
    """The targets that several groups are to be moved to, with these groups; given is the target of each group."""
    sources: defaultdict[str, list[str]] = defaultdict(list)
    for group, target in sorted(targets.items()):
        sources[target].append(group)
    return {target: groups for target, groups in sources.items() if len(groups) > 1}


# Groups


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What is known of a group beside its offsets."""

    legacy: tuple[str, ...] = ()
    """Registered in ZooKeeper, where brokers do not look."""
    native: tuple[str, ...] = ()
    """Members on the target."""
    rivals: tuple[str, ...] = ()
    """Other groups that are to have the same name there."""
    bad_target: str | None = None
    """Why no group can have the name that it is to have there."""
    unreadable: str = ""
    """Why it could not be found out who is registered, or what the target's state is."""


LEGACY: Final = "legacy instances are registered"
NATIVE: Final = "members of the native group are alive"
"""What goes by itself when a group is followed."""


def obstacles(facts: GroupFacts, decisions: Iterable[Decision]) -> list[str]:
    """Why a group cannot be moved now; nothing where it can."""
    refused: defaultdict[str, int] = defaultdict(int)
    for decision in decisions:
        if decision.action is Action.REFUSE:
            refused[decision.reason] += 1
    return [
        *([f"cannot be looked at: {facts.unreadable}"] if facts.unreadable else []),
        *([f"{LEGACY}: {_some(facts.legacy)}"] if facts.legacy else []),
        *([f"{NATIVE}: {_some(facts.native)}"] if facts.native else []),
        *([f"cannot have its new name: {facts.bad_target}"] if facts.bad_target else []),
        *([f"the same name is asked for by {_some(facts.rivals)}"] if facts.rivals else []),
        *(f"{count} refused: {reason}" for reason, count in sorted(refused.items())),
    ]


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# Carrying it out


class Standing(StrEnum):
    """What is found on the target when an offset is to be written, or was."""

    TO_WRITE = "to write"
    DONE = "done"
    MOVED = "moved"
    """It is neither what was there when it was planned, nor what is to be there: somebody else has committed."""


def standing(now: int | None, before: int | None, planned: int) -> Standing:
    """Whether a planned offset is still to be written, so that who was killed anywhere can simply begin again.

    >>> [standing(now, before=3, planned=7).value for now in (3, 7, 5, None)]
    ['to write', 'done', 'moved', 'moved']
    """
    if now == planned:
        return Standing.DONE
    return Standing.TO_WRITE if now == before else Standing.MOVED
