"""Offsets without a claim: fetch, set, replace, reset and delete them, and commits for clients of a gateway."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
from kazoo.security import make_acl

from zkgroups import CommittedOffset, Consumergroup, OffsetRange, Offsets, Registry, TopicPartition
from zkgroups.core.times import from_ms, to_ms
from zkgroups.core.znodes.own_nodes import CommitDetails
from zkgroups.core.znodes.values import CurrentOffset
from zkgroups.exceptions import (
    GroupInUseError,
    InvalidOptionError,
    MalformedNodeError,
    NoPermissionError,
    OffsetConflictError,
    OffsetOutOfRangeError,
    OffsetWouldGoBackError,
)
from zkgroups.zookeeper.admin.transaction_guards import NobodyRegistered
from zkgroups.zookeeper.instance import MemberInstance
from zkgroups.zookeeper.offsets import OffsetWriter
from zkgroups.zookeeper.requests import transaction
from zkgroups.zookeeper.requests.transaction import Delete

from .helpers import GROUP, IDS, OFFSET, P0, P1, P2, only_alice
from .tree import dump, offsets

pytestmark = pytest.mark.zookeeper

ORDERS = f"{GROUP}/offsets/orders"
P3 = TopicPartition("orders", 3)
UNREADABLE = [b"", b" 7", b"7 ", b"3\n", b"abc", b"1.0", b"-1", b"9223372036854775808", None]
"""Contents left by old clients that not every client reads as an offset."""


def read(group: Consumergroup, at: TopicPartition = P0) -> CommittedOffset:
    found = group.offsets.fetch(at)
    assert found is not None
    return found


class Interrupted(Offsets):
    """Offsets that another client changes right after the first read. No public call has a pause there."""

    def __init__(self, group: Consumergroup, act: Callable[[], object]) -> None:
        super().__init__(group.paths, group._context)
        self._writer = InterruptedWriter(group.paths, group._context)
        self._writer.acts = [act]


class InterruptedWriter(OffsetWriter):
    """Calls functions right after the first read."""

    acts: list[Callable[[], object]]

    def read(self, partitions: Iterable[TopicPartition]) -> Any:
        found = super().read(partitions)
        while self.acts:
            self.acts.pop()()
        return found


# Fetch


def test_a_missing_offset_is_none_and_not_zero(group: Consumergroup, raw: Any) -> None:
    """The group, the topic or the partition is missing."""
    assert group.offsets.fetch(P0) is None
    assert (list(group.offsets), group.offsets.fetch_many([P0, P1])) == ([], {P0: None, P1: None})
    raw.create(f"{ORDERS}/1", b"0", makepath=True)
    assert (group.offsets.fetch(P0), group.offsets.fetch(TopicPartition("refunds", 0))) == (None, None)
    assert read(group, P1).offset == 0


def test_an_offset_has_its_version_and_the_times_of_its_first_and_last_commit(group: Consumergroup, raw: Any) -> None:
    group.offsets.set(P0, 5)
    first = read(group)
    group.offsets.set(P0, 6)
    second = read(group)
    stat = raw.get(OFFSET)[1]
    assert (first.version, second.version) == (0, 1)
    assert first.created_at == first.committed_at == second.created_at == from_ms(stat.ctime)
    assert (to_ms(second.committed_at), second.zxid) == (stat.mtime, stat.mzxid)
    assert (second.group, second.at, second.offset) == ("billing", P0, 6)


def test_validate_returns_offsets_outside_their_range_and_malformed_ones(group: Consumergroup, raw: Any) -> None:
    at = [TopicPartition("orders", number) for number in range(6)]
    for number, data in enumerate((b"9", b"10", b"20", b"21", b"what")):
        raw.create(f"{ORDERS}/{number}", data, makepath=True)
    problems = group.offsets.validate(dict.fromkeys(at, OffsetRange(10, 20)))
    assert {p: type(problem) for p, problem in problems.items()} == {
        at[0]: OffsetOutOfRangeError,
        at[3]: OffsetOutOfRangeError,
        at[4]: MalformedNodeError,
    }


# Set


@pytest.mark.parametrize("offset", [-1, 2**63, pytest.param(10**5000, id="huge"), "5", 5.0, None, True])
def test_an_invalid_offset_is_refused_before_any_request(group: Consumergroup, raw: Any, offset: Any) -> None:
    for call in (group.offsets.set_many, lambda values: group.offsets.reset(values, force=True)):
        with pytest.raises(InvalidOptionError) as caught:
            call({P0: 5, P1: offset})
        assert caught.value.value is offset
    assert raw.get_children("/") == []


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.set(OFFSET, b"6"),
        lambda raw: raw.set(OFFSET, b"5"),
        lambda raw: raw.delete(OFFSET),
        lambda raw: (raw.delete(OFFSET), raw.create(OFFSET, b"5")),
    ],
    ids=["written", "the same again", "deleted", "recreated"],
)
def test_only_the_expected_offset_is_set(group: Consumergroup, raw: Any, change: Callable[[Any], object]) -> None:
    """A recreated node has the same value and version, a rewritten one the same value."""
    group.offsets.set(P0, 4, expected=None)
    group.offsets.set(P0, 5, expected=read(group))
    raw.delete(OFFSET)
    raw.create(OFFSET, b"5")
    expected = {P0: read(group), P1: None}
    change(raw)
    before = offsets(raw, "billing")
    with pytest.raises(OffsetConflictError) as caught:
        group.offsets.set_many({P0: 7, P1: 7}, expected=expected)
    assert (caught.value.at, caught.value.found) == (P0, group.offsets.fetch(P0))
    assert offsets(raw, "billing") == before


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw.set(f"{ORDERS}/1", b"100"),
        lambda raw: raw.delete(f"{ORDERS}/1"),
        lambda raw: raw.create(f"{ORDERS}/2", b"100"),
    ],
    ids=["set", "deleted", "created"],
)
def test_a_change_between_read_and_write_is_a_conflict_and_nothing_is_written(
    group: Consumergroup, raw: Any, change: Callable[[Any], object]
) -> None:
    group.offsets.set_many({P0: 5, P1: 5})
    with pytest.raises(OffsetConflictError):
        Interrupted(group, lambda: change(raw)).set_many({P0: 6, P1: 6, P2: 6})
    assert raw.get(OFFSET)[0] == b"5"
    assert b"6" not in offsets(raw, "billing").values()


def test_an_offset_goes_back_only_with_backward(group: Consumergroup, raw: Any) -> None:
    group.offsets.set_many({P0: 5, P1: 5})
    seen = read(group)
    for call in (
        lambda: group.offsets.set(P0, 4, expected=seen),
        lambda: group.offsets.set_many({P1: 6, P0: 4}),
    ):
        with pytest.raises(OffsetWouldGoBackError) as caught:
            call()
        assert (caught.value.at, caught.value.committed, caught.value.offset) == (P0, 5, 4)
    assert offsets(raw, "billing") == {"orders/0": b"5", "orders/1": b"5"}
    group.offsets.set(P0, 4, backward=True)
    assert raw.get(OFFSET)[0] == b"4"


def test_all_batches_are_checked_before_the_first_is_written(group: Consumergroup, raw: Any) -> None:
    many = {TopicPartition("orders", number): number for number in range(2101)}
    raw.create(f"{ORDERS}/2100", b"5000", makepath=True)
    with pytest.raises(OffsetWouldGoBackError, match="orders/2100"):
        group.offsets.set_many(many)
    assert offsets(raw, "billing") == {"orders/2100": b"5000"}
    group.offsets.set_many(many, backward=True)
    found = [each for each in group.offsets if isinstance(each, CommittedOffset)]
    assert {each.at: each.offset for each in found} == many
    assert 2 <= len({each.zxid for each in found}) <= 10  # that many transactions


@pytest.mark.parametrize("data", UNREADABLE)
def test_a_malformed_offset_can_be_overwritten(group: Consumergroup, raw: Any, data: bytes) -> None:
    raw.create(OFFSET, data, makepath=True)
    with pytest.raises(MalformedNodeError) as caught:
        group.offsets.fetch(P0)
    assert (caught.value.path, caught.value.data) == (OFFSET, data or b"")
    with pytest.raises(OffsetConflictError):
        group.offsets.set(P0, 1, expected=None)
    with pytest.raises(OffsetConflictError):
        Interrupted(group, lambda: raw.set(OFFSET, b"0")).set(P0, 1)
    raw.set(OFFSET, data)
    group.offsets.set(P0, 1)
    assert raw.get(OFFSET)[0] == b"1"


# Reset and delete


@pytest.mark.parametrize("ids", [None, b"", b"data"], ids=["no ids", "ids", "ids with data"])
def test_reset_and_delete_leave_ids_unchanged(group: Consumergroup, raw: Any, ids: bytes | None) -> None:
    group.offsets.set_many({P0: 5, P2: 6})
    if ids is not None:
        raw.create(IDS, ids)
    group.offsets.reset({P0: 2, P1: 9})
    assert offsets(raw, "billing") == {"orders/0": b"2", "orders/1": b"9", "orders/2": b"6"}
    group.offsets.delete([P0, P1, P3])
    assert offsets(raw, "billing") == {"orders/2": b"6"}
    assert (raw.exists(IDS) and raw.get(IDS)[0]) == ids


def test_reset_and_delete_are_refused_while_an_instance_is_registered_unless_forced(
    group: Consumergroup, raw: Any
) -> None:
    group.offsets.set(P0, 5)
    raw.create(f"{IDS}/scala_host-1", b"{}", ephemeral=True, makepath=True)
    for call in (lambda: group.offsets.reset({P0: 2}), lambda: group.offsets.delete([P0])):
        with pytest.raises(GroupInUseError, match="scala_host-1"):
            call()
    assert offsets(raw, "billing") == {"orders/0": b"5"}
    group.offsets.reset({P0: 2}, force=True)
    assert offsets(raw, "billing") == {"orders/0": b"2"}
    group.offsets.delete([P0], force=True)
    assert group.offsets.fetch(P0) is None


@pytest.mark.parametrize("before", [None, ORDERS, IDS], ids=["no group", "no ids", "ids"])
@pytest.mark.parametrize(
    "act",
    [
        lambda writer, guard: writer.write({P0: 2, P1: 3}, {}, backward=True, guard=guard),
        lambda writer, guard: writer.transact([Delete(OFFSET)], guard),
    ],
    ids=["reset", "delete"],
)
def test_an_instance_that_registers_between_read_and_transaction_prevents_a_reset(
    group: Consumergroup, raw: Any, before: str | None, act: Callable[[OffsetWriter, NobodyRegistered], object]
) -> None:
    if before is not None:
        raw.create(before, makepath=True)
    guard = NobodyRegistered(group.paths, group._context)
    raw.create(f"{IDS}/late", b"{}", ephemeral=True, makepath=True)
    tree = dump(raw)
    with pytest.raises(GroupInUseError, match="late"):
        act(group.offsets._writer, guard)
    assert dump(raw) == tree


@pytest.mark.parametrize(("before", "after"), [(GROUP, IDS), (IDS, GROUP), (None, IDS)])
def test_directories_created_or_deleted_between_read_and_transaction_do_not_stop_a_reset(
    group: Consumergroup, raw: Any, before: str | None, after: str
) -> None:
    if before is not None:
        raw.create(before, makepath=True)
    guard = NobodyRegistered(group.paths, group._context)
    raw.ensure_path(after) if after == IDS else raw.delete(IDS)
    group.offsets._writer.write({P0: 2}, {}, backward=True, guard=guard)
    assert offsets(raw, "billing") == {"orders/0": b"2"}
    assert (raw.exists(IDS) is not None) == (after == IDS)


@pytest.mark.parametrize("act", [lambda found: found.reset({P0: 2}), lambda found: found.delete([P0])])
def test_a_commit_between_read_and_reset_is_a_conflict_and_is_kept(
    group: Consumergroup, raw: Any, act: Callable[[Offsets], object]
) -> None:
    group.offsets.set(P0, 5)
    with pytest.raises(OffsetConflictError, match="is now 100"):
        act(Interrupted(group, lambda: raw.set(OFFSET, b"100")))
    assert raw.get(OFFSET)[0] == b"100"


# Replace


@pytest.fixture
def shown(group: Consumergroup, raw: Any) -> Mapping[TopicPartition, CurrentOffset]:
    """The offsets 5 and 6, a malformed offset, and a missing one."""
    group.offsets.set_many({P0: 5, P1: 6})
    raw.create(f"{ORDERS}/2", b"many")
    return group.offsets.fetch_many([P0, P1, P2, P3])


Shown = Mapping[TopicPartition, CurrentOffset]


def test_offsets_are_moved_created_and_deleted_in_one_call(group: Consumergroup, raw: Any, shown: Shown) -> None:
    with pytest.raises(InvalidOptionError):
        group.offsets.replace({P0: 7, P1: -1}, expected=shown)
    everything = {each.at: each for each in group.offsets if isinstance(each, CommittedOffset)}
    assert group.offsets.replace({P0: 1, P1: None, P2: 7, P3: 0}, expected={**shown, **everything}) == {}
    assert offsets(raw, "billing") == {"orders/0": b"1", "orders/2": b"7", "orders/3": b"0"}


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("new", [9, None])
def test_a_changed_offset_is_left_unchanged_and_returned_and_the_others_are_written(
    group: Consumergroup, raw: Any, shown: Shown, new: int | None, force: bool, is_late: bool
) -> None:
    def meanwhile() -> None:
        raw.set(OFFSET, b"5")
        raw.delete(f"{ORDERS}/2")
        raw.create(f"{ORDERS}/3", b"4")

    if not is_late:
        meanwhile()
    found = Interrupted(group, meanwhile) if is_late else group.offsets
    conflicts = found.replace({P0: new, P1: new, P2: new, P3: 9}, expected=shown, force=force)
    assert sorted(conflicts) == [P0, P2, P3]
    assert "was deleted" in str(conflicts[P2])
    assert offsets(raw, "billing") == {"orders/0": b"5", "orders/3": b"4"} | ({} if new is None else {"orders/1": b"9"})


def test_a_registered_instance_prevents_all_writes_unless_forced(group: Consumergroup, raw: Any, shown: Shown) -> None:
    raw.create(f"{IDS}/late", b"{}", ephemeral=True, makepath=True)
    before = dump(raw)
    for new in (1, None):
        with pytest.raises(GroupInUseError, match="late"):
            group.offsets.replace({P0: new}, expected=shown)
    assert dump(raw) == before
    assert group.offsets.replace({P0: 1, P1: None}, expected=shown, force=True) == {}
    assert raw.exists(f"{ORDERS}/1") is None
    # A forced change makes instances read the offsets again: a recreated node may have the version that they know.
    assert raw.get(f"{IDS}/late")[1].version == 1


def test_an_error_after_the_first_batch_is_returned_for_each_unwritten_partition(
    group: Consumergroup, raw: Any, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error alone would mean that nothing was written, and a retry would move some offsets twice."""
    monkeypatch.setattr(transaction, "MAX_BATCH_OPERATIONS", 1)
    raw.set_acls(f"{ORDERS}/1", [make_acl("world", "anyone", read=True)])
    unchanged = group.offsets.replace({P0: 9, P1: 9, P2: 9}, expected=shown)
    assert list(unchanged) == [P1, P2]
    assert all(isinstance(error, NoPermissionError) for error in unchanged.values())
    assert offsets(raw, "billing") == {"orders/0": b"9", "orders/1": b"6", "orders/2": b"many"}
    with pytest.raises(NoPermissionError):
        group.offsets.replace({P1: 9, P0: 10}, expected=group.offsets.fetch_many([P0, P1]))


# Commits for a client of a gateway

NOTE = CommitDetails("half of the file", 3)


@pytest.fixture
def me(registry: Registry, raw: Any) -> MemberInstance:
    """A member with a claim on P0, whose offset was committed before, and on P1, which has none."""
    raw.create(OFFSET, b"50", makepath=True)
    instance = MemberInstance(registry.group("billing").paths, registry._context, "me")
    instance.register(["orders"])
    instance.claim_many([P0, P1])
    return instance


def test_details_that_may_not_be_read_are_not_overwritten(me: MemberInstance, alice: Any, raw: Any) -> None:
    path = me._ownership.paths.details_of(P0)
    alice.create(path, b"of alice", acl=only_alice(), makepath=True)
    with pytest.raises(NoPermissionError, match=path):
        me.commit_for_client({P0: 70}, {P0: NOTE})
    assert raw.get(OFFSET)[0] == b"50"
    assert alice.get(path)[0] == b"of alice"
