"""Following a group: nothing that stands is missed, whatever happens to the connection, the session or the nodes.

Failure 10, and rule 8 as far as watches go.
"""

from __future__ import annotations

import gc
import logging
import random
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError
from kazoo.security import make_acl

from zkgroups import (
    Change,
    ChangeKind,
    CommittedOffset,
    Consumergroup,
    ForbiddenNode,
    MalformedNode,
    Owner,
    Pattern,
    RegisteredInstance,
    Registration,
    Registry,
    TopicPartition,
    UnreadableNode,
    Watch,
    Watched,
)
from zkgroups.exceptions import ClaimTimeout, InvalidOptionError, NoPermissionError, NotConnectedError
from zkgroups.testing import TcpProxy, ZooKeeperServer, expire_session

from .conftest import Connect
from .events import expire

pytestmark = pytest.mark.zookeeper

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
ROOT = "/consumers/billing"
IDS, OWNERS, OFFSETS = f"{ROOT}/ids", f"{ROOT}/owners", f"{ROOT}/offsets"

ENOUGH = 40.0
"""In seconds. A change that takes longer counts as missed."""


def told(watch: Watch) -> Change:
    change = watch.next(timeout=ENOUGH)
    assert change is not None, "nothing was told"
    return change


def told_many(watch: Watch, count: int) -> list[Change]:
    return [told(watch) for _ in range(count)]


def seen(change: Change) -> tuple[str, str]:
    return str(change.kind), change.path


@pytest.fixture
def watch(group: Consumergroup) -> Iterator[Callable[[Watched], Watch]]:
    """Return the watch after its first `RESCANNED`."""
    watches: list[Watch] = []

    def begin(what: Watched) -> Watch:
        watches.append(group.watch(what))
        assert told(watches[-1]).kind is ChangeKind.RESCANNED
        return watches[-1]

    yield begin
    for each in watches:
        each.close()


# Reported changes


def test_a_watch_begins_with_rescanned_and_all_current_nodes(group: Consumergroup) -> None:
    me = group.instance("me")
    me.register({"orders": 2})
    me.claim_many([P0, P1])
    group.offsets.set_many({P0: 5, TopicPartition("refunds", 10): 6, TopicPartition("refunds", 9): 7})
    with group.watch(Watched.MEMBERS) as members, group.watch(Watched.OWNERS) as owners:
        assert seen(change := told(members)) == ("rescanned", IDS)
        assert change.reason == "the watch begins"
        joined = told(members)
        assert seen(joined) == ("appeared", f"{IDS}/me")
        assert isinstance(joined.now, RegisteredInstance)
        assert joined.now.registration == me.registration()
        assert joined.before is None
        assert [seen(change) for change in told_many(owners, 3)] == [
            ("rescanned", OWNERS),
            ("appeared", f"{OWNERS}/orders/0"),
            ("appeared", f"{OWNERS}/orders/1"),
        ]
    with group.watch(Watched.OFFSETS) as offsets:
        assert seen(told(offsets)) == ("rescanned", OFFSETS)
        found = [change.now for change in told_many(offsets, 3)]
    assert found == list(group.offsets)


def test_members_that_join_and_leave_are_reported(group: Consumergroup, watch: Callable[[Watched], Watch]) -> None:
    members = watch(Watched.MEMBERS)
    with group.instance("me") as me:
        me.register(["orders"])
        joined = told(members)
        assert seen(joined) == ("appeared", f"{IDS}/me")
    left = told(members)
    assert seen(left) == ("vanished", f"{IDS}/me")
    assert (left.now, left.before) == (None, joined.now)


def test_an_updated_registration_is_reported(group: Consumergroup, watch: Callable[[Watched], Watch]) -> None:
    members = watch(Watched.MEMBERS)
    me = group.instance("me")
    me.register(["orders"])
    joined = told(members)
    me.update(["order.*"], pattern=Pattern.WHITE_LIST)
    updated = told(members)
    assert seen(updated) == ("changed", f"{IDS}/me")
    assert updated.before == joined.now
    assert isinstance(updated.now, RegisteredInstance)
    assert isinstance(updated.now.registration, Registration)
    assert updated.now.registration.pattern is Pattern.WHITE_LIST


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


def test_claims_and_releases_are_reported_with_the_owner(
    group: Consumergroup, watch: Callable[[Watched], Watch]
) -> None:
    owners = watch(Watched.OWNERS)
    me = group.instance("me")
    me.register(["orders"])
    claim = me.claim(P0)
    claimed = told(owners)
    assert seen(claimed) == ("appeared", f"{OWNERS}/orders/0")
    assert isinstance(claimed.now, Owner)
    assert (claimed.now.at, claimed.now.id, claimed.now.session) == (P0, "me", claim.session_id)
    me.claim(P1)
    assert seen(told(owners)) == ("appeared", f"{OWNERS}/orders/1")
    claim.release()
    released = told(owners)
    assert seen(released) == ("vanished", f"{OWNERS}/orders/0")
    assert released.before == claimed.now


def test_every_commit_is_reported_with_its_value(group: Consumergroup, watch: Callable[[Watched], Watch]) -> None:
    offsets = watch(Watched.OFFSETS)
    for offset in (5, 6, 6, 7):
        group.offsets.set(P0, offset)
        change = told(offsets)
        assert isinstance(change.now, CommittedOffset)
        assert change.now == group.offsets.fetch(P0)
        assert change.kind is (ChangeKind.CHANGED if change.before else ChangeKind.APPEARED)
    assert isinstance(change.before, CommittedOffset)
    assert (change.before.offset, change.now.offset) == (6, 7)


def test_commits_between_two_reads_are_reported_as_one_with_the_last_value(
    group: Consumergroup, watch: Callable[[Watched], Watch]
) -> None:
    group.offsets.set_many({P0: 0, P1: 0})
    offsets = watch(Watched.OFFSETS)
    told_many(offsets, 2)
    for offset in range(1, 20):
        group.offsets.set(P0, offset)
    group.offsets.set(P1, 1)
    changes = told_many(offsets, 2)
    assert [seen(change) for change in changes] == [
        ("changed", f"{OFFSETS}/orders/0"),
        ("changed", f"{OFFSETS}/orders/1"),
    ]
    assert [(change.before.offset, change.now.offset) for change in changes] == [(0, 19), (0, 1)]  # type: ignore[union-attr]


@pytest.mark.parametrize("what", Watched)
def test_a_group_that_does_not_exist_yet_can_be_watched(
    group: Consumergroup, raw: Any, watch: Callable[[Watched], Watch], what: Watched
) -> None:
    changes = watch(what)
    assert changes.next(timeout=0.1) is None
    path = {
        Watched.MEMBERS: f"{IDS}/me",
        Watched.OWNERS: f"{OWNERS}/orders/0",
        Watched.OFFSETS: f"{OFFSETS}/orders/0",
    }[what]
    raw.create(path, b"1", ephemeral=what is not Watched.OFFSETS, makepath=True)
    assert seen(told(changes)) == ("appeared", path)


def test_topic_directories_that_are_created_and_deleted_are_followed(
    raw: Any, watch: Callable[[Watched], Watch]
) -> None:
    offsets = watch(Watched.OFFSETS)
    for offset in (b"1", b"2"):
        raw.create(f"{OFFSETS}/orders/0", offset, makepath=True)
        raw.create(f"{OFFSETS}/refunds/0", offset, makepath=True)
        assert {seen(change) for change in told_many(offsets, 2)} == {
            ("appeared", f"{OFFSETS}/orders/0"),
            ("appeared", f"{OFFSETS}/refunds/0"),
        }
        raw.delete(f"{OFFSETS}/orders", recursive=True)
        assert seen(told(offsets)) == ("vanished", f"{OFFSETS}/orders/0")
        raw.set(f"{OFFSETS}/refunds/0", b"9")
        assert seen(told(offsets)) == ("changed", f"{OFFSETS}/refunds/0")
        raw.delete(f"{OFFSETS}/refunds", recursive=True)
        assert seen(told(offsets)) == ("vanished", f"{OFFSETS}/refunds/0")


def test_a_node_recreated_with_the_same_bytes_has_vanished_and_appeared(
    raw: Any, watch: Callable[[Watched], Watch]
) -> None:
    members, offsets = watch(Watched.MEMBERS), watch(Watched.OFFSETS)
    for path, changes in ((f"{IDS}/me", members), (f"{OFFSETS}/orders/0", offsets)):
        raw.create(path, b"orders", makepath=True)
        first = told(changes)
        raw.delete(path)
        raw.create(path, b"orders")
        gone, back = told_many(changes, 2)
        assert [gone.kind, back.kind] == [ChangeKind.VANISHED, ChangeKind.APPEARED]
        assert gone.before == first.now
        assert gone.path == back.path == path


def test_a_group_that_is_deleted_and_recreated_is_followed_further(
    group: Consumergroup, watch: Callable[[Watched], Watch]
) -> None:
    group.create()
    offsets = watch(Watched.OFFSETS)
    for offset in (5, 2):
        group.offsets.set_many({P0: offset, P1: offset})
        assert {seen(change) for change in told_many(offsets, 2)} == {
            ("appeared", f"{OFFSETS}/orders/0"),
            ("appeared", f"{OFFSETS}/orders/1"),
        }
        group.delete()
        changes = told_many(offsets, 3)
        assert Counter(map(seen, changes)) == Counter(
            [("rescanned", OFFSETS), ("vanished", f"{OFFSETS}/orders/0"), ("vanished", f"{OFFSETS}/orders/1")]
        )
        assert "it was deleted" in {change.reason for change in changes}


def test_a_directory_recreated_between_two_reads_is_read_again_after_a_rescan_change(
    group: Consumergroup, watch: Callable[[Watched], Watch]
) -> None:
    """A reset deletes and recreates `ids`, to check that no instance is registered."""
    group.create()
    group.offsets.set(P0, 5)
    members = watch(Watched.MEMBERS)
    group.offsets.reset({P0: 1})
    again = told(members)
    assert (seen(again), again.reason) == (("rescanned", IDS), "it was deleted and recreated")
    group.instance("me").register(["orders"])
    assert seen(told(members)) == ("appeared", f"{IDS}/me")


def test_malformed_nodes_are_reported_beside_the_others(raw: Any, watch: Callable[[Watched], Watch]) -> None:
    members, owners, offsets = watch(Watched.MEMBERS), watch(Watched.OWNERS), watch(Watched.OFFSETS)
    raw.create(f"{IDS}/me", b"\xff", makepath=True)
    raw.create(f"{OWNERS}/orders/0", b"me", makepath=True)  # persistent
    raw.create(f"{OFFSETS}/orders/zero", b"1", makepath=True)
    joined = told(members)
    assert isinstance(joined.now, RegisteredInstance)
    assert isinstance(joined.now.registration, UnreadableNode)
    assert isinstance(told(owners).now, UnreadableNode)
    assert isinstance(told(offsets).now, UnreadableNode)
    raw.create(f"{OFFSETS}/orders/0", b"")
    assert isinstance(told(offsets).now, UnreadableNode)
    raw.set(f"{OFFSETS}/orders/0", b"7")
    mended = told(offsets)
    assert isinstance(mended.before, UnreadableNode)
    assert isinstance(mended.now, CommittedOffset)


NOBODY = [make_acl("digest", "nobody:x", all=True)]


def test_forbidden_nodes_are_reported_and_read_once_permissions_allow(
    group: Consumergroup, raw: Any, watch: Callable[[Watched], Watch]
) -> None:
    raw.ensure_path(f"{OFFSETS}/orders")
    raw.create(f"{OFFSETS}/orders/0", b"1", acl=NOBODY)
    raw.create(f"{OFFSETS}/secret", acl=NOBODY)
    offsets = watch(Watched.OFFSETS)
    denied = told_many(offsets, 2)
    assert {change.path for change in denied} == {f"{OFFSETS}/orders/0", f"{OFFSETS}/secret"}
    assert all(isinstance(change.now, ForbiddenNode) for change in denied)
    raw.delete(f"{OFFSETS}/orders/0")
    raw.create(f"{OFFSETS}/orders/0", b"2")
    changes = told_many(offsets, 1)
    if changes[-1].kind is ChangeKind.VANISHED:  # somebody looked in between
        changes.append(told(offsets))
    assert changes[-1].now == group.offsets.fetch(P0)
    raw.delete(f"{OFFSETS}/secret")
    assert seen(told(offsets)) == ("vanished", f"{OFFSETS}/secret")


def test_a_forbidden_group_is_an_error_until_permissions_allow(group: Consumergroup, raw: Any) -> None:
    raw.ensure_path(OFFSETS)
    raw.set_acls(OFFSETS, [make_acl("world", "anyone", admin=True)])
    offsets = group.watch(Watched.OFFSETS)
    for _ in range(2):
        with pytest.raises(NoPermissionError):
            offsets.next(timeout=ENOUGH)
    raw.set_acls(OFFSETS, [make_acl("world", "anyone", all=True)])
    group.offsets.set(P0, 1)
    assert [seen(change) for change in told_many(offsets, 2)] == [
        ("rescanned", OFFSETS),
        ("appeared", f"{OFFSETS}/orders/0"),
    ]


# Lost connections and sessions


@pytest.fixture
def far(proxied: Registry, watch: Callable[[Watched], Watch]) -> Iterator[Watch]:
    """A watch of the offsets through the proxy, after one reported offset."""
    group = proxied.group("billing")
    group.offsets.set(P0, 1)
    with group.watch(Watched.OFFSETS) as offsets:
        told_many(offsets, 2)
        yield offsets


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
    assert rescanned.reason == "the session expired, and a new one has begun"
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
            proxied.groups()  # answers come in the order of the questions
        assert change.kind is ChangeKind.RESCANNED
        assert offsets.next(timeout=0.0) is None  # now it has read the directory of the topic,
        proxied.groups()  # and the answer is there
        proxy.cut()
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
    began = time.monotonic()
    with proxied.group("billing").watch(Watched.OFFSETS) as offsets:
        told_many(offsets, 1 + topics)
        for n in range(topics):
            group.offsets.set(TopicPartition(f"t{n}", 0), 2)
        told_many(offsets, topics)
        assert time.monotonic() - began < topics * 0.2
        before = proxy.requests
        group.offsets.set(TopicPartition("another", 0), 1)
        assert seen(told(offsets)) == ("appeared", f"{OFFSETS}/another/0")
        assert proxy.requests - before < 10


# Ending


class Blocked:
    """A thread that iterates until the watch ends."""

    def __init__(self, watch: Watch) -> None:
        self.changes: list[Change] = []
        self.heard = threading.Semaphore(0)
        self._watch = watch
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for change in self._watch:
            self.changes.append(change)
            self.heard.release()

    def ended(self) -> bool:
        self._thread.join(10)  # less than the 15 s of a call
        return not self._thread.is_alive()


@contextmanager
def nothing(proxy: TcpProxy) -> Iterator[None]:
    yield


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


TROUBLE = pytest.mark.parametrize("trouble", [nothing, no_connection, no_answer])
Trouble = Callable[[TcpProxy], Any]


@TROUBLE
def test_close_ends_an_iteration_in_another_thread(far: Watch, proxy: TcpProxy, raw: Any, trouble: Trouble) -> None:
    with trouble(proxy):
        raw.set(f"{OFFSETS}/orders/0", b"2")
        blocked = Blocked(far)
        assert far.next(timeout=0.1) is None or trouble is nothing
        far.close()
        assert blocked.ended()
        assert far.next() is None
    far.close()


@TROUBLE
def test_close_ends_a_watch_before_its_first_read(proxied: Registry, proxy: TcpProxy, trouble: Trouble) -> None:
    offsets = proxied.group("billing").watch(Watched.OFFSETS)
    with trouble(proxy):
        blocked = Blocked(offsets)
        offsets.close()
        assert blocked.ended()


@TROUBLE
def test_next_returns_in_time(far: Watch, proxy: TcpProxy, raw: Any, trouble: Trouble) -> None:
    with trouble(proxy):
        for timeout in (0.0, 0.3):
            began = time.monotonic()
            assert far.next(timeout=timeout) is None
            assert timeout <= time.monotonic() - began < timeout + 10
            if trouble is not nothing:
                raw.set(f"{OFFSETS}/orders/0", b"2")


def test_next_with_a_tiny_timeout_makes_progress(group: Consumergroup) -> None:
    group.offsets.set_many({P0: 1, P1: 1})
    with group.watch(Watched.OFFSETS) as offsets:
        end = time.monotonic() + ENOUGH
        found: list[Change] = []
        while len(found) < 3 and time.monotonic() < end:
            if (change := offsets.next(timeout=0.0)) is not None:
                found.append(change)
    assert [change.kind for change in found] == [ChangeKind.RESCANNED, ChangeKind.APPEARED, ChangeKind.APPEARED]


def test_an_invalid_timeout_is_refused(group: Consumergroup) -> None:
    with group.watch(Watched.OFFSETS) as offsets, pytest.raises(InvalidOptionError):
        offsets.next(timeout=-1.0)


def test_each_change_is_reported_once_to_several_threads(
    group: Consumergroup, watch: Callable[[Watched], Watch]
) -> None:
    offsets = watch(Watched.OFFSETS)
    threads = [Blocked(offsets) for _ in range(4)]
    group.offsets.set_many({TopicPartition("orders", n): 1 for n in range(50)})
    end = time.monotonic() + ENOUGH
    while sum(len(thread.changes) for thread in threads) < 50 and time.monotonic() < end:
        threads[0].heard.acquire(timeout=0.05)
    offsets.close()
    assert all(thread.ended() for thread in threads)
    found = Counter(change.path for thread in threads for change in thread.changes)
    assert found == Counter(f"{OFFSETS}/orders/{n}" for n in range(50))


def test_a_watch_of_a_closed_registry_raises_an_error(connect: Connect) -> None:
    registry = connect()
    with registry.group("billing").watch(Watched.MEMBERS) as members:
        told(members)
        outcome: list[BaseException] = []

        def iterate() -> None:
            try:
                members.next()
            except NotConnectedError as error:
                outcome.append(error)

        thread = threading.Thread(target=iterate)
        thread.start()
        registry.close()
        thread.join(30)
        assert [str(error) for error in outcome] == ["the connection is closed"]


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

    with group.watch(Watched.OFFSETS).follow(copy):
        group.offsets.set(P0, 5)
        assert done.wait(ENOUGH)
    assert {thread.name for thread in threads} == {"zkgroups-watch-billing"}
    assert not kazoos & {thread.ident for thread in threads}
    assert not any(thread.is_alive() for thread in threads)
    copied = registry.group("copy").offsets.fetch(P0)
    assert copied is not None
    assert copied.offset == 5


def test_a_callback_that_fails_is_logged_and_called_again(
    group: Consumergroup, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()

    def fail(change: Change) -> None:
        if change.kind is ChangeKind.APPEARED:
            done.set()
        raise ZeroDivisionError(change.path)

    with caplog.at_level(logging.ERROR, "zkgroups"), group.watch(Watched.OFFSETS).follow(fail):
        group.offsets.set(P0, 5)
        assert done.wait(ENOUGH)
    assert [record.exc_info and record.exc_info[0] for record in caplog.records] == [ZeroDivisionError] * 2
    assert "the callback for offsets of group billing failed" in caplog.text


def test_a_callback_may_close_its_watch(group: Consumergroup) -> None:
    group.offsets.set_many({P0: 1, P1: 1})
    found: list[Change] = []
    ended = threading.Event()
    offsets = group.watch(Watched.OFFSETS)

    def once(change: Change) -> None:
        found.append(change)
        offsets.close()
        ended.set()

    offsets.follow(once)
    assert ended.wait(ENOUGH)
    offsets.close()
    assert [change.kind for change in found] == [ChangeKind.RESCANNED]


@TROUBLE
def test_close_ends_the_thread_of_a_callback(far: Watch, proxy: TcpProxy, trouble: Trouble) -> None:
    far.follow(lambda _change: None)
    with trouble(proxy):
        began = time.monotonic()
        far.close()
        assert time.monotonic() - began < 5
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("zkgroups-watch")]


def test_a_callback_of_a_closed_registry_ends_with_a_log_line(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    registry = connect()
    begun = threading.Event()
    with registry.group("billing").watch(Watched.MEMBERS).follow(lambda _change: begun.set()) as members:
        assert begun.wait(ENOUGH)
        registry.close()
        assert members._thread is not None
        members._thread.join(30)
        assert not members._thread.is_alive()
    assert "stopped watching members of group billing: the connection is closed" in caplog.text


def test_a_watch_has_one_callback(group: Consumergroup) -> None:
    with (
        group.watch(Watched.MEMBERS).follow(lambda _change: None) as members,
        pytest.raises(RuntimeError, match="callback already"),
    ):
        members.follow(lambda _change: None)


# Watchers in kazoo


def watchers(registry: Registry) -> int:
    """The number of watchers that kazoo keeps."""
    client = registry.client
    return sum(len(found) for each in (client._data_watchers, client._child_watchers) for found in each.values())


def test_kazoo_keeps_one_watcher_per_node_after_many_commits(registry: Registry, group: Consumergroup) -> None:
    with group.watch(Watched.OFFSETS) as offsets:
        for offset in range(1000):
            group.offsets.set(P0, offset)
            if offset % 10 == 0:
                told(offsets)
        while offsets.next(timeout=0.2) is not None:
            pass
        assert watchers(registry) <= 3  # offsets, orders, orders/0


def test_closed_and_garbage_collected_watches_leave_no_watchers_in_kazoo(
    registry: Registry, group: Consumergroup
) -> None:
    group.offsets.set(P0, 5)
    forgotten: list[weakref.ref[Watch]] = []
    for n in range(100):
        offsets = group.watch(Watched.OFFSETS)
        told_many(offsets, 2)
        if n % 2:
            offsets.close()
        forgotten.append(weakref.ref(offsets))
    del offsets
    gc.collect()
    assert watchers(registry) == 3
    assert not any(ref() for ref in forgotten)
    assert len(registry.client.state_listeners) == 3  # of the session, its log, and all watches


def test_waits_that_time_out_leave_no_watchers_in_kazoo(registry: Registry, group: Consumergroup, raw: Any) -> None:
    raw.create(f"{OWNERS}/orders/0", b"other", ephemeral=True, makepath=True)
    me = group.instance("me")
    me.register(["orders"])
    for _ in range(100):
        with pytest.raises(ClaimTimeout):
            me.claim(P0, timeout=0)
        with pytest.raises(ClaimTimeout):
            group.wait_free(P0, timeout=0)
    with pytest.raises(ClaimTimeout):
        group.wait_free(P0, timeout=0.05)
    assert watchers(registry) == 1


def test_two_watches_of_one_group_each_report_all_changes(
    group: Consumergroup, watch: Callable[[Watched], Watch]
) -> None:
    first, second = watch(Watched.OFFSETS), watch(Watched.OFFSETS)
    group.offsets.set(P0, 1)
    assert told(first) == told(second)
    second.close()
    for offset in (2, 3):
        group.offsets.set(P0, offset)
        assert told(first).now == group.offsets.fetch(P0)
    assert not second._fired


def test_an_idle_watch_does_not_grow_with_changes_reported_to_another(
    group: Consumergroup, watch: Callable[[Watched], Watch]
) -> None:
    asked, idle = watch(Watched.OFFSETS), watch(Watched.OFFSETS)
    for offset in range(200):
        group.offsets.set(P0, offset)
        told(asked)
    assert len(idle._fired) <= 3
    assert told(idle).now == group.offsets.fetch(P0)


# Convergence


@dataclass
class Replica:
    """The state of a group according to the changes of a watch."""

    nodes: dict[str, object] = field(default_factory=dict)
    rescans: int = 0

    def apply(self, change: Change) -> None:
        """Apply a change. It must fit the changes before it."""
        if change.kind is ChangeKind.RESCANNED:
            self.rescans += 1
            return
        if change.kind is not ChangeKind.APPEARED:
            assert self.nodes.pop(change.path) == without_version(change.before), change
        assert change.path not in self.nodes, change
        if change.kind is not ChangeKind.VANISHED:
            self.nodes[change.path] = without_version(change.now)


def without_version(value: Any) -> object:
    """Rewriting an owner or a registration with the same bytes is not reported."""
    if isinstance(value, RegisteredInstance):
        registration = value.registration
        if isinstance(registration, MalformedNode):
            registration = replace(registration, version=0)
        return replace(value, version=0, registration=registration)
    return value if isinstance(value, CommittedOffset) else replace(value, version=0)


def tree(group: Consumergroup, what: Watched) -> dict[str, object]:
    """The state that a watch should have reported, read without it."""
    paths = group.paths
    if what is Watched.MEMBERS:
        return {paths.instance(found.id): without_version(found) for found in group.instances()}
    found = group.owners() if what is Watched.OWNERS else group.offsets
    return {path_of(group, each): without_version(each) for each in found}


def path_of(group: Consumergroup, found: Any) -> str:
    return group.paths.offset(found.at) if isinstance(found, CommittedOffset) else str(found.path)


class Chaos:
    """Random changes by a foreign client, and random faults."""

    def __init__(self, seed: int, raw: Any, proxy: TcpProxy, victim: Registry, address: str) -> None:
        self.random = random.Random(seed)
        self.raw = raw
        self.proxy = proxy
        self.victim = victim
        self.address = address
        self.done: Counter[str] = Counter()

    def act(self, *, faults: bool) -> None:
        acts = [self.write] * 30 + [self.remove] * 12 + [self.remove_topic, self.remove_group, self.delay]
        acts += [self.cut, self.expire] if faults else []
        act = self.random.choice(acts)
        self.done[act.__name__] += 1
        with suppress(NoNodeError):
            act()

    def path(self) -> str:
        kind = self.random.choice(["ids", "owners", "offsets"])
        name = self.random.choice(["0", "1", "2", "x"])
        topic = self.random.choice(["a", "b"])
        return f"{ROOT}/ids/{name}" if kind == "ids" else f"{ROOT}/{kind}/{topic}/{name}"

    def write(self) -> None:
        path = self.path()
        data = self.random.choice([b"5", b"6", b"orders", b"\xff", b""])
        try:
            self.raw.set(path, data)
        except NoNodeError:
            self.raw.create(path, data, ephemeral="offsets" not in path, makepath=True)

    def remove(self) -> None:
        self.raw.delete(self.path())

    def remove_topic(self) -> None:
        self.raw.delete(self.random.choice([f"{OWNERS}/a", f"{OFFSETS}/a", f"{OFFSETS}/b", IDS]), recursive=True)

    def remove_group(self) -> None:
        self.raw.delete(ROOT, recursive=True)

    def cut(self) -> None:
        self.proxy.cut()

    def expire(self) -> None:
        client = self.victim.client
        if client._session_id:
            expire_session(client, client_id=(client._session_id, client._session_passwd), address=self.address)

    def delay(self) -> None:
        self.proxy.delay(self.random.choice([0.0, 0.0, 0.001, 0.005]))


@pytest.mark.parametrize("seed", range(8))
def test_failure_10_the_reported_changes_add_up_to_the_current_state(
    seed: int, zookeeper: Any, proxied: Registry, proxy: TcpProxy, raw: Any, group: Consumergroup
) -> None:
    chaos = Chaos(seed, raw, proxy, proxied, zookeeper.address)
    watches = {what: proxied.group("billing").watch(what) for what in Watched}
    replicas = {what: Replica() for what in Watched}
    for n in range(400):
        chaos.act(faults=n < 200)  # after the last of them nothing is looked at from scratch, and hides what was missed
        what = chaos.random.choice(list(Watched))
        # Not asked for some time, asked once, or asked until nothing comes: looks fall between any two changes.
        for _ in range(chaos.random.choice([0, 0, 1, 3])):
            if (change := watches[what].next(timeout=chaos.random.choice([0.0, 0.0, 0.002]))) is not None:
                replicas[what].apply(change)
    print(chaos.done, {what: replica.rescans for what, replica in replicas.items()})
    for what, watch in watches.items():
        expected = tree(group, what)
        end = time.monotonic() + ENOUGH
        while replicas[what].nodes != expected and time.monotonic() < end:
            if (change := watch.next(timeout=0.5)) is not None:
                replicas[what].apply(change)
        assert replicas[what].nodes == expected
        watch.close()
