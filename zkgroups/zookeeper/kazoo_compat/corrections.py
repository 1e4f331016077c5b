"""Corrections of kazoo's behavior that is unacceptable to a caller who waits for an answer, made client by client.

It waits for one silent host as long as a session lasts, and for its own end even longer; it cannot end without ending
its session, nor tell a fork that it has none; its thread dies with a traceback when a login is refused; it takes a
Ctrl-C for a connection that was closed; and it logs passwords.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import socket
import sys
import termios
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionDropped,
    ConnectionLoss,
    KazooException,
    SASLException,
    SessionClosedRequireSaslError,
    SessionExpiredError,
)
from kazoo.protocol.serialization import SASL, Auth, CloseInstance
from kazoo.protocol.states import KazooState, KeeperState

from ...deadline import Deadline
from ..requests.safe_decoding import DamagedAnswer

SHORTEST_ATTEMPT: Final = 1.0
LONGEST_ATTEMPT: Final = 5.0


def share_time(client: Any, timeout: float) -> None:
    """Give each host its share of the time, so that one that is silent does not keep us from the next.

    kazoo waits for one host as long as a session lasts, which is too long where it is the first of several, and too
    short for any where the session is. And a server that has just been started may forget a connection it accepted.
    """
    share = min(timeout, client._session_timeout / 1000) / len(client.hosts)
    patience = min(max(share, SHORTEST_ATTEMPT), LONGEST_ATTEMPT)
    make, invoke = client.handler.create_connection, client._connection._invoke

    def create_connection(address: Any, **options: Any) -> Any:
        return make(address, **options | {"timeout": patience})

    def invoke_patiently(_timeout: float, request: Any, xid: int | None = None) -> Any:
        return invoke(patience, request, xid)

    client.handler.create_connection = create_connection
    client._connection._invoke = invoke_patiently


LONGEST_LOGIN: Final = 10
"""Requests of one SASL login; DIGEST-MD5 takes three."""


def log_in_cleanly(client: Any) -> None:
    """Let a SASL login that fails end the connection as kazoo ends one that was refused, and nothing else end it.

    If a server that enforces SASL refuses the login, kazoo's thread dies with a traceback. If a server does not know
    SASL, kazoo repeats the request forever. And it takes a lost connection or a damaged answer for a refusal.
    """
    connection = client._connection
    log_in, submit = connection._authenticate_with_sasl, connection._submit
    sent = 0

    def authenticate_with_sasl(host: str, timeout: float) -> None:
        nonlocal sent
        sent = 0
        try:
            log_in(host, timeout)
        except (SessionClosedRequireSaslError, SASLException, AuthFailedError) as error:
            raise _failed_login(error) from error

    def submit_for_a_while(request: Any, timeout: float, xid: int | None = None) -> Any:
        nonlocal sent
        sent += isinstance(request, SASL)
        if sent > LONGEST_LOGIN:
            raise AuthFailedError("the SASL login does not end: the server may know no SASL")
        return submit(request, timeout, xid)

    connection._authenticate_with_sasl, connection._submit = authenticate_with_sasl, submit_for_a_while


def _failed_login(error: KazooException) -> KazooException:
    """The real reason for a failed login, from the error that kazoo raises."""
    match error.__cause__:
        case DamagedAnswer() as damage:
            return damage
        case ConnectionDropped():
            return ConnectionDropped("the connection was lost during the SASL login")
        case Exception() as cause if not isinstance(cause, KazooException):
            return DamagedAnswer(f"a step of the SASL login cannot be decoded: {cause}")
    if isinstance(error, SessionClosedRequireSaslError):
        return AuthFailedError("the server insists on SASL and refused it")
    return error


_REFUSALS: Final = {
    KeeperState.AUTH_FAILED: AuthFailedError,
    KeeperState.CLOSED: partial(ConnectionClosedError, "Connection has been closed"),
    KeeperState.EXPIRED_SESSION: SessionExpiredError,
}


LONGEST_QUEUE: Final = 256
"""Requests that are kept while there is no connection: those who asked may have given up long before there is one."""


def hand_over_safely(client: Any) -> None:
    """Let requests reach kazoo's connection whatever comes between, and nobody be kept who hands one over.

    kazoo's connection is woken by a byte for each request, through a pair of sockets: after one too few the last
    request waits until another is made. A bare `except` around that takes a Ctrl-C for the end of the connection. And
    the pair holds 278: who hands over more while there is no connection, or closes it, is kept, whatever time is left.

    Here one byte means that there is something to send. Whoever hands something over sees to it that there is one, and
    so does the connection after each byte that it has taken, if there is more.
    """
    connection = client._connection
    send = connection._send_request

    def send_request(read_timeout: float, connect_timeout: float) -> None:
        send(read_timeout, connect_timeout)
        if client._queue:
            _wake(connection)

    connection._send_request = send_request
    client._call = lambda request, answer: hand_over(client, [(request, answer)])


def hand_over(client: Any, requests: Sequence[tuple[Any, Any]]) -> bool:
    """Give a corrected client requests, each with whom to answer; False where it is closed.

    What is not possible the last is told: that it is closed, or that the connection is lost and many wait already.
    """
    *_, (_, last) = requests
    if (refusal := _REFUSALS.get(client._state)) is not None:
        last.set_exception(refusal())
        return False
    if len(client._queue) >= LONGEST_QUEUE and not client.connected:
        last.set_exception(ConnectionLoss())
        return True
    try:
        client._queue.extend(requests)
    finally:
        if not _wake(client._connection):  # closed in this moment, by another thread
            last.set_exception(_REFUSALS[KeeperState.CLOSED]())
    return True


def _wake(connection: Any) -> bool:
    """Let kazoo's connection look what there is to send; False if there is none any more."""
    try:
        if not _is_woken(connection):
            connection._write_sock.send(b"\0")
    except (OSError, AttributeError, TypeError, ValueError):
        return False
    return True


def _is_woken(connection: Any) -> bool:
    """Asked of the system, whatever sockets a handler of kazoo's has."""
    return any(fcntl.ioctl(connection._read_sock, termios.FIONREAD, bytes(4)))


CLOSE_TIMEOUT: Final = 5.0
HANG_UP_TIMEOUT: Final = 0.5
HANG_UP_EVERY: Final = 0.05


def close(client: Any) -> bool:
    """End the session and free what the client holds, also where the server hangs or nothing was ever connected.

    False where no server has said that the session has ended. kazoo's own `stop` waits for that as long as a session
    lasts, so this asks as it does, and hangs up after less.
    """
    if client._stopped.is_set():
        return False
    connected, states = client.connected, list[str]()
    if not connected and isinstance(client.logger, ConnectionLog):
        client.logger.disabled = True  # it would warn that it has given up
    client.add_listener(states.append)
    connection = client._connection
    with _hung_up_if_interrupted(client):
        client._stopped.set()
        client._queue.append((CloseInstance, None))
        _wake(connection)
        answered = connection.connection_stopped.wait(CLOSE_TIMEOUT if connected else 0.0)
        if not answered:
            _hang_up(connection)
            if not connection.connection_stopped.wait(HANG_UP_TIMEOUT):
                _close_at_its_end(client)
        _free(client)
    return connected and answered and KazooState.SUSPENDED not in states


def drop(client: Any) -> None:
    """Hang up without ending the session, and free what the client holds; it does not come back to that session.

    A connection that is just being made is not kept from being made: so it is hung up on until there is none.
    """
    if client._stopped.is_set():
        return
    if isinstance(client.logger, ConnectionLog):
        client.logger.disabled = True  # it would warn of a connection that is lost
    connection, deadline = client._connection, Deadline(HANG_UP_TIMEOUT)
    with _hung_up_if_interrupted(client):
        client._stopped.set()
        while not connection.connection_stopped.is_set() and not deadline.passed:
            client._reset_session()
            _hang_up(connection)
            connection.connection_stopped.wait(HANG_UP_EVERY)
        if not connection.connection_stopped.is_set():
            client._reset_session()
            client._queue.append((CloseInstance, None))  # should it connect all the same: to a session of no use
            _close_at_its_end(client)
        _free(client)


@contextlib.contextmanager
def _hung_up_if_interrupted(client: Any) -> Iterator[None]:
    """By Ctrl-C, say: nobody can close it again, and its heartbeats would keep the session as long as we live."""
    try:
        yield
    except BaseException:
        _hang_up(client._connection)
        _close_at_its_end(client)
        client.handler.stop()
        raise


def _hang_up(connection: Any) -> None:
    """What the other thread makes of it is the end of what it reads, also where it is in the middle of TLS."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        socket.socket.shutdown(connection._socket, socket.SHUT_RDWR)


def silence(client: Any) -> float:
    """Return for how many seconds no data have arrived on the connection. Infinite if the system does not report it.

    kazoo returns an answer only when it is complete, and a large one can take long. Linux counts the data themselves.
    """
    if sys.platform != "linux":
        return math.inf
    try:
        found = client._connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_RECEIVED.stop)
        return int.from_bytes(found[_LAST_RECEIVED], sys.byteorder) / 1000
    except (OSError, AttributeError):
        return math.inf


_LAST_RECEIVED: Final = slice(52, 56)
"""The field `tcpi_last_data_recv` of `struct tcp_info`, in milliseconds."""


def hang_up_and_shun(client: Any) -> str:
    """Close the connection, and let kazoo try this server last. Return the address of the server."""
    connection = client._connection
    try:
        peer = tuple(connection._socket.getpeername()[:2])
    except (OSError, AttributeError):
        return "(none)"
    expand = connection._expand_client_hosts

    def expand_once() -> list[tuple[str, str, int]]:
        connection._expand_client_hosts = expand
        return sorted(expand(), key=lambda host: (host[1], host[2]) == peer)

    connection._expand_client_hosts = expand_once
    _hang_up(connection)
    return f"{peer[0]}:{peer[1]}"


def _free(client: Any) -> None:
    client.handler.stop()
    if client._connection.connection_stopped.is_set():
        client._connection.stop()
        client.close()


def _close_at_its_end(client: Any) -> None:
    """It waits for a name to be resolved or a host to answer: that cannot be broken off, but the last thing it does is
    to tell that it is closed."""
    tell = client._session_callback

    def tell_and_close(state: str) -> None:
        tell(state)
        if client._connection.connection_stopped.is_set():
            client.close()

    client._session_callback = tell_and_close
    if client._connection.connection_stopped.is_set():  # it has told that just before
        client.close()


_OPEN: Final[WeakSet[Any]] = WeakSet()


def end_in_forks(client: Any) -> None:
    """Let a fork of this process find the client closed.

    It has a copy of the socket and none of the threads: what it asked would never be answered, and what it sent would
    be sent in the name of the process that it was forked from.
    """
    _OPEN.add(client)


def _end_all() -> None:
    for client in list(_OPEN):
        client._stopped, client._live = threading.Event(), threading.Event()  # the old ones may be locked for ever
        client._stopped.set()
        client._state = KeeperState.CLOSED
        client._reset_session()


os.register_at_fork(after_in_child=_end_all)


MOST_REASONS: Final = 64
"""How many different warnings a log remembers, at most."""


class ConnectionLog(logging.Logger):
    """kazoo's log without passwords and repeated warnings, passed on to its usual logger.

    Without a connection kazoo tries again every second, and logs each failure. Here the same warning is logged once
    until there is a connection. Python prints warnings on stderr where nobody has configured logging.
    """

    def __init__(self) -> None:
        super().__init__("kazoo.client")
        self.parent = self._usual = logging.getLogger("kazoo.client")
        self._said: set[str] = set()

    def on_state(self, state: str) -> None:
        """Listen to the states of the client: what happens after a connection is new."""
        if state == KazooState.CONNECTED:
            self._said.clear()

    def handle(self, record: logging.LogRecord) -> None:
        """Pass the record on, without passwords; drop a warning that was logged since the last connection."""
        if isinstance(record.args, tuple):
            record.args = tuple("(a login)" if isinstance(arg, Auth | SASL) else arg for arg in record.args)
        record.msg, record.args = record.getMessage(), None  # a kept record would keep the error, and its open socket
        if record.levelno < logging.WARNING or self._is_new(record.msg):
            super().handle(record)

    def _is_new(self, warning: str) -> bool:
        if warning in self._said:
            return False
        if len(self._said) >= MOST_REASONS:
            self._said.clear()
        self._said.add(warning)
        return True

    def isEnabledFor(self, level: int) -> bool:
        """As the usual logger has it."""
        return not self.disabled and self._usual.isEnabledFor(level)


class Silence(logging.Logger):
    """The log of a connection whose failures are expected."""

    def __init__(self) -> None:
        super().__init__("kazoo.client", logging.CRITICAL + 1)
        self.disabled = True
