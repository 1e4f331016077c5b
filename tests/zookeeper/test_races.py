"""What was once found by trying to break it: two threads of one process, an administrator at the wrong moment, Ctrl-C,
and nodes that may not be read. Each test brings about the one order in which it went wrong."""

from __future__ import annotations

import inspect
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import kazoo
import pytest
from kazoo.protocol.serialization import GetData
from kazoo.security import OPEN_ACL_UNSAFE

from zkgroups import Acl, AclPolicy, Claim, Instance, Registration, Registry, TopicPartition, zookeeper
from zkgroups.exceptions import (
    NoPermissionError,
    NotClaimedError,
    NotConnectedError,
    NotRegisteredError,
    OutcomeUnknownError,
)
from zkgroups.testing import TcpProxy
from zkgroups.zookeeper import transaction
from zkgroups.zookeeper.transaction import PinnedRequest

from .conftest import Connect
from .events import attempt, expire
from .test_group import until
from .test_rules import ME, OFFSET, OWNER, P0, P1, member

pytestmark = pytest.mark.zookeeper

P2 = TopicPartition("orders", 2)
OWNERS = "/consumers/billing/owners/orders"
PATIENCE = 20.0


def left_behind(raw: Any) -> list[str]:
    """What is registered and owned in the group."""
    found = []
    for directory in ("/consumers/billing/ids", OWNERS):
        if raw.exists(directory):
            found += [f"{directory}/{name}" for name in raw.get_children(directory)]
    return found


class LateAnswer:
    """The answer to the next request of a kind, which has come, and which the thread that asked gets only later."""

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
        """Until the server has answered."""
        assert self._came.wait(PATIENCE)

    def deliver(self) -> None:
        """Let the thread that asked go on."""
        self._delivered.set()


Late = Callable[[Registry, Callable[[Any], bool]], LateAnswer]


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Late:
    return lambda registry, is_meant: LateAnswer(registry, is_meant, monkeypatch)


def a_look_at_the_registration(request: Any) -> bool:
    return isinstance(request, GetData) and request.path.endswith(ME)


def a_transaction(request: Any) -> bool:
    return isinstance(request, PinnedRequest)


# An update of the same bytes


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrations carry the time; here they are to be equal byte by byte."""
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize(
    ("arm", "outcome"),
    [
        pytest.param(lambda proxy: proxy.cut_before_request(1), Registration, id="request lost"),
        pytest.param(lambda proxy: proxy.cut_before_reply(1), OutcomeUnknownError, id="answer lost"),
    ],
)
def test_rule_4_an_administrators_rewrite_is_not_taken_for_an_update_of_the_same_bytes_that_was_lost(
    arm: Callable[[TcpProxy], Any],
    outcome: type,
    proxied: Registry,
    proxy: TcpProxy,
    registry: Registry,
    connect: Connect,
    raw: Any,
) -> None:
    me = member(proxied)
    claim = me.claim(P0)
    claim.commit(5)
    written = raw.get(ME)[0]
    fault = arm(proxy)
    proxy.refuse()
    with ThreadPoolExecutor() as pool:
        update = pool.submit(attempt, lambda: me.update(["orders"]))
        assert fault.wait()
        successor = take_away(registry, connect)
        proxy.heal()
        assert isinstance(update.result(PATIENCE), outcome)
    assert raw.get(ME)[0] == written
    refused_after(successor, claim, raw)


@pytest.mark.usefixtures("still")
def test_rule_4_an_administrators_rewrite_is_not_taken_for_an_update_whose_refusal_was_lost(
    proxied: Registry, proxy: TcpProxy, registry: Registry, connect: Connect, raw: Any
) -> None:
    """The update comes too late and is refused; what there is to see is as if it had been carried out."""
    me = member(proxied)
    claim = me.claim(P0)
    claim.commit(5)
    successor = take_away(registry, connect)
    fault = proxy.cut_before_reply(1)
    me.update(["orders"])
    assert fault.fired
    assert raw.get(ME)[1].version == 1
    refused_after(successor, claim, raw)


def take_away(administrator: Registry, connect: Connect) -> Claim:
    """The partition, and give it to a successor, whose owner node has the version that the one before had."""
    administrator.group("billing").release(P0, expected_owner="me")
    successor = member(connect(), "successor").claim(P0)
    successor.commit(6)
    return successor


def refused_after(successor: Claim, claim: Claim, raw: Any) -> None:
    with pytest.raises(NotClaimedError):
        claim.commit(9)
    assert raw.get(OFFSET)[0] == b"6"
    assert not claim.held
    assert successor.verify()


# A slow look


def test_a_look_at_an_older_registration_does_not_replace_the_one_made_since_in_the_same_session(
    registry: Registry, raw: Any, late: Late
) -> None:
    me = member(registry)
    raw.delete(ME)
    look = late(registry, a_look_at_the_registration)
    with ThreadPoolExecutor() as pool:
        update = pool.submit(attempt, lambda: me.update(["refunds"]))
        look.wait()  # it has seen that there is none
        me.deregister()
        me.register(["orders"])
        look.deliver()
        assert isinstance(update.result(PATIENCE), Registration)
    is_registered(me, "refunds")
    me.deregister()
    assert left_behind(raw) == []


def test_a_look_of_an_ended_session_does_not_replace_the_registration_of_the_next(
    registry: Registry, raw: Any, late: Late
) -> None:
    me = member(registry)
    raw.delete(ME)
    look = late(registry, a_look_at_the_registration)
    with ThreadPoolExecutor() as pool:
        update = pool.submit(attempt, lambda: me.update(["refunds"]))
        look.wait()
        expire(registry)
        me.register(["orders"])
        look.deliver()
        assert isinstance(update.result(PATIENCE), Registration)
    is_registered(me, "refunds")
    me.deregister()
    assert left_behind(raw) == []


def is_registered(me: Instance, topic: str) -> None:
    assert me.registered
    assert dict(me.registration().streams) == {topic: 1}
    assert me.claim(P0).verify()


def test_rule_4_the_version_that_an_older_registration_got_does_not_pass_for_a_later_ones(
    registry: Registry, connect: Connect, raw: Any, late: Late
) -> None:
    """An administrator brings the new registration to the version that the old one had: that must not go unnoticed."""
    me = member(registry)
    answer = late(registry, a_transaction)
    with ThreadPoolExecutor() as pool:
        update = pool.submit(attempt, lambda: me.update(["refunds"]))
        answer.wait()
        assert raw.get(ME)[1].version == 1
        me.deregister()
        me.register(["orders"])
        claim = me.claim(P0)
        claim.commit(5)
        answer.deliver()
        assert isinstance(update.result(PATIENCE), Registration)
    successor = take_away(connect(), connect)
    refused_after(successor, claim, raw)


# A claim and a deregistration at once


class Announcing:
    """A lock that tells when somebody has to wait for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.awaited = threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.awaited.set()
            assert self._lock.acquire(timeout=PATIENCE)

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.fixture
def both(registry: Registry, monkeypatch: pytest.MonkeyPatch, late: Late) -> Callable[..., tuple[object, object]]:
    """Carry out the second in the midst of the first: when its first transaction was answered, until it is over or
    waits."""

    def both(me: Instance, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[object, object]:
        lock = Announcing()
        monkeypatch.setattr(me, "_membership", lock)
        answer = late(registry, a_transaction)
        with ThreadPoolExecutor() as pool:
            one = pool.submit(attempt, first)
            answer.wait()
            two = pool.submit(attempt, second)
            until(lambda: lock.awaited.is_set() or two.done())
            answer.deliver()
            return one.result(PATIENCE), two.result(PATIENCE)

    return both


def test_a_deregistration_in_the_midst_of_a_claim_takes_it_away_too(
    both: Callable[..., tuple[object, object]], registry: Registry, raw: Any
) -> None:
    me = member(registry)
    me.claim(P0).release()
    claim, left = both(me, lambda: me.claim(P0), me.deregister)
    assert isinstance(claim, Claim)
    assert left is None
    assert not claim.held
    assert left_behind(raw) == []


def test_a_claim_in_the_midst_of_a_deregistration_comes_too_late(
    both: Callable[..., tuple[object, object]], registry: Registry, raw: Any
) -> None:
    me = member(registry)
    me.claim(P1)
    left, claim = both(me, me.deregister, lambda: me.claim(P0))
    assert left is None
    assert isinstance(claim, NotRegisteredError)
    assert left_behind(raw) == []


# Ctrl-C


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
        until(condition)
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


def register(me: Instance) -> object:
    return me.register(["orders"])


def claim_one(me: Instance) -> object:
    return me.claim(P0)


def claim_three(me: Instance) -> object:
    return me.claim_many([P0, P1, P2])


@pytest.mark.parametrize(
    ("act", "made"),
    [
        pytest.param(register, ME, id="register"),
        pytest.param(claim_one, OWNER, id="claim"),
        pytest.param(claim_three, OWNER, id="claim_many"),
    ],
)
def test_ctrl_c_while_the_answer_is_awaited_leaves_nothing_behind(
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


def test_ctrl_c_in_the_midst_of_several_transactions_leaves_nothing_behind(
    zookeeper_hosts: str, proxy: TcpProxy, connect: Connect, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is known, the second is not, the third never began."""
    monkeypatch.setattr(transaction, "MAX_BATCH_OPERATIONS", 1)
    registry = connect(proxy.address + "/" + zookeeper_hosts.partition("/")[2], timeout=3.0)
    prepare(registry)
    with registry.group("billing").instance("me") as me:
        register(me)
        fault = proxy.cut_before_reply(2)
        proxy.refuse()
        with ctrl_c_when(lambda: fault.fired and not registry.client.connected):
            claim_three(me)
        proxy.heal()
        assert set(left_behind(raw)) == {ME, OWNER, f"{OWNERS}/1"}
        until(lambda: registry.client.connected)
    assert left_behind(raw) == []


def prepare(registry: Registry) -> None:
    """Make the directories, so that the first transaction is the one."""
    with registry.group("billing").instance("me") as me:
        register(me)
        claim_three(me)


class CtrlC:
    """Press Ctrl-C at the n-th moment at which Python looks for one in some code: when a function begins or returns."""

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
            return  # what is raised while a generator is thrown away is not heard of
        self.passed += 1
        if self.passed == self._n:
            raise KeyboardInterrupt(f"{event} in {code.co_qualname}, line {frame.f_lineno}")


CODE = (zookeeper.__path__[0], kazoo.__path__[0])
SAMPLE = 120


@pytest.mark.parametrize("act", [register, claim_one, claim_three])
def test_ctrl_c_at_whatever_moment_leaves_nothing_behind(
    act: Callable[[Instance], object], registry: Registry, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "MAX_BATCH_OPERATIONS", 2)
    prepare(registry)
    moments, _ = interrupt(act, registry, 0)
    assert moments > 90
    trouble = []
    every = range(1, moments + 1)
    for n in every if moments < SAMPLE else sorted(random.Random(moments).sample(every, SAMPLE)):
        passed, where = interrupt(act, registry, n)
        assert passed == n
        if found := left_behind(raw):
            trouble.append((where, found))
            for path in found:
                raw.delete(path)
    assert trouble == []


def interrupt(act: Callable[[Instance], object], registry: Registry, n: int) -> tuple[int, str]:
    """Act, with Ctrl-C at the n-th moment, and leave; how many moments there were, and where it came."""
    where = ""
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


@pytest.mark.parametrize("seed", range(3))
def test_every_ctrl_c_is_heard_whenever_it_comes_and_leaves_nothing_behind(
    seed: int, registry: Registry, raw: Any
) -> None:
    """kazoo by itself loses one of six, and says that the connection is closed."""
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
    """Act again and again, with one Ctrl-C after so many seconds; what else is raised is raised."""
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


# What may not be read

UNREADABLE = [Acl("world", "anyone", "wa")]


@pytest.fixture
def blind(zookeeper_hosts: str, proxy: TcpProxy, connect: Connect, registry: Registry) -> Registry:
    """A registry, through the proxy, that may not read what it makes but the directories."""
    prepare(registry)
    hosts = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"
    return connect(hosts, acl=AclPolicy(ephemerals=UNREADABLE, offsets=UNREADABLE))


def blind_member(blind: Registry, raw: Any) -> Instance:
    """Its own registration it may read: without that nothing can be claimed."""
    me = member(blind)
    raw.set_acls(ME, OPEN_ACL_UNSAFE)
    return me


def test_a_registration_that_may_not_be_read_and_whose_answer_was_lost_is_not_left_behind_in_silence(
    blind: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = blind.group("billing").instance("me")
    fault = proxy.cut_before_reply(1)
    with pytest.raises(OutcomeUnknownError, match="may not be read"):
        register(me)
    assert fault.fired
    assert not me.registered
    told_of_and_taken_away(me, ME, raw)


def test_a_claim_that_may_not_be_read_and_whose_answer_was_lost_is_not_left_behind_in_silence(
    blind: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = blind_member(blind, raw)
    fault = proxy.cut_before_reply(1)
    with pytest.raises(OutcomeUnknownError, match="may not be read"):
        me.claim(P0)
    assert fault.fired
    assert me.claims == {}
    with pytest.raises(NoPermissionError):
        me.claim(P0)
    told_of_and_taken_away(me, OWNER, raw)


def told_of_and_taken_away(me: Instance, path: str, raw: Any) -> None:
    """Who leaves is told of what cannot be taken away, and takes it away as soon as it can be."""
    with pytest.raises(NoPermissionError) as caught:
        me.deregister()
    assert caught.value.path == path
    assert left_behind(raw) == [path]
    raw.set_acls(path, OPEN_ACL_UNSAFE)
    me.deregister()
    assert left_behind(raw) == []


def test_rule_3_a_claim_that_may_not_be_read_is_sent_again_when_it_is_seen_that_it_never_arrived(
    blind: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = blind_member(blind, raw)
    fault = proxy.cut_before_request(1)
    claim = me.claim(P0)
    assert fault.fired
    assert claim.held
    assert left_behind(raw) == [ME, OWNER]
    me.deregister()
    assert left_behind(raw) == []


def test_rule_3_a_release_of_what_may_not_be_read_is_seen_when_it_was_carried_out(
    blind: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = blind_member(blind, raw)
    claim = me.claim(P0)
    fault = proxy.cut_before_reply(1)
    claim.release()
    assert fault.fired
    assert left_behind(raw) == [ME]
    assert me.claims == {}


def test_rule_3_a_release_of_what_may_not_be_read_that_never_arrived_is_unknown_and_not_forgotten(
    blind: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = blind_member(blind, raw)
    claim = me.claim(P0)
    fault = proxy.cut_before_request(1)
    with pytest.raises(OutcomeUnknownError, match="may not be read"):
        claim.release()
    assert fault.fired
    assert not claim.held
    assert left_behind(raw) == [ME, OWNER]
    raw.set_acls(OWNER, OPEN_ACL_UNSAFE)
    me.deregister()
    assert left_behind(raw) == []


@pytest.mark.parametrize(
    ("arm", "committed"),
    [
        pytest.param(lambda proxy: proxy.cut_before_reply(1), b"6", id="answer lost"),
        pytest.param(lambda proxy: proxy.cut_before_request(1), b"5", id="request lost"),
    ],
)
def test_rule_3_a_lost_commit_of_an_offset_that_may_not_be_read_is_unknown(
    arm: Callable[[TcpProxy], Any], committed: bytes, blind: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = blind_member(blind, raw)
    claim = me.claim(P0)
    raw.set_acls(OWNER, OPEN_ACL_UNSAFE)
    claim.commit(5)
    fault = arm(proxy)
    with pytest.raises(OutcomeUnknownError, match="may not be read"):
        claim.commit(6)
    assert fault.fired
    with pytest.raises(NoPermissionError):
        claim.commit(7)
    raw.set_acls(OFFSET, OPEN_ACL_UNSAFE)
    assert raw.get(OFFSET)[0] == committed
    claim.commit(8)
    assert raw.get(OFFSET)[0] == b"8"


# Letting go


def test_rule_2_ctrl_c_in_a_release_does_not_make_the_next_one_take_from_a_successor(
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


def test_rule_4_what_a_release_of_many_had_let_go_before_the_connection_was_lost_is_not_held(
    zookeeper_hosts: str, proxy: TcpProxy, connect: Connect, raw: Any, late: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "MAX_BATCH_OPERATIONS", 1)
    registry = connect(proxy.address + "/" + zookeeper_hosts.partition("/")[2], timeout=3.0)
    successor = member(connect(), "successor")
    claims = member(registry).claim_many([P0, P1])
    proxy.cut_after_reply(1)
    proxy.refuse()
    answer = late(registry, a_transaction)
    with ThreadPoolExecutor() as pool:
        release = pool.submit(attempt, claims.release)
        answer.wait()
        until(lambda: not registry.client.connected)
        answer.deliver()
        assert isinstance(release.result(PATIENCE), NotConnectedError)
    proxy.heal()
    theirs = successor.claim(P0)
    until(lambda: registry.client.connected)
    with pytest.raises(NotClaimedError):
        claims[P0].commit(5)
    claims.release()
    assert raw.exists(OFFSET) is None
    assert theirs.verify()
    assert raw.get_children(OWNERS) == ["0"]


def test_rule_2_deregistering_again_after_an_unknown_outcome_leaves_the_successor_of_the_same_id(
    zookeeper_hosts: str, proxy: TcpProxy, connect: Connect, raw: Any
) -> None:
    registry = connect(proxy.address + "/" + zookeeper_hosts.partition("/")[2], timeout=3.0)
    me = member(registry)
    proxy.cut_before_reply(1)
    proxy.refuse()
    with pytest.raises(OutcomeUnknownError):
        me.deregister()
    proxy.heal()
    raw.create(ME, b"{}", ephemeral=True)
    until(lambda: registry.client.connected)
    assert not me.registered
    with pytest.raises(NotRegisteredError):
        me.claim(P0)
    me.deregister()
    assert raw.get(ME)[1].ephemeralOwner == raw.client_id[0]


def test_a_claim_that_may_not_be_read_is_not_forgotten_when_a_release_is_tried_again(
    blind: Registry, proxy: TcpProxy, raw: Any
) -> None:
    me = blind_member(blind, raw)
    claim = me.claim(P0)
    proxy.cut_before_request(1)
    with pytest.raises(OutcomeUnknownError):
        claim.release()
    for leave in (claim.release, me.deregister):
        with pytest.raises(NoPermissionError) as caught:
            leave()
        assert caught.value.path == OWNER
    raw.set_acls(OWNER, OPEN_ACL_UNSAFE)
    me.deregister()
    assert left_behind(raw) == []


def test_a_claim_that_may_not_be_read_is_not_forgotten_when_an_administrator_takes_another(
    blind: Registry, registry: Registry, raw: Any
) -> None:
    me = blind_member(blind, raw)
    claims = me.claim_many([P0, P1])
    raw.set_acls(OWNER, OPEN_ACL_UNSAFE)
    registry.group("billing").release(P0, expected_owner="me")
    with pytest.raises(NotClaimedError):
        claims[P0].commit(5)
    with pytest.raises(NoPermissionError):
        me.deregister()
    raw.set_acls(f"{OWNERS}/1", OPEN_ACL_UNSAFE)
    me.deregister()
    assert left_behind(raw) == []


def test_rule_4_who_registered_again_and_could_not_look_what_is_still_its_own_commits_nothing_on_what_is_not(
    zookeeper_hosts: str, proxy: TcpProxy, connect: Connect, registry: Registry, raw: Any
) -> None:
    blinded = connect(proxy.address + "/" + zookeeper_hosts.partition("/")[2], timeout=3.0)
    me = member(blinded)
    claim = me.claim(P0)
    claim.commit(5)
    raw.delete(ME)
    with pytest.raises(NotRegisteredError):
        me.claim(P1)
    successor = take_away(registry, connect)
    proxy.cut_before_request(2)
    proxy.refuse()
    with pytest.raises(NotConnectedError):
        me.register(["orders"])
    proxy.heal()
    assert raw.exists(ME)
    until(lambda: blinded.client.connected)
    refused_after(successor, claim, raw)
    me.deregister()
    assert raw.exists(ME) is None
