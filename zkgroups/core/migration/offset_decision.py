"""The decision for one offset: copy it to Kafka, skip it, or refuse to move its group.

ZooKeeper and Kafka both store the next message to read, so an offset is copied unchanged. `decide` applies the first
row that matches:

    | the znode               | the log                    | on the target        | action | reason                 |
    |-------------------------|----------------------------|----------------------|--------|------------------------|
    | missing                 |                            | an offset            | skip   | only on the target     |
    | missing                 | the topic has others       | none                 | skip   | never committed        |
    | its name: no partition  |                            |                      | skip   | not a partition        |
    | stale, with skip_stale  |                            |                      | skip   | stale                  |
    | a node                  | topic missing, also in ZK  |                      | skip   | no such topic          |
    | a node                  | no such partition, as above|                      | skip   | no such partition      |
    | a negative number       | on_unreadable              |                      | (1)    | negative               |
    | unreadable              | on_unreadable              |                      | (1)    | no offset              |
    | an offset               | missing, but ZK has it     |                      | refuse | missing on the brokers |
    | an offset               | newer than the plan        |                      | refuse | topic recreated        |
    | an offset               | could not be read          |                      | refuse | log unknown            |
    | an offset               | newer: on_out_of_range     |                      | (1)    | older than its topic   |
    | an offset               | was not read               |                      | commit | log not checked        |
    | before the log start    | on_out_of_range            |                      | (1)    | before the start       |
    | past the log end        | on_out_of_range            |                      | (1)    | past the end           |
    | the number to write     |                            | could not be read    | refuse | target unknown         |
    |                         |                            | equal                | skip   | already there          |
    |                         |                            | higher, and backward | commit | backward               |
    |                         |                            | higher               | skip   | target ahead           |
    |                         |                            | lower, or none       | commit | unchanged, clamped, or |
    |                         |                            |                      |        | clamped to the new topic |

(1) The policy decides: block refuses, skip skips, and earliest or latest continue below with the log start or end.

A refused offset stops the whole group, because its consumer would skip messages of that partition or read them twice.
A skipped offset does not stop its group. The target then keeps the offset that it has. Where it has none, new consumers
start by their `auto.offset.reset`: `NOT_WRITTEN` has these reasons, and plans, reports and comparisons count them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from ...input_errors import InvalidNameError, InvalidOptionError
from ..kafka_values import OffsetRange
from ..znodes.codecs import MISNAMED, is_negative_offset
from ..znodes.topic_partition import check_group
from ..znodes.values import MalformedNode, UnreadableNode


class Action(StrEnum):
    """The action planned for one offset."""

    COMMIT = "commit"
    SKIP = "skip"
    REFUSE = "refuse"


class Policy(StrEnum):
    """How to treat an offset that cannot be copied unchanged. A consumer would jump to the log start or end."""

    BLOCK = "block"
    EARLIEST = "earliest"
    LATEST = "latest"
    SKIP = "skip"

    @classmethod
    def _missing_(cls, value: object) -> Policy | None:
        return cls.BLOCK if value == "refuse" else None  # the word of earlier versions


class Reason(StrEnum):
    """The reason for a decision, in the words of the table above."""

    UNCHANGED = "unchanged"
    CLAMPED = "clamped"
    CLAMPED_ANEW = "clamped to the new topic"
    """As clamped, and the topic was recreated after the offset was written, and before the plan."""
    BACKWARD = "backward"
    NEGATIVE = "negative"
    NO_OFFSET = "no offset"
    NO_TOPIC = "no such topic"
    NO_PARTITION = "no such partition"
    MISSING = "missing on the brokers"
    NEVER_COMMITTED = "never committed"
    NOT_A_PARTITION = "not a partition"
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


NOT_WRITTEN: Final = (
    Reason.NEVER_COMMITTED,
    Reason.NEGATIVE,
    Reason.NO_OFFSET,
    Reason.STALE,
    Reason.OLDER,
    Reason.BEFORE_START,
    Reason.PAST_END,
)
"""The reasons to skip a partition that new consumers read, although the plan writes no offset for it."""


class NoOffset(StrEnum):
    """Why an offset node holds no offset."""

    NEGATIVE = "negative"
    UNREADABLE = "unreadable"
    NOT_A_PARTITION = "not a partition"
    """No consumer reads this node."""

    @classmethod
    def of(cls, node: UnreadableNode) -> NoOffset:
        """Classify an offset node that could not be read or decoded."""
        if not isinstance(node, MalformedNode):
            return cls.UNREADABLE
        if node.reason == MISNAMED:
            return cls.NOT_A_PARTITION
        return cls.NEGATIVE if is_negative_offset(node.data) else cls.UNREADABLE


class NoLog(StrEnum):
    """Why the range of a partition's log is unknown or irrelevant."""

    NO_TOPIC = "no such topic"
    NO_PARTITION = "no such partition"
    MISSING = "missing on the brokers"
    """The topic is in the ZooKeeper of the offset, with this partition: these are the wrong brokers, or a mirror has
    not created it yet."""
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

    - `on_out_of_range`: for an offset outside of its log, or of an earlier topic with that name: refuse to move the
      group, skip the offset, or continue with the log start (earliest) or the log end (latest).
    - `on_unreadable`: the same, for a node that holds no offset.
    - `backward`: also write an offset that is lower than that of the target.
    - `skip_stale`: skip offsets whose last commit is too old.
    """

    on_out_of_range: Policy = Policy.BLOCK
    on_unreadable: Policy = Policy.BLOCK
    backward: bool = False
    skip_stale: bool = False

    def __str__(self) -> str:
        """Return the text that plans store.

        >>> str(Rule()), str(Rule(Policy.LATEST, backward=True))
        ('on-out-of-range=block, on-unreadable=block', 'on-out-of-range=latest, on-unreadable=block, backward')
        """
        flags = {"backward": self.backward, "skip-stale": self.skip_stale}
        chosen = [f"on-out-of-range={self.on_out_of_range}", f"on-unreadable={self.on_unreadable}"]
        return ", ".join([*chosen, *(name for name in flags if flags[name])])

    @classmethod
    def parse(cls, text: str | None) -> Rule:
        """Return the rule of a plan. Earlier versions always skipped unreadable offsets.

        >>> Rule.parse("on-out-of-range=refuse, backward") == Rule(on_unreadable=Policy.SKIP, backward=True)
        True
        """
        found = dict.fromkeys(text.split(", ") if text else ())
        chosen = dict(each.split("=", 1) for each in found if "=" in each)
        outside, unreadable = chosen.get("on-out-of-range", "block"), chosen.get("on-unreadable", "skip")
        return cls(Policy(outside), Policy(unreadable), backward="backward" in found, skip_stale="skip-stale" in found)


class Decision(NamedTuple):
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
    newer: OffsetRange | None = None,
) -> Decision:
    """Decide what to do with one offset, by the table at the top of this file. None stands for a missing offset.

    If the topic was recreated after the offset was written, `newer` is the log of the new topic, as far as it is known.

    >>> decision = decide(17, OffsetRange(0, 20), None)
    >>> decision.action.value, decision.offset
    ('commit', 17)
    >>> decide(17, OffsetRange(0, 20), 18).reason, decide(25, OffsetRange(0, 20), None).action
    (<Reason.TARGET_AHEAD: 'target ahead'>, <Action.REFUSE: 'refuse'>)
    >>> decide(3, OffsetRange(5, 20), None, Rule(Policy.EARLIEST)).offset
    5
    """
    rule = rule or Rule()
    if source is None:
        return Decision(Action.SKIP, Reason.NEVER_COMMITTED if target is None else Reason.ONLY_ON_TARGET)
    if source is NoOffset.NOT_A_PARTITION:
        return Decision(Action.SKIP, Reason.NOT_A_PARTITION)
    if stale and rule.skip_stale:
        return Decision(Action.SKIP, Reason.STALE)
    if log in (NoLog.NO_TOPIC, NoLog.NO_PARTITION):
        return Decision(Action.SKIP, Reason(log))
    clamped = Reason.CLAMPED_ANEW if log is NoLog.NEWER else Reason.CLAMPED
    range_ = newer if log is NoLog.NEWER else log if isinstance(log, OffsetRange) else None
    if isinstance(source, NoOffset):
        reason = Reason.NEGATIVE if source is NoOffset.NEGATIVE else Reason.NO_OFFSET
        return _by_policy(rule.on_unreadable, reason, range_, target, rule, clamped)
    if log in (NoLog.MISSING, NoLog.RECREATED, NoLog.UNKNOWN):
        return Decision(Action.REFUSE, Reason(log))
    if log is NoLog.NEWER:
        return _by_policy(rule.on_out_of_range, Reason.OLDER, range_, target, rule, clamped)
    if not isinstance(log, OffsetRange):
        return Decision(Action.COMMIT, Reason.LOG_NOT_CHECKED, source)
    if source in log:
        return _against_target(source, target, rule, Reason.UNCHANGED)
    outside = Reason.BEFORE_START if source < log.start else Reason.PAST_END
    return _by_policy(rule.on_out_of_range, outside, log, target, rule, clamped)


def _by_policy(
    policy: Policy, reason: Reason, log: OffsetRange | None, target: int | Unknown | None, rule: Rule, clamped: Reason
) -> Decision:
    match policy:
        case Policy.BLOCK:
            return Decision(Action.REFUSE, reason)
        case Policy.SKIP:
            return Decision(Action.SKIP, reason)
    if log is None:
        return Decision(Action.REFUSE, Reason.LOG_UNKNOWN)
    return _against_target(log.start if policy is Policy.EARLIEST else log.end, target, rule, clamped)


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


# The names of groups on the target: renaming, validity, and conflicts.


MAX_GROUP_BYTES: Final = 32_767
"""Kafka's protocol stores the length in 16 bits."""


@dataclass(frozen=True, slots=True)
class Renaming:
    """The new names of groups: by a map first, then by a regular expression, otherwise unchanged.

    >>> renaming = Renaming({"billing": "accounts"}, r"team-(.*)", r"\\1")
    >>> [renaming.target(name) for name in ("billing", "team-orders", "other")]
    ['accounts', 'orders', 'other']
    """

    names: Mapping[str, str] = field(default_factory=dict)
    pattern: str = ""
    replacement: str = ""

    def __post_init__(self) -> None:
        for old, new in self.names.items():
            if reason := name_error(new):
                raise InvalidOptionError("rename", f"{old}={new}", reason)
        try:
            re.compile(self.pattern).sub(self.replacement, "")
            self.replacement.encode()
        except (re.error, IndexError, UnicodeEncodeError) as error:
            raise InvalidOptionError("rename", self.pattern, f"it is not a regular expression: {error}") from error

    def target(self, group: str) -> str:
        """Return the name of a group on the target. An expression may produce an invalid one: see `name_error`."""
        if group in self.names:
            return self.names[group]
        found = re.fullmatch(self.pattern, group) if self.pattern else None
        return group if found is None else found.expand(self.replacement)


def name_error(name: str) -> str | None:
    """Explain why a group cannot have this name, or return None for a valid name."""
    try:
        check_group(name)
    except InvalidNameError as error:
        return str(error)
    return f"the name is longer than {MAX_GROUP_BYTES} bytes" if len(name.encode()) > MAX_GROUP_BYTES else None


def conflicts(targets: Mapping[str, str]) -> dict[str, list[str]]:
    """Given the target of each group, return the targets that several groups share, with these groups."""
    sources: defaultdict[str, list[str]] = defaultdict(list)
    for group, target in sorted(targets.items()):
        sources[target].append(group)
    return {target: groups for target, groups in sources.items() if len(groups) > 1}
