"""Wait for changes of a session."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.waiting import LONGEST
from zkgroups import Registry
from zkgroups.testing import expire_session


@contextmanager
def new_session(registry: Registry) -> Iterator[None]:
    """Return when the session that is current at the start has been lost and the client has the next one."""
    lost, back = threading.Event(), threading.Event()
    client = registry.client

    def listen(state: str) -> None:
        if state == "LOST":
            lost.set()
        elif lost.is_set() and state == "CONNECTED":
            back.set()

    client.add_listener(listen)
    try:
        yield
        assert back.wait(LONGEST), "the session was not lost"
    finally:
        client.remove_listener(listen)


def expire(registry: Registry, address: str | None = None) -> None:
    """End the session at the server, and return when the client has a new one."""
    with new_session(registry):
        expire_session(registry.client, address=address)


def attempt(call: Any) -> object:
    """Return the result or the exception of a call."""
    try:
        return call()
    except Exception as error:
        return error
