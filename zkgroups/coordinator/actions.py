"""The actions that a coordinator asks for, and the events that it receives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from ..core.znodes.topic_partition import TopicPartition
from .storage import Result, Work
from .values import Answer, CommittedValue, Request

# Actions


@dataclass(frozen=True, slots=True)
class SendAnswer:
    """Send the `answer` to the request with this `request_id`. Each request is answered exactly once."""

    request_id: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class StartWork:
    """Let the storage carry out `work`. Report its result with `WorkFinished` and this `work_id`."""

    work_id: int
    work: Work


class Incident(StrEnum):
    """Something that an operator may ask about later."""

    MEMBER_EXPIRED = "a member sent nothing within its session timeout, and was removed"
    JOIN_TIMED_OUT = "members did not join the rebalance in time, and were removed"
    SYNC_TIMED_OUT = "members did not sync in time, and were removed"
    STUCK_REBALANCE_ENDED = "the group did not become stable in time, and all members were removed"
    GENERATION_FAILED = "the storage could not assign or store a generation: the members must join again"
    GROUP_EXPIRED = "the group had neither members nor offsets for a long time, and was removed"


@dataclass(frozen=True, slots=True)
class ReportIncident:
    """Log an `incident` of a `group`, with the `members` concerned."""

    incident: Incident
    group: str
    members: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportCommit:
    """Offsets were stored. Only sent if the setting `report_commits` is True.

    - `group`, `member_id`, `generation`: those of the request. A simple consumer has no member id.
    - `offsets`: the offsets that were stored, with their times.
    """

    group: str
    member_id: str
    generation: int
    offsets: Mapping[TopicPartition, CommittedValue]


Action: TypeAlias = SendAnswer | StartWork | ReportIncident | ReportCommit

# Events


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A client sent a `request`. The caller chooses a `request_id` that no unanswered request has."""

    request_id: int
    request: Request


@dataclass(frozen=True, slots=True)
class WorkFinished:
    """The storage has finished the work with this `work_id`. A `result` that comes late or twice is ignored."""

    work_id: int
    result: Result


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The time of `next_deadline` has come."""


@dataclass(frozen=True, slots=True)
class RebalanceNeeded:
    """Members or partitions outside the coordinator have changed: begin a rebalance, if the `group` has members.

    With `within`, members that do not join again within this time are removed, because another client waits for them.
    """

    group: str
    within: float | None = None


@dataclass(frozen=True, slots=True)
class MembershipLost:
    """The storage has lost the members of a `group`, or with None the members of all groups: they must join again."""

    group: str | None = None


@dataclass(frozen=True, slots=True)
class GroupMoved:
    """Another coordinator is responsible for the `group` now."""

    group: str


@dataclass(frozen=True, slots=True)
class CloseRequested:
    """The coordinator closes. It answers all open requests now, and refuses later requests."""


Event: TypeAlias = (
    RequestReceived | WorkFinished | TimePassed | RebalanceNeeded | MembershipLost | GroupMoved | CloseRequested
)
