"""A server that lags behind its leader. What must not be missed is read after a `sync`.

The server is cut off for a shorter time than it takes to notice that, so that it answers reads from its old state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import pytest

from tests.cutting import FOLLOWER, cut_off, victim
from tests.testing.waiting import eventually
from zkgroups import Registry
from zkgroups.migration.current_state import read_sources
from zkgroups.testing import TcpProxy, ZooKeeperEnsemble, ZooKeeperServer
from zkgroups.testing.proxy.frames import Op
from zkgroups.zookeeper.admin.migration_target_locks import MigrationTargetLocks
from zkgroups.zookeeper.session.registry_context import context_of

from .rules import member

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
