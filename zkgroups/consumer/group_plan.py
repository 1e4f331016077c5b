"""The plan of a group: read it and check it, or write it if this member is the planner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from ..core.rebalance.assignors import ASSIGNORS, COMPUTED_BY_EACH, share_of
from ..core.rebalance.members import Assignor, Stream, assigned_to
from ..core.rebalance.planner_election import AwaitedPlan, PlannerElection
from ..core.rebalance.roster import Roster
from ..core.rebalance.shared_plan import SharedPlan, agreed_strategy, decode_plan, invalid_reason
from ..core.znodes.topic_partition import TopicPartition
from ..core.znodes.values import Owner
from ..exceptions import InvalidOptionError
from ..zookeeper.group import Consumergroup
from ..zookeeper.member_instance import MemberInstance
from ..zookeeper.reading.group_observer import GroupObserver

_PlanKey = tuple[int, str, str]
"""The zxid of a plan, and the fingerprint and the strategy that it must have."""


class GroupPlan:
    """The plan of one group, as one of its members sees it."""

    def __init__(
        self,
        group: Consumergroup,
        instance: MemberInstance,
        observer: GroupObserver,
        *,
        assignors: Mapping[str, Assignor],
        foreign: str,
    ) -> None:
        self._group = group
        self._instance = instance
        self._id = instance.id
        self._observer = observer
        self._assignors = assignors
        self._foreign = foreign
        self._election = PlannerElection(instance.id)
        self._share: tuple[_PlanKey, dict[TopicPartition, int] | None] = ((0, "", ""), None)
        self.awaited: AwaitedPlan | None = None
        """The plan that this member waits for."""

    def skip(self, awaited: AwaitedPlan) -> list[str]:
        """Stop waiting for this planner. The next look chooses another one, unless a plan was written meanwhile."""
        return self._election.skip(awaited)

    def share(self, roster: Roster) -> tuple[int, dict[TopicPartition, int] | None]:
        """Return the number of the plan and the share of this member; None if the plan is still to be written."""
        participants = roster.participants
        strategy = agreed_strategy(participants, foreign=self._foreign)
        if strategy in COMPUTED_BY_EACH:
            self.awaited = None
            return roster.number, share_of(self._id, strategy, roster.members())
        fingerprint = roster.fingerprint
        zxid, version, share = self._read_share(roster, fingerprint, strategy)
        if share is None:
            self.awaited = self._election.awaited(participants, version)
            if self.awaited.planner == self._id:
                self._plan_for_all(roster, fingerprint, strategy, version)
                # read it back: only the server knows which plan won
                zxid, version, share = self._read_share(roster, fingerprint, strategy)
        if share is None:
            return 0, None
        self.awaited = None
        return zxid, dict(share)

    def _read_share(
        self, roster: Roster, fingerprint: str, strategy: str
    ) -> tuple[int, int, dict[TopicPartition, int] | None]:
        """The zxid and the version of the plan node, and the share of this member; None if there is no valid plan.

        A plan is decoded and checked once, not at each look.
        """
        data, zxid, version = self._observer.read_plan()
        key = zxid, fingerprint, strategy
        if self._share[0] != key:
            plan = decode_plan(data)
            valid = (
                plan
                and plan.matches(fingerprint, strategy)
                and invalid_reason(plan.assignment, roster.members()) is None
            )
            self._share = key, assigned_to(self._id, plan.assignment) if plan and valid else None
        return zxid, version, self._share[1]

    def _plan_for_all(self, roster: Roster, fingerprint: str, strategy: str, version: int) -> None:
        known = {**ASSIGNORS, **self._assignors}  # the agreed strategy need not be one that this member announces
        members = roster.members(self._owners(roster))
        assignment: object = known[strategy](members)
        if (reason := invalid_reason(assignment, members)) is not None:
            raise InvalidOptionError("assignors", strategy, f"it returned a plan that cannot be used: {reason}")
        plan = SharedPlan(fingerprint, strategy, dict(cast("Mapping[TopicPartition, Stream]", assignment)))
        if self._observer.write_plan(plan, version, self._instance.session_id or 0):
            self._election.wrote(version)

    def _owners(self, roster: Roster) -> dict[TopicPartition, str]:
        """Return the partitions that members hold, each with the id of its holder."""
        sessions = {instance.id: instance.session for instance in roster.instances}
        found: dict[TopicPartition, str] = {}
        for owner in self._group.owners():
            id = owner.instance(sessions) if isinstance(owner, Owner) else None
            if isinstance(owner, Owner) and id is not None and sessions[id] == owner.session:
                found[owner.at] = id
        return found
