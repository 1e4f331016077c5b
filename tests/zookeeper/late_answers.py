"""Force the order of the steps of two threads: hold back an answer, and wait until a thread waits for a lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.protocol.serialization import GetData

from zkgroups import Registry
from zkgroups.zookeeper.requests.pinned_request import PinnedRequest

from .rules import ME

PATIENCE = 40.0


class LateAnswer:
    """Holds back the reply to the next request of a kind after it has arrived, so that the thread that waits for it
    gets it later."""

    def __init__(self, registry: Registry, is_meant: Callable[[Any], bool], monkeypatch: pytest.MonkeyPatch) -> None:
        self._came, self._delivered = threading.Event(), threading.Event()
        self._call, self._is_meant, self._waits = registry.client._call, is_meant, True
        monkeypatch.setattr(registry.client, "_call", self._ask)

    def _ask(self, request: Any, answer: Any) -> Any:
        meant = self._waits and self._is_meant(request)
        self._waits = self._waits and not meant
        asked = self._call(request, answer)
        if meant:
            answer.wait(PATIENCE)
            self._came.set()
            assert self._delivered.wait(PATIENCE)
        return asked

    def wait(self) -> None:
        """Wait until the server has answered."""
        assert self._came.wait(PATIENCE)

    def deliver(self) -> None:
        """Let the waiting thread continue."""
        self._delivered.set()


Late = Callable[[Registry, Callable[[Any], bool]], LateAnswer]


def a_look_at_the_registration(request: Any) -> bool:
    return isinstance(request, GetData) and request.path.endswith(ME)


def a_transaction(request: Any) -> bool:
    return isinstance(request, PinnedRequest)


class Announcing:
    """A lock that reports when a thread has to wait for it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_owned = self._lock._is_owned  # type: ignore[attr-defined]
        self.awaited = threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.awaited.set()
            assert self._lock.acquire(timeout=PATIENCE)

    def __exit__(self, *_: object) -> None:
        self._lock.release()
