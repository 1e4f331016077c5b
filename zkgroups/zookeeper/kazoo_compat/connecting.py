"""Corrections of how kazoo connects and logs in, and reports of why it could not."""

from __future__ import annotations

import logging
import random
import re
import socket
import ssl
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    KazooException,
    SASLException,
    SessionClosedRequireSaslError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.serialization import SASL, Auth
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from ...deadline import Deadline, uptime
from . import internals
from .internals import requested_timeout, sasl_options
from .safe_decoding import DamagedAnswer

# kazoo's log, without passwords and without repeated warnings.


MAX_REMEMBERED: Final = 64
"""How many different warnings a log remembers, at most."""


class ConnectionLog(logging.Logger):
    """kazoo's log without passwords and repeated warnings, passed on to its usual logger.

    Without a connection kazoo tries again every second, and logs each failure. Here the same warning is logged once
    until there is a connection. Python prints warnings on stderr if no logging is configured.
    """

    def __init__(self) -> None:
        super().__init__("kazoo.client")
        self.parent = self._usual = logging.getLogger("kazoo.client")
        self._logged: set[str] = set()

    def on_state(self, state: str) -> None:
        """Log all warnings again after a new connection."""
        if state == KazooState.CONNECTED:
            self._logged.clear()

    def handle(self, record: logging.LogRecord) -> None:
        """Pass the record on, without passwords; drop a warning that was logged since the last connection."""
        if isinstance(record.args, tuple):
            record.args = tuple("(a login)" if isinstance(arg, Auth | SASL) else arg for arg in record.args)
        record.msg, record.args = record.getMessage(), None  # the arguments can hold an error, and its open socket
        if record.levelno < logging.WARNING or self._is_new(record.msg):
            super().handle(record)

    def _is_new(self, warning: str) -> bool:
        if warning in self._logged:
            return False
        if len(self._logged) >= MAX_REMEMBERED:
            self._logged.clear()
        self._logged.add(warning)
        return True

    def isEnabledFor(self, level: int) -> bool:
        """Follow the level of the usual logger. Below DEBUG, kazoo logs the password of the session."""
        return level >= logging.DEBUG and not self.disabled and self._usual.isEnabledFor(level)


class SilentLog(logging.Logger):
    """The log of a connection whose failures are expected."""

    def __init__(self) -> None:
        super().__init__("kazoo.client", logging.CRITICAL + 1)
        self.disabled = True


# Corrections of how kazoo connects and logs in.
#
# kazoo waits for one silent host as long as a session lasts. Its thread dies with a traceback if a SASL login is
# refused.


SHORTEST_ATTEMPT: Final = 1.0
LONGEST_ATTEMPT: Final = 5.0
LONGEST_LOGIN: Final = 10
"""Requests of one SASL login. DIGEST-MD5 takes three."""


class LoginLost(ConnectionDropped):  # type: ignore[misc]
    """The server hung up after it had received the password. ZooKeeper 3.4 refuses a password in this way."""


def limit_connect_time(client: Any, timeout: float) -> None:
    """Divide `timeout` among the hosts, so that a silent host does not keep the client from the next one.

    kazoo's own limit is the session timeout. That is too long for the first of several hosts, and too short for any
    host if the session timeout is short. Also, a server that has just started may forget a connection it accepted.
    """
    share = min(timeout, requested_timeout(client)) / len(client.hosts)
    limit = min(max(share, SHORTEST_ATTEMPT), LONGEST_ATTEMPT)
    original, invoke = client.handler.create_connection, client._connection._invoke

    def create_connection(address: Any, **options: Any) -> Any:
        return original(address, **options | {"timeout": limit})

    def invoke_with_limit(_timeout: float, request: Any, xid: int | None = None) -> Any:
        return invoke(limit, request, xid)

    client.handler.create_connection = create_connection
    client._connection._invoke = invoke_with_limit


def correct_sasl_login(client: Any) -> None:
    """Let a refused SASL login end the connection as a refused digest login does, and no other error.

    If a server that enforces SASL refuses the login, kazoo's thread dies with a traceback. If a server does not know
    SASL, kazoo repeats the request forever. And kazoo takes a lost connection or a damaged answer for a refusal.
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
            raise _login_error(error, sent) from error

    def submit_with_limit(request: Any, timeout: float, xid: int | None = None) -> Any:
        nonlocal sent
        sent += isinstance(request, SASL)
        if sent > LONGEST_LOGIN:
            raise AuthFailedError("the SASL login does not end: the server may not support SASL")
        return submit(request, timeout, xid)

    connection._authenticate_with_sasl, connection._submit = authenticate_with_sasl, submit_with_limit


def _login_error(error: KazooException, sent: int) -> KazooException:
    """Return the real reason for a failed login, from the error that kazoo raises."""
    match error.__cause__:
        case DamagedAnswer() as damage:
            return damage
        case ConnectionDropped():
            kind = LoginLost if sent > 1 else ConnectionDropped  # the first request contains no password
            return kind("the connection was lost during the SASL login")
        case Exception() as cause if not isinstance(cause, KazooException):
            return DamagedAnswer(f"a step of the SASL login cannot be decoded: {cause}")
    if isinstance(error, SessionClosedRequireSaslError):
        return AuthFailedError("the server requires SASL and refused the login")
    return error


# Record why a client could not connect, host by host.
#
# For an unknown name, a refused connection and every TLS error, kazoo only reports a timeout, and logs the reason. So
# each attempt is observed.
#
# A server hangs up on a client that has seen more transactions than the server has processed. After ZooKeeper was
# wiped or restored from a backup, this happens to every client until ZooKeeper has processed as many transactions
# again. The server reports no reason, so it is asked for its last transaction. The client does not connect to such a
# ZooKeeper by itself: it may be another ensemble, and its offsets may be lower.


_FINAL: Final = (socket.gaierror, ConnectionRefusedError, ssl.SSLCertVerificationError, DamagedAnswer)
"""Errors after which waiting rarely helps, unless the server is just starting."""

_CHECK_ZXID_AFTER: Final = 5.0
"""In seconds without a connection. A server that was just restarted may be behind for a moment."""
_STATUS_TIMEOUT: Final = 0.5
"""How long to wait for the server's last transaction, in seconds."""

Address = tuple[str, str, int]
"""A host name, its address, and the port."""


IS_BEHIND: Final = (
    "{} refuses this client, because it has processed fewer transactions than the client has seen. If ZooKeeper was "
    "restored from a backup or wiped, restart this process"
)


class Failure(NamedTuple):
    """How an attempt failed. The error itself is not kept, because it holds the socket."""

    reason: str
    kind: type[BaseException]

    @property
    def is_final(self) -> bool:
        """True if the same attempt is likely to fail again."""
        return issubclass(self.kind, _FINAL)


class ConnectFailures:
    """The failure of the last attempt at each address of each host."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._unknown: dict[tuple[str, int], Failure] = {}
        self._addresses: list[Address] = []
        self._failed: dict[Address, Failure] = {}
        self._current: Address | None = None
        self._failing_since: float | None = None
        self._expanded = False
        connection = client._connection
        self._connect, self._read_socket = connection._connect, connection._read_socket
        connection._connect, connection._read_socket = self.connect, self.read_socket
        connection._expand_client_hosts = self.expand

    @property
    def are_final(self) -> bool:
        """True if every host is unknown, refuses connections, or is not a ZooKeeper server."""
        failures = [self._failed.get(address) for address in self._addresses]
        return self._expanded and all(failure is not None and failure.is_final for failure in failures)

    @property
    def no_host_is_zookeeper(self) -> bool:
        """True if every host answered, but not like a ZooKeeper server."""
        return self._all_failed_by(DamagedAnswer)

    @property
    def every_login_was_lost(self) -> bool:
        """True if every host hung up during the SASL login."""
        return self._all_failed_by(LoginLost)

    def _all_failed_by(self, kind: type[Exception]) -> bool:
        failures = [self._failed.get(address) for address in self._addresses]
        return (
            bool(failures)
            and not self._unknown
            and all(failure is not None and issubclass(failure.kind, kind) for failure in failures)
        )

    @property
    def reason(self) -> str:
        """Each host with its reason, or the reason alone if there is only one host."""
        hosts = self._client.hosts
        if len(hosts) == 1:
            return self._reason_of(hosts[0])
        return "; ".join(f"{host}:{port}: {self._reason_of((host, port))}" for host, port in dict.fromkeys(hosts))

    def _reason_of(self, host: tuple[str, int]) -> str:
        if (unknown := self._unknown.get(host)) is not None:
            return unknown.reason
        reasons = [self._failed[a].reason for a in self._addresses if (a[0], a[2]) == host and a in self._failed]
        return ", ".join(dict.fromkeys(reasons)) or "no answer"

    def expand(self) -> list[Address]:
        """Called by kazoo at the start of each round. Return all addresses of all hosts in the order to try them."""
        addresses: list[Address] = []
        unknown: dict[tuple[str, int], Failure] = {}
        for host, port in self._client.hosts:
            try:
                resolved = socket.getaddrinfo(host.strip(), port, 0, 0, socket.IPPROTO_TCP)
                addresses += [(host, str(address[0]), int(address[1])) for *_, address in resolved]
            except OSError as error:  # not only gaierror: any other error would end kazoo's thread for good
                self._client.logger.warning("Cannot resolve %s: %s", host, error)
                kind = "unknown host" if isinstance(error, socket.gaierror) else "the name cannot be resolved"
                unknown[host, port] = Failure(f"{kind} ({error.strerror})", type(error))
        self._unknown, self._addresses = unknown, list(dict.fromkeys(addresses))
        self._expanded = True
        return random.sample(self._addresses, len(self._addresses))  # clients spread over the servers

    def connect(self, host: str, address: str, port: int) -> Any:
        """Called by kazoo: connect to one address."""
        self._current = (host, address, port)
        try:
            timeouts = self._connect(host, address, port)
        except Exception as error:
            self._failing_since = self._failing_since or uptime()
            if self._is_behind(error):
                error = ConnectionDropped(IS_BEHIND.format(f"{host}:{port}"))
                self._failed[self._current] = Failure(str(error), type(error))
                raise error from None
            self._failed[self._current] = _failure(error)
            raise
        self._failed.pop(self._current, None)
        self._failing_since = None
        return timeouts

    def _is_behind(self, error: Exception) -> bool:
        """Return True if the server hung up and has processed fewer transactions than this client has seen."""
        seen = int(self._client.last_zxid)
        hung_up = isinstance(error, ConnectionDropped) and self._client._connection._socket is not None
        if not hung_up or not seen or self._current is None or internals.is_stopped(self._client):
            return False
        if self._failing_since is None or uptime() < self._failing_since + _CHECK_ZXID_AFTER:
            return False
        last = last_zxid(self._client, *self._current, Deadline(_STATUS_TIMEOUT))
        return last is not None and last < seen

    def read_socket(self, timeout: float) -> Any:
        """Called by kazoo: read an answer."""
        try:
            return self._read_socket(timeout)
        except Exception as error:
            if self._current is not None:
                self._failed[self._current] = _failure(error)
            raise


def _failure(error: BaseException) -> Failure:
    match error:
        case DamagedAnswer():
            return Failure(str(error), type(error))
        case LoginLost():
            return Failure("the server hung up during the login; it may refuse the password", type(error))
        case ConnectionDropped(__context__=OSError() as cause):  # the cause, as kazoo wrapped it
            return _failure(cause)
        case ConnectionDropped():
            return Failure("the server hung up; it may want TLS, or have no quorum", type(error))
        case KazooTimeoutError() | TimeoutError():
            return Failure("no answer", type(error))
        case SessionExpiredError():
            return Failure("the server grants no session", type(error))
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError():
            port = "is this its TLS port (secureClientPort)?"
            return Failure(f"the server ended the TLS handshake: {port}", type(error))
        case OSError(strerror=str(reason)):
            return Failure(reason, type(error))
    return Failure(str(error) or type(error).__name__, type(error))


# Ask a server for its version and last transaction: the four-letter word `srvr`, on a connection without a session.


_VERSION: Final = re.compile(rb"^Zookeeper version: (\d+)\.(\d+)\.")
_ZXID: Final = re.compile(rb"^Zxid: 0x([0-9a-f]{1,16})\r?\n", re.MULTILINE)
_LINES_TO_ZXID: Final = 8
_LONGEST: Final = 1024


def version(client: Any, host: str, address: str, port: int, deadline: Deadline) -> tuple[int, int] | None:
    """Return the server's version, or None if it does not report one, because four-letter words may be disabled."""
    match = _VERSION.match(_first_lines(client, host, address, port, deadline, 1))
    return None if match is None else (int(match[1]), int(match[2]))


def last_zxid(client: Any, host: str, address: str, port: int, deadline: Deadline) -> int | None:
    """Return the number of the server's last transaction, or None if it does not report one."""
    match = _ZXID.search(_first_lines(client, host, address, port, deadline, _LINES_TO_ZXID))
    return None if match is None else int(match[1], 16)


def _first_lines(client: Any, host: str, address: str, port: int, deadline: Deadline, lines: int) -> bytes:
    """Return the first lines of the report. With TLS, the certificate must be that of `host`."""
    answer = b""
    try:
        sock = client.handler.create_connection(
            address=(address, port),
            hostname=host,
            timeout=deadline.remaining,
            use_ssl=client.use_ssl,
            keyfile=client.keyfile,
            certfile=client.certfile,
            ca=client.ca,
            keyfile_password=client.keyfile_password,
            verify_certs=client.verify_certs,
            check_hostname=client.check_hostname,
        )
        with sock:
            sock.settimeout(max(deadline.remaining, 0.001))
            sock.sendall(b"srvr")
            # A server that is just starting does not close the connection.
            while answer.count(b"\n") < lines and len(answer) < _LONGEST:
                sock.settimeout(max(deadline.remaining, 0.001))
                if not (more := sock.recv(_LONGEST)):
                    break
                answer += more
    except OSError:
        return b""
    return answer


# A second client with the servers and the credentials of a first one, for a session of its own or a saved one.


def second_client(
    client: Any,
    timeout: float,
    *,
    hosts: Sequence[tuple[str, int]] = (),
    client_id: tuple[int, bytes] | None = None,
    logger: logging.Logger | None = None,
) -> Any:
    """Return a client that is not started, for `hosts` if given. `timeout` limits the time to connect, in seconds."""
    second = KazooClient(
        hosts=",".join(
            f"{host}:{port}" if ":" not in host else f"[{host}]:{port}" for host, port in hosts or client.hosts
        ),
        timeout=requested_timeout(client),
        client_id=client_id,
        logger=logger or ConnectionLog(),
        auth_data=client.auth_data,
        sasl_options=sasl_options(client),
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=1.5, max_delay=1.0),
        read_only=client.read_only,
        use_ssl=client.use_ssl,
        ca=client.ca,
        certfile=client.certfile,
        keyfile=client.keyfile,
        keyfile_password=client.keyfile_password,
        verify_certs=client.verify_certs,
        check_hostname=client.check_hostname,
    )
    limit_connect_time(second, timeout)
    correct_sasl_login(second)
    return second


def connect_only_to(client: Any, hostname: str, address: str, port: int) -> None:
    """Let the client connect to this address only. TLS checks the certificate against `hostname`."""
    client._connection._expand_client_hosts = lambda: [(hostname, address, port)]
