"""Groups: create, delete, prune and copy them, also in pieces, and while other clients act."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from kazoo.security import make_acl

from tests.waiting import eventually
from zkgroups import CommittedOffset, Consumergroup, Registry, TopicPartition
from zkgroups.exceptions import (
    ConflictError,
    GroupExistsError,
    GroupInUseError,
    GroupNotFoundError,
    GuardFailedError,
    InterruptedDeleteError,
    InvalidNameError,
    OffsetConflictError,
)
from zkgroups.testing import Op, TcpProxy
from zkgroups.zookeeper.admin import groups
from zkgroups.zookeeper.admin.groups import Deletion, UnchangedDeletion, _Pruning
from zkgroups.zookeeper.admin.transaction_guards import NobodyRegistered
from zkgroups.zookeeper.requests.transaction import Operation

from .helpers import GROUP, IDS, OFFSETS, OWNERS, P0, P1
from .tree import dump, offsets

pytestmark = pytest.mark.zookeeper


def read(group: Consumergroup) -> list[CommittedOffset]:
    return [found for found in group.offsets if isinstance(found, CommittedOffset)]


@pytest.fixture
def idle(group: Consumergroup, raw: Any) -> Consumergroup:
    """Two offsets, and the directory of a topic that had an owner once."""
    group.create()
    group.offsets.set_many({P0: 5, P1: 6})
    raw.create(f"{OWNERS}/orders")
    return group


# Create


def test_create_makes_or_completes_the_directories_and_keeps_offsets(group: Consumergroup, raw: Any) -> None:
    assert not group.exists()
    group.create()
    raw.delete(GROUP, recursive=True)
    raw.create(f"{OFFSETS}/orders/0", b"5", makepath=True)
    group.create()
    before = dump(raw)
    group.create()
    assert dump(raw) == before
    assert sorted(raw.get_children(GROUP)) == ["ids", "offsets", "owners"]
    assert offsets(raw, "billing") == {"orders/0": b"5"}


# Delete


def test_delete_removes_all_nodes_in_one_transaction(proxy: TcpProxy, proxied: Registry, raw: Any) -> None:
    group = proxied.group("billing")
    group.create()
    group.offsets.set_many({P0: 1, P1: 2, TopicPartition("refunds", 0): 3})
    for path in (f"{OWNERS}/orders", f"{OFFSETS}/orders/0/below", f"{GROUP}/stray/a/b", "/consumers/billing-2/offsets"):
        raw.create(path, b"x", makepath=True)
    before = proxy.requests_by_type[Op.MULTI]
    group.delete()
    assert proxy.requests_by_type[Op.MULTI] - before == 1
    assert sorted(dump(raw)) == ["/consumers", "/consumers/billing-2", "/consumers/billing-2/offsets"]
    with pytest.raises(GroupNotFoundError, match="billing") as caught:
        group.delete()
    assert caught.value.group == "billing"


def test_delete_is_refused_while_a_live_session_owns_a_partition_without_a_registration(
    group: Consumergroup, raw: Any
) -> None:
    raw.create(f"{OWNERS}/b'orders'/1001-0", b"pykafka", ephemeral=True, makepath=True)
    before = dump(raw)
    with pytest.raises(GroupInUseError, match="pykafka"):
        group.delete()
    assert dump(raw) == before
    raw.delete(f"{OWNERS}/b'orders'/1001-0")
    raw.create(f"{OWNERS}/orders/0", b"of no session", makepath=True)
    group.delete()
    assert not group.exists()


class Interrupted(Deletion):
    """A deletion during which another client acts, between the read and the first transaction."""

    def __init__(self, group: Consumergroup, act: Callable[[], object]) -> None:
        super().__init__(group.paths, group._context)
        self._acts = [act]

    def _transact(self, operations: Sequence[Operation], guard: NobodyRegistered | None = None) -> bool:
        while self._acts:
            self._acts.pop()()
        return super()._transact(operations, guard)


@pytest.mark.parametrize("ids", [True, False], ids=["ids", "no ids"])
def test_delete_is_refused_when_an_instance_registers_after_the_read(group: Consumergroup, raw: Any, ids: bool) -> None:
    group.offsets.set(P0, 5)
    if ids:
        raw.create(IDS)
    late = Interrupted(group, lambda: raw.create(f"{IDS}/late", b"{}", ephemeral=True, makepath=True))
    assert not late.attempt()
    with pytest.raises(GroupInUseError, match="late"):
        late.attempt()
    assert offsets(raw, "billing") == {"orders/0": b"5"}


def test_nodes_written_or_deleted_after_the_read_do_not_stop_a_delete(group: Consumergroup, raw: Any) -> None:
    for act in (
        lambda: raw.create(f"{OFFSETS}/orders/1", b"6"),
        lambda: raw.delete(f"{OFFSETS}/orders/0"),
        lambda: raw.create(f"{OWNERS}/new", makepath=True),
    ):
        group.offsets.set(P0, 5)
        late = Interrupted(group, act)
        assert not late.attempt()
        assert late.attempt()
        assert not group.exists()


# Delete only what was read

CHANGES: dict[str, Callable[[Any], object]] = {
    "commit": lambda raw: raw.set(f"{OFFSETS}/orders/0", b"9"),
    "the same again": lambda raw: raw.set(f"{OFFSETS}/orders/0", b"5"),
    "first commit": lambda raw: raw.create(f"{OFFSETS}/orders/2", b"1"),
    "of another topic": lambda raw: raw.create(f"{OFFSETS}/refunds/0", b"1", makepath=True),
    "recreated": lambda raw: (raw.delete(f"{OFFSETS}/orders/0"), raw.create(f"{OFFSETS}/orders/0", b"5")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("act", [Consumergroup.delete, Consumergroup.prune])
def test_a_group_is_deleted_only_with_the_offsets_that_were_read(
    idle: Consumergroup, raw: Any, act: Callable[..., object], change: Callable[[Any], object]
) -> None:
    known = read(idle)
    change(raw)
    before = dump(raw)
    with pytest.raises(OffsetConflictError):
        act(idle, known)
    assert dump(raw) == before
    act(idle, read(idle))
    assert not idle.exists()


@pytest.mark.parametrize(("partition", "error"), [(0, OffsetConflictError), (1, GuardFailedError)])
def test_an_offset_that_is_committed_after_the_comparison_is_not_deleted(
    group: Consumergroup, partition: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    group.offsets.set(P0, 5)
    at = TopicPartition("orders", partition)
    deletion = UnchangedDeletion(group.paths, group._context, list(group.offsets))
    compare = deletion._check_unchanged

    def compare_and_commit() -> None:
        compare()
        monkeypatch.undo()
        group.offsets.set(at, 6)

    monkeypatch.setattr(deletion, "_check_unchanged", compare_and_commit)
    with pytest.raises(error):
        deletion.carry_out()
    assert group.offsets.fetch_many([P0, at]).keys() == {P0, at}


@pytest.mark.parametrize("what", ["commit", "first commit", "of another topic", "registration"])
def test_what_happens_just_before_the_transaction_keeps_a_group_from_being_pruned(
    idle: Consumergroup, raw: Any, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pruning, after = _Pruning(idle.paths, idle._context, read(idle)), list[object]()
    transact = pruning._transact
    change = CHANGES.get(what, lambda raw: raw.create(f"{IDS}/late", b"{}", ephemeral=True, makepath=True))

    def change_and_transact(*arguments: Any) -> bool:
        if not after:
            change(raw)
            after.append(offsets(raw, "billing"))
        return transact(*arguments)

    monkeypatch.setattr(pruning, "_transact", change_and_transact)
    with pytest.raises((OffsetConflictError, GroupInUseError)):
        eventually(pruning.attempt)
    assert [offsets(raw, "billing")] == after


def test_a_group_with_an_owner_or_a_registration_is_not_pruned(idle: Consumergroup, raw: Any) -> None:
    for path in (f"{IDS}/anna", f"{OWNERS}/orders/0"):
        raw.create(path, b"anna", ephemeral=True)
        with pytest.raises(GroupInUseError):
            idle.prune(read(idle))
        raw.delete(path)
    assert idle.exists()


@pytest.mark.parametrize("path", ["notes", "offsets/orders/many", "offsets/orders/0/below", "owners/orders/0"])
def test_a_group_with_other_nodes_is_not_pruned_because_they_were_not_exported(
    idle: Consumergroup, raw: Any, path: str
) -> None:
    raw.create(f"{GROUP}/{path}", b"precious", makepath=True)
    before = dump(raw)
    with pytest.raises(GuardFailedError, match=path):
        idle.prune(read(idle))
    assert dump(raw) == before


def test_forbidden_offsets_keep_the_group(idle: Consumergroup, raw: Any) -> None:
    raw.set_acls(f"{OFFSETS}/orders/0", [make_acl("world", "anyone", admin=True)])
    with pytest.raises(GuardFailedError, match="no permission"):
        idle.prune([found for found in read(idle) if found.at == P1])
    assert idle.exists()


# Groups larger than one request

TOPICS, PARTITIONS, NAME = 24, 60, "t" * 900
LARGE = [TopicPartition(f"{NAME}-{t:02}", p) for t in range(TOPICS) for p in range(PARTITIONS)]


@pytest.fixture
def large(group: Consumergroup, raw: Any) -> Consumergroup:
    """A group whose paths alone (1.3 MB) exceed the limit of one request."""
    group.create()
    group.offsets.set_many(dict.fromkeys(LARGE, 7))
    raw.create(f"{OWNERS}/{LARGE[200].topic}")
    return group


def test_a_group_larger_than_one_request_is_deleted_with_one_transaction_per_topic(
    large: Consumergroup, proxy: TcpProxy, proxied: Registry, raw: Any
) -> None:
    before = proxy.requests_by_type[Op.MULTI]
    proxied.group("billing").delete()
    assert proxy.requests_by_type[Op.MULTI] - before == TOPICS + 1
    assert raw.get_children("/consumers") == []
    large.offsets.set_many({TopicPartition("t" * 12_000, number): 1 for number in range(100)})  # one topic is too large
    large.delete()
    assert not large.exists()


@pytest.mark.parametrize("is_pruned", [False, True])
def test_an_instance_that_registers_or_commits_during_the_deletion_of_a_large_group_stops_it_between_topics(
    large: Consumergroup, raw: Any, monkeypatch: pytest.MonkeyPatch, is_pruned: bool
) -> None:
    known, transact = read(large), Deletion._transact

    def transact_and_meddle(*arguments: Any, **options: Any) -> bool:
        done = transact(*arguments, **options)
        if raw.exists(large.paths.offset_topic(LARGE[0].topic)) is None:
            monkeypatch.undo()
            if is_pruned:
                raw.set(large.paths.offset(LARGE[-1]), b"8")
            else:
                raw.create(f"{IDS}/late", b"{}", ephemeral=True)
        return done

    monkeypatch.setattr(Deletion, "_transact", transact_and_meddle)
    raw.set(IDS, b"data of ids")
    with pytest.raises(InterruptedDeleteError, match="is now 8" if is_pruned else "in use by late") as caught:
        large.prune(known) if is_pruned else large.delete()
    left = raw.get_children(OFFSETS)
    assert caught.value.left == tuple(sorted(left))
    assert LARGE[0].topic not in left
    assert LARGE[-1].topic in left
    assert {len(raw.get_children(f"{OFFSETS}/{name}")) for name in left} == {PARTITIONS}
    if not is_pruned:
        assert raw.get(IDS)[0] == b"data of ids"
        raw.delete(f"{IDS}/late")
    large.prune(read(large)) if is_pruned else large.delete()
    assert not raw.exists(GROUP)


# Copy


def test_a_copy_has_the_offsets_without_members_and_returns_the_malformed_nodes(
    group: Consumergroup, registry: Registry, raw: Any
) -> None:
    with pytest.raises(GroupNotFoundError):
        group.copy("copy")
    assert raw.get_children("/") == []
    group.offsets.set_many({P0: 5, TopicPartition("refunds", 3): 0})
    for path, data in (("orders/1", b"what"), ("orders/x", b"6"), ("orders/2", b"+7"), ("orders/3", b"")):
        raw.create(f"{OFFSETS}/{path}", data)
    raw.create(f"{IDS}/me", b"{}", ephemeral=True, makepath=True)
    raw.create(f"{OWNERS}/orders/0", b"me", ephemeral=True, makepath=True)
    before = dump(raw, GROUP)
    copied = group.copy("copy")
    assert copied.offsets == 3
    assert {node.path for node in copied.left_out} == {f"{OFFSETS}/orders/{name}" for name in ("1", "x", "3")}
    assert offsets(raw, "copy") == {"orders/0": b"5", "refunds/3": b"0", "orders/2": b"7"}
    copy = registry.group("copy")
    assert (copy.instances(), list(copy.owners())) == ([], [])
    assert sorted(raw.get_children("/consumers/copy")) == ["ids", "offsets", "owners"]
    assert len({raw.exists(f"/consumers/copy/{path}").czxid for path in ("ids", "offsets/orders/0")}) == 1, "at once"
    assert dump(raw, GROUP) == before


def test_an_instance_that_joins_before_all_offsets_are_copied_is_reported(
    group: Consumergroup, registry: Registry, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_by_one(_session: Any, units: Sequence[Any], transact: Callable[[list[Any]], object]) -> None:
        for unit in units:
            transact([unit])
            if not registry.group("copy").instances():
                raw.create("/consumers/copy/ids/early", b"{}", ephemeral=True, makepath=True)

    monkeypatch.setattr(groups, "in_batches", one_by_one)
    group.offsets.set_many({P0: 5, P1: 6})
    with pytest.raises(ConflictError, match="an instance joined group 'copy' before all offsets were copied"):
        group.copy("copy")


def test_a_copy_to_an_existing_group_is_refused_even_if_it_is_empty(group: Consumergroup, raw: Any) -> None:
    group.offsets.set(P0, 5)
    raw.create("/consumers/stray")
    before = dump(raw)
    for name in ("stray", "billing"):
        with pytest.raises(GroupExistsError) as caught:
            group.copy(name)
        assert caught.value.group == name
    with pytest.raises(InvalidNameError):
        group.copy("a/b")
    assert dump(raw) == before


def test_an_empty_group_and_a_group_larger_than_one_batch_are_copied(group: Consumergroup, registry: Registry) -> None:
    group.create()
    assert group.copy("empty").offsets == 0
    assert registry.group("empty").exists()
    group.offsets.set_many({TopicPartition("orders", number): number for number in range(2_050)})
    assert group.copy("full").offsets == 2_050
    assert sum(1 for _ in registry.group("full").offsets) == 2_050
