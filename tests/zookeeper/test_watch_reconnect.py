"""Watches after lost connections, expired sessions and restarts."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.testing.waiting import eventually
from zkgroups import (
    ChangeKind,
    Consumergroup,
    Registry,
    TopicPartition,
    Watch,
    Watched,
)
from zkgroups.testing import TcpProxy, ZooKeeperServer

from .events import expire
from .waiting import in_time
from .watching import seen, told, told_many

pytestmark = pytest.mark.zookeeper


P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
ROOT = "/consumers/billing"
IDS, OWNERS, OFFSETS = f"{ROOT}/ids", f"{ROOT}/owners", f"{ROOT}/offsets"


def test_after_a_lost_connection_everything_is_read_again_after_a_rescan_change(
    far: Watch, proxy: TcpProxy, group: Consumergroup
) -> None:
    proxy.refuse()
    proxy.cut()
    group.offsets.set_many({P0: 2, P1: 3})
    assert far.next(timeout=0.2) is None
    proxy.heal()
    assert [(seen(change), change.reason) for change in told_many(far, 3)] == [
        (("rescanned", OFFSETS), "the connection was lost"),
        (("changed", f"{OFFSETS}/orders/0"), ""),
        (("appeared", f"{OFFSETS}/orders/1"), ""),
    ]
    group.offsets.set_many({P0: 4})
    assert seen(told(far)) == ("changed", f"{OFFSETS}/orders/0")


def test_after_an_expired_session_the_reason_names_the_new_session(
    far: Watch, zookeeper: Any, proxied: Registry, group: Consumergroup
) -> None:
    expire(proxied, zookeeper.address)
    group.offsets.set(P0, 2)
    rescanned, changed = told_many(far, 2)
    assert rescanned.reason == "the session expired"
    assert changed.now == group.offsets.fetch(P0)


def test_a_watch_continues_after_a_server_restart() -> None:
    with ZooKeeperServer() as server, Registry.connect(server.address) as registry:
        group = registry.group("billing")
        group.offsets.set(P0, 1)
        with group.watch(Watched.OFFSETS) as offsets:
            told_many(offsets, 2)
            server.kill()
            assert offsets.next(timeout=0.1) is None
            server.start()
            assert seen(told(offsets)) == ("rescanned", OFFSETS)
            group.offsets.set(P0, 2)
            assert told(offsets).now == group.offsets.fetch(P0)


def test_lost_watch_events_are_recovered_with_the_next_connection(
    far: Watch, proxy: TcpProxy, group: Consumergroup, raw: Any
) -> None:
    proxy.swallow_watch_events()
    group.offsets.set(P0, 2)
    raw.delete(OFFSETS, recursive=True)
    group.offsets.set(P1, 3)
    assert far.next(timeout=0.2) is None
    proxy.heal()
    proxy.cut()
    assert [seen(change) for change in told_many(far, 3)] == [
        ("rescanned", OFFSETS),
        ("vanished", f"{OFFSETS}/orders/0"),
        ("appeared", f"{OFFSETS}/orders/1"),
    ]
    group.offsets.set(P1, 4)
    assert told(far).now == group.offsets.fetch(P1)


def test_a_lost_connection_causes_one_read_of_everything(
    proxied: Registry, proxy: TcpProxy, group: Consumergroup
) -> None:
    """kazoo reports a lost connection once for every watch that is lost with it."""
    nodes = 300
    group.offsets.set_many({TopicPartition("orders", n): 1 for n in range(nodes)})
    with proxied.group("billing").watch(Watched.OFFSETS) as offsets:
        told_many(offsets, 1 + nodes)
        before = proxy.requests
        proxy.cut()
        assert told(offsets).kind is ChangeKind.RESCANNED
        group.offsets.set(P0, 2)
        assert told(offsets).now == group.offsets.fetch(P0)
        assert proxy.requests - before < 2 * nodes


def test_a_reply_from_the_previous_connection_is_ignored(
    proxied: Registry, proxy: TcpProxy, group: Consumergroup
) -> None:
    """The reply arrived in time, but its watch was lost with the connection."""
    group.offsets.set(P0, 1)
    with proxied.group("billing").watch(Watched.OFFSETS) as offsets:
        while (change := offsets.next(timeout=0.0)) is None:
            proxied.groups()  # replies arrive in the order of the requests
        assert change.kind is ChangeKind.RESCANNED
        assert offsets.next(timeout=0.0) is None  # now it has read the directory of the topic,
        proxied.groups()  # and the answer is there
        losses = offsets._dispatcher.losses
        proxy.cut()
        assert eventually(lambda: offsets._dispatcher.losses > losses)
        assert [seen(change) for change in told_many(offsets, 2)] == [
            ("rescanned", OFFSETS),
            ("appeared", f"{OFFSETS}/orders/0"),
        ]
        group.offsets.set(P1, 1)
        assert seen(told(offsets)) == ("appeared", f"{OFFSETS}/orders/1")


def test_a_reply_may_be_lost_before_the_lost_connection_is_reported(
    proxied: Registry, proxy: TcpProxy, group: Consumergroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.offsets.set(P0, 1)
    client = proxied._client
    tell = client._make_state_change

    def tell_late(state: str) -> None:
        if state == "SUSPENDED":
            threading.Event().wait(0.3)
        tell(state)

    monkeypatch.setattr(client, "_make_state_change", tell_late)
    with proxied.group("billing").watch(Watched.OFFSETS) as offsets:
        proxy.drop(direction="requests")
        assert offsets.next(timeout=0.1) is None
        proxy.heal()
        assert [seen(change) for change in told_many(offsets, 2)] == [
            ("rescanned", OFFSETS),
            ("appeared", f"{OFFSETS}/orders/0"),
        ]


def test_topics_are_read_many_at_a_time(proxied: Registry, proxy: TcpProxy, group: Consumergroup) -> None:
    topics = 60
    group.offsets.set_many({TopicPartition(f"t{n}", 0): 1 for n in range(topics)})
    proxy.delay(0.2)
    with proxied.group("billing").watch(Watched.OFFSETS) as offsets:
        with in_time(topics * 0.2):
            told_many(offsets, 1 + topics)
            for n in range(topics):
                group.offsets.set(TopicPartition(f"t{n}", 0), 2)
            told_many(offsets, topics)
        before = proxy.requests
        group.offsets.set(TopicPartition("another", 0), 1)
        assert seen(told(offsets)) == ("appeared", f"{OFFSETS}/another/0")
        assert proxy.requests - before < 10
