"""Whose audit it is: which ZooKeeper it has followed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...zookeeper.reading.position import Position


@dataclass(frozen=True, slots=True)
class Whose:
    """What the ZooKeeper of an audit is called, and how far it was when the audit was begun.

    >>> begun = Whose("zk1:2181", Position(zxid=100, made_zxid=7, made_ms=1_000))
    >>> now = Position(zxid=200, made_zxid=7, made_ms=1_000)
    >>> begun.is_that("zk1:2181", now), begun.is_that("zk1:2181,zk2:2181", now), begun.is_that("zk9:2181", now)
    (True, True, True)
    >>> another = Position(zxid=200, made_zxid=150, made_ms=2_000)
    >>> begun.is_that("zk1:2181", another), begun.is_that("zk9:2181", another)
    (True, False)
    """

    cluster: str
    begun: Position

    def is_that(self, cluster: str | None, now: Position) -> bool:
        """Whether it is the ZooKeeper that is called so: by the node of all groups, which was made in one moment.

        Where that was made anew since, or was not there, it is the same one only if it is called the same, too.
        """
        made = (now.made_zxid, now.made_ms)
        if now.made_zxid and made == (self.begun.made_zxid, self.begun.made_ms):
            return True
        return cluster == self.cluster and self.begun.is_of(now)

    def seen(self, now: Position) -> Whose:
        """The same, known by the node of all groups as it is now."""
        if not now.made_zxid:
            return self
        return replace(self, begun=replace(self.begun, made_zxid=now.made_zxid, made_ms=now.made_ms))
