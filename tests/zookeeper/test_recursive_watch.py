"""One watch on all groups: changes arrive at once, gaps are reported, and old servers never see the request."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, UnimplementedError

from tests.testing.waiting import eventually
from zkgroups import Registry, TopicPartition, Watched
from zkgroups.testing import TcpProxy, ZooKeeperServer
from zkgroups.zookeeper.group_changes import ChangedGroups, GroupChanges
from zkgroups.zookeeper.kazoo_compat.tcp_connection import Endpoints, endpoints
from zkgroups.zookeeper.kazoo_compat.watch_events import report_events
from zkgroups.zookeeper.requests import multiread_support
from zkgroups.zookeeper.requests.recursive_watch import RecursiveWatch, _SentWatch
from zkgroups.zookeeper.requests.recursive_watch_format import RecursiveWatchRequest

from ..releases import needs_recursive_watch
from .conftest import Connect
from .events import expire
from .watching import seen, told, told_many

pytestmark = pytest.mark.zookeeper

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
GAP = ChangedGroups(everything=True)
LONG, SHORT = 40.0, 0.2


def begun(registry: Registry) -> GroupChanges:
    """Changes of the groups in this registry, after the first gap."""
    changes = registry.group_changes()
    assert changes.begin()
    assert changes.wait(LONG) == GAP
    return changes


def next_groups(changes: GroupChanges) -> set[str]:
    found = changes.wait(LONG)
    assert not found.everything
    return set(found.groups)


@needs_recursive_watch
def test_a_new_member_a_claim_and_its_end_are_reported_at_once(registry: Registry, connect: Connect) -> None:
    changes = begun(connect())
    with registry.group("billing").instance("anna") as anna:
        anna.register(["orders"])
        assert next_groups(changes) == {"billing"}
        with anna.claim(P0, timeout=5):
            assert next_groups(changes) == {"billing"}
    assert next_groups(changes) == {"billing"}


@needs_recursive_watch
def test_changes_of_several_groups_arrive_together(registry: Registry, connect: Connect) -> None:
    watching = connect()
    changes = begun(watching)
    for name in ("billing", "audit"):
        registry.group(name).create()
    watching.groups()  # answered after all events
    assert changes.wait(LONG, pause=SHORT).groups == {"billing", "audit"}
    assert changes.wait(SHORT) == ChangedGroups()


@needs_recursive_watch
def test_commits_are_not_reported(registry: Registry, connect: Connect) -> None:
    registry.group("billing").offsets.set(P0, 1)
    changes = begun(connect())
    registry.group("billing").offsets.set(P0, 2)
    registry.group("audit").create()
    assert next_groups(changes) == {"audit"}


@needs_recursive_watch
def test_a_slow_reader_of_a_group_keeps_each_path_once(registry: Registry, connect: Connect) -> None:
    """Every commit is reported, also of a node that was not read since the last report."""
    watching, group = connect(), registry.group("billing")
    group.offsets.set_many({P0: 1, P1: 1})
    _changes = begun(watching)
    with watching.group("billing").watch(Watched.OFFSETS) as offsets:
        told_many(offsets, 3)
        assert offsets._is_covered
        for offset in range(2, 100):
            group.offsets.set(P0, offset)
            group.offsets.set(P1, offset)
            watching.groups()  # answered after the events
            told(offsets)
            assert len(offsets._unread) <= 2


@needs_recursive_watch
def test_after_a_lost_connection_the_gap_is_reported_and_changes_arrive_again(
    registry: Registry, proxied: Registry, proxy: TcpProxy
) -> None:
    changes = begun(proxied)
    proxy.refuse()
    proxy.cut()
    assert eventually(lambda: not changes.is_live)
    registry.group("billing").create()
    assert changes.wait(SHORT) == ChangedGroups()
    proxy.heal()
    assert changes.wait(LONG) == GAP
    assert changes.is_live
    registry.group("audit").create()
    assert next_groups(changes) == {"audit"}


@needs_recursive_watch
def test_after_an_expired_session_the_gap_is_reported_and_changes_arrive_again(
    zookeeper: Any, registry: Registry, connect: Connect
) -> None:
    watching = connect()
    changes = begun(watching)
    expire(watching, zookeeper.address)
    # Before that, the client may have resumed its session once: that is a gap, too.
    assert eventually(lambda: changes.is_live)
    watching.groups()  # answered after the report of the last gap
    assert changes.wait(LONG) == GAP
    registry.group("audit").create()
    assert next_groups(changes) == {"audit"}


@needs_recursive_watch
def test_after_a_server_restart_the_watch_is_set_again() -> None:
    with ZooKeeperServer() as server, Registry.connect(server.address) as registry:
        changes = begun(registry)
        server.kill()
        server.start()
        assert changes.wait(LONG) == GAP
        registry.group("audit").create()
        assert next_groups(changes) == {"audit"}


def test_an_old_server_does_not_get_the_request_and_stays_connected(old_hosts: str, connect: Connect) -> None:
    old = connect(old_hosts)
    session, changes = old.session_id, old.group_changes()
    assert not changes.begin()
    assert not changes.is_live
    assert (old.groups(), old.session_id) == ([], session)


def test_an_old_server_under_the_address_of_a_new_one_costs_some_reconnects_and_no_session(
    old_proxy: TcpProxy, old_hosts: str, connect: Connect
) -> None:
    old = connect(f"{old_proxy.address}/{old_hosts.partition('/')[2]}")
    session, changes = old.session_id, old.group_changes()
    connection = endpoints(old.client)
    assert connection is not None
    multiread_support._SERVERS.set_supports(connection, True)
    while multiread_support._SERVERS.supports(connection):
        assert not changes.begin()
    assert old.groups() == []
    assert old.session_id == session
    assert old_proxy.requests_by_type[106] <= 2


def test_a_refusal_or_two_lost_connections_mark_the_server_as_old(registry: Registry) -> None:
    """Either is enough. As after many reads in one request."""
    watch = RecursiveWatch.of(registry._context.session)

    def fail(error: Exception, port: int) -> bool | None:
        sent = _SentWatch(watch)
        sent._connection = Endpoints(("127.0.0.1", port), ("127.0.0.1", 1), None)
        sent.set_exception(error)
        return multiread_support._SERVERS.supports(sent._connection)

    assert fail(UnimplementedError(), 1) is False
    multiread_support._SERVERS.forget()
    assert [fail(ConnectionLoss(), port) for port in (1, 1, 2)] == [None, None, False]


def test_a_request_is_withheld_if_the_server_does_not_support_it() -> None:
    for zxid in (None, 7):
        withheld = RecursiveWatchRequest("/consumers", lambda: False, seen_zxid=zxid)
        assert (withheld.type, withheld.serialize()[:5]) == (3, b"\0\0\0\x01/")
        sent = RecursiveWatchRequest("/consumers", lambda: True, seen_zxid=zxid)
        assert sent.type == (106 if zxid is None else 105)


@needs_recursive_watch
def test_while_it_is_active_a_watch_sets_no_watches_of_its_own(registry: Registry, connect: Connect) -> None:
    watching = connect()
    group = registry.group("billing")
    group.offsets.set(P0, 1)
    begun(watching)
    with watching.group("billing").watch(Watched.OFFSETS) as offsets:
        assert [seen(change)[0] for change in told_many(offsets, 2)] == ["rescanned", "appeared"]
        group.offsets.set_many({P0: 2, P1: 3})
        assert sorted(seen(change)[0] for change in told_many(offsets, 2)) == ["appeared", "changed"]
        group.offsets.delete([P1])
        assert seen(told(offsets)) == ("vanished", "/consumers/billing/offsets/orders/1")
        group.offsets.set(TopicPartition("refunds", 0), 1)
        assert seen(told(offsets)) == ("appeared", "/consumers/billing/offsets/refunds/0")
        assert not any(watching.client._data_watchers.values())
        assert not any(watching.client._child_watchers.values())
        group.delete()
        found = {seen(change) for change in told_many(offsets, 3)}
        assert ("vanished", "/consumers/billing/offsets/orders/0") in found


@needs_recursive_watch
def test_several_users_of_one_session_share_the_watch(registry: Registry, connect: Connect) -> None:
    watching = connect()
    first, second = begun(watching), watching.group_changes()
    assert second.begin()
    registry.group("audit").create()
    assert next_groups(first) == next_groups(second) == {"audit"}


@needs_recursive_watch
def test_a_closed_object_waits_no_more(registry: Registry) -> None:
    with registry.group_changes() as changes:
        assert changes.begin()
    changes.wait(LONG)
    assert changes.wait(LONG) == ChangedGroups()


def test_events_reach_kazoo_too(registry: Registry) -> None:
    paths: list[str] = []
    events: list[Any] = []
    report_events(registry.client, paths.append)
    assert registry.client.exists("/consumers", watch=events.append) is None
    registry.group("billing").create()
    assert eventually(lambda: bool(events))
    assert paths == ["/consumers"]
