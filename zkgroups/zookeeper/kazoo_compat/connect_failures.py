"""Record why a client could not connect, host by host.

For an unknown name, a refused connection and every TLS error, kazoo only reports a timeout, and logs the reason. So
each attempt is observed.

A server hangs up on a client that has seen more transactions than the server has processed. After ZooKeeper was wiped
or restored from a backup, this happens to every client until ZooKeeper has processed as many transactions again. The
server reports no reason, so it is asked for its last transaction. The client does not connect to such a ZooKeeper by
itself: it may be another ensemble, and its offsets may be lower.
"""

from __future__ import annotations

import random
import socket
import ssl
from typing import Any, Final, NamedTuple

from kazoo.exceptions import ConnectionDropped, SessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError

from ...deadline import Deadline, uptime
from . import internals
from .connect_and_login import LoginLost
from .safe_decoding import DamagedAnswer

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
        from . import server_status

        last = server_status.last_zxid(self._client, *self._current, Deadline(_STATUS_TIMEOUT))
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
        case OSError(strerror=str(reason)):
            return Failure(reason, type(error))
    return Failure(str(error) or type(error).__name__, type(error))
