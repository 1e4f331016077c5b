"""Failure 24: members that are closed or forked at any moment."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.lasting import lasting_client
from tests.testing.waiting import eventually
from zkgroups import Member, Registry
from zkgroups.exceptions import MemberClosedError
from zkgroups.testing import TcpProxy
from zkgroups.zookeeper.ownership.instance_ids_in_use import is_in_use
from zkgroups.zookeeper.requests.watch_dispatcher import WatchDispatcher
from zkgroups.zookeeper.session.registry_context import context_of

from ...seeds import seed
from ..crew import Crew
from ..nemesis import ROOT, plant_topics
from .crews import BUSY, QUICK, TOPICS, owners

pytestmark = pytest.mark.zookeeper


FORKING = """
import os, sys, time, warnings
warnings.simplefilter("ignore")
from zkgroups import Member, Registry
from zkgroups.exceptions import MemberClosedError

registry = Registry.connect(sys.argv[1], session_timeout=20)
member = Member(registry.group("billing"), "orders", id="parent")
generation = member.next_generation()
child = os.fork()
if child == 0:
    began = time.monotonic()
    member.close()
    try:
        member.start()
    except MemberClosedError:
        os._exit(0 if time.monotonic() - began < 30 else 1)
    os._exit(2)
_, status = os.waitpid(child, 0)
assert not generation.wait(1.0) and generation.active
generation.commit({at: 7 for at in generation.partitions})
print(os.waitstatus_to_exitcode(status), member.stats.generations, flush=True)
member.close()
"""


def test_failure_24_a_fork_of_a_member_closes_only_itself(crew: Crew) -> None:
    command = [sys.executable, "-c", FORKING, crew.hosts]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert (done.stdout, done.returncode) == ("0 1\n", 0), done.stderr
    assert {offset.offset for offset in crew.group.offsets} == {7}  # type: ignore[union-attr]
    assert list(crew.group.owners()) == []


FORKING_WHILE_WORKING = """
import faulthandler, os, sys, threading, warnings
warnings.simplefilter("ignore")
from zkgroups import Member, Registry
from zkgroups.exceptions import GenerationEndedError

registry = Registry.connect(sys.argv[1], session_timeout=20)
member = Member(registry.group("billing"), "orders", id="parent")
generation = member.next_generation()
at = next(iter(generation.partitions))

def work():
    for offset in range(10**9):
        generation.mark(at, offset)
        if offset % 100 == 0:
            generation.commit()

for _ in range(2):
    threading.Thread(target=work, daemon=True).start()

def refused(call):
    try:
        call()
    except GenerationEndedError:
        return True

statuses = set()
for _ in range(20):
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(20, exit=True)
        assert refused(lambda: generation.mark(at, 1)) and refused(generation.commit) and generation.wait()
        os._exit(0)
    statuses.add(os.waitpid(child, 0)[1])
print(statuses, generation.active, flush=True)
os._exit(0)
"""


def test_failure_24_a_fork_cannot_use_the_generations_of_its_parent_and_does_not_hang(crew: Crew) -> None:
    command = [sys.executable, "-c", FORKING_WHILE_WORKING, crew.hosts]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert (done.stdout, done.returncode) == ("{0} True\n", 0), done.stderr


def test_failure_24_members_that_close_at_any_moment_of_a_rebalance_leave_in_time(crew: Crew) -> None:
    rng = random.Random(seed())
    crew.join("always", *QUICK)
    crew.settle()
    for round in range(15):
        ids = [f"w{round}.{number}" for number in range(rng.randint(1, 4))]
        for id in ids:
            crew.join(id)
            threading.Event().wait(rng.choice([0.0, rng.random() * 0.3]))
        for id in rng.sample(ids, len(ids)):
            crew.leave(id, timeout=25.0)  # `close` itself gives up after 28 s
    crew.settle()
    assert {owner for owner, _session in owners(crew).values()} == {"always-0"}
    assert [instance.id for instance in crew.group.instances()] == ["always"]


def closes_in_time(close: Callable[[], object], seconds: float = BUSY) -> None:
    """Assert that the call returns in time and raises nothing."""
    raised: list[BaseException] = []

    def act() -> None:
        try:
            close()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it hangs"
    assert raised == []


@pytest.fixture
def registry(zookeeper_hosts: str) -> Iterator[Registry]:
    plant_topics(zookeeper_hosts, TOPICS)
    with Registry.connect(zookeeper_hosts, session_timeout=20.0) as registry:
        yield registry


def test_failure_24_closing_twice_or_from_several_threads_closes_once(registry: Registry) -> None:
    member = Member(registry.group("billing"), "orders")
    member.next_generation()
    threads = [threading.Thread(target=member.close) for _ in range(8)]
    for thread in threads:
        thread.start()
    closes_in_time(member.close)
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    closes_in_time(member.close)
    member.stop()
    assert list(registry.group("billing").owners()) == []


def test_failure_24_a_member_that_never_started_may_be_closed_twice(registry: Registry) -> None:
    member = Member(registry.group("billing"), "orders")
    closes_in_time(member.close)
    closes_in_time(member.close)
    with pytest.raises(MemberClosedError):
        member.next_generation(timeout=5)


def test_failure_24_a_worker_and_a_callback_may_close_their_member(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    group = registry.group("billing")
    member = Member(group, "orders", release_timeout=60.0, rebalance_timeout=100.0)

    def live() -> None:
        for generation in member.generations():
            generation.start(lambda _generation: member.close())
            generation.wait()

    closes_in_time(live)
    other = Member(
        group,
        "orders",
        release_timeout=60.0,
        rebalance_timeout=100.0,
        on_assigned=lambda _partitions: other.close(),
    )
    closes_in_time(lambda: list(other.generations()))
    assert list(group.owners()) == []
    assert [record for record in caplog.records if record.name.startswith("zkgroups")] == []


def test_failure_24_closing_does_not_wait_for_the_pause_after_a_failure(registry: Registry) -> None:
    failed = threading.Event()

    def partitions(_topic: str) -> list[int]:
        failed.set()
        raise LookupError("planted")

    member = Member(registry.group("billing"), "orders", partitions=partitions, join_backoff=60.0).start()
    assert failed.wait(30)
    closes_in_time(member.close)
    assert registry.group("billing").instances() == []


def test_failure_24_closing_while_no_server_answers_ends_in_time(zookeeper: Any, zookeeper_hosts: str) -> None:
    plant_topics(zookeeper_hosts, TOPICS)
    with TcpProxy(zookeeper.address) as proxy:
        hosts = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"
        registry = Registry.connect(hosts, session_timeout=4.0)
        try:
            member = Member(registry.group("billing"), "orders", release_timeout=1.0)
            member.next_generation()
            proxy.drop()
            closes_in_time(member.close, 2 * 1.0 + 3 * 4.0 + BUSY)
        finally:
            proxy.heal()
            registry.close()


def test_failure_24_a_member_that_is_closed_while_its_session_may_have_expired_leaves_nothing_behind(
    zookeeper: Any, zookeeper_hosts: str
) -> None:
    """The registry stays open, and its session lives on after the outage."""
    plant_topics(zookeeper_hosts, TOPICS)
    with TcpProxy(zookeeper.address) as proxy, Registry.connect(zookeeper_hosts) as observer:
        hosts = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}"
        with Registry.connect(hosts, session_timeout=12.0) as registry:
            session, group = registry.client.client_id, observer.group("billing")
            member = Member(registry.group("billing"), "orders", id="a", release_timeout=20.0)
            generation = member.next_generation()
            assert generation is not None
            proxy.refuse()
            proxy.cut()
            with kept_alive(session, zookeeper.address):
                generation.start(lambda _generation: eventually(lambda: not member.assignment, timeout=30))
                closing = threading.Thread(target=member.close)
                closing.start()
                assert eventually(lambda: member.stats.lost, timeout=30)
                assert group.instances()
            proxy.accept()
            closing.join(30)
            assert not closing.is_alive()
            assert eventually(lambda: not group.instances(), timeout=30)
            assert list(group.owners()) == []
            assert registry.session_id == session[0]


def test_failure_24_a_member_that_was_closed_during_an_outage_deregisters_after_it_and_frees_its_id(
    zookeeper: Any, zookeeper_hosts: str, caplog: pytest.LogCaptureFixture
) -> None:
    plant_topics(zookeeper_hosts, TOPICS)
    with TcpProxy(zookeeper.address) as proxy, Registry.connect(zookeeper_hosts) as observer:
        hosts, group = f"{proxy.address}/{zookeeper_hosts.partition('/')[2]}", observer.group("billing")
        with lasting_client(hosts) as client:
            registry = Registry(client, timeout=1.0)
            session = registry.session_id
            member = Member(registry.group("billing"), "orders", id="a", release_timeout=0.5)
            generation = member.next_generation()
            assert generation is not None
            generation.mark(next(iter(generation.partitions)), 5)
            proxy.refuse()
            proxy.cut()
            closes_in_time(member.close, 2 * 0.5 + 3 * 1.0 + BUSY)
            assert eventually(lambda: "could not commit: " in caplog.text)  # `close` gives up on a slow machine
            assert [each.id for each in group.instances()] == ["a"]
            proxy.accept()
            assert eventually(lambda: not group.instances(), timeout=30)
            assert list(group.owners()) == []
            own = context_of(registry).session
            assert eventually(lambda: not is_in_use(own, group.paths.instance("a")))
            assert eventually(lambda: WatchDispatcher.of(own)._listeners == {})
            assert registry.session_id == session


@contextmanager
def kept_alive(session: tuple[int, bytes], address: str) -> Iterator[None]:
    """Keep a session alive at the server with a second connection, while its own client is cut off."""
    with TcpProxy(address) as proxy:
        second = KazooClient(proxy.address, client_id=session)
        second.start()
        assert second.client_id[0] == session[0]
        try:
            yield
        finally:
            proxy.refuse()  # otherwise kazoo would end the session when it stops
            proxy.cut()
            second.stop()
            second.close()
