"""Know until when the session of a client is certain to live, and prove it to the server in time."""

from __future__ import annotations

import logging
import math
import os
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from kazoo.exceptions import BadVersionError, NoAuthError, NoNodeError
from kazoo.protocol.serialization import CheckVersion, Transaction

from ...core.session_lifetime import PROOF_PERIOD, PROOF_TIMEOUT, SessionLifetime, session_hex
from ...deadline import Deadline, uptime
from ...exceptions import NotConnectedError, SessionLostError
from ..kazoo_compat import internals
from ..kazoo_compat.closing import leave_server, seconds_without_data
from ..kazoo_compat.requests import observe_traffic
from ..kazoo_compat.safe_decoding import transaction_results
from .errors import EXPIRED

if TYPE_CHECKING:
    from .session import Session


# The request that proves a session: a transaction that changes nothing, and how to read its answer.


_FROM_THE_LEADER: Final = frozenset(error.code for error in (NoNodeError, NoAuthError, BadVersionError))
"""Errors that a leader returns only after it has found the session alive."""

_RESULT: Final = struct.Struct("!i?i")
_ERROR: Final = struct.Struct("!i")
_FAILED: Final = -1


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
    deserialize = staticmethod(transaction_results)

    def serialize(self) -> bytes:
        """Return a check of the root, which always exists. Version -1 needs no more than permission to read it."""
        return _PAYLOAD

    def __repr__(self) -> str:
        return "ProofRequest()"


_PAYLOAD: Final = bytes(Transaction([CheckVersion("/", -1)]).serialize())


def is_proof(body: bytes, offset: int) -> bool:
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


# Know until when the session of a client is certain to live; the rules are in `core/session_lifetime.py`.
#
# kazoo reports neither when it sends a request nor the timeout that a server granted. So its traffic is observed, on
# kazoo's connection thread. Only `resume`, `certain_until` and the timeouts are used by other threads.
#
# A server can grant another timeout at each reconnect. ZooKeeper's data contain only the timeout that was granted
# when the session was created, and a new leader uses that one. So certainty is computed from the smallest timeout
# that the session was ever granted.


_CONNECTED_BEFORE: Final = 0.6
"""A fraction of the session timeout T: if the client was already connected when observation begins, the leader has
heard of the session at most this long ago. kazoo sends a request every T/3, and a follower reports it within T/4."""


class ObservedLifetime:
    """When the leader last proved the session of one client, and the smallest timeout that it was granted."""

    def __init__(self, client: Any) -> None:
        self.was_connected = bool(client.connected)
        self._granted = False
        self._session_id = internals.session_id(client)
        self._lifetime = SessionLifetime(internals.requested_timeout(client))
        if client.connected:
            self._lifetime.connected(uptime() - _CONNECTED_BEFORE * self._lifetime.timeout)
        self._certain: tuple[int | None, float] = (None, -math.inf)
        self._sent: dict[int | None, tuple[float, Any]] = {}
        observe_traffic(client, self)

    @property
    def timeout(self) -> float:
        """The smallest timeout that the session was granted. The requested one if no grant was observed."""
        return self._lifetime.timeout

    @property
    def granted(self) -> float | None:
        """The smallest timeout that the session was granted. None if no grant was observed."""
        return self._lifetime.timeout if self._granted else None

    def granted_to(self, session_id: int) -> float | None:
        """The smallest timeout that this session was granted. None if it is not the current one."""
        lifetime = self._lifetime  # read it first, because `on_session` replaces it last
        return lifetime.timeout if session_id == self._session_id else None

    def resume(self, session_id: int, timeout: float) -> None:
        """Let the client resume a session of an earlier process, which was granted at least this timeout."""
        self._session_id, self._lifetime = session_id, SessionLifetime(timeout)

    def certain_until(self, session_id: int) -> float:
        """Return until when that session is certain to live, on the clock of `uptime`."""
        known, until = self._certain
        return until if known == session_id else -math.inf

    def due(self, last_sent: float) -> float:
        """Return when to send the next proof, if the last one was sent at `last_sent`."""
        return self._lifetime.due(last_sent)

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
            self._lifetime.answered(sent, uptime())
            if kind == Transaction.type and not header.err and is_proof(body, offset):
                self._lifetime.proved(sent)
                self._certain = (self._session_id, self._lifetime.until)

    def on_session(self, session_id: int, timeout: float) -> None:
        """Record the timeout that the server grants on a new connection.

        If the session is resumed, the smaller timeout still counts: a new leader may use it.
        """
        self.was_connected = self._granted = True
        sent, _ = self._sent.pop(None, (-math.inf, None))
        if session_id != self._session_id:
            self._session_id, self._lifetime = session_id, SessionLifetime(timeout)
        elif timeout < self._lifetime.timeout:
            self._lifetime = self._lifetime.shortened(timeout, sent)
            self._certain = (session_id, self._lifetime.until)
        self._lifetime.connected(sent)


# The thread that proves sessions. Each process has one, which runs only while a session is in use.
#
# It sends one tiny transaction for each session every tenth of the session timeout, unless the session's own
# transactions prove it. It does not wait for the answers: kazoo's connection thread records them. The
# claims are held without interruption if each answer arrives within `PROOF_TIMEOUT`.
#
# If an answer is missing although the connection looks fine, the server is cut off from its leader, or does not work.
# Then the thread closes the connection, and kazoo connects to another server in time. But a server answers in the
# order of the requests. So as long as data arrive, the answer may only be waiting behind others on a slow link, and
# the connection is kept.
#
# If all servers are that slow, closing the connection only makes it worse: see `_LookLimit`.


log = logging.getLogger("zkgroups.session")

_POLL_INTERVAL: Final = 0.05
"""How often to check whether another request has proved the session, in seconds."""

_LOOKS: Final = 5
"""How many times to look for an answer within `PROOF_TIMEOUT`, before closing the connection. One look is not enough:
after a pause of the whole process, it may come before kazoo has read the answers that arrived meanwhile."""

_LOOKS_ALONE: Final = 8
"""How many times to look if the client knows only one address. A new connection only helps if the old one is broken, so
wait longer: 0.4 T, which is still less than `PROOF_LIFETIME - PROOF_PERIOD`."""

_MOST_LOOKS: Final = 20
"""This many looks take a whole session timeout. A later answer proves nothing."""


class _LookLimit:
    """How many times to look for the answer to a proof before closing the connection.

    If all servers are slow, closing the connection does not help: no request would ever be answered. So the limit
    doubles with each closed connection, and shrinks when proofs are answered in time again.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._extra = 0

    @property
    def current(self) -> int:
        """The limit now."""
        return min(self._first + self._extra, _MOST_LOOKS)

    @property
    def _first(self) -> int:
        return _LOOKS if len(set(self._client.hosts)) > 1 else _LOOKS_ALONE

    def double(self) -> None:
        """Wait twice as long the next time, because the connection was closed."""
        self._extra = 2 * self.current - self._first

    def shrink(self, looks: int) -> None:
        """Shorten the next wait if a proof was answered in time. `looks` is the number of polls that it took."""
        if looks < _LOOKS:
            self._extra = max(self._extra - 1, 0)


class ProofSender:
    """Proves the session of one client, as long as the session is in use."""

    def __init__(self, client: Any, observed: ObservedLifetime) -> None:
        self._client = client
        self._observed = observed
        self._lock = threading.RLock()  # guards the users, and is never held during a call
        self._users: WeakKeyDictionary[object, int | None] = WeakKeyDictionary()
        self._pending: deque[tuple[int, Any]] = deque()  # the looks before each proof, and its asynchronous result
        self._look_limit = _LookLimit(client)
        self._sent_at = -math.inf
        self._looks = 0
        self._counted_from = 0
        self._was_answered = False
        self._next_look = -math.inf

    def start(self, user: object, session_id: int) -> None:
        """Prove that session until `user` is garbage collected or passed to `stop`."""
        with self._lock:
            self._users[user] = session_id
        _THREAD.serve(self)

    def stop(self, user: object) -> None:
        """Stop proving the session for `user`."""
        with self._lock:
            self._users.pop(user, None)
        _THREAD.wake()

    @property
    def needed(self) -> bool:
        """True if any user needs the current session."""
        if internals.is_stopped(self._client):
            return False
        session_id = internals.session_id(self._client)
        with self._lock:
            return session_id in self._users.values()

    def send_proof(self) -> Any:
        """Send a proof now. Return its asynchronous result."""
        answer = self._client.handler.async_result()
        internals.send(self._client, ProofRequest(), answer)
        return answer

    def wait_proved(self, session: Session, session_id: int, deadline: Deadline) -> None:
        """Send proofs until that session is certain to live. See `Session.prove`."""
        last_sent, limit = -math.inf, Deadline(deadline.seconds + self._observed.timeout)
        while not session.alive(session_id):
            if session.id not in (session_id, None):
                raise SessionLostError(f"session {session_hex(session_id)} {EXPIRED}")
            if deadline.passed or limit.passed:
                raise _not_proved(session_id, deadline, limit)
            if (due := self._observed.due(last_sent) - uptime()) > 0:
                time.sleep(min(due, _POLL_INTERVAL))  # meanwhile other requests may prove the session
                deadline = Deadline(deadline.seconds)
                continue
            last_sent = uptime()
            session.call(self.send_proof, "/", deadline)

    def on_state(self) -> None:
        """Called by kazoo on a new or a lost connection. Only wakes the thread, which starts or stops the proofs."""
        self._sent_at = -math.inf
        _THREAD.wake()

    def look(self) -> float:
        """Send a proof if one is due. Return in how many seconds to look again. Never blocks."""
        now = uptime()
        if not self._client.connected:
            self._pending.clear()
            return PROOF_PERIOD * self._observed.timeout
        self._remove_answered()
        if (due := self._next_proof) <= now:
            if not self._pending:
                self._next_look = now + self._between_looks
            self._pending.append((self._looks, self.send_proof()))
            self._sent_at, due = now, now + PROOF_PERIOD * self._observed.timeout
        if self._pending:
            self._look_for_answer(now)
            return min(due, self._next_look) - now
        return due - now

    @property
    def _next_proof(self) -> float:
        """When to send the next proof. While one is under way, wait for its answer before sending another early."""
        if self._pending:
            return self._sent_at + PROOF_PERIOD * self._observed.timeout
        return self._observed.due(self._sent_at)

    def _remove_answered(self) -> None:
        while self._pending and self._pending[0][1].ready():
            looks_before, answer = self._pending.popleft()
            if answer.successful():
                self._was_answered = True
                self._look_limit.shrink(self._looks - looks_before)

    @property
    def _between_looks(self) -> float:
        return PROOF_TIMEOUT * self._observed.timeout / _LOOKS

    def _look_for_answer(self, now: float) -> None:
        if now < self._next_look:
            return
        self._next_look = now + self._between_looks
        self._looks += 1
        if seconds_without_data(self._client) < self._between_looks and not self._was_answered:
            self._counted_from = self._looks  # parts of another answer, on a slow link
        self._was_answered = False
        looks = self._looks - max(self._pending[0][0], self._counted_from)
        if looks >= self._look_limit.current:
            self._pending.clear()
            self._look_limit.double()
            log.warning(
                "ZooKeeper server %s has not proved for %.1f s that the session lives: it may be cut off from "
                "its leader, or slow; connecting again, to another server if there is one",
                leave_server(self._client),
                looks * self._between_looks,
            )

    def forget(self) -> None:
        """In a fork: drop everything, because it belongs to the parent process."""
        self._lock = threading.RLock()
        self._users = WeakKeyDictionary()
        self._pending.clear()
        self._observed.forget()


def _not_proved(session_id: int, deadline: Deadline, limit: Deadline) -> NotConnectedError:
    if limit.passed:
        return NotConnectedError(
            f"the server has answered for {limit.seconds:g} s, but the answers do not prove that session "
            f"{session_hex(session_id)} is alive: this process may have been suspended again and again"
        )
    return NotConnectedError(
        f"no server has proved within {deadline.seconds:g} s that session {session_hex(session_id)} is alive: "
        "the server may be cut off from its leader; try again later"
    )


class _Thread:
    """Runs the thread while any session needs proofs."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # guards the two fields below, and is never held during a call
        self.senders: set[ProofSender] = set()
        self._thread: threading.Thread | None = None
        # Not an Event: Ctrl-C during `set` can leave it locked forever.
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def serve(self, sender: ProofSender) -> None:
        """Start the proofs of this session."""
        with self._lock:
            self.senders.add(sender)
            if self._thread is None:
                self._start()
        self.wake()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="zkgroups-proofs", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # also Ctrl-C. If the thread runs anyway, it ends at once
            self._thread = None
            raise

    def wake(self) -> None:
        """Let the thread look at all sessions now."""
        self._wakes.put(None)

    def _run(self) -> None:
        while senders := self._needed():
            pause = min(_look(sender) for sender in senders)
            del senders
            self._sleep(max(pause, 0.0))

    def _sleep(self, seconds: float) -> None:
        with suppress(Empty):
            self._wakes.get(timeout=seconds)
            while True:
                self._wakes.get_nowait()

    def _needed(self) -> list[ProofSender]:
        with self._lock:
            if self._thread is not threading.current_thread():  # after a Ctrl-C in `_start`, another thread runs
                return []
            self.senders = {sender for sender in self.senders if sender.needed}
            if not self.senders:
                self._thread = None
            return list(self.senders)


def _look(sender: ProofSender) -> float:
    """Return when to look again. Log any error, so that the proofs of other clients continue."""
    try:
        return sender.look()
    except Exception:
        log.exception("cannot prove a session; its claims will end")
        return _RETRY_AFTER_ERROR


_RETRY_AFTER_ERROR: Final = 1.0
"""In seconds."""

_THREAD = _Thread()


def _after_fork() -> None:
    global _THREAD
    _THREAD = _Thread()


os.register_at_fork(after_in_child=_after_fork)
