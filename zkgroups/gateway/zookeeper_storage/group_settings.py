"""The settings of a gateway's groups in ZooKeeper."""

from __future__ import annotations

from dataclasses import dataclass

from ...exceptions import InvalidOptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings for all groups of a gateway. Durations are in seconds.

    - `foreign_assignor`: the strategy for which the Scala members are configured: `range` or `roundrobin`.
    - `claim_patience`: how long a generation waits for partitions that other clients still hold. After that it begins
      without them.
    - `join_limit`: how long members may take to join a rebalance while another client waits for their partitions. Then
      they are removed. A Scala member waits for a partition with four attempts, two seconds apart by default.
    - `release_after`: how long a gateway remains the coordinator of a group that has no members and is not used.
    - `reconcile_every`: the time between two checks of each group, in case an event of ZooKeeper was missed.
    """

    foreign_assignor: str = "range"
    claim_patience: float = 5.0
    join_limit: float = 5.0
    release_after: float = 60.0
    reconcile_every: float = 10.0

    def __post_init__(self) -> None:
        if self.foreign_assignor not in ("range", "roundrobin"):
            reason = "it must be range or roundrobin, the strategies of other clients"
            raise InvalidOptionError("foreign_assignor", self.foreign_assignor, reason)
        for option in ("claim_patience", "join_limit", "release_after", "reconcile_every"):
            if not getattr(self, option) > 0:
                raise InvalidOptionError(option, getattr(self, option), "must be above 0")
