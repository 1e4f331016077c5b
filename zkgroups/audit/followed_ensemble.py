"""The ZooKeeper ensemble that an audit follows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..core.ensemble_position import EnsemblePosition


@dataclass(frozen=True, slots=True)
class FollowedEnsemble:
    """The name of the ensemble, and its position when the audit began.

    >>> followed = FollowedEnsemble("zk1:2181", EnsemblePosition(zxid=100, created_zxid=7, created_ms=1_000))
    >>> now = EnsemblePosition(zxid=200, created_zxid=7, created_ms=1_000)
    >>> followed.is_same("zk1:2181", now), followed.is_same("zk1:2181,zk2:2181", now), followed.is_same("zk9:2181", now)
    (True, True, True)
    >>> another = EnsemblePosition(zxid=200, created_zxid=150, created_ms=2_000)
    >>> followed.is_same("zk1:2181", another), followed.is_same("zk9:2181", another)
    (True, False)
    """

    cluster: str
    position: EnsemblePosition

    def is_same(self, cluster: str | None, now: EnsemblePosition) -> bool:
        """Return whether a ZooKeeper with this name and position is the followed ensemble.

        The creation of the `/consumers` node identifies an ensemble. If that node was missing or has been recreated,
        the names must be equal, too.
        """
        made = (now.created_zxid, now.created_ms)
        if now.created_zxid and made == (self.position.created_zxid, self.position.created_ms):
            return True
        return cluster == self.cluster and self.position.may_precede(now)

    def updated(self, now: EnsemblePosition) -> FollowedEnsemble:
        """Identify the ensemble by the current `/consumers` node."""
        if not now.created_zxid:
            return self
        return replace(self, position=replace(self.position, created_zxid=now.created_zxid, created_ms=now.created_ms))
