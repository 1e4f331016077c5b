"""Watches that are closed, that time out, and that several threads share."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from zkgroups import (
    Change,
    ChangeKind,
    Consumergroup,
    Registry,
    TopicPartition,
    Watch,
    Watched,
)
from zkgroups.exceptions import InvalidOptionError, NotConnectedError
from zkgroups.testing import TcpProxy

from .conftest import Connect
from .watching import ENOUGH, told

pytestmark = pytest.mark.zookeeper


P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
ROOT = "/consumers/billing"
IDS, OWNERS, OFFSETS = f"{ROOT}/ids", f"{ROOT}/owners", f"{ROOT}/offsets"


class Blocked:
    """A thread that iterates until the watch ends."""

    def __init__(self, watch: Watch) -> None:
        self.changes: list[Change] = []
        self.heard = threading.Semaphore(0)
        self._watch = watch
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for change in self._watch:
            self.changes.append(change)
            self.heard.release()

    def ended(self) -> bool:
        self._thread.join(10)  # less than the 15 s of a call
        return not self._thread.is_alive()


@contextmanager
def nothing(proxy: TcpProxy) -> Iterator[None]:
    yield


@contextmanager
def no_connection(proxy: TcpProxy) -> Iterator[None]:
    proxy.refuse()
    proxy.cut()
    yield
    proxy.heal()


@contextmanager
def no_answer(proxy: TcpProxy) -> Iterator[None]:
    proxy.drop(direction="requests")
    yield
    proxy.heal()


TROUBLE = pytest.mark.parametrize("trouble", [nothing, no_connection, no_answer])
Trouble = Callable[[TcpProxy], Any]


@TROUBLE
def test_close_ends_an_iteration_in_another_thread(far: Watch, proxy: TcpProxy, raw: Any, trouble: Trouble) -> None:
    with trouble(proxy):
        raw.set(f"{OFFSETS}/orders/0", b"2")
        blocked = Blocked(far)
        assert far.next(timeout=0.1) is None or trouble is nothing
        far.close()
        assert blocked.ended()
        assert far.next() is None
    far.close()


@TROUBLE
def test_close_ends_a_watch_before_its_first_read(proxied: Registry, proxy: TcpProxy, trouble: Trouble) -> None:
    offsets = proxied.group("billing").watch(Watched.OFFSETS)
    with trouble(proxy):
        blocked = Blocked(offsets)
        offsets.close()
        assert blocked.ended()


@TROUBLE
def test_next_returns_in_time(far: Watch, proxy: TcpProxy, raw: Any, trouble: Trouble) -> None:
    with trouble(proxy):
        for timeout in (0.0, 0.3):
            began = time.monotonic()
            assert far.next(timeout=timeout) is None
            assert timeout <= time.monotonic() - began < timeout + 10
            if trouble is not nothing:
                raw.set(f"{OFFSETS}/orders/0", b"2")


def test_next_with_a_tiny_timeout_makes_progress(group: Consumergroup) -> None:
    group.offsets.set_many({P0: 1, P1: 1})
    with group.watch(Watched.OFFSETS) as offsets:
        end = time.monotonic() + ENOUGH
        found: list[Change] = []
        while len(found) < 3 and time.monotonic() < end:
            if (change := offsets.next(timeout=0.0)) is not None:
                found.append(change)
    assert [change.kind for change in found] == [ChangeKind.RESCANNED, ChangeKind.APPEARED, ChangeKind.APPEARED]


def test_an_invalid_timeout_is_refused(group: Consumergroup) -> None:
    with group.watch(Watched.OFFSETS) as offsets, pytest.raises(InvalidOptionError):
        offsets.next(timeout=-1.0)


def test_each_change_is_reported_once_to_several_threads(
    group: Consumergroup, watch: Callable[[Watched], Watch]
) -> None:
    offsets = watch(Watched.OFFSETS)
    threads = [Blocked(offsets) for _ in range(4)]
    group.offsets.set_many({TopicPartition("orders", n): 1 for n in range(50)})
    end = time.monotonic() + ENOUGH
    while sum(len(thread.changes) for thread in threads) < 50 and time.monotonic() < end:
        threads[0].heard.acquire(timeout=0.05)
    offsets.close()
    assert all(thread.ended() for thread in threads)
    found = Counter(change.path for thread in threads for change in thread.changes)
    assert found == Counter(f"{OFFSETS}/orders/{n}" for n in range(50))


def test_a_watch_of_a_closed_registry_raises_an_error(connect: Connect) -> None:
    registry = connect()
    with registry.group("billing").watch(Watched.MEMBERS) as members:
        told(members)
        outcome: list[BaseException] = []

        def iterate() -> None:
            try:
                members.next()
            except NotConnectedError as error:
                outcome.append(error)

        thread = threading.Thread(target=iterate)
        thread.start()
        registry.close()
        thread.join(30)
        assert [str(error) for error in outcome] == ["the connection to ZooKeeper is closed: connect again"]
