"""Until when claims are certain to be held. A command that runs under them needs this at any time, without waiting.

While its instance is registered, the session is proved periodically (`zkgroups/core/session_proof.py`). The owner
nodes are
read once, and a watch reports when they go.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from zkgroups import Claims, Consumergroup, Owner, Registry, TopicPartition, Watched
from zkgroups.core.session_proof import PROOF_LIFETIME, PROOF_PERIOD
from zkgroups.deadline import Deadline, uptime
from zkgroups.exceptions import NotClaimedError, UnavailableError, ZkgroupsException

from .connection_state import CONNECTED, LOST, Link

_PRUDENCE: Final = 0.2
"""A fraction of the time for which a proof counts: on a busy machine everything is late, even SIGKILL."""

_SPARE: Final = 2 * PROOF_PERIOD
"""A fraction of the session timeout: one or two late proofs do not end the lease."""


def longest_margin(session_timeout: float) -> float:
    """The longest `margin`, in seconds, with which a lease does not end between two proofs."""
    return (PROOF_LIFETIME - _SPARE) * session_timeout


class Lease:
    """Claims that have just been made, watched until the end of the `with` block.

    Their end counts as so many seconds earlier as `margin` says: who needs that long to stop is told in time.
    """

    def __init__(self, registry: Registry, group: Consumergroup, claims: Claims, *, margin: float = 0.0) -> None:
        self._claims = claims
        lasts = PROOF_LIFETIME * (registry.session_timeout or 0.0)
        self._margin = margin + max(lasts - margin, 0.0) * _PRUDENCE
        self._at = {group.paths.owner(at): at for at in claims}
        self._link = Link(registry)
        self._watch = group.watch(Watched.OWNERS)
        self.owners: dict[TopicPartition, Owner] = {}
        """The owner node of each claim, as the server showed it."""
        self.disturbed = False
        """Whether the connection has been lost at any time."""
        self.suspended = False
        """Whether there is no connection at this moment."""
        self.lost = ""
        """Why the claims are not certainly held any more; empty as long as they are."""

    def see(self, timeout: float) -> None:
        """Look whether all owner nodes are ours."""
        patience = Deadline(timeout)
        while not self.lost and self.owners.keys() != set(self._at.values()):
            if patience.passed:
                raise UnavailableError(f"the owners could not be read within {timeout:g} s")
            self.wait(min(patience.remaining, 1.0))
        if self.lost:
            raise UnavailableError(self.lost)

    @property
    def until(self) -> float:
        """Until when the claims are certain without another proof, on the clock of `uptime`."""
        return self._claims.certain_until - self._margin

    def wait(self, seconds: float) -> None:
        """Wait for so many seconds, or until something happens, and record the changes."""
        try:
            self._look(seconds)
        except ZkgroupsException as error:
            self.lost = self.lost or str(error)
        for state in self._link.news():
            self.suspended = state != CONNECTED
            self.disturbed = self.disturbed or self.suspended
            if state == LOST:
                self.lost = self.lost or "the session has ended"
        if not self.lost and (uptime() >= self.until or not self._claims.held):
            self.lost = _UNHEARD if self.suspended else _UNPROVED

    def _look(self, seconds: float) -> None:
        change = self._watch.next(timeout=seconds)
        if change is None or change.path not in self._at:
            return
        at = self._at[change.path]
        if isinstance(change.now, Owner) and change.now.session == self._claims[at].session_id and not change.before:
            self.owners.setdefault(at, change.now)
        if self.owners.get(at) != change.now:
            raise NotClaimedError(at, "was taken away by somebody else")

    def __enter__(self) -> Self:
        self._link.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.close()
        self._link.__exit__(kind, error, trace)


_UNHEARD: Final = "no server has answered for as long as the claim would last"
_UNPROVED: Final = (
    "nothing has proved in time that the session lives: this process could not run, or the server is cut off from its "
    "leader"
)
