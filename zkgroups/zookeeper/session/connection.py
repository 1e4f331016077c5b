"""Opening a connection: options checked at once, and a failure that says why.

kazoo does not report why it cannot connect (`connect_failures.py`), and detects a wrong SASL password only after
`start()` has
returned. So the connection counts as open only after one request has been answered.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import ssl
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

from ...core.session_proof import LASTS
from ...core.znodes.names import check_name
from ...deadline import Deadline
from ...exceptions import (
    AuthenticationError,
    DamagedAnswerError,
    InvalidNameError,
    InvalidOptionError,
    MissingDependencyError,
    NotConnectedError,
    UnreachableError,
)
from ..kazoo_compat.corrections import ConnectionLog, close, drop, end_in_forks, log_in_cleanly, share_time
from .chroot_check import no_chroot
from .connect_failures import Attempts
from .session import Session

if TYPE_CHECKING:
    from .session_file import SessionFile

log = logging.getLogger("zkgroups.session")

MAX_SESSION_TIMEOUT: Final = 300.0
SHORT_SESSION_TIMEOUT: Final = 10.0
"""How long a server that is cut off from its leader keeps answering, with ZooKeeper's sample configuration
(`syncLimit` × `tickTime`). Servers do not report their own values."""


class ShortSessionWarning(UserWarning):
    """The session timeout is so short that a pause, an election or a cut-off server can end the claims."""


@dataclass(frozen=True, slots=True)
class Digest:
    """A name and password of ZooKeeper's own `digest` scheme, which ACLs refer to."""

    user: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        if not self.user or ":" in self.user:
            raise InvalidOptionError("user", self.user, "a name of the digest scheme has no colon, and is not empty")


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


# A name that cannot be one, such as `zk..example`, would end kazoo's thread instead of not being resolved.
_SERVER: Final = re.compile(
    r"(?:[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?"
    r"|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
)


def check_hosts(hosts: object) -> str:
    """Return a hosts string such as `zk1:2181,zk2:2181/kafka`, or refuse it."""
    if not isinstance(hosts, str) or not hosts.strip():
        raise InvalidOptionError("zookeeper", hosts, "it must be like host:port,host:port/chroot")
    servers, _, chroot = hosts.strip().partition("/")
    for server in servers.split(","):
        found = _SERVER.fullmatch(server.strip())
        if found is None or not 0 < int(found["port"] or 2181) < 65536:
            raise InvalidOptionError(
                "zookeeper",
                hosts,
                f"it must be like host:port,host:port/chroot ({server.strip()!r} is no host and port)",
            )
    try:
        for name in chroot.rstrip("/").split("/") if chroot.rstrip("/") else ():
            check_name("chroot", name)
    except InvalidNameError as error:
        raise InvalidOptionError("zookeeper", hosts, f"it must be like host:port,host:port/chroot ({error})") from error
    return hosts.strip().rstrip("/")


def check_session_timeout(seconds: object) -> float:
    """Return a session timeout that makes sense, with a warning if it is short."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_SESSION_TIMEOUT:
        raise InvalidOptionError("session_timeout", seconds, f"it must be over 0 and at most {MAX_SESSION_TIMEOUT:g} s")
    if seconds < SHORT_SESSION_TIMEOUT:
        warnings.warn(
            f"a session of {seconds:g} s is short: its claims end if nothing proves for {LASTS * seconds:g} s that it "
            "lives, e.g. during a long pause or an election, or if the server is cut off from its leader; "
            f"{SHORT_SESSION_TIMEOUT:g} s or more is safer",
            ShortSessionWarning,
            stacklevel=4,
        )
    return float(seconds)


@dataclass(frozen=True, slots=True)
class Opened:
    """A kazoo client that is connected and authenticated, and the file that keeps its session, if one was named."""

    client: Any
    file: SessionFile | None


def connect(
    hosts: str,
    *,
    session_timeout: float,
    timeout: float,
    unreachable_timeout: float | None,
    auth: Sequence[Digest | Sasl],
    tls: Tls | None,
    read_only: bool,
    session_file: str | os.PathLike[str] | None,
) -> Opened:
    """Connect; the options are those of `Registry.connect`."""
    deadline = Deadline.after("timeout", timeout)
    unreachable = None if unreachable_timeout is None else Deadline.after("unreachable_timeout", unreachable_timeout)
    hosts = check_hosts(hosts)
    log = ConnectionLog()
    client = KazooClient(
        hosts=hosts,
        timeout=check_session_timeout(session_timeout),
        read_only=read_only,
        logger=log,
        # kazoo's own back-off doubles up to an hour, and a session has long ended by then.
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=1.5, max_delay=1.0),
        auth_data=[("digest", f"{entry.user}:{entry.password}") for entry in auth if isinstance(entry, Digest)],
        sasl_options=_sasl_options(auth),
        **_tls_options(tls),
    )
    client.add_listener(log.on_state)
    share_time(client, timeout)
    log_in_cleanly(client)
    end_in_forks(client)
    session = Session.of(client)  # before it connects, so that it hears what the server grants
    attempts = Attempts(client)
    file = _open_file(session_file, session)
    with _undone_on_error(client, file):
        _start(session, hosts, deadline, unreachable, attempts)
        _prove(session, hosts, deadline, attempts)
        if file is not None:
            file.follow(client)
            session.outlives_us = True
            session.resumed = session.id if file.resumed else None
            _warn_of_old_timeout(session, file)
    session.refuses_writes = read_only
    return Opened(client, file)


def _open_file(path: str | os.PathLike[str] | None, session: Session) -> SessionFile | None:
    """Open the file that is to keep the session, and let the client begin with the session that it names."""
    if path is None:
        return None
    from .session_file import SessionFile

    if session.client.read_only:
        raise InvalidOptionError("session_file", path, "a connection for reading only has nothing to keep")
    file = SessionFile.open(path, chroot=session.chroot)
    if file.past is not None and file.past.timeout is not None:
        session.resume(file.past.session_id, file.past.credentials.password, timeout=file.past.timeout)
    return file


def _warn_of_old_timeout(session: Session, file: SessionFile) -> None:
    """A new leader uses the timeout at the creation of a session. So a resumed session cannot get a longer one."""
    timeout, requested = session.granted_timeout, session.client._session_timeout / 1000
    if file.resumed and timeout is not None and timeout < requested:
        log.warning(
            "the session of %s was created with a timeout of %g s, and keeps it: %g s need a new session. "
            "For one, remove the file while no process uses it",
            file.path,
            timeout,
            requested,
        )


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
    _check_readable(tls)
    return {
        "use_ssl": True,
        "ca": None if tls.ca is None else str(tls.ca),
        "certfile": None if tls.certificate is None else str(tls.certificate),
        # kazoo ignores a certificate that comes without a key, in silence; one file may hold both
        "keyfile": None if tls.certificate is None else str(tls.key or tls.certificate),
        "keyfile_password": tls.key_password or "",  # without one OpenSSL would ask at the terminal
        "check_hostname": tls.verify_hostname,
    }


def _check_readable(tls: Tls) -> None:
    """Refuse files that cannot be used: kazoo would try them again and again, until the time is over."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    option, file = "tls ca", tls.ca
    try:
        if tls.ca is not None:
            context.load_verify_locations(tls.ca)
        option, file = "tls certificate", tls.certificate
        if tls.certificate is not None:
            context.load_cert_chain(tls.certificate, tls.key, password=tls.key_password or "")
    except OSError as error:  # every error of TLS is one
        raise InvalidOptionError(option, str(file), f"it cannot be used: {error.strerror or error}") from error


_GLANCE: Final = 0.05
"""How often to check whether all hosts are unreachable, in seconds."""


def _start(session: Session, hosts: str, deadline: Deadline, unreachable: Deadline | None, attempts: Attempts) -> None:
    session.client.start_async()
    try:
        while not session.wait_connected(Deadline(min(_GLANCE, deadline.remaining))):
            if deadline.passed:
                raise _not_connected(f"no connection to {hosts} within {deadline.seconds:g} s", attempts)
            if unreachable is not None and unreachable.passed and attempts.are_hopeless:
                raise _not_connected(f"no connection to {hosts}", attempts, otherwise=UnreachableError)
    except AuthenticationError as error:
        raise AuthenticationError(f"{hosts} did not accept the credentials, or insists on some") from error


def _not_connected(
    text: str, attempts: Attempts, otherwise: type[NotConnectedError] = NotConnectedError
) -> NotConnectedError:
    """The error with the reason; of its own kind where every host answered, but not like a ZooKeeper server."""
    kind = DamagedAnswerError if attempts.met_no_zookeeper else otherwise
    return kind(f"{text}: {attempts.reason}")


def _prove(session: Session, hosts: str, deadline: Deadline, attempts: Attempts) -> None:
    """One request, because kazoo reports a connection before it has authenticated, and a chroot may not be there."""
    try:
        found = session.exists("/", deadline=deadline)
    except DamagedAnswerError as error:
        raise DamagedAnswerError(f"no connection to {hosts}: {attempts.reason}") from error
    except NotConnectedError as error:
        raise _not_connected(f"no answer from {hosts} within {deadline.seconds:g} s", attempts) from error
    except AuthenticationError as error:
        raise AuthenticationError(f"{hosts} did not accept the credentials, or insists on some") from error
    if not found:
        raise no_chroot(session, deadline)


@contextlib.contextmanager
def _undone_on_error(client: Any, file: SessionFile | None) -> Iterator[None]:
    """A session that an earlier process has left is left for the next try."""
    try:
        yield
    except BaseException:
        if file is not None and file.past is not None and client._session_id == file.past.session_id:
            drop(client)
        else:
            close(client)
        if file is not None:
            file.close(ended=False)
        raise
