"""A signal handler that interrupts a call, a fork during a call, and a release in another thread."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.testing.waiting import eventually
from zkgroups import Claim, Instance, Registry
from zkgroups.exceptions import NotConnectedError, ReentrantCallError
from zkgroups.testing import TcpProxy
from zkgroups.zookeeper.kazoo_compat import close_client
from zkgroups.zookeeper.ownership import instance_ids_in_use
from zkgroups.zookeeper.requests import watch_dispatcher
from zkgroups.zookeeper.session import session

from .conftest import Connect
from .events import attempt
from .rules import OFFSET, P0, P1, member

pytestmark = pytest.mark.zookeeper

PATIENCE = 30.0
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
            signal.alarm(int(PATIENCE))
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
            over.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(PATIENCE)
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


class Interrupted:
    """A lock for which a thread waits until Ctrl-C."""

    def _is_owned(self) -> bool:
        return False

    def __enter__(self) -> None:
        raise KeyboardInterrupt

    def __exit__(self, *_error: object) -> None:
        raise AssertionError("it was never taken")


def test_ctrl_c_during_the_wait_for_one_partition_leaves_no_other_locked(registry: Registry) -> None:
    me = member(registry)
    first, second = (me.claim(at)._node for at in (P0, P1))
    usual, second._lock = second._lock, Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        me.release(P0, P1)
    second._lock = usual
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(first._lock.acquire, blocking=False).result(PATIENCE)
    me.claims[P1].release()


def test_a_partition_that_is_named_twice_is_released_once(registry: Registry) -> None:
    me = member(registry)
    me.claim_many([P0, P1])
    released = threading.Thread(target=me.release, args=(P0, P0, P1), daemon=True)
    released.start()
    released.join(PATIENCE)
    assert not released.is_alive()
    assert me.claims == {}


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


def test_a_claim_is_not_held_while_another_thread_releases_it(
    proxy: TcpProxy, proxied: Registry, connect: Connect
) -> None:
    claims = member(proxied).claim_many([P0, P1])
    other = member(connect(), "other")
    proxy.delay(SLOW, direction="replies")
    with ThreadPoolExecutor() as pool:
        released = pool.submit(claims.release)
        taken = other.claim(P0, timeout=PATIENCE)
        assert taken.held
        assert not claims[P0].held
        assert not claims.held
        assert not released.done()
        proxy.heal()
        released.result(PATIENCE)
    assert taken.verify()


def test_a_claim_is_not_held_while_its_registry_is_being_closed(
    proxied: Registry, proxy: TcpProxy, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has ended the session, but its answer has not arrived yet."""
    monkeypatch.setattr(close_client, "CLOSE_TIMEOUT", PATIENCE)
    me, other = (each.group("billing").instance(id) for each, id in ((proxied, "me"), (registry, "other")))
    me.register(["orders"])
    other.register(["orders"])
    claim = me.claim(P0)
    proxy.delay(SLOW, direction="replies")
    closing = threading.Thread(target=proxied.close)
    closing.start()
    other.claim(P0, timeout=30)
    assert (claim.held, me.registered, closing.is_alive()) == (False, False, True)
    proxy.heal()
    closing.join()


def test_a_claim_whose_release_never_reached_the_server_is_held_again(impatient: Registry, proxy: TcpProxy) -> None:
    claim = member(impatient).claim(P0)
    proxy.refuse()
    proxy.cut()
    assert eventually(lambda: not impatient.client.connected)
    with pytest.raises(NotConnectedError):
        claim.release()
    proxy.heal()
    assert eventually(lambda: claim.held)
    claim.commit(5)
    claim.release()


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
            commit.result(PATIENCE)
        assert code == 0
        assert claim.verify()


def test_a_fork_has_a_registry_of_its_own_whatever_threads_of_its_parent_do(zookeeper_hosts: str) -> None:
    def work() -> None:
        with Registry.connect(zookeeper_hosts) as registry, member(registry, "child") as me:
            me.claim(P0).commit(5)
            registry.group("billing").watch("owners").close()

    with held_elsewhere(instance_ids_in_use._LOCK, session._FIRST_USE, watch_dispatcher._FIRST_USE):
        assert in_a_fork(work) == 0
