"""Wait for changes of a session, and act between two requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from zkgroups import Registry
from zkgroups.testing import expire_session
from zkgroups.zookeeper.requests import bulk_read
from zkgroups.zookeeper.session.registry_context import RegistryContext


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
        assert back.wait(40), "the session was not lost"
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


def after_the_next_read(act: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Act once, after the next read of several nodes, before the caller gets the result."""
    read = bulk_read.nodes

    def nodes(context: RegistryContext, paths: Iterable[str]) -> Any:
        found = list(read(context, paths))
        if found:
            monkeypatch.setattr(bulk_read, "nodes", read)
            act()
        return found

    monkeypatch.setattr(bulk_read, "nodes", nodes)
