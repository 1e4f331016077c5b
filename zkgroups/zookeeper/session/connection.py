"""Open a connection, and report why it failed.

kazoo detects a wrong SASL password only after `start()` has returned. So the connection counts as open only after one
request has been answered. Its options are checked here and in `security.py`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.protocol.serialization import Exists, GetChildren
from kazoo.retry import KazooRetry

from ...core.session_lifetime import PROOF_LIFETIME
from ...core.znodes.paths import BROKER_TOPICS, CONSUMERS, parent
from ...core.znodes.topic_partition import check_name
from ...deadline import Deadline
from ...exceptions import (
    AuthenticationError,
    DamagedAnswerError,
    InvalidNameError,
    InvalidOptionError,
    NoPermissionError,
    NoRegistryError,
    NotConnectedError,
    UnreachableError,
    ZkgroupsException,
)
from ..kazoo_compat import internals
from ..kazoo_compat.closing import close_client, close_in_forks, disconnect_client
from ..kazoo_compat.connecting import ConnectFailures, ConnectionLog, correct_sasl_login, limit_connect_time
from .errors import REJECTED
from .security import end_session
from .session import Session

if TYPE_CHECKING:
    from .security import Digest, Sasl, Tls
    from .session_file import SessionFile


# Check the address and the session timeout before anything is sent.


MAX_SESSION_TIMEOUT: Final = 300.0
SHORT_SESSION_TIMEOUT: Final = 10.0
"""How long a server that is cut off from its leader keeps answering, in seconds: `syncLimit` × `tickTime` in
ZooKeeper's sample configuration. Servers do not report their own values."""


class ShortSessionWarning(UserWarning):
    """The session timeout is so short that a pause, an election or a server without its leader can end the claims."""


# An invalid name such as `zk..example` would end kazoo's thread.
_SERVER: Final = re.compile(
    r"(?:[A-Za-z0-9_-]{1,63}(?:\.[A-Za-z0-9_-]{1,63})*\.?"
    r"|\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?\])"
    r"(?::(?P<port>[0-9]{1,5}))?"
)


def check_hosts(hosts: object) -> str:
    """Return a valid hosts string such as `zk1:2181,zk2:2181/kafka`, or raise `InvalidOptionError`."""
    if not isinstance(hosts, str) or not hosts.strip():
        raise InvalidOptionError("zookeeper", hosts, "it must be like host:port,host:port/chroot")
    if scheme := re.match("[a-zA-Z][a-zA-Z0-9+.-]*://", hosts.strip()):
        raise InvalidOptionError("zookeeper", hosts, f"it takes no scheme: leave out {scheme[0]!r}")
    servers, _, chroot = hosts.strip().partition("/")
    for server in servers.split(","):
        match = _SERVER.fullmatch(server.strip())
        if match is None or not 0 < int(match["port"] or 2181) < 65536:
            raise InvalidOptionError(
                "zookeeper",
                hosts,
                f"it must be like host:port,host:port/chroot ({server.strip()!r} is not a host and port)",
            )
    try:
        for name in chroot.rstrip("/").split("/") if chroot.rstrip("/") else ():
            check_name("chroot", name)
    except InvalidNameError as error:
        raise InvalidOptionError("zookeeper", hosts, f"it must be like host:port,host:port/chroot ({error})") from error
    return hosts.strip().rstrip("/")


def check_session_timeout(seconds: object) -> float:
    """Return a valid session timeout in seconds, or raise `InvalidOptionError`. Warn if it is short."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= MAX_SESSION_TIMEOUT:
        raise InvalidOptionError("session_timeout", seconds, f"it must be over 0 and at most {MAX_SESSION_TIMEOUT:g} s")
    if seconds < SHORT_SESSION_TIMEOUT:
        warnings.warn(
            f"a session timeout of {seconds:g} s is short: claims end if for {PROOF_LIFETIME * seconds:g} s nothing "
            "proves that the session is alive, for example during a long pause or an election, or if the server is "
            f"cut off from its leader; use {SHORT_SESSION_TIMEOUT:g} s or more",
            ShortSessionWarning,
            stacklevel=4,
        )
    return float(seconds)


# Check that the chroot has groups, and suggest other chroots that have some.


_BROKERS: Final = parent(BROKER_TOPICS)
_MOST: Final = 64
"""How many nodes to try as chroots, for a hint in the message."""
_SHOWN: Final = 5
_NOTHING_HERE: Final = "; check the chroot, or create the first group with `zkgroups groups create GROUP`"


def require_root(session: Session, deadline: Deadline) -> None:
    """Raise `NoRegistryError` if the chroot is missing, or has neither /consumers nor /brokers."""
    if session.exists(CONSUMERS, deadline=deadline) or session.exists(_BROKERS, deadline=deadline):
        return
    if not session.exists("/", deadline=deadline):
        raise no_chroot(session, deadline)
    chroot = f"chroot {session.chroot}" if session.chroot else "root (no chroot given)"
    hint = _hint(session, deadline) or _NOTHING_HERE
    raise NoRegistryError(f"the {chroot} of {_name(session)} contains neither /consumers nor /brokers{hint}")


def require_node(session: Session, path: str, deadline: Deadline) -> None:
    """Raise `NoRegistryError` if a node is missing that everything else is below."""
    if session.exists(path, deadline=deadline):
        return
    if not session.exists("/", deadline=deadline):
        raise no_chroot(session, deadline)
    chroot = f"below the chroot {session.chroot} of" if session.chroot else "in"
    raise NoRegistryError(f"{path} does not exist {chroot} {_name(session)}: check the path and the chroot")


def no_chroot(session: Session, deadline: Deadline) -> NoRegistryError:
    """Return the error for a chroot that is missing."""
    return NoRegistryError(f"{session.chroot} does not exist in {_name(session)}{_hint(session, deadline)}")


def _name(session: Session) -> str:
    return f"the ZooKeeper at {session.servers}"


def _hint(session: Session, deadline: Deadline) -> str:
    """Name chroots that have groups. Only the root, its children and the children of the chroot are tried."""
    chroots: list[str] = []
    with contextlib.suppress(ZkgroupsException, KazooException):
        below = [f"{root}/{name}" for root in (session.chroot, "") for name in _children(session, root, deadline)]
        tried = [path for path in dict.fromkeys(["", *below]) if path != session.chroot][:_MOST]
        for path in tried:  # those found before an error are still a help
            if _has_groups(session, path, deadline):
                chroots.append(path or "/")
    if not chroots:
        return ""
    return f"; groups are under {', '.join(chroots[:_SHOWN])}{' and others' if len(chroots) > _SHOWN else ''}"


def _has_groups(session: Session, chroot: str, deadline: Deadline) -> bool:
    try:
        return _read(session, Exists, f"{chroot}{CONSUMERS}", deadline) is not None
    except NoPermissionError:
        return False


def _children(session: Session, path: str, deadline: Deadline) -> list[str]:
    try:
        return sorted(_read(session, GetChildren, path or "/", deadline) or [])
    except NoPermissionError:
        return []


def _read(session: Session, request: Any, path: str, deadline: Deadline) -> Any:
    """Read a path without the chroot. kazoo's own calls would prepend it."""

    def send() -> Any:
        answer = session.client.handler.async_result()
        internals.send(session.client, request(path, None), answer)
        return answer

    return session.call(send, path, deadline)


log = logging.getLogger("zkgroups.session")


class OpenConnection(NamedTuple):
    """A kazoo client that is connected and authenticated, and its session file if the session is kept in one."""

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
) -> OpenConnection:
    """Connect. The options are those of `Registry.connect`."""
    deadline = Deadline.after("timeout", timeout)
    unreachable = None if unreachable_timeout is None else Deadline.after("unreachable_timeout", unreachable_timeout)
    hosts = check_hosts(hosts)
    log = ConnectionLog()
    client = KazooClient(
        hosts=hosts,
        timeout=check_session_timeout(session_timeout),
        read_only=read_only,
        logger=log,
        # kazoo's default delay doubles up to an hour, and a session expires long before that.
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=1.5, max_delay=1.0),
        **_security_options(auth, tls),
    )
    client.add_listener(log.on_state)
    limit_connect_time(client, timeout)
    correct_sasl_login(client)
    close_in_forks(client)
    session = Session.of(client)  # before connecting, to observe the timeout that the server grants
    failures = ConnectFailures(client)
    file = _open_session_file(session_file, session)
    with _close_on_error(client, file):
        _start(session, hosts, deadline, unreachable, failures)
        _send_first_request(session, hosts, deadline, failures)
        if file is not None:
            _end_earlier_session(session, file, deadline)
            file.follow(client)
            session.is_resumable = True
            session.resumed = session.id if file.resumed else None
            _warn_of_old_timeout(session, file)
    session.read_only = read_only
    return OpenConnection(client, file)


def _security_options(auth: Sequence[Digest | Sasl], tls: Tls | None) -> dict[str, Any]:
    """Return kazoo's options for logins and TLS. Most connections have neither, and do not load the code for them."""
    if not auth and tls is None:
        return {}
    from .security import kazoo_options

    return kazoo_options(auth, tls)


def _open_session_file(path: str | os.PathLike[str] | None, session: Session) -> SessionFile | None:
    """Open the file, and let the client resume the session that is saved in it."""
    if path is None:
        return None
    from .session_file import SessionFile

    if session.client.read_only:
        raise InvalidOptionError("session_file", path, "a connection for reading only has no session to keep")
    file = SessionFile.open(path, chroot=session.chroot)
    if file.saved is not None and file.saved.timeout is not None:
        session.resume(file.saved.session_id, file.saved.credentials.password, timeout=file.saved.timeout)
    return file


def _end_earlier_session(session: Session, file: SessionFile, deadline: Deadline) -> None:
    """End the session that the last process has begun to close, so that its ids and partitions are free."""
    if file.closing is None:
        return
    try:
        ended = end_session(session.client, file.closing.credentials, deadline.remaining)
        log.info("session %s from %s: %s", file.closing.hex, file.path, "ended" if ended else "had expired")
    except ZkgroupsException as error:
        log.warning("session %s from %s ends after its timeout: %s", file.closing.hex, file.path, error)


def _warn_of_old_timeout(session: Session, file: SessionFile) -> None:
    """Warn that the resumed session has a shorter timeout than requested.

    A new leader uses the timeout at the creation of the session, so a longer one cannot be relied on.
    """
    timeout, requested = session.granted_timeout, internals.requested_timeout(session.client)
    if file.resumed and timeout is not None and timeout < requested:
        log.warning(
            "the session in %s was created with a timeout of %g s, which is used instead of the requested %g s. "
            "To start a new session, delete the file while no process uses it",
            file.path,
            timeout,
            requested,
        )


_POLL_INTERVAL: Final = 0.05
"""How often to check whether all hosts are unreachable, in seconds."""


def _start(
    session: Session, hosts: str, deadline: Deadline, unreachable: Deadline | None, failures: ConnectFailures
) -> None:
    session.client.start_async()
    try:
        while not session.wait_connected(Deadline(min(_POLL_INTERVAL, deadline.remaining))):
            if deadline.passed:
                raise _not_connected(f"could not connect to {hosts} within {deadline.seconds:g} s", failures)
            if unreachable is not None and unreachable.passed and failures.are_final:
                raise _not_connected(f"could not connect to {hosts}", failures, default=UnreachableError)
    except AuthenticationError as error:
        raise _rejected_credentials(hosts) from error


def _not_connected(
    text: str, failures: ConnectFailures, default: type[NotConnectedError] = NotConnectedError
) -> NotConnectedError:
    """Return the error with the reason: `DamagedAnswerError` if no host answered like a ZooKeeper server."""
    kind = DamagedAnswerError if failures.no_host_is_zookeeper else default
    return kind(f"{text}: {failures.reason}")


def _rejected_credentials(hosts: str) -> AuthenticationError:
    return AuthenticationError(f"{hosts} {REJECTED}")


def _send_first_request(session: Session, hosts: str, deadline: Deadline, failures: ConnectFailures) -> None:
    """Check the login and the chroot. kazoo reports a connection before it has authenticated."""
    try:
        chroot_exists = session.exists("/", deadline=deadline)
    except DamagedAnswerError as error:
        raise DamagedAnswerError(f"could not connect to {hosts}: {failures.reason}") from error
    except NotConnectedError as error:
        if failures.every_login_was_lost:
            raise _rejected_credentials(hosts) from error
        raise _not_connected(f"no answer from {hosts} within {deadline.seconds:g} s", failures) from error
    except AuthenticationError as error:
        raise _rejected_credentials(hosts) from error
    if not chroot_exists:
        raise no_chroot(session, deadline)


@contextlib.contextmanager
def _close_on_error(client: Any, file: SessionFile | None) -> Iterator[None]:
    """Close the client. A session that was resumed from the file does not end: the next attempt can resume it."""
    try:
        yield
    except BaseException:
        if file is not None and file.saved is not None and internals.session_id(client) == file.saved.session_id:
            disconnect_client(client)
        else:
            close_client(client)
        if file is not None:
            file.close(ended=False)
        raise
