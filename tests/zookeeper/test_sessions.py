"""Failures 1 and 5: a session that expires during a claim, and an instance that meets its earlier session."""

from __future__ import annotations

import errno
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.restoring import restorable
from tests.testing.waiting import eventually
from zkgroups import Registry, SessionCredentials, TopicPartition
from zkgroups.exceptions import (
    AlreadyRegisteredError,
    ClaimTimeout,
    NotClaimedError,
    NotConnectedError,
    NotRegisteredError,
    OffsetConflictError,
    OutcomeUnknownError,
    SessionLostError,
)
from zkgroups.testing import TcpProxy, expire_session

from ..seeds import seed
from .conftest import Connect
from .events import expire, new_session

pytestmark = pytest.mark.zookeeper

P0 = TopicPartition("orders", 0)


def test_a_server_that_hangs_up_during_a_reconnect_is_not_called_restored_at_once(
    proxy: TcpProxy, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """It may have been restarted a moment ago, and process older transactions first."""
    registry = connect(proxy.address)
    registry.group("billing").create()
    proxy.drop(direction="replies")
    for _ in range(3):
        before = proxy.connections
        proxy.cut()
        assert eventually(lambda before=before: proxy.connections > before, timeout=30)
    proxy.heal()
    assert eventually(lambda: registry._context.session.connected, timeout=30)
    assert "Connection dropped" in caplog.text
    assert "fewer transactions" not in caplog.text


def test_a_client_connects_again_after_names_could_not_be_resolved_for_lack_of_descriptors(
    zookeeper: Any, proxy: TcpProxy, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = connect(proxy.address.replace("127.0.0.1", "localhost"))
    session_id, refused = registry.session_id, threading.Event()

    def exhausted(*_: object) -> Any:
        refused.set()
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", exhausted)
        proxy.refuse()
        proxy.cut()
        assert refused.wait(30)
    proxy.accept()
    assert eventually(lambda: registry._context.session.connected, timeout=30)
    assert registry.session_id == session_id


def test_failure_1_an_expired_claim_is_void_and_the_instance_can_register_and_claim_again(
    registry: Registry, raw: Any
) -> None:
    me = registry.group("billing").instance("me")
    me.register(["orders"])
    old = me.claim(P0)
    expire(registry)
    assert not old.held
    assert not me.registered
    assert me.claims == {}
    with pytest.raises(SessionLostError):
        me.claim(P0)
    me.register(["orders"])
    new = me.claim(P0)
    assert (new.held, old.held) == (True, False)
    assert raw.get("/consumers/billing/owners/orders/0")[1].ephemeralOwner == registry.session_id


class Worker:
    """Repeatedly claim a partition, increment its offset, and release it."""

    def __init__(self, registry: Registry, id: str, stop: threading.Event, seed: int) -> None:
        self._instance = registry.group("billing").instance(id)
        self._registry = registry
        self._stop = stop
        self._random = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.thread = threading.Thread(target=self._run, name=id)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._work()
            except (SessionLostError, NotRegisteredError, NotClaimedError, ClaimTimeout) as error:
                self.seen[type(error).__name__] += 1
            except AlreadyRegisteredError:
                self.seen["its own past"] += 1
            except OutcomeUnknownError:
                self.seen["unknown"] += 1
            except OffsetConflictError:
                self.seen["conflict"] += 1

    def _work(self) -> None:
        if not self._instance.registered:
            self._instance.register(["orders"], timeout=2)
        with self._instance.claim(P0, timeout=2) as claim:
            committed = claim.fetch()
            offset = committed.offset if committed else 0
            for _ in range(self._random.randint(1, 20)):
                offset += 1
                claim.commit(offset)
                self.seen["committed"] += 1


def test_failure_1_under_load_two_sessions_never_commit_for_one_partition_at_the_same_time(connect: Connect) -> None:
    """Every commit increments the last offset. A commit without the claim would be a conflict, or
    would make the final offset differ from the number of commits."""
    nemesis = random.Random(seed())
    stop = threading.Event()
    registries = [connect() for _ in range(3)]
    workers = [Worker(registry, f"w{n}", stop, seed() + n) for n, registry in enumerate(registries)]
    for worker in workers:
        worker.thread.start()
    for _ in range(25):
        expire(nemesis.choice(registries))
    stop.set()
    for worker in workers:
        worker.thread.join(30)
    seen = sum((worker.seen for worker in workers), Counter())
    final = connect().group("billing").offsets.fetch(P0)
    assert final is not None
    assert seen["conflict"] == 0, seen
    assert seen["SessionLostError"] > 0, seen
    assert 0 <= final.offset - seen["committed"] <= seen["unknown"] + seen["SessionLostError"], seen


@pytest.mark.parametrize(("timeout", "delay"), [(6.0, 0.0), (6.0, 1.0)], ids=["quick answers", "slow answers"])
def test_failure_1_a_claim_without_answers_is_given_up_before_another_instance_can_claim(
    zookeeper_hosts: str, proxy: TcpProxy, connect: Connect, timeout: float, delay: float
) -> None:
    """The server expires the session by its clock. The holder counts from its last answered request, by its own."""
    chroot = zookeeper_hosts.partition("/")[2]
    silent = connect(f"{proxy.address}/{chroot}", session_timeout=timeout)
    other = connect()
    mine = silent.group("billing").instance("silent")
    mine.register(["orders"])
    claim = mine.claim(P0)
    next_one = other.group("billing").instance("next")
    next_one.register(["orders"])
    last_held = 0.0
    done = threading.Event()

    def sample() -> None:
        nonlocal last_held
        while not done.is_set():
            now = time.monotonic()  # before the look, because this thread may stand still after it
            if claim.held:
                last_held = now

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        proxy.delay(delay, direction="replies")
        claim.verify()  # the server received the request before its answer arrived
        proxy.drop()
        next_one.claim(P0, timeout=60)
        taken = time.monotonic()
    finally:
        done.set()
        sampler.join()
    assert 0 < last_held < taken
    assert not claim.held


CRASHING = """
import sys, warnings
warnings.simplefilter("ignore")
from zkgroups import Registry, TopicPartition
registry = Registry.connect(sys.argv[1], session_timeout=float(sys.argv[2]))
me = registry.group("billing").instance("me")
me.register(["orders"])
me.claim(TopicPartition("orders", 0))
print(registry.credentials().dump(), flush=True)
sys.stdin.read()
"""


def crash(hosts: str, session_timeout: float) -> SessionCredentials:
    """Run a process that registers and claims, and kill it. Return the credentials of its session."""
    with subprocess.Popen(
        [sys.executable, "-c", CRASHING, hosts, str(session_timeout)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        credentials = SessionCredentials.load(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
    return credentials


def test_failure_5_a_restarted_instance_waits_for_its_earlier_session_no_longer_than_its_timeout(
    zookeeper_hosts: str, registry: Registry, raw: Any
) -> None:
    """A plain client writes a node when it sees that the registration has expired. The times are the server's."""
    timeout = 8.0
    crash(zookeeper_hosts, timeout)
    killed = time.monotonic()
    raw.create("/reference")
    raw.exists("/consumers/billing/ids/me", watch=lambda _event: raw.set_async("/reference", b"expired"))
    me = registry.group("billing").instance("me")
    with pytest.raises(AlreadyRegisteredError):
        me.register(["orders"])
    me.register(["orders"], timeout=timeout + 60)
    me.claim(P0, timeout=timeout + 60)
    assert time.monotonic() - killed <= timeout + 60
    assert eventually(lambda: raw.get("/reference")[0] == b"expired")
    late = raw.exists("/consumers/billing/owners/orders/0").ctime - raw.exists("/reference").mtime
    print(f"claimed {late} ms after the session had expired")
    assert late <= 15_000


def test_failure_5_a_restarted_instance_ends_its_earlier_session_at_once(
    zookeeper_hosts: str, registry: Registry
) -> None:
    past = crash(zookeeper_hosts, 120.0)
    me = registry.group("billing").instance("me")
    me.register(["orders"], past_session=past)
    assert me.claim(P0).held


def test_failure_5_a_foreign_registration_of_the_same_id_is_not_ended(
    zookeeper_hosts: str, registry: Registry, raw: Any
) -> None:
    past = crash(zookeeper_hosts, 120.0)
    expire_session(raw, client_id=(past.session_id, past.password))
    raw.create("/consumers/billing/ids/me", b"{}", ephemeral=True, makepath=True)
    me = registry.group("billing").instance("me")
    with pytest.raises(AlreadyRegisteredError):
        me.register(["orders"], timeout=0.5, past_session=past)
    assert raw.get("/consumers/billing/ids/me")[1].ephemeralOwner == raw.client_id[0]


def test_failure_5_an_earlier_session_without_the_registration_is_not_ended(
    registry: Registry, connect: Connect, raw: Any
) -> None:
    other = connect()
    bystander = other.group("billing").instance("bystander")
    bystander.register(["orders"])
    raw.create("/consumers/billing/ids/me", b"{}", ephemeral=True)
    with pytest.raises(AlreadyRegisteredError):
        registry.group("billing").instance("me").register(["orders"], past_session=other.credentials())
    assert {instance.id for instance in registry.group("billing").instances()} == {"me", "bystander"}


def test_a_wrong_password_ends_no_session(registry: Registry, connect: Connect) -> None:
    other = connect()
    me = other.group("billing").instance("me")
    me.register(["orders"])
    stolen = SessionCredentials(other.credentials().session_id, b"0123456789abcdef")
    with pytest.raises(AlreadyRegisteredError):
        registry.group("billing").instance("me").register(["orders"], past_session=stolen)
    assert other.group("billing").instances()[0].session == stolen.session_id


def test_an_expiry_is_detected_when_the_server_answers_again(
    zookeeper_hosts: str, proxy: TcpProxy, connect: Connect
) -> None:
    chroot = zookeeper_hosts.partition("/")[2]
    registry = connect(f"{proxy.address}/{chroot}", session_timeout=8.0)
    me = registry.group("billing").instance("me")
    me.register(["orders"])
    claim = me.claim(P0)
    with new_session(registry):
        proxy.drop()
        connect().group("billing").wait_free(P0, timeout=60)
        proxy.heal()
        proxy.cut()
    with pytest.raises(SessionLostError):
        claim.commit(1)


@pytest.mark.parametrize("wiped", [True, False], ids=["wiped", "restored"])
def test_failure_19_a_restored_zookeeper_is_reported_and_no_claim_from_before_commits_to_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wiped: bool
) -> None:
    with restorable(tmp_path) as server:
        with Registry.connect(server.address) as first:
            first.group("billing").offsets.set(P0, 10)
        if not wiped:
            server.back_up()
        with Registry.connect(server.address, session_timeout=10.0) as before:
            me = before.group("billing").instance("me")
            me.register(["orders"])
            claim = me.claim(P0)
            claim.commit(100)
            seen = before.client.last_zxid
            server.restore()
            assert eventually(lambda: "restored from a backup or wiped, restart this process" in caplog.text)
            assert f"{server.address} refuses this client" in caplog.text
            assert eventually(lambda: not claim.held)
            with pytest.raises((NotConnectedError, OutcomeUnknownError)):
                claim.commit(101)
            assert not before.client.connected
            server.overtake(seen)
            assert eventually(lambda: before.client.connected), "it has done as many transactions again"
            with pytest.raises(SessionLostError):
                claim.commit(102)
            now = before.group("billing").offsets.fetch(P0)
            assert (None if now is None else now.offset) == (None if wiped else 10)
            assert before.group("billing").instances() == []
