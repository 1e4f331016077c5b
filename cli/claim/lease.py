"""Track until when claims are certainly held. A command run under claims must know this at any time, without waiting.

While its instance is registered, its session is proved periodically (`zkgroups/core/session_lifetime.py`). The owner
nodes are read once, and a watch reports their changes.
"""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Final, Self

from zkgroups import Claims, Consumergroup, Owner, Registry, TopicPartition, Watched
from zkgroups.core.session_lifetime import PROOF_LIFETIME, PROOF_PERIOD
from zkgroups.deadline import Deadline, uptime
from zkgroups.exceptions import NotClaimedError, UnavailableError, ZkgroupsException

from .connection_state import CONNECTED, LOST, ConnectionState

_SAFETY: Final = 0.2
"""A safety margin, as a fraction of the validity of a proof: on a busy machine even SIGKILL is late."""

_SPARE: Final = 2 * PROOF_PERIOD
"""A fraction of the session timeout: one or two late proofs do not end the lease."""


def longest_margin(session_timeout: float) -> float:
    """Return the longest `margin`, in seconds, with which a lease does not end between two proofs."""
    return (PROOF_LIFETIME - _SPARE) * session_timeout


class Lease:
    """New claims, watched until the end of the `with` block.

    The lease ends `margin` seconds before the claims could be lost. A command that needs that long to stop is stopped
    in time.
    """

    def __init__(self, registry: Registry, group: Consumergroup, claims: Claims, *, margin: float = 0.0) -> None:
        self._claims = claims
        self._group = group
        self._taken: TopicPartition | None = None
        lasts = PROOF_LIFETIME * (registry.session_timeout or 0.0)
        self._margin = margin + max(lasts - margin, 0.0) * _SAFETY
        self._at = {group.paths.owner(at): at for at in claims}
        self._connection = ConnectionState(registry)
        self._watch = group.watch(Watched.OWNERS)
        self.owners: dict[TopicPartition, Owner] = {}
        """The owner node of each claim, as read from the server."""
        self.disturbed = False
        """True if the connection was lost at any time."""
        self.suspended = False
        """True while the connection is lost."""
        self.lost = ""
        """The reason why the claims may be lost; empty while they are certainly held."""

    def read_owners(self, timeout: float) -> None:
        """Read the owner nodes. Raise an error if one does not belong to its claim."""
        deadline = Deadline(timeout)
        while not self.lost and self.owners.keys() != set(self._at.values()):
            if deadline.passed:
                raise UnavailableError(
                    f"the owner nodes of the claims could not be read within {timeout:g} s: give a longer --timeout"
                )
            self.wait(min(deadline.remaining, 1.0))
        if self.lost:
            raise UnavailableError(self.lost)

    @property
    def until(self) -> float:
        """The time, on the clock of `uptime`, until which the claims are certain without another proof."""
        return self._claims.certain_until - self._margin

    @property
    def loss(self) -> str:
        """The reason why the claims may be lost, and the owner of a partition that was taken away, if it has one."""
        if self._taken is not None:
            with contextlib.suppress(ZkgroupsException):
                owner = self._group.owner(self._taken)
                return self.lost if owner is None else f"{self.lost} and is now claimed by {owner.holder}"
        return self.lost or "the connection was lost"

    def wait(self, seconds: float) -> None:
        """Wait for a change, at most this many seconds, and update the state."""
        try:
            self._read_change(seconds)
        except ZkgroupsException as error:
            self.lost = self.lost or str(error)
        for state in self._connection.changes():
            self.suspended = state != CONNECTED
            self.disturbed = self.disturbed or self.suspended
            if state == LOST:
                self.lost = self.lost or "the session expired"
        if not self.lost and (uptime() >= self.until or not self._claims.held):
            self.lost = _NO_ANSWER if self.suspended else _UNPROVED

    def _read_change(self, seconds: float) -> None:
        change = self._watch.next(timeout=seconds)
        if change is None or change.path not in self._at:
            return
        at = self._at[change.path]
        if isinstance(change.now, Owner) and change.now.session == self._claims[at].session_id and not change.before:
            self.owners.setdefault(at, change.now)
        if self.owners.get(at) != change.now:
            self._taken = at
            raise NotClaimedError(at, "was taken away")

    def __enter__(self) -> Self:
        self._connection.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.close()
        self._connection.__exit__(kind, error, trace)


_NO_ANSWER: Final = "no server answered before the claim ended"
_UNPROVED: Final = (
    "no proof in time that the session is alive: this process was suspended, or its server lost the leader"
)
