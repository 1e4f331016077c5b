"""Ctrl-C at any moment, signal handlers that interrupt a call, and forks during a call."""

from __future__ import annotations

import inspect
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import kazoo
import pytest

from tests.waiting import LONGEST, eventually
from zkgroups import Claim, Instance, Registry, zookeeper
from zkgroups.exceptions import NotConnectedError, ReentrantCallError
from zkgroups.testing import TcpProxy
from zkgroups.zookeeper.ownership import ownership as instance_ids_in_use
from zkgroups.zookeeper.requests import transaction, watches
from zkgroups.zookeeper.session import session

from ..seeds import seed
from .conftest import Connect
from .events import attempt
from .helpers import (
    OFFSET,
    P0,
    claim_one,
    claim_three,
    left_behind,
    member,
    prepare,
    register,
)

pytestmark = pytest.mark.zookeeper


@pytest.fixture(autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class CtrlC:
    """Press Ctrl-C at the n-th moment at which Python checks for it: when a function begins or returns."""

    def __init__(self, n: int) -> None:
        self._n = n
        self.passed = 0

    def __enter__(self) -> CtrlC:
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _arg: object) -> None:
        code = frame.f_code
        if event == "c_call" or not code.co_filename.startswith(CODE) or code.co_flags & inspect.CO_GENERATOR:
            return  # an exception in a generator that is being closed is lost
        self.passed += 1
        if self.passed == self._n:
            raise KeyboardInterrupt(f"{event} in {code.co_qualname}, line {frame.f_lineno}")


CODE = (zookeeper.__path__[0], kazoo.__path__[0])


SAMPLE = 60


@pytest.mark.parametrize("act", [register, claim_one, claim_three])
def test_ctrl_c_at_any_moment_leaves_nothing_behind(
    act: Callable[[Instance], object], registry: Registry, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "MAX_BATCH_OPERATIONS", 2)
    prepare(registry)
    moments, _ = interrupt(act, registry, 0)
    assert moments > 90
    trouble = []
    every = range(1, moments + 1)
    for n in every if moments < SAMPLE else sorted(random.Random(seed()).sample(every, SAMPLE)):
        passed, where = interrupt(act, registry, n)
        assert passed == n
        if found := left_behind(raw):
            trouble.append((where, found))
            for path in found:
                raw.delete(path)
    assert trouble == []


def interrupt(act: Callable[[Instance], object], registry: Registry, n: int) -> tuple[int, str]:
    """Act with Ctrl-C at the n-th moment, and leave. Return the number of moments, and where Ctrl-C was raised."""
    where = ""
    assert eventually(no_proofs_are_sent)  # the thread of the last run, so that each run passes the same moments
    with registry.group("billing").instance("me") as me:
        if act is not register:
            register(me)
        ctrl_c = CtrlC(n)
        try:
            with ctrl_c:
                act(me)
        except KeyboardInterrupt as pressed:
            where = str(pressed)
    return ctrl_c.passed, where


def no_proofs_are_sent() -> bool:
    return all(thread.name != "zkgroups-proofs" for thread in threading.enumerate())


@pytest.mark.parametrize("leave", [True, False])
def test_a_connection_is_closed_even_if_closing_it_is_interrupted_at_any_moment(
    leave: bool, connect: Connect, tmp_path: Path
) -> None:
    """The heartbeats of an open connection would keep the session as long as the process is alive."""

    def closed(n: int) -> int:
        registry = connect(session_file=tmp_path / "session")
        ctrl_c = CtrlC(n)
        try:
            with ctrl_c:
                registry.close(leave=leave)
        except KeyboardInterrupt:
            registry.close(leave=leave)
        assert eventually(registry.client._connection.connection_stopped.is_set)
        return ctrl_c.passed

    moments = closed(0)
    assert moments > 10
    for n in range(1, moments + 1):
        closed(n)


SLOW = 600.0


"""In seconds: answers are held back until the proxy heals."""


@contextmanager
def handler(call: Callable[[], Any]) -> Iterator[list[object]]:
    """Call this from a signal handler of SIGUSR1, and collect what it returns or raises."""
    found: list[object] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: found.append(attempt(call)))
    try:
        yield found
    finally:
        signal.signal(signal.SIGUSR1, before)


def in_a_fork(call: Callable[[], object]) -> int:
    """The exit code of a fork that calls this: 0 unless it raises an error, or does not end in time."""
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(LONGEST))
            call()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def held_elsewhere(*locks: Any) -> Iterator[None]:
    """Another thread holds these locks, e.g. at the moment of a fork."""
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            over.wait(LONGEST)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(LONGEST)
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def held_here(*locks: Any) -> Iterator[None]:
    """Hold these locks in this thread."""
    with ExitStack() as stack:
        for lock in locks:
            stack.enter_context(lock)
        yield


def locks_of(me: Instance) -> list[Any]:
    """The locks of an instance that are held only for a moment."""
    ownership = me._ownership
    return [ownership._lock, ownership.fence._lock, ownership.fence.leftovers._lock]


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda _me, claim: claim.release(), id="release"),
        pytest.param(lambda _me, claim: claim.commit(7), id="commit"),
        pytest.param(lambda me, _claim: me.release_all(), id="release_all"),
        pytest.param(lambda me, _claim: me.deregister(), id="deregister"),
    ],
)
def test_a_signal_handler_that_would_wait_for_the_commit_that_it_interrupts_gets_an_error(
    proxy: TcpProxy, proxied: Registry, raw: Any, act: Callable[[Instance, Claim], object]
) -> None:
    me = member(proxied)
    claim = me.claim(P0)
    claim.commit(4)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        assert eventually(lambda: raw.get(OFFSET)[0] == b"5")  # the commit waits for its answer
        signal.pthread_kill(main, signal.SIGUSR1)
        assert eventually(lambda: found)
        proxy.heal()

    with handler(lambda: act(me, claim)) as found:
        proxy.delay(SLOW, direction="replies")
        finger = threading.Thread(target=interrupt)
        finger.start()
        claim.commit(5)
        finger.join()
    assert isinstance(found[0], ReentrantCallError)
    assert claim.held
    claim.commit(6)
    me.deregister()


def test_a_signal_handler_may_read_the_held_claims_at_any_moment(registry: Registry) -> None:
    me = member(registry)
    claim = me.claim(P0)
    with handler(lambda: (claim.held, me.registered, list(me.claims))) as found:
        with held_here(*locks_of(me), registry._context.session._proofs._lock, session._FIRST_USE):
            signal.raise_signal(signal.SIGUSR1)
        assert found == [(True, True, [P0])]


def test_a_fork_that_leaves_the_block_of_an_instance_does_not_wait_for_a_commit_of_its_parent(
    proxy: TcpProxy, proxied: Registry, raw: Any
) -> None:
    with member(proxied) as me:
        claim = me.claim(P0)
        claim.commit(4)
        proxy.delay(SLOW, direction="replies")
        with ThreadPoolExecutor() as pool:
            commit = pool.submit(claim.commit, 5)
            assert eventually(lambda: raw.get(OFFSET)[0] == b"5")  # the commit waits for its answer

            def leave() -> None:
                with pytest.raises(NotConnectedError), me:
                    assert not claim.held

            with held_elsewhere(me._ownership._registration_lock, *locks_of(me)):
                code = in_a_fork(leave)
            proxy.heal()
            commit.result(LONGEST)
        assert code == 0
        assert claim.verify()


def test_a_fork_has_a_registry_of_its_own_whatever_threads_of_its_parent_do(zookeeper_hosts: str) -> None:
    def work() -> None:
        with Registry.connect(zookeeper_hosts) as registry, member(registry, "child") as me:
            me.claim(P0).commit(5)
            registry.group("billing").watch("owners").close()

    with held_elsewhere(instance_ids_in_use._LOCK, session._FIRST_USE, watches._FIRST_USE):
        assert in_a_fork(work) == 0
