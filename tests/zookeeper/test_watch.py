"""Watches: which changes of a group are reported, and how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.security import make_acl

from zkgroups import (
    ChangeKind,
    CommittedOffset,
    Consumergroup,
    ForbiddenNode,
    Owner,
    Pattern,
    RegisteredInstance,
    Registration,
    TopicPartition,
    UnreadableNode,
    Watch,
    Watched,
)
from zkgroups.exceptions import NoPermissionError

from .watching import ENOUGH, seen, told, told_many

pytestmark = pytest.mark.zookeeper


P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
ROOT = "/consumers/billing"
IDS, OWNERS, OFFSETS = f"{ROOT}/ids", f"{ROOT}/owners", f"{ROOT}/offsets"


def test_a_watch_begins_with_rescanned_and_all_current_nodes(group: Consumergroup) -> None:
    me = group.instance("me")
    me.register({"orders": 2})
    me.claim_many([P0, P1])
    group.offsets.set_many({P0: 5, TopicPartition("refunds", 10): 6, TopicPartition("refunds", 9): 7})
    with group.watch(Watched.MEMBERS) as members, group.watch(Watched.OWNERS) as owners:
        assert seen(change := told(members)) == ("rescanned", IDS)
        assert change.reason == "the watch has begun"
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
        assert "the directory was deleted" in {change.reason for change in changes}


def test_a_directory_recreated_between_two_reads_is_read_again_after_a_rescan_change(
    group: Consumergroup, watch: Callable[[Watched], Watch]
) -> None:
    """A reset deletes and recreates `ids`, to check that no instance is registered."""
    group.create()
    group.offsets.set(P0, 5)
    members = watch(Watched.MEMBERS)
    group.offsets.reset({P0: 1})
    again = told(members)
    assert (seen(again), again.reason) == (("rescanned", IDS), "the directory was deleted and recreated")
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
