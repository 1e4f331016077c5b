"""Know until when the session of a client is certain to live; the rules are in `core/session_proof.py`.

kazoo reports neither when it sends a request nor the timeout that a server granted. So its traffic is observed, on
kazoo's connection thread. Only `resume`, `certain_until` and the timeouts are used by other threads.

A server can grant another timeout at each reconnect. ZooKeeper's data contain only the timeout that was granted when
the session was created, and a new leader uses that one. So certainty is computed from the smallest timeout that the
session was ever granted.
"""

from __future__ import annotations

import math
import struct
from typing import Any, Final

from kazoo.exceptions import BadVersionError, NoAuthError, NoNodeError
from kazoo.protocol.serialization import CheckVersion, Transaction

from ...core.session_proof import Proof
from ...deadline import uptime
from ..kazoo_compat import internals
from ..kazoo_compat.traffic import observe_traffic

_CONNECTED_BEFORE: Final = 0.6
"""A fraction of the session timeout T: if the client was already connected when observation begins, the leader has
heard of the session at most this long ago. kazoo sends a request every T/3, and a follower reports it within T/4."""

_FROM_THE_LEADER: Final = frozenset(error.code for error in (NoNodeError, NoAuthError, BadVersionError))
"""Errors that a leader returns only after it has found the session alive."""

_RESULT: Final = struct.Struct("!i?i")
_ERROR: Final = struct.Struct("!i")
_FAILED: Final = -1


class Liveness:
    """When the leader last proved the session of one client, and the smallest timeout that it was granted."""

    def __init__(self, client: Any) -> None:
        self.was_connected = bool(client.connected)
        self._granted = False
        self._session_id = internals.session_id(client)
        self._proof = Proof(internals.requested_timeout(client))
        if client.connected:
            self._proof.connected(uptime() - _CONNECTED_BEFORE * self._proof.timeout)
        self._certain: tuple[int | None, float] = (None, -math.inf)
        self._sent: dict[int | None, tuple[float, Any]] = {}
        observe_traffic(client, self)

    @property
    def timeout(self) -> float:
        """The smallest timeout that the session was granted. The requested one if no grant was observed."""
        return self._proof.timeout

    @property
    def granted(self) -> float | None:
        """The smallest timeout that the session was granted. None if no grant was observed."""
        return self._proof.timeout if self._granted else None

    def granted_to(self, session_id: int) -> float | None:
        """The smallest timeout that this session was granted. None if it is not the current one."""
        proof = self._proof  # read it first, because `on_session` replaces it last
        return proof.timeout if session_id == self._session_id else None

    def resume(self, session_id: int, timeout: float) -> None:
        """Let the client resume a session of an earlier process, which was granted at least this timeout."""
        self._session_id, self._proof = session_id, Proof(timeout)

    def certain_until(self, session_id: int) -> float:
        """Return until when that session is certain to live, on the clock of `uptime`."""
        known, until = self._certain
        return until if known == session_id else -math.inf

    def due(self, last_sent: float) -> float:
        """Return when to send the next proof, if the last one was sent at `last_sent`."""
        return self._proof.due(last_sent)

    def forget(self) -> None:
        """In a fork: forget the session, which belongs to the parent process."""
        self._certain = (None, -math.inf)

    def on_request(self, xid: int | None, request_type: Any) -> None:
        """Record when a request is sent."""
        if xid is None:
            self._sent.clear()  # a new connection: requests on the old one will not be answered
        self._sent.setdefault(xid, (uptime(), request_type))

    def on_answer(self, header: Any, body: bytes, offset: int) -> None:
        """Record that a request was answered. A watch event answers no request."""
        sent, kind = self._sent.pop(header.xid, (None, None))
        if sent is not None:
            self._proof.answered(sent, uptime())
            if kind == Transaction.type and not header.err and _is_proof(body, offset):
                self._proof.proved(sent)
                self._certain = (self._session_id, self._proof.until)

    def on_session(self, session_id: int, timeout: float) -> None:
        """Record the timeout that the server grants on a new connection.

        If the session is resumed, the smaller timeout still counts: a new leader may use it.
        """
        self.was_connected = self._granted = True
        sent, _ = self._sent.pop(None, (-math.inf, None))
        if session_id != self._session_id:
            self._session_id, self._proof = session_id, Proof(timeout)
        elif timeout < self._proof.timeout:
            self._proof = self._proof.shortened(timeout, sent)
            self._certain = (session_id, self._proof.until)
        self._proof.connected(sent)


class ProofRequest:
    """A transaction that changes nothing. ZooKeeper's answer proves that the session lives.

    No cheaper request is enough. A follower answers reads and pings by itself. `sync` needs the leader, but a leader
    answers it without asking its followers. A leader that is cut off goes on doing so for more than `syncLimit` ticks
    (3.1 s, measured with a limit of 3 s). By then the other servers may have elected a new leader, for example after a
    restart. A transaction waits for a majority, even if it only contains a check, and even if the check fails. In
    tests, a cut-off leader never answered one. It costs a record in the servers' logs, and takes 1 ms, as long as a
    commit.
    """

    type = Transaction.type
    deserialize = staticmethod(Transaction.deserialize)

    def serialize(self) -> bytes:
        """Return a check of the root, which always exists. Version -1 needs no more than permission to read it."""
        return _PAYLOAD

    def __repr__(self) -> str:
        return "ProofRequest()"


_PAYLOAD: Final = bytes(Transaction([CheckVersion("/", -1)]).serialize())


def _is_proof(body: bytes, offset: int) -> bool:
    """Decide by the answer to a transaction whether the leader found the session alive.

    All results of a failed transaction are errors: 0 before the operation that failed, and then its error code.
    """
    while offset + _RESULT.size <= len(body):
        kind, done, _ = _RESULT.unpack_from(body, offset)
        if done:
            return False
        if kind != _FAILED:
            return True
        [error] = _ERROR.unpack_from(body, offset + _RESULT.size)
        if error:
            return error in _FROM_THE_LEADER
        offset += _RESULT.size + _ERROR.size
    return False
