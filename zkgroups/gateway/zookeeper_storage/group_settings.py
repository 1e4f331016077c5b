"""The settings of a gateway's groups in ZooKeeper."""

from __future__ import annotations

from dataclasses import dataclass

from ...exceptions import InvalidOptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Durations are seconds.

    - `foreign_assignor`: the strategy of the Scala members, as they are configured: `range` or `roundrobin`.
    - `claim_patience`: how long a generation waits for partitions that other clients still hold. After that it begins
      without them.
    - `join_limit`: how long members may take to join a rebalance while another client waits for their partitions. Then
      they are removed. By default, a Scala member gives up after four attempts, two seconds apart.
    - `reconcile_every`: how often the groups are compared with the nodes without a reason: a watch may be missed.
    """

    foreign_assignor: str = "range"
    claim_patience: float = 5.0
    join_limit: float = 5.0
    reconcile_every: float = 10.0

    def __post_init__(self) -> None:
        if self.foreign_assignor not in ("range", "roundrobin"):
            reason = "it must be range or roundrobin, the strategies of other clients"
            raise InvalidOptionError("foreign_assignor", self.foreign_assignor, reason)
        for option in ("claim_patience", "join_limit", "reconcile_every"):
            if not getattr(self, option) > 0:
                raise InvalidOptionError(option, getattr(self, option), "must be above 0")
