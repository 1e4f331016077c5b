"""The position of an ensemble: its last transaction, and how to detect another or a restored ensemble."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EnsemblePosition:
    """The last transaction of an ensemble. `created_zxid` and `created_ms` identify its `/consumers` node.

    The zxid of an ensemble only increases, so an ensemble with a smaller one is another one, or was wiped. An ensemble
    with a larger one is another one if its `/consumers` node was created before this position, but at another moment.

    An ensemble that was restored from its own backup is not detected after it has processed as many transactions again:
    it has the same `/consumers` node, and its servers do not record the loss.

    >>> before = EnsemblePosition(zxid=100, created_zxid=7, created_ms=1_000)
    >>> before.may_precede(EnsemblePosition(zxid=101, created_zxid=7, created_ms=1_000))
    True
    >>> before.may_precede(EnsemblePosition(99, 7, 1_000))
    False
    >>> before.may_precede(EnsemblePosition(zxid=200, created_zxid=150, created_ms=5_000))
    True
    >>> before.may_precede(EnsemblePosition(200, 8, 5_000))
    False
    """

    zxid: int
    created_zxid: int
    created_ms: int

    def may_precede(self, now: EnsemblePosition) -> bool:
        """Return False if an ensemble that is at `now` cannot have been at this position before."""
        if now.zxid < self.zxid:
            return False
        created_later = now.created_zxid > self.zxid or now.created_zxid == 0
        return created_later or (now.created_zxid, now.created_ms) == (self.created_zxid, self.created_ms)
