"""Open a connection, and report why it failed.

kazoo detects a wrong SASL password only after `start()` has returned. So the connection counts as open only after one
request has been answered. Its options are checked in `options.py` and `security.py`.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

from ...deadline import Deadline
from ...exceptions import (
    AuthenticationError,
    DamagedAnswerError,
    InvalidOptionError,
    NotConnectedError,
    UnreachableError,
    ZkgroupsException,
)
from ..kazoo_compat import internals
from ..kazoo_compat.client_log import ConnectionLog
from ..kazoo_compat.close_client import close_client, disconnect_client
from ..kazoo_compat.close_in_forks import close_in_forks
from ..kazoo_compat.connect_and_login import correct_sasl_login, limit_connect_time
from ..kazoo_compat.connect_failures import ConnectFailures
from .chroot_check import no_chroot
from .credentials import end_session
from .errors import REJECTED
from .options import check_hosts, check_session_timeout
from .session import Session

if TYPE_CHECKING:
    from .security import Digest, Sasl, Tls
    from .session_file import SessionFile

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
