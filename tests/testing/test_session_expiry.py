"""A session that was expired has ended at the server, and its client learns of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from kazoo.protocol.states import KazooState

from tests.waiting import eventually
from zkgroups.testing import Sasl, TcpProxy, ZooKeeperServer, expire_session

from ..releases import needs_required_logins
from .conftest import Clients

pytestmark = pytest.mark.zookeeper


def test_ephemeral_nodes_are_deleted_when_expire_session_returns(server: ZooKeeperServer, connect: Clients) -> None:
    victim, other = connect(server.address), connect(server.address)
    for _ in range(20):
        path = victim.retry(victim.create, "/mine-", ephemeral=True, sequence=True)

        expire_session(victim)

        assert other.exists(path) is None
        assert eventually(lambda: victim.connected)


def test_the_client_reports_suspended_then_lost_then_connected(server: ZooKeeperServer, connect: Clients) -> None:
    victim = connect(server.address)
    session = victim.client_id[0]
    heard: list[str] = []
    victim.add_listener(heard.append)

    expire_session(victim)

    # Before that, the client may resume its session once, and lose it again.
    assert eventually(lambda: heard[-2:] == [KazooState.LOST, KazooState.CONNECTED])
    assert heard[0] == KazooState.SUSPENDED
    assert victim.client_id[0] != session


def test_the_last_session_of_a_disconnected_client_can_be_expired(server: ZooKeeperServer, connect: Clients) -> None:
    other = connect(server.address)
    with TcpProxy(server.address) as proxy:
        victim = connect(proxy.address)
        path = victim.create("/mine-", ephemeral=True, sequence=True)
        session = victim.client_id
        proxy.refuse()
        proxy.cut()
        assert eventually(lambda: not victim.connected)

        with pytest.raises(ValueError, match="no session"):
            expire_session(victim)
        expire_session(victim, client_id=session, address=server.address)

        assert other.exists(path) is None
        proxy.heal()


@needs_required_logins
def test_a_client_with_a_login_is_expired_with_it(connect: Clients) -> None:
    login = {"mechanism": "DIGEST-MD5", "username": "alice", "password": 'se"cret'}
    with ZooKeeperServer(sasl=Sasl({"alice": 'se"cret'}, enforce=True)) as server:
        assert Path(server.data_dir, "jaas.conf").stat().st_mode & 0o777 == 0o600
        victim, other = (connect(server.address, sasl_options=dict(login)) for _ in range(2))
        path = victim.create("/mine", ephemeral=True)

        expire_session(victim)

        assert other.exists(path) is None
        for client in (victim, other):
            client.stop()


def test_without_a_server_expire_session_fails_in_time(server: ZooKeeperServer, connect: Clients) -> None:
    victim = connect(server.address)

    with pytest.raises(TimeoutError, match=r"was not ended within 0\.2 s"):
        expire_session(victim, address="127.0.0.1:1", timeout=0.2)
