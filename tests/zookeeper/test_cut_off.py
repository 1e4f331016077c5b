"""Failure 25: a server that is cut off from the others keeps answering, while its clients' sessions expire elsewhere.

Three servers reach each other through proxies, which stop forwarding but close no connection. Each run has four holders
of one partition each, all connected to the server that is cut off. Two of them know only that server, two all three.
Two have a session timeout that is shorter than the time for which a cut-off server keeps answering, and two a longer
one (6 and 30 s, compared with 10 s in ZooKeeper's sample configuration). An instance on the other side waits for each
partition. When it gets the partition, `held` of the old holder must be False.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from uuid import uuid4

import pytest

from tests.cutting import FOLLOWER, FORGOTTEN, ROLES, cut_off, restart, victim
from tests.waiting import eventually
from zkgroups import Claim, Instance, Registry, TopicPartition
from zkgroups.exceptions import NotRegisteredError, SessionLostError
from zkgroups.testing import ZooKeeperEnsemble, ZooKeeperServer
from zkgroups.zookeeper.kazoo_compat import closing

pytestmark = pytest.mark.zookeeper


TICK = 0.4


SYNC_LIMIT = 4.8


SHORT, LONG = 1.6, 6.0


SOAK = int(os.environ.get("ZKGROUPS_SOAK_CUTS", "20"))


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    """Three servers. The links are restored after each test."""
    with ZooKeeperEnsemble(tick_time=TICK, sync_limit=SYNC_LIMIT, cuttable=True) as ensemble:
        yield ensemble


@dataclass
class Holder:
    """A claim, and the instance that waits for it on the other side. All times are monotonic."""

    name: str
    registry: Registry
    claim: Claim
    waiting: Instance
    last_held: float = 0.0
    taken: float | None = None
    released: threading.Event = field(default_factory=threading.Event)

    def sample(self) -> None:
        now = time.monotonic()
        if self.claim.held:
            self.last_held = now

    def wait(self) -> None:
        self.waiting.claim(self.claim.at, timeout=60)
        self.taken = time.monotonic()

    @property
    def overlap(self) -> float:
        """How long both held the partition, in seconds. Negative if there was a gap."""
        return -1e9 if self.taken is None else self.last_held - self.taken


class Scene:
    """The four holders, and the instances that wait."""

    def __init__(self, ensemble: ZooKeeperEnsemble, node: ZooKeeperServer, stack: ExitStack) -> None:
        self._stack = stack
        self._done = threading.Event()
        others = ",".join(each.address for each in ensemble.nodes if each is not node)
        waiting = stack.enter_context(Registry.connect(others, session_timeout=20.0, timeout=60.0))
        group = uuid4().hex
        self.holders = {}
        for number, (knows, session) in enumerate(product(("one", "all"), (SHORT, LONG))):
            hosts = node.address if knows == "one" else ensemble.address
            at = TopicPartition("orders", number)
            registry = self._connected(node, hosts, session)
            claim = claimed(registry.group(group).instance(f"holder-{number}"), at)
            next_one = waiting.group(group).instance(f"next-{number}")
            next_one.register(["orders"])
            self.holders[knows, session] = Holder(f"{knows} {session:g} s", registry, claim, next_one)
        self._threads = [threading.Thread(target=holder.wait) for holder in self.holders.values()]
        self._sampler = threading.Thread(target=self._sample)
        for thread in (*self._threads, self._sampler):
            thread.start()

    def _connected(self, node: ZooKeeperServer, hosts: str, session: float) -> Registry:
        """kazoo connects to the servers in random order."""
        for _ in range(100):
            registry = Registry.connect(hosts, session_timeout=session, timeout=8.0)
            found = closing.endpoints(registry.client)
            if found is not None and found.peer[1] == node.port:
                self._stack.callback(registry.close)
                return registry
            registry.close()
        raise AssertionError(f"never connected to {node.address}")

    def _sample(self) -> None:
        while not self._done.wait(0.001):
            for holder in self.holders.values():
                holder.sample()

    def end(self) -> None:
        """Release all claims that are still held."""
        for holder in self.holders.values():
            if holder.taken is None:
                holder.claim.release()
        for thread in self._threads:
            thread.join(60)
        self._done.set()
        self._sampler.join()


def claimed(me: Instance, at: TopicPartition) -> Claim:
    """Claim a partition, although a busy machine may lose a short session before that."""
    while True:
        with suppress(SessionLostError, NotRegisteredError):
            me.register(["orders"], timeout=60)
            return me.claim(at)


@contextmanager
def scene(ensemble: ZooKeeperEnsemble, node: ZooKeeperServer) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(ensemble, node, stack)


@dataclass(frozen=True)
class Cut:
    """What happened when a server was cut off."""

    overlaps: dict[str, float]
    kept: bool
    """Whether the holder that knows all servers, and has time, went to another one and kept its claim."""


def run(ensemble: ZooKeeperEnsemble, role: str) -> Cut:
    """Cut the server off once."""
    node = victim(ensemble, role)
    with scene(ensemble, node) as found:
        with cut_off(ensemble, node):
            if role == FORGOTTEN:
                restart([each for each in ensemble.nodes if each is not node])
            alone = [found.holders["one", session] for session in (SHORT, LONG)]
            assert eventually(lambda: all(holder.taken for holder in alone))
            overlaps = {holder.name: holder.overlap for holder in found.holders.values()}
            moved = found.holders["all", LONG]
            kept = moved.claim.held and moved.taken is None
        found.end()
    assert max(overlaps.values()) < 0, overlaps
    return Cut(overlaps, kept)


@pytest.mark.parametrize("role", [FOLLOWER, FORGOTTEN])
def test_failure_25_no_claim_is_held_by_two_instances_while_a_server_is_cut_off(
    ensemble: ZooKeeperEnsemble, role: str
) -> None:
    """Whoever knows all servers goes to another one in time, unless the machine stands still for too long."""
    assert any(run(ensemble, role).kept for _ in range(3))


# The end of a session arrives late


def test_failure_25_a_claim_is_not_lost_because_a_cut_off_server_ends_the_session_of_the_last_process_later(
    ensemble: ZooKeeperEnsemble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "CLOSE_TIMEOUT", 0.5)
    file, group, at = tmp_path / "session", uuid4().hex, TopicPartition("orders", 0)
    node = victim(ensemble, FOLLOWER)
    first = Registry.connect(node.address, session_timeout=20.0, session_file=file)
    me = first.group(group).instance("me")
    me.register(["orders"])
    me.claim(at)
    others = ",".join(each.address for each in ensemble.nodes if each is not node)
    with ExitStack() as stack:
        with cut_off(ensemble, node):
            first.close()
            second = stack.enter_context(Registry.connect(others, session_timeout=20.0, session_file=file))
            me = second.group(group).instance("me")
            me.register(["orders"])
            claim = me.claims.get(at) or me.claim(at)
        with Registry.connect(node.address) as registry:
            registry.group("other").create()  # after all requests that the server had held back
        assert claim.verify()


# A new leader knows only the timeout at the creation of a session


def test_failure_25_a_longer_timeout_that_is_granted_at_a_reconnect_does_not_count_for_the_old_session(
    tmp_path: Path,
) -> None:
    """The server's `maxSessionTimeout` is raised, without a session file."""
    with ExitStack() as stack:
        first = stack.enter_context(ZooKeeperServer(data_dir=tmp_path, config={"maxSessionTimeout": "20000"}))
        registry = stack.enter_context(Registry.connect(first.address, session_timeout=40.0))
        session_id = registry.session_id
        first.kill()
        config = {"maxSessionTimeout": "40000"}
        stack.enter_context(ZooKeeperServer(data_dir=tmp_path, port=first.port, config=config))
        assert eventually(lambda: registry._context.session.connected)
        assert (registry.session_id, registry.session_timeout) == (session_id, 20.0)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("role", ROLES)
def test_soak_cuts(ensemble: ZooKeeperEnsemble, role: str) -> None:
    """Repeat the cut many times, and print the remaining time of each holder."""
    cuts = [run(ensemble, role) for _ in range(SOAK)]
    assert all(cut.kept for cut in cuts)
    runs = [cut.overlaps for cut in cuts]
    for name in runs[0]:
        left = sorted(-found[name] for found in runs if found[name] > -1e9)
        kept = sum(found[name] == -1e9 for found in runs)
        between = f"{left[0]:.2f} to {left[-1]:.2f} s between the two" if left else ""
        print(f"{role} cut off, knows {name}: {len(runs)} runs, 0 overlaps, {kept} times kept; {between}")
