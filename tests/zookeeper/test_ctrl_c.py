"""Ctrl-C at any moment raises KeyboardInterrupt, and leaves no unknown node behind."""

from __future__ import annotations

import inspect
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import kazoo
import pytest

from tests.testing.waiting import eventually
from zkgroups import Instance, Registry, zookeeper
from zkgroups.exceptions import NotClaimedError
from zkgroups.testing import TcpProxy
from zkgroups.zookeeper.requests import request_size

from ..seeds import seed, seeds
from .conftest import Connect
from .leaving import OWNERS, claim_one, claim_three, left_behind, prepare, register
from .rules import ME, OFFSET, OWNER, P0, member

pytestmark = pytest.mark.zookeeper


@pytest.fixture(autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def ctrl_c_when(condition: Callable[[], object]) -> Iterator[None]:
    """Press Ctrl-C once in the block, as soon as the condition holds."""
    main = threading.main_thread().ident
    assert main is not None

    def press() -> None:
        assert eventually(condition)
        signal.pthread_kill(main, signal.SIGINT)

    finger = threading.Thread(target=press)
    finger.start()
    try:
        yield
        finger.join()
    except KeyboardInterrupt:
        finger.join()
        return
    pytest.fail("nobody heard it")


@pytest.mark.parametrize(
    ("act", "made"),
    [
        pytest.param(register, ME, id="register"),
        pytest.param(claim_one, OWNER, id="claim"),
        pytest.param(claim_three, OWNER, id="claim_many"),
    ],
)
def test_ctrl_c_while_waiting_for_an_answer_leaves_nothing_behind(
    act: Callable[[Instance], object], made: str, proxied: Registry, proxy: TcpProxy, raw: Any
) -> None:
    prepare(proxied)
    with proxied.group("billing").instance("me") as me:
        if act is not register:
            register(me)
        proxy.drop(direction="replies")
        with ctrl_c_when(lambda: raw.exists(made)):
            act(me)
        proxy.heal()
        assert left_behind(raw) != []
    assert left_behind(raw) == []


def test_ctrl_c_between_several_transactions_leaves_nothing_behind(
    zookeeper_hosts: str, proxy: TcpProxy, connect: Connect, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome of the first is known, that of the second is not, and the third was never sent."""
    monkeypatch.setattr(request_size, "MAX_BATCH_OPERATIONS", 1)
    registry = connect(proxy.address + "/" + zookeeper_hosts.partition("/")[2], timeout=6.0)
    prepare(registry)
    with registry.group("billing").instance("me") as me:
        register(me)
        fault = proxy.cut_before_reply(2)
        proxy.refuse()
        with ctrl_c_when(lambda: fault.fired and not registry.client.connected):
            claim_three(me)
        proxy.heal()
        assert set(left_behind(raw)) == {ME, OWNER, f"{OWNERS}/1"}
        assert eventually(lambda: registry.client.connected)
    assert left_behind(raw) == []


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
SAMPLE = 120


@pytest.mark.parametrize("act", [register, claim_one, claim_three])
def test_ctrl_c_at_any_moment_leaves_nothing_behind(
    act: Callable[[Instance], object], registry: Registry, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_size, "MAX_BATCH_OPERATIONS", 2)
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


@pytest.mark.parametrize("seed", seeds(3))
def test_every_ctrl_c_is_raised_and_leaves_nothing_behind(seed: int, registry: Registry, raw: Any) -> None:
    """Without corrections, kazoo turns one of six into a closed connection."""
    rng = random.Random(seed)
    for _ in range(60):
        with registry.group("billing").instance("me") as me:
            until_interrupted(partial(come_and_go, me), after=rng.uniform(0.0001, 0.02))
        assert left_behind(raw) == []


def come_and_go(me: Instance) -> None:
    if not me.registered:
        register(me)
    claim_three(me)
    for claim in list(me.claims.values()):
        claim.release()


def until_interrupted(act: Callable[[], object], *, after: float) -> None:
    """Act repeatedly, with one Ctrl-C after so many seconds. Other exceptions pass through."""
    finger = threading.Timer(after, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    try:
        finger.start()
        while True:
            act()
    except KeyboardInterrupt:
        return
    finally:
        finger.cancel()
        finger.join()


def test_rule_2_after_ctrl_c_in_a_release_the_next_release_does_not_affect_a_successor(
    proxied: Registry, proxy: TcpProxy, connect: Connect, raw: Any
) -> None:
    successor = member(connect(), "successor")
    with member(proxied) as me:
        claim = me.claim(P0)
        proxy.drop(direction="replies")
        with ctrl_c_when(lambda: not raw.exists(OWNER)):
            claim.release()
        proxy.heal()
        theirs = successor.claim(P0)
        assert not claim.held
        with pytest.raises(NotClaimedError):
            claim.commit(5)
    assert theirs.verify()
    assert raw.exists(OFFSET) is None
