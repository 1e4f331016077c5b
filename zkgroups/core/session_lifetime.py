"""How long a ZooKeeper session is certain to live, worked out from what its client has sent."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

# Session ids as text. Connecting needs this, but not the values, which take much longer to import.


def session_hex(session: int) -> str:
    """Format a session id like ZooKeeper's own tools. As a Java long it may be negative.

    >>> session_hex(-1)
    '0xffffffffffffffff'
    """
    return f"{session & 0xFFFF_FFFF_FFFF_FFFF:#x}"


# How long a ZooKeeper session is certain to live, worked out from what its client has sent.
#
# T is the smallest timeout that servers granted to the session. All times are of the client's clock.
#
# A follower that is cut off from its leader keeps answering pings and reads for `syncLimit` ticks. Meanwhile the
# leader hears nothing about the sessions of that follower, and expires them. So these answers prove nothing. A
# *proof* is the answer to a transaction: it needs the leader, and the leader needs a majority. It counts from the
# moment when the transaction was sent, because the answer may have been delayed.
#
# A proof shows that the leader had not expired the session at that moment. It does not prolong the session. The
# leader prolongs a session when a follower reports it, in the answer to the leader's ping every half tick. So the
# last request that the leader knows of may be an older one:
#
#     request sent         answered      reported             proof sent      proof answered
#     |-- follower hears it --|--- half a tick at most ---|---------|---------------|
#     T counts from here at the earliest
#
# A request that was answered at least `REPORT_DELAY` before the proof was sent has been reported by then, because a
# session lasts at least two ticks. The leader keeps the session for T after that request was sent, or longer.
# `SAFETY_MARGIN` is reserved for clocks that run at different speeds, and for late pings of the leader. With a proof
# every `PROOF_PERIOD`, a session is certain for `PROOF_LIFETIME` after each proof:
#
#     PROOF_LIFETIME = 1 - REPORT_DELAY - PROOF_PERIOD - SAFETY_MARGIN = 0.6 T
#
# A new leader, or a server that restarts, gives every session a full timeout, and it gets its majority only after the
# old leader's last proof. So the rule also holds if a leader is cut off.
#
# This full timeout is the one granted at the creation of the session, because ZooKeeper stores no other. At each
# reconnect a server grants a timeout again, which holds until there is a new leader. It may differ, if the server's
# limits have changed, or if another process has resumed the session and requested another timeout. So T is the
# smallest of them, and a longer timeout needs a new session.


PROOF_PERIOD: Final = 0.1
"""A fraction of the session timeout: how often a session in use is proved."""

REPORT_DELAY: Final = 0.25
"""A fraction of the session timeout, at least half a tick: a session lasts at least two ticks, unless the server's
`minSessionTimeout` was lowered."""

SAFETY_MARGIN: Final = 0.05
"""A fraction of the session timeout, for clocks that run at different speeds."""

PROOF_LIFETIME: Final = 1 - REPORT_DELAY - PROOF_PERIOD - SAFETY_MARGIN
"""A fraction of the session timeout: how long a proof counts at least, if proofs are sent every `PROOF_PERIOD`."""

PROOF_TIMEOUT: Final = 0.25
"""A fraction of the session timeout: if a server has not answered a proof after that time, the client connects to
another server. `PROOF_LIFETIME - PROOF_PERIOD - PROOF_TIMEOUT` is left for that.

If every answer takes less than that, the session is certain without interruption, because
`PROOF_LIFETIME - PROOF_TIMEOUT` is not less than `PROOF_PERIOD + PROOF_TIMEOUT`."""

_GAP: Final = 0.01
"""A fraction of the session timeout: requests in quicker succession are not recorded one by one."""


class SessionLifetime:
    """The knowledge of one client about its current session.

    >>> lifetime = SessionLifetime(timeout=10.0)
    >>> lifetime.connected(100.0)
    >>> lifetime.until
    -inf
    >>> lifetime.proved(100.1)
    >>> lifetime.until
    109.5
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.until = -math.inf
        """Until when the session is certain to live."""
        self.sent = -math.inf
        """When the last answered proof was sent."""
        self._reported = -math.inf
        self._answered: deque[tuple[float, float]] = deque(maxlen=round(2 / _GAP))

    def connected(self, sent: float) -> None:
        """Record that a server accepted the session, on a request sent at `sent`. So its leader knows of the session.

        This does not prove the session, because a leader without a majority accepts it by itself.
        """
        self._answered.clear()
        self._reported = sent

    def shortened(self, timeout: float, sent: float) -> SessionLifetime:
        """Return what is known after a server granted the session a shorter timeout, on a request sent at `sent`.

        The leader counts the new timeout from that request on, so the session may end earlier than was certain before.

        >>> lifetime = SessionLifetime(timeout=10.0)
        >>> lifetime.connected(100.0)
        >>> lifetime.proved(100.1)
        >>> lifetime.shortened(2.0, 103.0).until
        104.9
        """
        lifetime = SessionLifetime(timeout)
        lifetime.until = min(self.until, sent + (1 - SAFETY_MARGIN) * timeout)
        return lifetime

    def answered(self, sent: float, now: float) -> None:
        """Record that a server has just answered a request that was sent at `sent`."""
        if not self._answered or now - self._answered[-1][1] >= _GAP * self.timeout:
            self._answered.append((sent, now))

    def proved(self, sent: float) -> None:
        """Record that the leader, with a majority, has answered a transaction that was sent at `sent`."""
        while self._answered and self._answered[0][1] <= sent - REPORT_DELAY * self.timeout:
            self._reported = max(self._reported, self._answered.popleft()[0])
        self.sent = max(self.sent, sent)
        self.until = max(self.until, self._reported + (1 - SAFETY_MARGIN) * self.timeout)

    def due(self, last_sent: float) -> float:
        """Return when to send the next proof. The last one was sent at `last_sent`, and may not be answered yet."""
        last = max(self.sent, last_sent)
        regular = last + PROOF_PERIOD * self.timeout
        if self.until - last < PROOF_LIFETIME * self.timeout and self._answered:
            return min(regular, max(self._answered[0][1] + REPORT_DELAY * self.timeout, last + _GAP * self.timeout))
        return regular
