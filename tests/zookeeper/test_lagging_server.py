"""Servers that lag behind their leader, and sessions that have moved to another server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import pytest
from kazoo.client import KazooClient

from tests.cutting import FOLLOWER, cut_off, victim, whole
from tests.waiting import eventually
from zkgroups import Instance, Registry
from zkgroups.deadline import uptime
from zkgroups.migration.current_state import read_sources
from zkgroups.testing import TcpProxy, ZooKeeperEnsemble, ZooKeeperServer
from zkgroups.testing.proxy import Op
from zkgroups.testing.zookeeper_server import RELEASE_OPTIONS, release_jars
from zkgroups.zookeeper.admin.migration_marks import MigrationTargetLocks
from zkgroups.zookeeper.kazoo_compat.closing import disconnect_client
from zkgroups.zookeeper.session.session import context_of

from .helpers import P0, member

pytestmark = pytest.mark.zookeeper


T = TypeVar("T")


SYNC_LIMIT = 20.0


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(tick_time=1.0, sync_limit=SYNC_LIMIT, cuttable=True) as ensemble:
        yield ensemble


@dataclass(frozen=True)
class Lag:
    """Writes through the leader while one server is cut off, and reads through that server."""

    ensemble: ZooKeeperEnsemble
    server: ZooKeeperServer
    proxy: TcpProxy
    ahead: Registry
    behind: Registry

    def read(self, read: Callable[[], T], *, after: Callable[[], object]) -> T:
        """Return what is read after the write. The server catches up when the `sync` has been sent."""
        with ThreadPoolExecutor(1) as pool:
            syncs = self.proxy.requests_by_type[Op.SYNC]
            with cut_off(self.ensemble, self.server):
                after()
                found = pool.submit(read)
                assert eventually(lambda: found.done() or self.proxy.requests_by_type[Op.SYNC] > syncs)
            return found.result(60)


@pytest.fixture
def lag(ensemble: ZooKeeperEnsemble) -> Iterator[Lag]:
    server = victim(ensemble, FOLLOWER)
    with (
        TcpProxy(server.address) as proxy,
        Registry.connect(ensemble.leader().address, timeout=60.0) as ahead,
        Registry.connect(proxy.address, session_timeout=SYNC_LIMIT, timeout=60.0) as behind,
    ):
        yield Lag(ensemble, server, proxy, ahead, behind)


def test_a_registration_is_seen_at_once_by_a_migration(lag: Lag) -> None:
    lag.ahead.group("billing").create()
    found = lag.read(lambda: read_sources(lag.behind, ["billing"]), after=lambda: member(lag.ahead))
    assert found["billing"].instances == ("me",)


def test_a_lost_lock_of_a_target_is_noticed_at_once(lag: Lag) -> None:
    locks = MigrationTargetLocks(context_of(lag.behind), cluster="c", plan="p1")
    assert locks.take(["billing"]) == {"billing": None}
    found = lag.read(
        lambda: locks.lost(["billing"]), after=lambda: lag.ahead.client.delete("/zkgroups/targets/c:billing")
    )
    assert found == ["billing"]


def test_sync_waits_until_the_server_has_all_earlier_changes(lag: Lag) -> None:
    def groups_after_sync() -> list[str]:
        lag.behind.sync()
        return lag.behind.groups()

    found = lag.read(groups_after_sync, after=lag.ahead.group("refunds").create)
    assert "refunds" in found


TIMEOUT = 8.0


@pytest.fixture(scope="module")
def old_ensemble() -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(jars=release_jars("3.4.14"), jvm_options=RELEASE_OPTIONS) as ensemble:
        yield ensemble


@pytest.fixture
def me(old_ensemble: ZooKeeperEnsemble) -> Iterator[Instance]:
    """An instance whose session the leader takes for one of another server than the one that it is connected to."""
    assert eventually(lambda: whole(old_ensemble))
    here, there = old_ensemble.followers()
    with Registry.connect(here.address, session_timeout=TIMEOUT) as registry, member(registry) as me:
        me.claim(P0)
        late = KazooClient(there.address, timeout=TIMEOUT, client_id=registry.client.client_id)
        late.start()
        disconnect_client(late)
        yield me


def test_a_commit_succeeds_although_the_session_has_moved_to_another_server(me: Instance) -> None:
    me.claims[P0].commit(7)
    assert eventually(lambda: me.claims[P0].held)


def test_a_session_is_proved_although_it_has_moved_to_another_server(me: Instance) -> None:
    moved = uptime()
    session = me._ownership.session
    assert eventually(lambda: session.certain_until(me.session_id or 0) > moved + 2 * TIMEOUT)
    assert eventually(lambda: me.claims[P0].held)
