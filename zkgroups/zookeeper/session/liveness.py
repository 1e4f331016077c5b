"""Observe kazoo's connection to know until when the session lives; the rules are in `core/session_proof.py`.

kazoo shows neither when it sends a request nor the timeout that a server granted. So its connection is observed. All of
this runs on kazoo's connection thread, except `resume`, and reading `certain_until` and the timeouts.

A session can be granted another timeout at each reconnect. ZooKeeper's data contain only the timeout at its creation,
and a new leader uses that one. So a session is proved with the smallest timeout that it was ever granted.
"""

from __future__ import annotations

import math
import struct
from typing import Any, Final

from kazoo.exceptions import BadVersionError, NoAuthError, NoNodeError
from kazoo.protocol.serialization import CheckVersion, Connect, Transaction

from ...core.session_proof import Proof
from ...deadline import uptime

_CONNECTED_BEFORE: Final = 0.6
"""A fraction of the session timeout: how old the leader's knowledge of the session may be when the client was connected
before the observation began. kazoo sends a request every third of it, and a follower reports that within a quarter."""

_FROM_THE_LEADER: Final = frozenset(error.code for error in (NoNodeError, NoAuthError, BadVersionError))
"""Errors that a leader returns only after it has found the session alive."""

_RESULT: Final = struct.Struct("!i?i")
_ERROR: Final = struct.Struct("!i")
_FAILED: Final = -1


class Pulse:
    """When the leader last proved the session of one client, and the smallest timeout that it was granted."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.has_beaten = bool(client.connected)
        self._granted = False
        self._session_id: int | None = client._session_id or None
        self._proof = Proof(float(client._session_timeout) / 1000)
        if client.connected:
            self._proof.connected(uptime() - _CONNECTED_BEFORE * self._proof.timeout)
        self._certain: tuple[int | None, float] = (None, -math.inf)
        self._sent: dict[int | None, tuple[float, Any]] = {}
        connection = client._connection
        self._submit, self._read_header, self._invoke = connection._submit, connection._read_header, connection._invoke
        connection._submit, connection._read_header, connection._invoke = self.submit, self.read_header, self.invoke

    @property
    def timeout(self) -> float:
        """The smallest timeout that the session was granted, or as requested if the grant was not observed."""
        return self._proof.timeout

    @property
    def granted(self) -> float | None:
        """The smallest timeout that the session was granted. None if no grant was observed."""
        return self._proof.timeout if self._granted else None

    def granted_to(self, session_id: int) -> float | None:
        """The smallest timeout that this session was granted. None if it is not the current one."""
        proof = self._proof  # read it first, because `invoke` replaces it last
        return proof.timeout if session_id == self._session_id else None

    def resume(self, session_id: int, timeout: float) -> None:
        """The client will continue a session of an earlier process, which was granted at least this timeout."""
        self._session_id, self._proof = session_id, Proof(timeout)

    def certain_until(self, session_id: int) -> float:
        """Until when, on the clock of `uptime`, that session is certain to live."""
        known, until = self._certain
        return until if known == session_id else -math.inf

    def due(self, asked: float) -> float:
        """When to send the next proof, if the last one was sent at `asked`."""
        return self._proof.due(asked)

    def void(self) -> None:
        """In a fork: forget the session, which belongs to the parent process."""
        self._certain = (None, -math.inf)

    def submit(self, request: Any, timeout: float, xid: int | None = None) -> Any:
        """Record when a request is sent."""
        if xid is None:
            self._sent.clear()  # a new connection: requests on the old one will not be answered
        self._sent.setdefault(xid, (uptime(), request.type))
        return self._submit(request, timeout, xid)

    def read_header(self, timeout: float) -> Any:
        """Record that a request was answered. A watch event answers no request."""
        answer = self._read_header(timeout)
        header, body, offset = answer
        sent, kind = self._sent.pop(header.xid, (None, None))
        if sent is not None:
            self._proof.answered(sent, uptime())
            if kind == Transaction.type and not header.err and _is_proof(body, offset):
                self._proof.proved(sent)
                self._certain = (self._session_id, self._proof.until)
        return answer

    def invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        """Record the timeout that the server grants when a connection is made.

        If the session is an old one, a longer timeout than before proves nothing.
        """
        answer = self._invoke(timeout, request, xid)
        if isinstance(request, Connect):
            accepted = answer[0]
            if accepted.time_out > 0:
                granted = accepted.time_out / 1000
                self.has_beaten = self._granted = True
                if accepted.session_id != self._session_id or granted < self._proof.timeout:
                    self._session_id, self._proof = accepted.session_id, Proof(granted)
                sent, _ = self._sent.pop(None, (-math.inf, None))
                self._proof.connected(sent)
        return answer


class ProofRequest:
    """A transaction that changes nothing. ZooKeeper's answer proves that the session lives.

    No cheaper request is enough. A follower answers reads and pings alone. `sync` needs the leader, but a leader
    answers it without its followers. A leader that is cut off does so for more than `syncLimit` ticks (3.1 s, measured
    with a limit of 3 s). Meanwhile the others may have elected a new leader long before, for example after a restart. A
    transaction waits for a majority, even if it only contains a check, and even if the check fails. In tests, a cut-off
    leader never answered one. It costs a record in the servers' logs, and takes 1 ms, as long as a commit.
    """

    type = Transaction.type
    deserialize = staticmethod(Transaction.deserialize)

    def serialize(self) -> bytes:
        """The root always exists. With version -1, the check only needs permission to read it."""
        return _PAYLOAD

    def __repr__(self) -> str:
        return "ProofRequest()"


_PAYLOAD: Final = bytes(Transaction([CheckVersion("/", -1)]).serialize())


def _is_proof(body: bytes, offset: int) -> bool:
    """Whether the leader found the session alive, by the answer to a transaction.

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
