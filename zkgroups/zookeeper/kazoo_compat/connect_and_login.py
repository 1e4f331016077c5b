"""Corrections of how kazoo connects and logs in.

kazoo waits for one silent host as long as a session lasts. Its thread dies with a traceback if a SASL login is refused.
"""

from __future__ import annotations

from typing import Any, Final

from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    KazooException,
    SASLException,
    SessionClosedRequireSaslError,
)
from kazoo.protocol.serialization import SASL

from .internals import requested_timeout
from .safe_decoding import DamagedAnswer

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
