"""Bulk reads through lost connections, expired sessions and restarts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.lasting import lasting_client
from zkgroups import Registry
from zkgroups.exceptions import NotConnectedError
from zkgroups.testing import TcpProxy, ZooKeeperServer

from .bulk_reads import plant_offsets, run_together, shown
from .conftest import GIVES_UP, Connect
from .events import expire
from .waiting import AT_ONCE, in_time

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def many(raw: Any) -> list[str]:
    return plant_offsets(raw, 12, 3, 10)


@pytest.mark.parametrize(
    "arm",
    [
        pytest.param(lambda proxy, n: proxy.cut_before_reply(n), id="answer lost"),
        pytest.param(lambda proxy, n: proxy.cut_before_request(n), id="request lost"),
        pytest.param(lambda proxy, n: proxy.cut_after_reply(n), id="connection lost in between"),
    ],
)
def test_a_connection_lost_at_any_point_does_not_change_the_result(
    arm: Callable[[TcpProxy, int], Any], proxied: Registry, proxy: TcpProxy, many: list[str]
) -> None:
    """After each cut a second connection probes the server, through the proxy, too."""
    assert shown(proxied.offsets()) == many
    before = proxy.requests
    assert shown(proxied.offsets()) == many
    requests = proxy.requests - before
    assert requests > 6
    for n in range(1, requests + 1, 1 + requests // 40):  # an old server answers hundreds of requests
        fault = arm(proxy, n)
        assert shown(proxied.offsets()) == many, f"cut at request {n}"
        assert fault.fired, f"request {n} of {requests} was never made"


def test_a_walk_continues_after_the_session_has_expired(
    proxied: Registry, zookeeper: Any, raw: Any, proxy: TcpProxy
) -> None:
    expected = plant_offsets(raw, 12, 5, 100)
    reading = proxied.offsets()
    found = [next(reading) for _ in range(100)]
    expire(proxied, zookeeper.address)
    assert shown([*found, *reading]) == expected


def test_a_walk_continues_after_a_restart_of_the_server() -> None:
    with ZooKeeperServer() as server, Registry.connect(server.address) as registry:
        with lasting_client(server.address) as client:
            expected = plant_offsets(client, 12, 5, 100)
        reading = registry.offsets()
        found = [next(reading) for _ in range(100)]
        server.kill()
        server.start()
        assert shown([*found, *reading]) == expected


def test_a_lasting_outage_is_reported_in_time(
    zookeeper_hosts: str, proxy: TcpProxy, connect: Connect, raw: Any
) -> None:
    plant_offsets(raw, 100, 2, 30)
    registry = connect(f"{proxy.address}{raw.chroot}", timeout=GIVES_UP)
    reading, describing = registry.offsets(), registry.describe()
    for some in (reading, describing):
        next(some)
    proxy.refuse()
    proxy.cut()
    for some in (reading, describing):
        with in_time(2 * GIVES_UP - 0.1), pytest.raises(NotConnectedError):
            list(some)


def test_no_call_blocks_longer_than_its_timeout_however_many_requests_are_in_flight(
    proxy: TcpProxy, connect: Connect, raw: Any
) -> None:
    """Without corrections, kazoo blocks a caller with many requests until the next connection, even after Ctrl-C."""
    plant_offsets(raw, 12, 5, 200)
    registry = connect(f"{proxy.address}{raw.chroot}", timeout=GIVES_UP)
    reading = registry.offsets()
    for _ in range(3_000):
        next(reading)
    proxy.delay(0.2)  # answers are in flight when the connection is lost
    for _ in range(2_000):
        next(reading)
    proxy.refuse()
    proxy.cut()
    trouble: list[object] = []
    thread = threading.Thread(target=run_together, args=([lambda: list(reading)], trouble), daemon=True)
    thread.start()
    thread.join(3 * GIVES_UP)
    try:
        assert not thread.is_alive()
        assert [type(error) for error in trouble] == [NotConnectedError]
    finally:
        proxy.heal()


def test_closing_the_registry_ends_reads_at_once(connect: Connect, raw: Any) -> None:
    plant_offsets(raw, 12, 5, 100)
    registry = connect()
    reading = registry.offsets()
    next(reading)
    registry.close()
    with in_time(AT_ONCE), pytest.raises(NotConnectedError, match="closed"):
        list(reading)


def test_an_abandoned_walk_leaves_nothing_behind(proxied: Registry, proxy: TcpProxy, raw: Any) -> None:
    expected = plant_offsets(raw, 12, 5, 100)
    for _ in range(3):
        next(proxied.offsets())
    assert shown(proxied.offsets()) == expected
    assert not proxied.client._pending
