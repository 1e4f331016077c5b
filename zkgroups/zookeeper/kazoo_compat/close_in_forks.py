"""Close kazoo clients in a fork of the process. kazoo does not detect forks."""

from __future__ import annotations

import os
import threading
from typing import Any, Final
from weakref import WeakSet

from kazoo.protocol.states import KeeperState

_OPEN_CLIENTS: Final[WeakSet[Any]] = WeakSet()


def close_in_forks(client: Any) -> None:
    """Mark the client as closed in every fork of this process.

    A fork has a copy of the socket, but not the threads. Its requests would never be answered, and the server would
    take them for requests of the parent process.
    """
    _OPEN_CLIENTS.add(client)


def _close_all() -> None:
    for client in list(_OPEN_CLIENTS):
        # A thread that does not exist here may hold the locks of the old events.
        client._stopped, client._live = threading.Event(), threading.Event()
        client._stopped.set()
        client._state = KeeperState.CLOSED
        client._reset_session()


os.register_at_fork(after_in_child=_close_all)
