"""How long a ZooKeeper session is certain to live, worked out from what its client has sent.

T is the session time-out that the server granted. All times are of the client's clock.

A follower that is cut off from its leader goes on answering pings and reads for `syncLimit` ticks. Meanwhile the leader
hears nothing of the sessions of that follower, and ends them. So these answers prove nothing. A *proof* is the answer
to a transaction: it needs the leader, and the leader needs a majority. It counts from the moment at which the
transaction was sent, because the answer may have been under way for long.

A proof says that the leader had not ended the session at that moment. It does not prolong the session: a follower
reports the sessions that it has heard of when the leader pings it, every half tick. So the leader may know only of an
older request:

    request sent         answered      reported             proof sent      proof answered
    |-- follower hears it --|--- half a tick at most ---|---------|---------------|
    T counts from here at the earliest

A request that was answered at least `REPORT` before the proof was sent has been reported by then, as a session lasts at
least two ticks. From the moment at which that request was sent, the leader keeps the session for T. `PRUDENCE` is left
for clocks that do not go equally fast, and for a leader that is late to ping. With a proof every `PERIOD`, a session
is certain for `LASTS` after each proof:

    LASTS = 1 - REPORT - PERIOD - PRUDENCE = 0.6 T

A new leader gives every session a fresh T, and a majority stands behind it only after the old leader's last proof: so a
leader that was cut off makes no difference.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

PERIOD: Final = 0.1
"""Of the session time-out: how often a session is proved on which somebody relies."""

REPORT: Final = 0.25
"""Of the session time-out: half a tick is no longer, as a session lasts at least two ticks unless the server's
`minSessionTimeout` says otherwise."""

PRUDENCE: Final = 0.05
"""Of the session time-out."""

LASTS: Final = 1 - REPORT - PERIOD - PRUDENCE
"""Of the session time-out: for as long a proof counts, at least, where proofs are sent every `PERIOD`."""

PATIENCE: Final = 0.25
"""Of the session time-out: a server that leaves a proof without an answer for as long is left for another one. Then
`LASTS - PERIOD - PATIENCE` is left for connecting to it."""

_GAP: Final = 0.01
"""Of the session time-out: requests that follow each other faster are not remembered one by one."""


class Proof:
    """The knowledge of one client about its current session.

    >>> proof = Proof(timeout=10.0)
    >>> proof.connected(100.0)
    >>> proof.until
    -inf
    >>> proof.proved(100.1)
    >>> proof.until
    109.5
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.until = -math.inf
        """Until when the session is certain to live."""
        self.sent = -math.inf
        """When the last proof was sent that has been answered."""
        self._reported = -math.inf
        self._answered: deque[tuple[float, float]] = deque(maxlen=round(2 / _GAP))

    def connected(self, sent: float) -> None:
        """A server has accepted the session, asked at `sent`: it has asked its leader, which so heard of the session.

        It does not prove the session, because a leader without a majority says yes by itself.
        """
        self._answered.clear()
        self._reported = sent

    def answered(self, sent: float, now: float) -> None:
        """A server has answered any request, now, that was sent at `sent`."""
        if not self._answered or now - self._answered[-1][1] >= _GAP * self.timeout:
            self._answered.append((sent, now))

    def proved(self, sent: float) -> None:
        """The leader, with a majority, has answered a transaction that was sent at `sent`."""
        while self._answered and self._answered[0][1] <= sent - REPORT * self.timeout:
            self._reported = max(self._reported, self._answered.popleft()[0])
        self.sent = max(self.sent, sent)
        self.until = max(self.until, self._reported + (1 - PRUDENCE) * self.timeout)

    def due(self, asked: float) -> float:
        """When to send the next proof, if the last one was asked for at `asked`."""
        last = max(self.sent, asked)
        regular = last + PERIOD * self.timeout
        if self.until - last < LASTS * self.timeout and self._answered:
            return min(regular, max(self._answered[0][1] + REPORT * self.timeout, last + _GAP * self.timeout))
        return regular
