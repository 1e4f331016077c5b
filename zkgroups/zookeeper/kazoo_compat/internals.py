"""Private state of a kazoo client that kazoo offers no public way to read or set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo.handlers.threading import KazooTimeoutError

from ...deadline import Deadline


def session_id(client: Any) -> int | None:
    """Return the id of the session. None before the first session and after it has expired.

    kazoo's public `client_id` is None while the client is disconnected, although the session continues.
    """
    found: int | None = client._session_id
    return found or None


def set_session(client: Any, session_id: int, password: bytes) -> None:
    """Let a client that has not started resume this session."""
    client._session_id, client._session_passwd = session_id, password


def requested_timeout(client: Any) -> float:
    """Return the session timeout that the client requests, in seconds."""
    return float(client._session_timeout) / 1000


def is_stopped(client: Any) -> bool:
    """Return True if the client was stopped by a call, and did not give up by itself."""
    return bool(client._stopped.is_set())


def sasl_options(client: Any) -> dict[str, str] | None:
    """Return the options of the SASL login; None without SASL."""
    found: dict[str, str] | None = client._connection.sasl_options
    return found


def last_xid(client: Any) -> int:
    """Return the number of the last request that was sent. kazoo counts from 1 on each connection."""
    return int(client._connection._xid)


def send(client: Any, request: Any, answer: Any) -> None:
    """Send any request. kazoo sets the result or the exception of `answer`."""
    client._call(request, answer)


def wait(get: Callable[..., Any], deadline: Deadline) -> Any:
    """Call `get(timeout=...)` of an answer until the deadline has passed. It may be extended during the call."""
    while True:
        try:
            return get(timeout=deadline.remaining)
        except KazooTimeoutError:
            if deadline.passed:
                raise


def run_on_completion_thread(client: Any, function: Callable[[], object]) -> None:
    """Run a function on the thread on which kazoo calls back with results. It has little work."""
    client.handler.completion_queue.put(function)
