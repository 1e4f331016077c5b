"""Remember why a client could not connect, host by host.

For an unknown name, a refused connection and every TLS error, kazoo only reports a timeout, and logs the reason. So its
attempts are observed while it connects.

A server hangs up on a client that has seen more transactions than the server has done. That happens to every client
after ZooKeeper was restored from a backup or wiped, and lasts until ZooKeeper has done as many again. The server says
nothing, so it is asked for the number of its last transaction. The client does not join such a ZooKeeper by itself: it
may also be another one, and offsets there may be lower.
"""

from __future__ import annotations

import random
import socket
import ssl
from dataclasses import dataclass
from typing import Any, Final

from kazoo.exceptions import ConnectionDropped, SessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError

from ...deadline import Deadline, uptime
from ..requests.safe_decoding import DamagedAnswer
from . import server_status

_FINAL: Final = (socket.gaierror, ConnectionRefusedError, ssl.SSLCertVerificationError, DamagedAnswer)
"""Errors after which waiting rarely helps, unless the server is just starting."""

_ASK_AFTER: Final = 5.0
"""In seconds without a connection: a server that was just restarted may be behind for a moment."""
_ASK: Final = 0.5
"""In seconds: how long a server that hung up may take to report its last transaction."""

Address = tuple[str, str, int]
"""A host name, its address, and the port."""


HAS_DONE_LESS: Final = (
    "{} refuses this client, because it has done fewer transactions than the client has seen. Was ZooKeeper restored "
    "from a backup, or wiped? Then restart this process"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """How an attempt failed. The error itself is not kept, because it holds the socket."""

    reason: str
    kind: type[BaseException]

    @property
    def is_final(self) -> bool:
        """Whether the same attempt is likely to fail again."""
        return issubclass(self.kind, _FINAL)


class Attempts:
    """The last attempt at each address of each host."""

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
    def are_hopeless(self) -> bool:
        """Whether every host is unknown, refuses connections, or is not a ZooKeeper server."""
        failures = [self._failed.get(address) for address in self._addresses]
        return self._expanded and all(failure is not None and failure.is_final for failure in failures)

    @property
    def met_no_zookeeper(self) -> bool:
        """Whether every host answered, but none like a ZooKeeper server."""
        failures = [self._failed.get(address) for address in self._addresses]
        return (
            bool(failures)
            and not self._unknown
            and all(found is not None and issubclass(found.kind, DamagedAnswer) for found in failures)
        )

    @property
    def reason(self) -> str:
        """Each host with its reason, or the reason alone if there is only one host."""
        hosts = self._client.hosts
        if len(hosts) == 1:
            return self._of(hosts[0])
        return "; ".join(f"{host}:{port}: {self._of((host, port))}" for host, port in dict.fromkeys(hosts))

    def _of(self, named: tuple[str, int]) -> str:
        if (unknown := self._unknown.get(named)) is not None:
            return unknown.reason
        found = [self._failed[a].reason for a in self._addresses if (a[0], a[2]) == named and a in self._failed]
        return ", ".join(dict.fromkeys(found)) or "no answer"

    def expand(self) -> list[Address]:
        """Called by kazoo at the start of each round: all addresses of all hosts, in the order to try them."""
        found: list[Address] = []
        unknown: dict[tuple[str, int], Failure] = {}
        for host, port in self._client.hosts:
            try:
                known = socket.getaddrinfo(host.strip(), port, 0, 0, socket.IPPROTO_TCP)
                found += [(host, str(address[0]), int(address[1])) for *_, address in known]
            except socket.gaierror as error:
                self._client.logger.warning("Cannot resolve %s: %s", host, error)
                unknown[host, port] = Failure(f"unknown host ({error.strerror})", type(error))
        self._unknown, self._addresses = unknown, list(dict.fromkeys(found))
        self._expanded = True
        return random.sample(self._addresses, len(self._addresses))  # clients spread over the servers

    def connect(self, host: str, address: str, port: int) -> Any:
        """Called by kazoo: connect to one address."""
        self._current = (host, address, port)
        try:
            found = self._connect(host, address, port)
        except Exception as error:
            self._failing_since = self._failing_since or uptime()
            if self._has_done_less(error):
                error = ConnectionDropped(HAS_DONE_LESS.format(f"{host}:{port}"))
                self._failed[self._current] = Failure(str(error), type(error))
                raise error from None
            self._failed[self._current] = _failure(error)
            raise
        self._failed.pop(self._current, None)
        self._failing_since = None
        return found

    def _has_done_less(self, error: Exception) -> bool:
        """Whether the server may have hung up because it has done fewer transactions than this client has seen."""
        seen = int(self._client.last_zxid)
        hung_up = isinstance(error, ConnectionDropped) and self._client._connection._socket is not None
        if not hung_up or not seen or self._current is None or self._client._stopped.is_set():
            return False
        if self._failing_since is None or uptime() < self._failing_since + _ASK_AFTER:
            return False
        done = server_status.zxid(self._client, *self._current, Deadline(_ASK))
        return done is not None and done < seen

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
