"""A group is pruned only if it is unchanged since it was read and exported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from kazoo.security import ACL, Id, Permissions

from tests.testing.waiting import eventually
from zkgroups import CommittedOffset, Consumergroup, Registry, TopicPartition
from zkgroups.core.times import from_ms, to_ms
from zkgroups.exceptions import (
    GroupInUseError,
    GroupNotFoundError,
    GuardFailedError,
    InterruptedDeleteError,
    OffsetConflictError,
)
from zkgroups.zookeeper.admin.prune_group import _Pruning
from zkgroups.zookeeper.admin.server_clock import server_time_ms
from zkgroups.zookeeper.admin.transaction_guards import NobodyRegistered
from zkgroups.zookeeper.requests.transaction import Operation

from .tree import dump, offsets

pytestmark = pytest.mark.zookeeper

P0, P1 = (TopicPartition("orders", number) for number in range(2))
GROUP = "/consumers/billing"
IDS, OWNERS, OFFSETS = f"{GROUP}/ids", f"{GROUP}/owners", f"{GROUP}/offsets"


class Interrupted(_Pruning):
    """A pruning during which another client acts, between the last read and the first transaction."""

    def __init__(self, group: Consumergroup, act: Callable[[], object]) -> None:
        super().__init__(group.paths, group._context, read(group))
        self._acts = [act]

    def _transact(self, operations: Sequence[Operation], guard: NobodyRegistered | None = None) -> bool:
        while self._acts:
            self._acts.pop()()
        return super()._transact(operations, guard)


def to_the_end(pruning: _Pruning) -> None:
    while not pruning.attempt():
        pass


def read(group: Consumergroup) -> list[CommittedOffset]:
    return [found for found in group.offsets if isinstance(found, CommittedOffset)]


def prune(group: Consumergroup, known: Sequence[CommittedOffset]) -> None:
    group.prune(known)


@pytest.fixture
def idle(group: Consumergroup, raw: Any) -> Consumergroup:
    """Two offsets, and the directory of a topic that had an owner once."""
    group.create()
    group.offsets.set_many({P0: 5, P1: 6})
    raw.create(f"{OWNERS}/orders")
    return group


def test_an_unchanged_group_is_deleted(idle: Consumergroup, registry: Registry) -> None:
    registry.group("other").create()
    prune(idle, read(idle))
    assert registry.groups() == ["other"]


def test_a_group_that_was_used_too_recently_by_the_clock_of_the_server_is_kept(
    idle: Consumergroup, registry: Registry, raw: Any
) -> None:
    before = raw.get_children(idle.paths.root)
    registry.group("empty").create()
    for group in (idle, registry.group("empty")):
        with pytest.raises(GuardFailedError, match=r"was used [0-9]+ s ago by the server's clock"):
            group.prune(read(group), unused_for=3600.0)
    assert raw.get_children(idle.paths.root) == before
    last_ms = max(to_ms(found.committed_at) for found in read(idle))
    assert eventually(lambda: server_time_ms(registry._context, idle.paths.root) > last_ms + 1000)
    idle.prune(read(idle), unused_for=1.0)
    assert registry.groups() == ["empty"]


def test_a_group_without_offsets_or_directories_is_deleted(registry: Registry, raw: Any) -> None:
    raw.create(GROUP, makepath=True)
    prune(registry.group("billing"), [])
    assert registry.groups() == []
    for unused_for in (0.0, 60.0):
        with pytest.raises(GroupNotFoundError):
            registry.group("billing").prune([], unused_for=unused_for)


@pytest.mark.parametrize(
    "act",
    [
        lambda raw: raw.set(f"{OFFSETS}/orders/0", b"9"),
        lambda raw: raw.set(f"{OFFSETS}/orders/0", b"5"),
        lambda raw: raw.create(f"{OFFSETS}/orders/2", b"1"),
        lambda raw: raw.create(f"{OFFSETS}/refunds/0", b"1", makepath=True),
        lambda raw: (raw.delete(f"{OFFSETS}/orders/0"), raw.create(f"{OFFSETS}/orders/0", b"5")),
    ],
    ids=["commit", "the same again", "first commit", "of another topic", "made anew"],
)
def test_a_commit_before_or_after_the_last_read_keeps_the_group(
    idle: Consumergroup, raw: Any, act: Callable[[Any], object]
) -> None:
    known = read(idle)
    act(raw)
    before = dump(raw)
    with pytest.raises(OffsetConflictError):
        prune(idle, known)
    assert dump(raw) == before


@pytest.mark.parametrize(
    "act",
    [
        lambda raw: raw.set(f"{OFFSETS}/orders/0", b"9"),
        lambda raw: raw.create(f"{OFFSETS}/orders/2", b"1"),
        lambda raw: raw.create(f"{OFFSETS}/refunds/0", b"1", makepath=True),
    ],
    ids=["commit", "first commit", "of another topic"],
)
def test_a_commit_just_before_the_transaction_keeps_the_group(
    idle: Consumergroup, raw: Any, act: Callable[[Any], object]
) -> None:
    after: list[object] = []
    late = Interrupted(idle, lambda: (act(raw), after.append(dump(raw))))
    with pytest.raises(OffsetConflictError):
        to_the_end(late)
    assert [dump(raw)] == after


def test_an_offset_created_between_the_read_and_the_listing_is_not_deleted(
    idle: Consumergroup, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = _Pruning(idle.paths, idle._context, read(idle))
    monkeypatch.setattr(late, "_check_unchanged", lambda: None)
    raw.create(f"{OFFSETS}/orders/2", b"1")
    with pytest.raises(GuardFailedError, match="orders/2"):
        late.attempt()
    assert offsets(raw, "billing") == {"orders/0": b"5", "orders/1": b"6", "orders/2": b"1"}


@pytest.mark.parametrize("ids", [True, False], ids=["ids", "no ids"])
def test_an_instance_that_registers_just_before_the_transaction_keeps_the_group(
    idle: Consumergroup, raw: Any, ids: bool
) -> None:
    if not ids:
        raw.delete(IDS)
    late = Interrupted(idle, lambda: raw.create(f"{IDS}/late", b"{}", ephemeral=True, makepath=True))
    with pytest.raises(GroupInUseError, match="late"):
        to_the_end(late)
    assert offsets(raw, "billing") == {"orders/0": b"5", "orders/1": b"6"}


def test_a_group_with_an_owner_or_a_registration_is_kept(idle: Consumergroup, raw: Any) -> None:
    for path in (f"{IDS}/anna", f"{OWNERS}/orders/0"):
        raw.create(path, b"anna", ephemeral=True)
        before = dump(raw)
        with pytest.raises(GroupInUseError):
            prune(idle, read(idle))
        assert dump(raw) == before
        raw.delete(path)


@pytest.mark.parametrize(
    "path", [f"{GROUP}/notes", f"{OFFSETS}/orders/many", f"{OFFSETS}/orders/0/below", f"{OWNERS}/orders/0"]
)
def test_a_group_with_other_nodes_is_kept_because_they_were_not_exported(
    idle: Consumergroup, raw: Any, path: str
) -> None:
    raw.create(path, b"precious", makepath=True)
    before = dump(raw)
    with pytest.raises(GuardFailedError, match=path):
        prune(idle, read(idle))
    assert dump(raw) == before


def test_a_large_group_is_deleted_topic_by_topic_and_a_commit_keeps_the_rest(
    group: Consumergroup, registry: Registry, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client commits after the first topic has been deleted."""
    name = "t" * 900
    at = [TopicPartition(f"{name}-{number // 60:02}", number % 60) for number in range(24 * 60)]
    group.offsets.set_many(dict.fromkeys(at, 7))
    known = read(group)
    transact = _Pruning._transact

    def transact_and_commit(*arguments: Any, **options: Any) -> bool:
        done = transact(*arguments, **options)
        if raw.exists(group.paths.offset_topic(at[0].topic)) is None:
            monkeypatch.undo()
            raw.set(group.paths.offset(at[-1]), b"8")
        return done

    monkeypatch.setattr(_Pruning, "_transact", transact_and_commit)
    with pytest.raises(InterruptedDeleteError, match="is now 8") as caught:
        prune(group, known)
    assert {offset.at.topic for offset in read(group)} == set(caught.value.left)
    assert at[-1].topic in caught.value.left
    prune(group, read(group))
    assert registry.groups() == []


def test_forbidden_offsets_keep_the_group(idle: Consumergroup, raw: Any) -> None:
    raw.set_acls(f"{OFFSETS}/orders/0", [ACL(Permissions.ADMIN, Id("world", "anyone"))])
    with pytest.raises(GuardFailedError, match="no permission"):
        prune(idle, [found for found in read(idle) if found.at == P1])
    assert idle.exists()


def test_the_creation_times_of_groups_are_read(registry: Registry, idle: Consumergroup, raw: Any) -> None:
    assert registry.created_at(["billing", "gone"]) == {"billing": from_ms(raw.get(GROUP)[1].ctime)}
