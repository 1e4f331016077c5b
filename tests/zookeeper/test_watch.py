"""Watches: what they report, their callbacks, and how they end; and one recursive watch on all groups.

`tests/simulation` has all changes and faults.
"""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, UnimplementedError
from kazoo.security import make_acl

from tests.waiting import LONGEST, eventually
from zkgroups import (
    Change,
    ChangeKind,
    CommittedOffset,
    Consumergroup,
    ForbiddenNode,
    Registry,
    TopicPartition,
    Watch,
    Watched,
)
from zkgroups.exceptions import ClaimTimeout, NoPermissionError, NotConnectedError
from zkgroups.testing import TcpProxy
from zkgroups.zookeeper import watch as zookeeper_watch
from zkgroups.zookeeper.kazoo_compat.closing import Endpoints
from zkgroups.zookeeper.requests import multiread
from zkgroups.zookeeper.requests.watches import RecursiveWatch, RecursiveWatchRequest, _SentWatch
from zkgroups.zookeeper.watch import ChangedGroups, GroupChanges

from ..releases import needs_recursive_watch
from .conftest import Connect
from .helpers import IDS, OFFSETS, OWNER, P0, P1, in_background, seen, told, told_many

pytestmark = pytest.mark.zookeeper


def test_a_registration_rewritten_with_the_same_bytes_is_not_reported(
    group: Consumergroup, raw: Any, watch: Callable[[Watched], Watch]
) -> None:
    """An administrative release does that, so that the next commit of the owner fails."""
    members = watch(Watched.MEMBERS)
    me = group.instance("me")
    me.register(["orders"])
    me.claim(P0)
    told(members)
    group.release(P0, expected_owner="me")
    assert raw.get(f"{IDS}/me")[1].version == 1
    group.instance("other").register(["orders"])
    assert seen(told(members)) == ("appeared", f"{IDS}/other")
    me.update(["orders", "refunds"])  # missed if the watch was not set again
    assert seen(told(members)) == ("changed", f"{IDS}/me")


# Permissions


def test_forbidden_nodes_are_reported_and_read_again_although_nothing_reports_that_permissions_have_changed(
    group: Consumergroup, raw: Any, watch: Callable[[Watched], Watch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_watch, "READ_FORBIDDEN_EVERY", 0.1)
    raw.ensure_path(f"{OFFSETS}/orders")
    for path in (f"{OFFSETS}/orders/0", f"{OFFSETS}/secret"):
        raw.create(path, b"1", acl=[make_acl("world", "anyone", admin=True, create=True)])
    raw.create(f"{OFFSETS}/secret/0", b"2")
    offsets = watch(Watched.OFFSETS)
    denied = told_many(offsets, 2)
    assert {change.path for change in denied} == {f"{OFFSETS}/orders/0", f"{OFFSETS}/secret"}
    assert all(isinstance(change.now, ForbiddenNode) for change in denied)
    for path in (f"{OFFSETS}/orders/0", f"{OFFSETS}/secret"):
        raw.set_acls(path, [make_acl("world", "anyone", all=True)])
    assert {seen(change) for change in told_many(offsets, 3)} == {
        ("changed", f"{OFFSETS}/orders/0"),
        ("vanished", f"{OFFSETS}/secret"),
        ("appeared", f"{OFFSETS}/secret/0"),
    }


def test_a_forbidden_group_is_an_error_until_permissions_allow_and_its_callback_is_called_then(
    group: Consumergroup, raw: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(zookeeper_watch, "READ_FORBIDDEN_EVERY", 0.1)
    group.offsets.set(P0, 1)
    raw.set_acls(OFFSETS, [make_acl("world", "anyone", admin=True)])
    offsets, begun = group.watch(Watched.OFFSETS), threading.Event()
    for _ in range(2):
        with pytest.raises(NoPermissionError):
            offsets.next(timeout=LONGEST)
    with group.watch(Watched.OFFSETS).follow(lambda _change: begun.set()):
        assert eventually(lambda: "cannot watch offsets of group billing: no permission" in caplog.text)
        raw.set_acls(OFFSETS, [make_acl("world", "anyone", all=True)])
        assert begun.wait(LONGEST)
    assert caplog.text.count("cannot watch") == 1
    assert [seen(change)[0] for change in told_many(offsets, 2)] == ["rescanned", "appeared"]


# Several watches and threads


def test_two_watches_each_report_all_changes_and_an_idle_one_does_not_grow(
    group: Consumergroup, watch: Callable[[Watched], Watch]
) -> None:
    first, second, idle = (watch(Watched.OFFSETS) for _ in range(3))
    for offset in range(50):
        group.offsets.set(P0, offset)
        assert told(first) == told(second)
    assert len(idle._fired) <= 3
    assert told(idle).now == group.offsets.fetch(P0)
    second.close()
    group.offsets.set(P0, 50)
    assert told(first).now == group.offsets.fetch(P0)
    assert not second._fired


def test_each_change_is_reported_once_to_several_threads(
    group: Consumergroup, watch: Callable[[Watched], Watch]
) -> None:
    offsets, found = watch(Watched.OFFSETS), list[str]()
    threads = [threading.Thread(target=lambda: found.extend(change.path for change in offsets)) for _ in range(4)]
    for thread in threads:
        thread.start()
    group.offsets.set_many({TopicPartition("orders", n): 1 for n in range(50)})
    assert eventually(lambda: len(found) >= 50)
    offsets.close()
    for thread in threads:
        thread.join(LONGEST)
    assert Counter(found) == Counter(f"{OFFSETS}/orders/{n}" for n in range(50))


# Callbacks


def test_callbacks_run_on_the_thread_of_the_watch_and_may_call_zookeeper(
    registry: Registry, group: Consumergroup
) -> None:
    kazoos = {thread.ident for thread in threading.enumerate()}
    threads: set[threading.Thread] = set()
    done = threading.Event()

    def copy(change: Change) -> None:
        threads.add(threading.current_thread())
        if isinstance(change.now, CommittedOffset):
            registry.group("copy").offsets.set(change.now.at, change.now.offset)
            done.set()

    with group.watch(Watched.OFFSETS).follow(copy) as offsets:
        with pytest.raises(RuntimeError, match="already has a callback"):
            offsets.follow(copy)
        group.offsets.set(P0, 5)
        assert done.wait(LONGEST)
    assert {thread.name for thread in threads} == {"zkgroups-watch-billing"}
    assert not kazoos & {thread.ident for thread in threads}
    assert not any(thread.is_alive() for thread in threads)
    assert registry.group("copy").offsets.fetch(P0).offset == 5  # type: ignore[union-attr]


def test_a_callback_that_fails_is_logged_and_called_again_and_may_close_its_watch(
    group: Consumergroup, caplog: pytest.LogCaptureFixture
) -> None:
    group.offsets.set_many({P0: 1, P1: 1})
    offsets, ended = group.watch(Watched.OFFSETS), threading.Event()

    def fail(change: Change) -> None:
        if change.kind is ChangeKind.APPEARED:
            offsets.close()
            ended.set()
        raise ZeroDivisionError(change.path)

    with caplog.at_level(logging.ERROR, "zkgroups"), offsets.follow(fail):
        assert ended.wait(LONGEST)
    assert [record.exc_info and record.exc_info[0] for record in caplog.records] == [ZeroDivisionError] * 2
    assert "the callback for offsets of group billing failed" in caplog.text


# The end


@contextmanager
def no_connection(proxy: TcpProxy) -> Iterator[None]:
    proxy.refuse()
    proxy.cut()
    yield
    proxy.heal()


@contextmanager
def no_answer(proxy: TcpProxy) -> Iterator[None]:
    proxy.drop(direction="requests")
    yield
    proxy.heal()


@pytest.mark.parametrize("trouble", [no_connection, no_answer])
def test_close_ends_iterations_and_callbacks_without_a_connection(
    far: Watch, proxied: Registry, proxy: TcpProxy, raw: Any, trouble: Callable[[TcpProxy], Any]
) -> None:
    called = proxied.group("billing").watch(Watched.OFFSETS).follow(lambda _change: None)
    with trouble(proxy):
        raw.set(f"{OFFSETS}/orders/0", b"2")
        assert far.next(timeout=0.1) is None
        with in_background(lambda: list(far)) as iterated:
            far.close()
        called.close()
        assert (iterated, far.next()) == ([[]], None)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("zkgroups-watch")]


def test_watches_of_a_closed_registry_end_with_an_error_or_a_log_line(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    registry, begun = connect(), threading.Event()
    group = registry.group("billing")
    with group.watch(Watched.MEMBERS) as asked, group.watch(Watched.MEMBERS).follow(lambda _: begun.set()) as called:
        told(asked)
        assert begun.wait(LONGEST)
        with in_background(asked.next) as outcome:
            registry.close()
        assert isinstance(outcome[0], NotConnectedError)
        assert called._thread is not None
        called._thread.join(LONGEST)
    assert "stopped watching members of group billing: the connection to ZooKeeper is closed" in caplog.text


# What stays in kazoo


def watchers(registry: Registry) -> int:
    """The number of watchers that kazoo keeps."""
    client = registry.client
    return sum(len(found) for each in (client._data_watchers, client._child_watchers) for found in each.values())


def test_kazoo_keeps_one_watcher_per_node_and_none_of_closed_or_garbage_collected_watches(
    registry: Registry, group: Consumergroup
) -> None:
    group.offsets.set(P0, 0)
    forgotten: list[weakref.ref[Watch]] = []
    for n in range(20):
        offsets = group.watch(Watched.OFFSETS)
        told_many(offsets, 2)
        group.offsets.set(P0, n + 1)
        told(offsets)
        if n % 2:
            offsets.close()
        forgotten.append(weakref.ref(offsets))
    del offsets
    gc.collect()
    assert watchers(registry) <= 3  # offsets, orders, orders/0
    assert not any(ref() for ref in forgotten)
    assert len(registry.client.state_listeners) == 3  # of the session, its log, and all watches


def test_waits_that_time_out_leave_no_watchers_in_kazoo(registry: Registry, group: Consumergroup, raw: Any) -> None:
    raw.create(OWNER, b"other", ephemeral=True, makepath=True)
    me = group.instance("me")
    me.register(["orders"])
    for wait in [lambda: me.claim(P0, timeout=0), lambda: group.wait_free(P0, timeout=0.01)] * 20:
        with pytest.raises(ClaimTimeout):
            wait()
    assert watchers(registry) == 1


GAP = ChangedGroups(everything=True)


def begun(registry: Registry) -> GroupChanges:
    """Changes of the groups in this registry, after the first gap."""
    changes = registry.group_changes()
    assert changes.begin()
    assert changes.wait(LONGEST) == GAP
    return changes


def next_groups(changes: GroupChanges) -> set[str]:
    found = changes.wait(LONGEST)
    assert not found.everything
    return set(found.groups)


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


def test_an_old_server_does_not_get_the_request_and_stays_connected(old_hosts: str, connect: Connect) -> None:
    old = connect(old_hosts)
    session, changes = old.session_id, old.group_changes()
    assert not changes.begin()
    assert not changes.is_live
    assert (old.groups(), old.session_id) == ([], session)


def test_a_refusal_or_two_lost_connections_mark_the_server_as_old(registry: Registry) -> None:
    """Either is enough. As after many reads in one request."""
    watch = RecursiveWatch.of(registry._context.session)

    def fail(error: Exception, port: int) -> bool | None:
        sent = _SentWatch(watch)
        sent._connection = Endpoints(("127.0.0.1", port), ("127.0.0.1", 1), None)
        sent.set_exception(error)
        return multiread._SERVERS.supports(sent._connection)

    assert fail(UnimplementedError(), 1) is False
    multiread._SERVERS.forget()
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
