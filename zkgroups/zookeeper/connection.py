"""Opening a connection: options checked at once, and a failure that says why.

kazoo answers a refused connection, a wrong name and every fault of TLS with the same time-out, and the reason goes to
its log only; a wrong SASL password is noticed after `start()` has returned. So its log is read while it connects, and
one request is made before the connection counts as open.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import socket
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.hosts import collect_hosts
from kazoo.protocol.serialization import CloseInstance
from kazoo.retry import KazooRetry

from ..core.paths import check_name
from ..exceptions import (
    AuthenticationError,
    InvalidNameError,
    InvalidOptionError,
    MissingDependencyError,
    NotConnectedError,
    NotFoundError,
    UnavailableError,
)
from .deadline import Deadline
from .session import Session

MAX_SESSION_TIMEOUT: Final = 300.0
SHORT_SESSION_TIMEOUT: Final = 6.0


class ShortSessionWarning(UserWarning):
    """The session time-out is so short that a pause for garbage collection can end the session."""


@dataclass(frozen=True, slots=True)
class Digest:
    """A name and password of ZooKeeper's own `digest` scheme, which ACLs refer to."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Sasl:
    """A name and password for SASL DIGEST-MD5; needs the extra `zkgroups[sasl]`."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """Files for TLS, as PEM: the authority to trust, and our own certificate where the server asks for one."""

    ca: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None
    key_password: str | None = field(default=None, repr=False)
    verify_hostname: bool = True


def check_hosts(hosts: object) -> str:
    """Return a hosts string such as `zk1:2181,zk2:2181/kafka`, or refuse it."""
    if not isinstance(hosts, str) or not hosts.strip():
        raise InvalidOptionError("zookeeper", hosts, "it must be like host:port,host:port/chroot")
    try:
        found, chroot = collect_hosts(hosts)
        for name in (chroot or "/").strip("/").split("/") if chroot and chroot != "/" else ():
            check_name("chroot", name)
    except (ValueError, InvalidNameError) as error:
        raise InvalidOptionError("zookeeper", hosts, f"it must be like host:port,host:port/chroot ({error})") from error
    if any(not host.isascii() or " " in host for host, _ in found):
        raise InvalidOptionError("zookeeper", hosts, "it names a host that cannot be one")
    return hosts.strip().rstrip("/")


def check_session_timeout(seconds: object) -> float:
    """Return a session time-out that makes sense; a very short one is warned of."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_SESSION_TIMEOUT:
        raise InvalidOptionError("session_timeout", seconds, f"it must be over 0 and at most {MAX_SESSION_TIMEOUT:g} s")
    if math.isnan(seconds):
        raise InvalidOptionError("session_timeout", seconds, "it must be a number")
    if seconds < SHORT_SESSION_TIMEOUT:
        warnings.warn(
            f"a session of {seconds:g} s ends at the first long pause; {SHORT_SESSION_TIMEOUT:g} s or more is safer",
            ShortSessionWarning,
            stacklevel=4,
        )
    return float(seconds)


def connect(
    hosts: str,
    *,
    session_timeout: float,
    timeout: float,
    auth: Sequence[Digest | Sasl],
    tls: Tls | None,
    read_only: bool,
) -> Any:
    """A kazoo client that is connected and authenticated; the options are those of `Registry.connect`."""
    deadline = Deadline.after("timeout", timeout)
    log = _ConnectionLog()
    client = KazooClient(
        hosts=check_hosts(hosts),
        timeout=check_session_timeout(session_timeout),
        read_only=read_only,
        logger=log,
        # kazoo's own back-off doubles up to an hour, and a session has long ended by then.
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=1.5, max_delay=1.0),
        auth_data=[("digest", f"{entry.user}:{entry.password}") for entry in auth if isinstance(entry, Digest)],
        sasl_options=_sasl_options(auth),
        **_tls_options(tls),
    )
    session = Session.of(client)  # before it connects, so that it hears what the server grants
    with _stopped_on_error(client):
        _start(client, hosts, deadline, log)
        _prove(session, hosts, deadline, log)
    session.refuses_writes = read_only
    return client


def _sasl_options(auth: Sequence[Digest | Sasl]) -> dict[str, str] | None:
    entries = [entry for entry in auth if isinstance(entry, Sasl)]
    if not entries:
        return None
    if len(entries) > 1:
        raise InvalidOptionError("auth", entries, "a connection has one SASL identity")
    if importlib.util.find_spec("puresasl") is None:
        raise MissingDependencyError("SASL needs pure-sasl: pip install 'zkgroups[sasl]'")
    return {"mechanism": "DIGEST-MD5", "username": entries[0].user, "password": entries[0].password}


def _tls_options(tls: Tls | None) -> dict[str, Any]:
    if tls is None:
        return {}
    for option, file in (("tls ca", tls.ca), ("tls certificate", tls.certificate), ("tls key", tls.key)):
        if file is not None and not Path(file).is_file():
            raise InvalidOptionError(option, str(file), "there is no such file")
    if tls.key is not None and tls.certificate is None:
        raise InvalidOptionError("tls key", str(tls.key), "it needs the certificate it belongs to")
    return {
        "use_ssl": True,
        "ca": None if tls.ca is None else str(tls.ca),
        "certfile": None if tls.certificate is None else str(tls.certificate),
        # kazoo ignores a certificate that comes without a key, in silence; one file may hold both
        "keyfile": None if tls.certificate is None else str(tls.key or tls.certificate),
        "keyfile_password": tls.key_password,
        "check_hostname": tls.verify_hostname,
    }


def _start(client: Any, hosts: str, deadline: Deadline, log: _ConnectionLog) -> None:
    client.start_async()
    try:
        connected = Session.of(client).wait_connected(deadline)
    except UnavailableError as error:
        raise NotConnectedError(f"no connection to {hosts}: {log.reason}") from error
    if not connected:
        raise NotConnectedError(f"no connection to {hosts} within {deadline.seconds:g} s: {log.reason}")


def _prove(session: Session, hosts: str, deadline: Deadline, log: _ConnectionLog) -> None:
    """One request, because kazoo reports a connection before it has authenticated, and a chroot may not be there."""
    try:
        found = session.exists("/", deadline=deadline)
    except NotConnectedError as error:
        raise NotConnectedError(f"no answer from {hosts} within {deadline.seconds:g} s: {log.reason}") from error
    except AuthenticationError as error:
        raise AuthenticationError(f"{hosts} did not accept the credentials, or insists on some") from error
    if not found:
        raise NotFoundError(f"there is no {session.chroot} in the ZooKeeper at {hosts.partition('/')[0]}")


@contextlib.contextmanager
def _stopped_on_error(client: Any) -> Iterator[None]:
    try:
        yield
    except BaseException:
        close(client)
        raise


CLOSE_TIMEOUT: Final = 5.0
HANG_UP_TIMEOUT: Final = 0.5


def close(client: Any) -> None:
    """End the session and free what the client holds, also where the server hangs or nothing was ever connected.

    kazoo's own `stop` waits as long as a session lasts for an answer, so this asks as it does, and hangs up after less.
    """
    if client._stopped.is_set():
        return
    client._stopped.set()
    client._queue.append((CloseInstance, None))
    connection = client._connection
    with contextlib.suppress(OSError, AttributeError):
        connection._write_sock.send(b"\0")
    if not connection.connection_stopped.wait(CLOSE_TIMEOUT if client.connected else 0.0):
        with contextlib.suppress(OSError, AttributeError):
            connection._socket.shutdown(socket.SHUT_RDWR)
        # What is still waiting for a first connection ends by itself, on a daemon thread.
        if not connection.connection_stopped.wait(HANG_UP_TIMEOUT):
            return
    client.handler.stop()
    connection.stop()
    client.close()


class _ConnectionLog(logging.Logger):
    """kazoo's log, passed on to its usual logger, and read for the reason why a connection cannot be made."""

    def __init__(self) -> None:
        super().__init__("kazoo.client")
        self.parent = self._usual = logging.getLogger("kazoo.client")
        self.reason = "no server answered"

    def handle(self, record: logging.LogRecord) -> None:
        """Keep what kazoo says about a connection, and pass everything on."""
        message = record.getMessage()
        for start in ("Connection dropped: ", "Connection time-out: ", "Cannot resolve "):
            if message.startswith(start):
                self.reason = message.removeprefix("Connection dropped: ").removeprefix("socket connection error: ")
        super().handle(record)

    def isEnabledFor(self, level: int) -> bool:
        """Warnings are always read here, whether or not anybody shows them."""
        return level >= logging.WARNING or self._usual.isEnabledFor(level)
