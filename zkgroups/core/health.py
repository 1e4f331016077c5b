"""The status of each partition and group, its reason, and what to do next. The first rule that matches decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, StrEnum, auto
from typing import Final, NamedTuple

from .commit_record import CommitRecord
from .doctor.findings import Severity, command, reset_offsets
from .offsets.lag import LagNote
from .time_formats import duration_text
from .znodes.group_description import Obstacle
from .znodes.states import GroupState

# Statuses of partitions and groups, and the verdict: a status with its severity and the reason in words.
#
#     | status    | severity         | meaning                                                                  |
#     | --------- | ---------------- | ------------------------------------------------------------------------ |
#     | PAST_END  | error            | the committed offset is past the log end                                 |
#     | BLOCKED   | error            | the owner does not subscribe to the topic, so no subscriber can claim it |
#     | ORPHANED  | error            | the owner is not registered, so no member can claim it                   |
#     | UNOWNED   | warning or error | members subscribe to the topic, but none owns the partition              |
#     | STOP      | error            | messages wait, and nothing was committed for a long time                 |
#     | REWIND    | error            | the offset went back, and has not recovered                              |
#     | STALL     | error            | commits arrive, but the offset does not move                             |
#     | WARN      | warning          | the lag never falls, or unread messages were deleted                     |
#     | UNKNOWN   | warning or info  | the lag is unknown                                                       |
#     | ABANDONED | warning          | messages wait, but the group has no member, and did not commit for a day |
#     | STALE     | info             | no member, and no commit for months: the group is probably unused        |
#     | MOVED     | info             | the group was moved to Kafka's own offsets, or is being moved            |
#     | OK        | (none)           | none of these                                                            |
#
# OK, WARN, STOP, STALL and REWIND are the statuses of Burrow.


class Status(StrEnum):
    """The status of a partition or a group. Of equally severe ones, the first counts for a group."""

    PAST_END = "PAST_END"
    BLOCKED = "BLOCKED"
    ORPHANED = "ORPHANED"
    UNOWNED = "UNOWNED"
    STOP = "STOP"
    REWIND = "REWIND"
    STALL = "STALL"
    WARN = "WARN"
    UNKNOWN = "UNKNOWN"
    ABANDONED = "ABANDONED"
    STALE = "STALE"
    MOVED = "MOVED"
    OK = "OK"


class Verdict(NamedTuple):
    """A status, its severity (None for OK), and the reason in words."""

    status: Status
    severity: Severity | None
    reason: str


_SEVERITIES: Final = {None: len(Severity)} | {severity: rank for rank, severity in enumerate(Severity)}
_STATUSES: Final = {status: rank for rank, status in enumerate(Status)}


def rank(verdict: Verdict) -> tuple[int, int]:
    """Return a sort key: the worst verdict first."""
    return _SEVERITIES[verdict.severity], _STATUSES[verdict.status]


def worst(verdicts: Iterable[Verdict]) -> Verdict | None:
    """Return the worst verdict, the first of equal ones, or None if there are none."""
    return min(verdicts, key=rank, default=None)


# The rules for the status of one partition of one group. The first rule that matches decides.
#
#     | #  | status    | severity | if
#     |
#     | -- | --------- | -------- | ----------------------------------------------------------------------------------
#     |
#     | 1  | MOVED     | info     | the group has a migration mark
#     |
#     | 2  | PAST_END  | error    | the offset is past the log end; a warning if the group is not in use
#     |
#     | 3  | BLOCKED   | error    | the owner does not subscribe to the topic, but other instances do
#     |
#     | 4  | ORPHANED  | error    | the owner is not registered
#     |
#     | 5  | UNOWNED   | warning  | an instance subscribes, but none owns it; an error once that lasts for `rebalance`
#     |
#     | 6  | UNKNOWN   | warning  | the offset or the log end cannot be read
#     |
#     | 7  | UNKNOWN   | info     | nothing was committed, or there are no brokers and no recent commit
#     |
#     | 8  | OK        |          | the lag is at most the allowed one, or unknown because there are no brokers
#     |
#     | 9  | STALE     | info     | no instance reads it, and the last commit is older than `stale`
#     |
#     | 10 | ABANDONED | warning  | messages wait, but the group does not use the partition any more
#     |
#     | 11 | STOP      | error    | the last commit and the first unread message are older than the patience
#     |
#     | 12 | REWIND    | error    | the offset went back within the period, and has not recovered
#     |
#     | 13 | STALL     | error    | behind for a whole period, in which commits came and the offset did not move
#     |
#     | 14 | WARN      | warning  | messages were deleted before they were read, or the lag never fell for a period
#     |
#     | 15 | OK        |          | otherwise
#     |
#
# The patience is the time in which a live consumer commits: 15 times its average interval between commits, as its
# znode tells, but at least `least_patience` and at most `most_patience`. If the time of the first unread message is
# unknown, the partition must also have been behind for that long.
#
# A group is in use while it has live instances or owners, and until its last commit is older than `abandoned`. A
# topic that live instances neither subscribe to nor own is in use until the last commit of the partition is older.


COMMITS_IN_PERIOD: Final = 15
"""A period is as long as this number of commits, or of observations, as in Burrow."""


class Limits(NamedTuple):
    """The limits of the rules, in milliseconds and in messages."""

    period_ms: int = 225_000
    allowed_lag: int = 0
    rebalance_ms: int = 60_000
    least_patience_ms: int = 60_000
    most_patience_ms: int = 3_600_000
    abandoned_ms: int = 86_400_000
    stale_ms: int = 90 * 86_400_000


class Hold(Enum):
    """The relation of a partition to its owner: see the rules 3 to 5."""

    OWNED = auto()
    FREE = auto()
    """It has no owner, and no instance subscribes to its topic."""
    UNOWNED = auto()
    ORPHANED = auto()
    BLOCKED = auto()


class PartitionFacts(NamedTuple):
    """All that the rules need to know about a partition.

    - `hold`, `hold_since_ms`, `holder`: its owner, since when it is so (0 if unknown), and the name of the owner.
    - `obstacle`: why no member can claim it, if it is blocked.
    - `members`: the number of live instances of the group, if any of them may read the partition; else 0.
    - `in_use`: whether the partition is in use.
    - `lag`, `note`: as `lag.lag` returns them.
    - `record`: its commits; None without an offset.
    - `unread_since_ms`: when the first unread message was written; None if unknown.
    - `moved`: the description of the migration; empty without a mark.
    - `asks_brokers`: False if no brokers are configured, so that no lag is known.
    """

    hold: Hold
    members: int
    lag: int | None
    note: LagNote | None
    record: CommitRecord | None
    hold_since_ms: int = 0
    holder: str = ""
    unread_since_ms: int | None = None
    moved: str = ""
    asks_brokers: bool = True
    obstacle: Obstacle = Obstacle.NOT_SUBSCRIBED
    in_use: bool = True


_BLOCKED_BY: Final = {
    Obstacle.NOT_SUBSCRIBED: "{}, which does not subscribe",
    Obstacle.REGISTRATION_UNREADABLE: "{}, whose registration cannot be read",
    Obstacle.OWNER_UNREADABLE: "an owner node that cannot be read",
}
UP_TO_DATE: Final = Verdict(Status.OK, None, "up to date")


def judge(facts: PartitionFacts, now_ms: int, limits: Limits) -> Verdict:
    """Return the status of a partition.

    >>> from .commit_record import Commit, observe
    >>> commit = Commit(offset=5, version=9, committed_ms=100_000, created_ms=10_000)
    >>> record = observe(None, commit, lag=7, now_ms=900_000, period_ms=225_000)
    >>> facts = PartitionFacts(Hold.OWNED, members=1, lag=7, note=None, record=record)
    >>> judge(facts, 900_000, Limits()).reason
    'no commit for 13m, 7 messages wait'
    """
    if facts.moved:
        return Verdict(Status.MOVED, Severity.INFO, facts.moved)
    if facts.note is LagNote.PAST_END:
        severity = Severity.ERROR if facts.in_use else Severity.WARNING
        return Verdict(Status.PAST_END, severity, "the committed offset is past the log end")
    return _judge_hold(facts, now_ms, limits) or _judge_lag(facts, now_ms, limits)


def _judge_hold(facts: PartitionFacts, now_ms: int, limits: Limits) -> Verdict | None:
    since = f" for {_text(now_ms - facts.hold_since_ms)}" if facts.hold_since_ms else ""
    match facts.hold:
        case Hold.BLOCKED:
            holder = _BLOCKED_BY[facts.obstacle].format(facts.holder)
            return Verdict(Status.BLOCKED, Severity.ERROR, f"held{since} by {holder}")
        case Hold.ORPHANED:
            return Verdict(Status.ORPHANED, Severity.ERROR, f"held{since} by {facts.holder}, which is not registered")
        case Hold.UNOWNED:
            lasting = now_ms - facts.hold_since_ms >= limits.rebalance_ms
            return Verdict(Status.UNOWNED, Severity.ERROR if lasting else Severity.WARNING, f"no member owns it{since}")
    return None


def _judge_lag(facts: PartitionFacts, now_ms: int, limits: Limits) -> Verdict:
    record = facts.record
    if record is None or facts.lag is None:
        return _unknown_lag(facts, now_ms, limits)
    if facts.lag <= limits.allowed_lag:
        return UP_TO_DATE
    silent_ms, patience_ms = now_ms - record.commit.committed_ms, patience(record, limits)
    if not facts.members and silent_ms > limits.stale_ms:
        return Verdict(Status.STALE, Severity.INFO, f"no member, and no commit for {_text(silent_ms)}")
    if not facts.in_use:
        reason = f"no member, no commit for {_text(silent_ms)}, {messages_wait(facts.lag)}"
        return Verdict(Status.ABANDONED, Severity.WARNING, reason)
    if silent_ms > patience_ms and _has_waited(facts, record, now_ms, patience_ms):
        who = "" if facts.members else ", no member"
        reason = f"no commit for {_text(silent_ms)}, {messages_wait(facts.lag)}{who}"
        return Verdict(Status.STOP, Severity.ERROR, reason)
    if record.rewound_ms and now_ms - record.rewound_ms <= limits.period_ms:
        back = record.highest - record.commit.offset
        return Verdict(Status.REWIND, Severity.ERROR, f"the offset went back, and {back} messages are read again")
    if _stalls(record, now_ms, limits):
        held = _text(now_ms - record.since_ms)
        return Verdict(Status.STALL, Severity.ERROR, f"commits arrive, but the offset has not moved for {held}")
    if facts.note is LagNote.BEFORE_START:
        return Verdict(Status.WARN, Severity.WARNING, "messages were deleted before they were read")
    if min(now_ms - record.rising_ms, now_ms - record.behind_ms) >= limits.period_ms:
        return Verdict(Status.WARN, Severity.WARNING, f"the lag has not fallen for {_text(now_ms - record.rising_ms)}")
    return Verdict(Status.OK, None, messages_wait(facts.lag))


def _unknown_lag(facts: PartitionFacts, now_ms: int, limits: Limits) -> Verdict:
    record = facts.record
    if facts.note is LagNote.CANNOT_BE_READ:
        return Verdict(Status.UNKNOWN, Severity.WARNING, "the committed offset cannot be read")
    if record is None:
        return Verdict(Status.UNKNOWN, Severity.INFO, "no offset was committed")
    if facts.asks_brokers:
        return Verdict(Status.UNKNOWN, Severity.WARNING, "the brokers report no log end")
    silent_ms = now_ms - record.commit.committed_ms
    if silent_ms > patience(record, limits):
        return Verdict(
            Status.UNKNOWN,
            Severity.INFO,
            f"no commit for {_text(silent_ms)}; without brokers it is unknown if messages wait",
        )
    return Verdict(Status.OK, None, "committed recently")


def patience(record: CommitRecord, limits: Limits) -> int:
    """Return the time without a commit after which a consumer counts as stopped, in milliseconds."""
    every = record.commit_every_ms
    wanted = limits.period_ms if every is None else COMMITS_IN_PERIOD * every
    return min(max(wanted, limits.least_patience_ms), limits.most_patience_ms)


def _has_waited(facts: PartitionFacts, record: CommitRecord, now_ms: int, patience_ms: int) -> bool:
    """Return True if the consumer had enough time to read the first message and to commit."""
    since = record.behind_ms if facts.unread_since_ms is None else facts.unread_since_ms
    return now_ms - since > patience_ms


def _stalls(record: CommitRecord, now_ms: int, limits: Limits) -> bool:
    standing = now_ms - max(record.since_ms, record.behind_ms) >= limits.period_ms
    return standing and record.commit.version > record.since_version


def messages_wait(lag: int) -> str:
    """Describe a lag. Log ends do not tell control records from messages.

    >>> messages_wait(1), messages_wait(12345)
    ('1 message waits, or only the control record of a transaction', '12,345 messages wait')
    """
    return f"{lag:,} messages wait" if lag != 1 else "1 message waits, or only the control record of a transaction"


def _text(ms: int) -> str:
    return duration_text(max(0, ms) // 1000)


# The status of a group: that of its worst partition, how many partitions have it, and what to do next.


FORBIDDEN: Final = Verdict(Status.UNKNOWN, Severity.WARNING, "some of its nodes may not be read")
NO_PARTITIONS: Final = Verdict(Status.UNKNOWN, Severity.INFO, "it has no offsets and no owners")


def judge_group(state: GroupState, partitions: Sequence[Verdict], lag: int | None = None) -> Verdict:
    """Return the verdict on a group in this state with these partitions and this total lag.

    >>> stop = Verdict(Status.STOP, Severity.ERROR, "no commit for 2h")
    >>> judge_group(GroupState.EMPTY, [Verdict(Status.OK, None, "up to date"), stop]).reason
    'no commit for 2h (1 of 2 partitions)'
    >>> judge_group(GroupState.EMPTY, [stop]).reason
    'no commit for 2h'
    """
    found = worst(partitions)
    if state is GroupState.UNKNOWN and (found is None or found.severity is not Severity.ERROR):
        return FORBIDDEN
    if found is None:
        return NO_PARTITIONS
    if found.status is Status.OK and lag:
        return found._replace(reason=messages_wait(lag))
    if found.status in (Status.OK, Status.MOVED):
        return found
    count = sum(each.status is found.status for each in partitions)
    return found._replace(reason=of_partitions(found.reason, count, len(partitions)))


def of_partitions(reason: str, count: int, all: int) -> str:
    """Add to a reason how many partitions have it, unless there is only one."""
    return reason if count == all == 1 else f"{reason} ({count} of {all} partitions)"


def next_step(group: str, verdict: Verdict, *, topic: str, members: int) -> str:
    """Tell what to do about a group with this verdict, because of this topic. Empty if nothing needs to be done.

    >>> next_step("billing", Verdict(Status.UNOWNED, Severity.ERROR, "no member owns it"), topic="orders", members=2)
    'zkgroups groups explain billing'
    """
    explain, describe, delete = (command("groups", verb, group) for verb in ("explain", "describe", "delete"))
    steps = {
        Status.PAST_END: reset_offsets(group, topic),
        Status.BLOCKED: explain,
        Status.ORPHANED: explain,
        Status.UNOWNED: explain,
        Status.STOP: f"restart the owners that hang: {describe}" if members else "start its consumers",
        Status.REWIND: "find out who moved the offsets; consumers read messages again",
        Status.STALL: f"look for a message that consumers cannot handle: {describe}",
        Status.WARN: "add consumers, or make them faster",
        Status.UNKNOWN: command("doctor", group) if verdict.severity is Severity.WARNING else "",
        Status.ABANDONED: f"start its consumers; if nobody needs it: {delete}",
        Status.STALE: f"if nobody needs it: {delete}",
    }
    return steps.get(verdict.status, "")


# The statuses of Burrow, for programs that poll it: names, numbers, and which of ours becomes which of its.


class BurrowStatus(StrEnum):
    """The statuses of Burrow. Its numbers are their positions."""

    NOTFOUND = "NOTFOUND"
    OK = "OK"
    WARN = "WARN"
    ERR = "ERR"
    STOP = "STOP"
    STALL = "STALL"
    REWIND = "REWIND"

    @property
    def code(self) -> int:
        """The number that Burrow uses in its metrics."""
        return list(BurrowStatus).index(self)


def of_partition(verdict: Verdict) -> BurrowStatus:
    """Return the status of a partition. Statuses that Burrow does not have become WARN or ERR by their severity.

    >>> of_partition(Verdict(Status.UNOWNED, Severity.WARNING, "no member owns it")).code
    2
    """
    if verdict.status in (Status.STOP, Status.STALL, Status.REWIND):
        return BurrowStatus(verdict.status.value)
    return of_group(verdict)


def of_group(verdict: Verdict) -> BurrowStatus:
    """Return the status of a group: OK, WARN or ERR."""
    if verdict.severity is Severity.ERROR:
        return BurrowStatus.ERR
    return BurrowStatus.WARN if verdict.severity is Severity.WARNING else BurrowStatus.OK
