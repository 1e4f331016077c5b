"""How far a ZooKeeper is: the number of its last transaction, and by what to know that it is still the same one."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.znodes.paths import CONSUMERS
from ...exceptions import NoPermissionError, NotConnectedError
from ..registry import Registry
from ..session.registry_context import context_of


@dataclass(frozen=True, slots=True)
class Position:
    """What was done up to a transaction; `made_zxid` and `made_ms` say when the node of all groups was made.

    Transactions are counted up as long as a ZooKeeper lives, so one that has done fewer is another, or was wiped. One
    that has done more is another if its groups were made before our position, and not when those were that we knew.

    One that was put back from a backup of itself, and has done as many transactions since, looks like the one we knew:
    its groups were made when they were, and its server keeps no mark of what it has lost.

    >>> before = Position(zxid=100, made_zxid=7, made_ms=1_000)
    >>> before.is_of(Position(zxid=101, made_zxid=7, made_ms=1_000)), before.is_of(Position(99, 7, 1_000))
    (True, False)
    >>> before.is_of(Position(zxid=200, made_zxid=150, made_ms=5_000)), before.is_of(Position(200, 8, 5_000))
    (True, False)
    """

    zxid: int
    made_zxid: int
    made_ms: int

    def is_of(self, now: Position) -> bool:
        """Whether a ZooKeeper that is there now may have been here."""
        if now.zxid < self.zxid:
            return False
        made_later = now.made_zxid > self.zxid or now.made_zxid == 0
        return made_later or (now.made_zxid, now.made_ms) == (self.made_zxid, self.made_ms)


def position(registry: Registry) -> Position:
    """How far the server is that we are with, after it has learned of all that was written before: two small requests.

    Each answer carries the number of the server's last transaction, which it has done by then. A server that has lost
    its quorum may know of less than others, or of what never came to be.
    """
    registry.sync()
    if registry.server_is_read_only:
        raise NotConnectedError("the server has lost its quorum, and how far it is says nothing")
    context, client = context_of(registry), registry.client
    try:
        stat = context.session.call(lambda: client.exists_async(CONSUMERS), CONSUMERS, context.deadline())
    except NoPermissionError:
        stat = None
    made_zxid, made_ms = (0, 0) if stat is None else (stat.czxid, stat.ctime)
    return Position(int(client.last_zxid), int(made_zxid), int(made_ms))
