"""The settings of a coordinator. The defaults are Kafka's, where Kafka has the setting."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..exceptions import InvalidOptionError


class AssignmentBy(StrEnum):
    """The party that assigns the partitions of a generation."""

    LEADER = "leader"
    """One of the members, as in Kafka."""
    COORDINATOR = "coordinator"
    """The coordinator. No member is the leader, and no client runs its assignor."""


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """All settings. Durations are in seconds.

    - `assignment_by`: whether the coordinator or a member assigns the partitions of consumers.
    - `preferred_protocols`: the first of these protocols that all members support is used. If they support none of
      them, the members vote.
    - `only_consumers`: refuse members of other kinds, such as the workers of Kafka Connect.
    - `leader_name`: the leader that clients see if the coordinator assigns. It must not be the id of a member.
    - `min_session_timeout`, `max_session_timeout`: the bounds of the session timeouts of members.
    - `initial_rebalance_delay`: how long the first generation of an empty group waits for more members.
    - `max_members`: the largest number of members of a group, and of member ids that are not in use yet.
    - `new_member_join_timeout`: if the join request of a new member is parked for longer, the member is removed,
      because its client may be gone.
    - `stuck_rebalance_timeout`: if a group rebalances for longer than this, and for longer than two rebalance timeouts,
      all its members are removed.
    - `storage_timeout`: if storage work takes longer, the client gets an error after which it retries.
    - `cleanup_interval`: the time between two checks for offsets and groups that have expired.
    - `empty_group_timeout`: a group without members and offsets is removed after this time.
    - `offset_retention`: offsets of unused topics and groups are deleted after this time. None keeps them.
    - `max_offset_metadata`: the longest metadata of an offset, in characters.
    - `report_commits`: report each stored commit, for a log of commits.
    """

    assignment_by: AssignmentBy = AssignmentBy.LEADER
    preferred_protocols: tuple[str, ...] = ()
    only_consumers: bool = False
    leader_name: str = "zkgroups"
    min_session_timeout: float = 6.0
    max_session_timeout: float = 300.0
    initial_rebalance_delay: float = 3.0
    max_members: int = 2**31 - 1
    new_member_join_timeout: float = 300.0
    stuck_rebalance_timeout: float = 600.0
    storage_timeout: float = 5.0
    cleanup_interval: float = 600.0
    empty_group_timeout: float = 1800.0
    offset_retention: float | None = 7 * 86400.0
    max_offset_metadata: int = 4096
    report_commits: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.min_session_timeout <= self.max_session_timeout:
            bounds = f"must be above 0, and at most {self.max_session_timeout}"
            raise InvalidOptionError("min_session_timeout", self.min_session_timeout, bounds)
        for name in ("new_member_join_timeout", "stuck_rebalance_timeout", "storage_timeout", "cleanup_interval"):
            if not getattr(self, name) > 0:
                raise InvalidOptionError(name, getattr(self, name), "must be above 0")
        for name in ("initial_rebalance_delay", "empty_group_timeout", "max_offset_metadata"):
            if not getattr(self, name) >= 0:
                raise InvalidOptionError(name, getattr(self, name), "must not be negative")
        if self.max_members < 1:
            raise InvalidOptionError("max_members", self.max_members, "must be 1 or more")
        if self.offset_retention is not None and not self.offset_retention > 0:
            raise InvalidOptionError("offset_retention", self.offset_retention, "must be above 0, or None")
