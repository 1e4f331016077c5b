"""Close a kazoo client within a limited time, with or without its session.

kazoo's own `stop` waits for the server as long as a session lasts, and always ends the session.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

from kazoo.protocol.serialization import CloseInstance
from kazoo.protocol.states import KazooState

from ...deadline import Deadline
from .client_log import ConnectionLog
from .request_queue import enqueue_close
from .tcp_connection import hang_up

CLOSE_TIMEOUT: Final = 5.0
HANG_UP_TIMEOUT: Final = 0.5
HANG_UP_INTERVAL: Final = 0.05


def close_client(client: Any) -> bool:
    """End the session and free all resources. Return True if a server has confirmed the end of the session.

    A server that does not answer is given up after CLOSE_TIMEOUT.
    """
    if client._stopped.is_set():
        return False
    connected, states = client.connected, list[str]()
    if not connected and isinstance(client.logger, ConnectionLog):
        client.logger.disabled = True  # it would warn that it has given up
    client.add_listener(states.append)
    connection = client._connection
    with _hang_up_on_interrupt(client):
        client._stopped.set()
        enqueue_close(client)
        answered = connection.connection_stopped.wait(CLOSE_TIMEOUT if connected else 0.0)
        if not answered:
            hang_up(client)
            if not connection.connection_stopped.wait(HANG_UP_TIMEOUT):
                _close_when_stopped(client)
        _free(client)
    return connected and answered and KazooState.SUSPENDED not in states


def disconnect_client(client: Any) -> None:
    """Free all resources without ending the session. The client does not reconnect to it.

    A connection attempt in progress cannot be cancelled. So hang up repeatedly until kazoo's thread has stopped.
    """
    if client._stopped.is_set():
        return
    if isinstance(client.logger, ConnectionLog):
        client.logger.disabled = True  # it would warn of a lost connection
    connection, deadline = client._connection, Deadline(HANG_UP_TIMEOUT)
    with _hang_up_on_interrupt(client):
        client._stopped.set()
        while not connection.connection_stopped.is_set() and not deadline.passed:
            client._reset_session()
            hang_up(client)
            connection.connection_stopped.wait(HANG_UP_INTERVAL)
        if not connection.connection_stopped.is_set():
            client._reset_session()
            client._queue.append((CloseInstance, None))  # if it connects after all, end that new session
            _close_when_stopped(client)
        _free(client)


@contextlib.contextmanager
def _hang_up_on_interrupt(client: Any) -> Iterator[None]:
    """On Ctrl-C, close the connection at once: its heartbeats would keep the session until the process ends."""
    try:
        yield
    except BaseException:
        hang_up(client)
        _close_when_stopped(client)
        client.handler.stop()
        raise


def _free(client: Any) -> None:
    client.handler.stop()
    if client._connection.connection_stopped.is_set():
        client._connection.stop()
        client.close()


def _close_when_stopped(client: Any) -> None:
    """Close the client after kazoo's thread has stopped. The last step of that thread is to report the state CLOSED.

    The thread may be resolving a name or waiting for a host, which cannot be interrupted.
    """
    report = client._session_callback

    def report_and_close(state: str) -> None:
        report(state)
        if client._connection.connection_stopped.is_set():
            client.close()

    client._session_callback = report_and_close
    if client._connection.connection_stopped.is_set():  # it has reported the state just before
        client.close()
