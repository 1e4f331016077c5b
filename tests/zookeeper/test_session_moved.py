"""ZooKeeper 3.4 goes on refusing the transactions of a connection after its session has moved to another server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from tests.cutting import whole
from tests.testing.waiting import eventually
from zkgroups import Instance, Registry
from zkgroups.deadline import uptime
from zkgroups.testing import ZooKeeperEnsemble
from zkgroups.testing.zookeeper_releases import RELEASE_OPTIONS, release_jars
from zkgroups.zookeeper.kazoo_compat.close_client import disconnect_client

from .rules import P0, member

pytestmark = pytest.mark.zookeeper

TIMEOUT = 8.0


@pytest.fixture(scope="module")
def ensemble() -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(jars=release_jars("3.4.14"), jvm_options=RELEASE_OPTIONS) as ensemble:
        yield ensemble


@pytest.fixture
def me(ensemble: ZooKeeperEnsemble) -> Iterator[Instance]:
    """An instance whose session the leader takes for one of another server than the one that it is connected to."""
    assert eventually(lambda: whole(ensemble), timeout=60)
    here, there = ensemble.followers()
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
    assert eventually(lambda: session.certain_until(me.session_id or 0) > moved + 2 * TIMEOUT, timeout=60)
    assert eventually(lambda: me.claims[P0].held)
