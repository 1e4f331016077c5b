"""How long claims are certain to be held: what a command that runs under them must know all the time, without waiting.

Certain is what a server has said. It is asked again and again, and its answer counts from the moment of the question:
for as long as the session lasts from then on, nobody else can have the partitions. That the owner nodes are there, and
are ours, is seen once, and their end is heard of.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final, Self

from zkgroups import Claims, Consumergroup, Owner, Registry, TopicPartition, Watched
from zkgroups.exceptions import NotClaimedError, UnavailableError, ZkgroupsException
from zkgroups.zookeeper.deadline import Deadline, uptime

from .link import CONNECTED, LOST, Link

_PRUDENCE: Final = 0.8
"""What counts of the time that an answer is good for: a busy machine is late with everything, also with a SIGKILL."""

_QUESTIONS: Final = 5
"""In the time for which an answer counts, so that one that is late ends nothing."""


class Lease:
    """Claims that have just been made, watched until the end of the `with` block.

    Their end counts as so many seconds earlier as `margin` says: who needs that long to stop is told in time.
    """

    def __init__(self, registry: Registry, group: Consumergroup, claims: Claims, *, margin: float = 0.0) -> None:
        self._client = registry.client
        self._claims = claims
        self._lasts = ((registry.session_timeout or 0.0) - margin) * _PRUDENCE
        self._root = group.paths.root
        self._at = {group.paths.owner(at): at for at in claims}
        self._asked: Any = None
        self._asked_at = self._heard = uptime()
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
        """Until when they are certain without another word of a server, by `uptime`."""
        return self._heard + self._lasts

    def wait(self, seconds: float) -> None:
        """Let some time pass, less if something happens, and take note of what does."""
        self._ask()
        try:
            self._look(seconds)
        except ZkgroupsException as error:
            self.lost = self.lost or str(error)
        for state in self._link.news():
            self.suspended = state != CONNECTED
            self.disturbed = self.disturbed or self.suspended
            if state == LOST:
                self.lost = self.lost or "the session has ended"
        self._ask()
        if not self.lost and (uptime() >= self.until or not self._claims.held):
            self.lost = "no server has answered for as long as the claim would last" if self.suspended else _UNHEARD

    def _look(self, seconds: float) -> None:
        change = self._watch.next(timeout=seconds)
        if change is None or change.path not in self._at:
            return
        at = self._at[change.path]
        if isinstance(change.now, Owner) and change.now.session == self._claims[at].session_id and not change.before:
            self.owners.setdefault(at, change.now)
        if self.owners.get(at) != change.now:
            raise NotClaimedError(at, "was taken away by somebody else")

    def _ask(self) -> None:
        """Take the answer that has come, and ask anew when it is time; nothing is waited for."""
        if self._asked is not None and self._asked.ready():
            if self._asked.successful():
                self._heard = max(self._heard, self._asked_at)
            self._asked = None
        if self._asked is None and uptime() - self._asked_at >= self._lasts / _QUESTIONS:
            self._asked_at = uptime()
            self._asked = self._client.exists_async(self._root)

    def __enter__(self) -> Self:
        self._link.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.close()
        self._link.__exit__(kind, error, trace)


_UNHEARD: Final = "the claim may have ended while this process could not run"
