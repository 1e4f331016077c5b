"""Offsets without a claim: fetch, set, reset and delete them, including malformed offsets of old clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from zkgroups import (
    CommittedOffset,
    Consumergroup,
    MalformedNode,
    OffsetRange,
    Offsets,
    TopicPartition,
)
from zkgroups.core.times import from_ms, to_ms
from zkgroups.exceptions import (
    GroupInUseError,
    InvalidNameError,
    InvalidOptionError,
    MalformedNodeError,
    OffsetConflictError,
    OffsetOutOfRangeError,
    OffsetWouldGoBackError,
)
from zkgroups.zookeeper.admin.transaction_guards import NobodyRegistered
from zkgroups.zookeeper.offset_writer import OffsetWriter
from zkgroups.zookeeper.requests.transaction import Delete

from .tree import dump, offsets

pytestmark = pytest.mark.zookeeper

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
GROUP = "/consumers/billing"
ROOT = f"{GROUP}/offsets/orders"
UNREADABLE = [b"", b" 7", b"7 ", b"3\n", b"abc", b"1.0", b"-1", b"99999999999999999999", b"9223372036854775808", None]
"""Contents left by old clients that not every client reads as an offset."""


def read(group: Consumergroup, at: TopicPartition = P0) -> CommittedOffset:
    found = group.offsets.fetch(at)
    assert found is not None
    return found


# Fetch


def test_a_missing_offset_is_none_and_not_zero(group: Consumergroup, raw: Any) -> None:
    """The group, the topic or the partition is missing, or the partition is an empty directory."""
    assert group.offsets.fetch(P0) is None
    assert (list(group.offsets), group.offsets.fetch_many([P0, P1])) == ([], {P0: None, P1: None})
    raw.create(f"{ROOT}/1", b"5", makepath=True)
    assert group.offsets.fetch(P0) is None
    assert group.offsets.fetch_many([P1, P0])[P0] is None
    assert group.offsets.fetch(TopicPartition("refunds", 0)) is None


def test_zero_is_an_offset(group: Consumergroup, raw: Any) -> None:
    raw.create(f"{ROOT}/0", b"0", makepath=True)
    assert read(group).offset == 0
    group.offsets.set(P1, 0)
    assert raw.get(f"{ROOT}/1")[0] == b"0"
    with pytest.raises(OffsetConflictError):
        group.offsets.set(P0, 5, expected=None)


def test_an_offset_has_its_version_and_the_times_of_its_first_and_last_commit(group: Consumergroup, raw: Any) -> None:
    before = int(time.time() * 1000)
    group.offsets.set(P0, 5)
    first = read(group)
    group.offsets.set(P0, 6)
    second = read(group)
    stat = raw.get(f"{ROOT}/0")[1]
    assert (first.version, second.version) == (0, 1)
    assert first.created_at == first.committed_at == second.created_at == from_ms(stat.ctime)
    assert (to_ms(second.committed_at), second.zxid) == (stat.mtime, stat.mzxid)
    assert before <= to_ms(second.created_at) <= to_ms(second.committed_at) <= int(time.time() * 1000)
    assert (second.group, second.at, second.offset) == ("billing", P0, 6)


def test_all_offsets_are_sorted_by_topic_and_number_with_malformed_nodes_in_place(
    group: Consumergroup, raw: Any
) -> None:
    for name in ("10", "9", "0", "2147483647"):
        raw.create(f"{ROOT}/{name}", name.encode(), makepath=True)
    raw.create(f"{ROOT}/2", b"what")
    raw.create(f"{ROOT}/01", b"5")
    raw.create(f"{ROOT}/2147483648", b"5")
    raw.create(f"{ROOT}/x", b"5")
    raw.create(f"{GROUP}/offsets/audit/7", b"70", makepath=True)
    raw.create(f"{GROUP}/offsets/empty")
    found = list(group.offsets)
    assert [o.offset for o in found if isinstance(o, CommittedOffset)] == [70, 0, 9, 10, 2147483647]
    assert [o.path for o in found if isinstance(o, MalformedNode)] == [
        f"{ROOT}/{name}" for name in ("01", "2147483648", "x", "2")
    ]
    assert [str(o.at) for o in found if isinstance(o, CommittedOffset)][:3] == ["audit/7", "orders/0", "orders/9"]


def test_fetch_many_returns_each_partition_once_in_the_given_order(group: Consumergroup, raw: Any) -> None:
    raw.create(f"{ROOT}/0", b"5", makepath=True)
    raw.create(f"{ROOT}/1", b"what")
    found = group.offsets.fetch_many([P2, P1, P0, P1])
    assert list(found) == [P2, P1, P0]
    assert [type(value) for value in found.values()] == [type(None), MalformedNode, CommittedOffset]


@pytest.mark.parametrize("partition", [-1, 2**31, "0", 1.0, None, True])
def test_an_invalid_partition_number_is_refused(partition: Any) -> None:
    with pytest.raises(InvalidNameError, match="partition") as caught:
        TopicPartition("orders", partition)
    assert caught.value.name is partition


# Set


def test_set_creates_missing_parents_and_writes_decimal_text(group: Consumergroup, raw: Any) -> None:
    group.offsets.set_many({P0: 5, TopicPartition("refunds", 3): 2**63 - 1})
    assert offsets(raw, "billing") == {"orders/0": b"5", "refunds/3": b"9223372036854775807"}
    assert raw.get_children(GROUP) == ["offsets"]


@pytest.mark.parametrize("offset", [-1, 2**63, pytest.param(10**5000, id="huge"), "5", 5.0, None, True])
def test_an_invalid_offset_is_refused_before_any_request(group: Consumergroup, raw: Any, offset: Any) -> None:
    for call in (group.offsets.set_many, lambda values: group.offsets.reset(values, force=True)):
        with pytest.raises(InvalidOptionError) as caught:
            call({P0: 5, P1: offset})
        assert caught.value.value is offset
    assert raw.get_children("/") == []


def test_setting_no_offsets_does_nothing(group: Consumergroup, raw: Any) -> None:
    group.offsets.set_many({})
    group.offsets.reset({})
    group.offsets.delete([])
    assert raw.get_children("/") == []


def test_set_replaces_only_the_expected_offset(group: Consumergroup, raw: Any) -> None:
    group.offsets.set(P0, 5, expected=None)
    seen = read(group)
    group.offsets.set(P0, 6, expected=seen)
    with pytest.raises(OffsetConflictError, match="is now 6") as caught:
        group.offsets.set(P0, 7, expected=seen)
    assert caught.value.found == read(group)
    with pytest.raises(OffsetConflictError):
        group.offsets.set(P0, 7, expected=None)
    assert raw.get(f"{ROOT}/0")[0] == b"6"


def test_an_offset_rewritten_or_recreated_with_the_same_number_is_a_conflict(group: Consumergroup, raw: Any) -> None:
    """A recreated node has the same value and version, a rewritten one the same value."""
    group.offsets.set(P0, 5)
    seen = read(group)
    raw.delete(f"{ROOT}/0")
    with pytest.raises(OffsetConflictError, match="was deleted") as caught:
        group.offsets.set(P0, 7, expected=seen)
    assert caught.value.found is None
    raw.create(f"{ROOT}/0", b"5")
    assert (read(group).offset, read(group).version) == (seen.offset, seen.version)
    with pytest.raises(OffsetConflictError):
        group.offsets.set(P0, 7, expected=seen)
    seen = read(group)
    raw.set(f"{ROOT}/0", b"5")
    with pytest.raises(OffsetConflictError):
        group.offsets.set(P0, 7, expected=seen)
    assert raw.get(f"{ROOT}/0")[0] == b"5"


def test_one_unexpected_offset_prevents_all_writes(group: Consumergroup, raw: Any) -> None:
    group.offsets.set_many({P0: 1, P1: 1})
    expected = {P0: read(group), P1: read(group, P1), P2: None}
    raw.create(f"{ROOT}/2", b"9")
    with pytest.raises(OffsetConflictError) as caught:
        group.offsets.set_many({P0: 2, P1: 2, P2: 2}, expected=expected)
    assert caught.value.at == P2
    assert offsets(raw, "billing") == {"orders/0": b"1", "orders/1": b"1", "orders/2": b"9"}


class Interrupted(Offsets):
    """Offsets that another client changes right after the first read."""

    def __init__(self, group: Consumergroup, act: Callable[[], object]) -> None:
        super().__init__(group.paths, group._context)
        self._writer = InterruptedWriter(group, act)


class InterruptedWriter(OffsetWriter):
    """Calls a function right after the first read."""

    def __init__(self, group: Consumergroup, act: Callable[[], object]) -> None:
        super().__init__(group.paths, group._context)
        self._acts = [act]

    def read(self, partitions: Iterable[TopicPartition]) -> Any:
        found = super().read(partitions)
        while self._acts:
            self._acts.pop()()
        return found


@pytest.mark.parametrize("change", ["set", "delete", "create"])
def test_a_change_between_read_and_write_is_a_conflict_and_nothing_is_written(
    group: Consumergroup, raw: Any, change: str
) -> None:
    group.offsets.set_many({P0: 5, P1: 5} if change != "create" else {P0: 5})
    changes: dict[str, Callable[[], object]] = {
        "set": lambda: raw.set(f"{ROOT}/1", b"100"),
        "delete": lambda: raw.delete(f"{ROOT}/1"),
        "create": lambda: raw.create(f"{ROOT}/1", b"100"),
    }
    with pytest.raises(OffsetConflictError) as caught:
        Interrupted(group, changes[change]).set_many({P0: 6, P1: 6})
    assert caught.value.at == P1
    left = {"orders/0": b"5"} | ({} if change == "delete" else {"orders/1": b"100"})
    assert offsets(raw, "billing") == left


def test_an_offset_goes_back_only_with_backward(group: Consumergroup, raw: Any) -> None:
    group.offsets.set_many({P0: 5, P1: 5})
    seen = read(group)
    for call in (
        lambda: group.offsets.set(P0, 4),
        lambda: group.offsets.set(P0, 4, expected=seen),
        lambda: group.offsets.set_many({P1: 6, P0: 4}),
    ):
        with pytest.raises(OffsetWouldGoBackError) as caught:
            call()
        assert (caught.value.at, caught.value.committed, caught.value.offset) == (P0, 5, 4)
    assert offsets(raw, "billing") == {"orders/0": b"5", "orders/1": b"5"}
    group.offsets.set(P0, 5)
    group.offsets.set(P0, 4, backward=True)
    assert raw.get(f"{ROOT}/0")[0] == b"4"


def test_five_thousand_offsets_are_written_in_batches(group: Consumergroup) -> None:
    group.offsets.set_many({TopicPartition("orders", number): number for number in range(5000)})
    found = [offset for offset in group.offsets if isinstance(offset, CommittedOffset)]
    assert [(offset.at.partition, offset.offset) for offset in found] == [(number, number) for number in range(5000)]
    assert 2 <= len({offset.zxid for offset in found}) <= 10  # that many transactions


def test_all_batches_are_checked_before_the_first_is_written(group: Consumergroup, raw: Any) -> None:
    raw.create(f"{ROOT}/2100", b"1", makepath=True)
    with pytest.raises(OffsetWouldGoBackError, match="orders/2100"):
        group.offsets.set_many({TopicPartition("orders", number): 0 for number in range(2101)})
    assert offsets(raw, "billing") == {"orders/2100": b"1"}


# Malformed offsets of old clients


@pytest.mark.parametrize("data", UNREADABLE)
def test_a_malformed_offset_can_be_overwritten(group: Consumergroup, raw: Any, data: bytes) -> None:
    raw.create(f"{ROOT}/0", data, makepath=True)
    with pytest.raises(MalformedNodeError) as caught:
        group.offsets.fetch(P0)
    assert (caught.value.path, caught.value.data) == (f"{ROOT}/0", data or b"")
    found = group.offsets.fetch_many([P0])[P0]
    assert isinstance(found, MalformedNode)
    with pytest.raises(OffsetConflictError):
        group.offsets.set(P0, 1, expected=None)
    group.offsets.set(P0, 1)
    assert raw.get(f"{ROOT}/0")[0] == b"1"
    with pytest.raises(OffsetWouldGoBackError):
        group.offsets.set(P0, 0)


@pytest.mark.parametrize(
    ("data", "offset"),
    [(b"+4", 4), (b"007", 7), (b"9223372036854775807", 2**63 - 1), pytest.param(b"0" * 5000 + b"8", 8, id="zeros")],
)
def test_an_offset_that_scala_accepts_does_not_go_back_without_backward(
    group: Consumergroup, raw: Any, data: bytes, offset: int
) -> None:
    raw.create(f"{ROOT}/0", data, makepath=True)
    assert read(group).offset == offset
    with pytest.raises(OffsetWouldGoBackError):
        group.offsets.set(P0, offset - 1)
    assert raw.get(f"{ROOT}/0")[0] == data
    group.offsets.set(P0, offset)
    assert raw.get(f"{ROOT}/0")[0] == b"%d" % offset


def test_a_malformed_offset_that_became_valid_after_the_read_is_not_overwritten(group: Consumergroup, raw: Any) -> None:
    raw.create(f"{ROOT}/0", b"", makepath=True)
    with pytest.raises(OffsetConflictError, match="is now 100"):
        Interrupted(group, lambda: raw.set(f"{ROOT}/0", b"100")).set(P0, 1)
    assert raw.get(f"{ROOT}/0")[0] == b"100"


# Validate


def test_validate_returns_offsets_outside_their_range_and_malformed_ones(group: Consumergroup, raw: Any) -> None:
    at = [TopicPartition("orders", number) for number in range(6)]
    for number, data in enumerate((b"9", b"10", b"20", b"21", b"what")):
        raw.create(f"{ROOT}/{number}", data, makepath=True)
    problems = group.offsets.validate(dict.fromkeys(at, OffsetRange(10, 20)))
    assert {p: type(problem) for p, problem in problems.items()} == {
        at[0]: OffsetOutOfRangeError,
        at[3]: OffsetOutOfRangeError,
        at[4]: MalformedNodeError,
    }
    assert "offset 21 of orders/3 is outside 10 to 20: choose" in str(problems[at[3]])
    assert group.offsets.validate({}) == {}


# Reset and delete


def test_reset_moves_offsets_forward_and_back_without_registered_instances(group: Consumergroup, raw: Any) -> None:
    group.create()
    group.offsets.set(P0, 5)
    group.offsets.reset({P0: 2, P1: 9})
    assert offsets(raw, "billing") == {"orders/0": b"2", "orders/1": b"9"}
    assert raw.get_children(f"{GROUP}/ids") == []


@pytest.mark.parametrize("ids", [None, b"", b"data"], ids=["no ids", "ids", "ids with data"])
def test_reset_and_delete_leave_ids_unchanged(group: Consumergroup, raw: Any, ids: bytes | None) -> None:
    raw.create(f"{ROOT}/0", b"5", makepath=True)
    if ids is not None:
        raw.create(f"{GROUP}/ids", ids)
    group.offsets.reset({P0: 2})
    assert raw.get(f"{ROOT}/0")[0] == b"2"
    group.offsets.delete([P0, P1])
    assert raw.get_children(ROOT) == []
    assert (raw.exists(f"{GROUP}/ids") and raw.get(f"{GROUP}/ids")[0]) == ids


def test_reset_and_delete_are_refused_while_an_instance_is_registered_unless_forced(
    group: Consumergroup, raw: Any
) -> None:
    group.offsets.set(P0, 5)
    raw.create(f"{GROUP}/ids/scala_host-1", b"{}", ephemeral=True, makepath=True)
    for call in (lambda: group.offsets.reset({P0: 2}), lambda: group.offsets.delete([P0])):
        with pytest.raises(GroupInUseError, match="scala_host-1") as caught:
            call()
        assert caught.value.instances == ("scala_host-1",)
    assert offsets(raw, "billing") == {"orders/0": b"5"}
    group.offsets.reset({P0: 2}, force=True)
    assert offsets(raw, "billing") == {"orders/0": b"2"}
    group.offsets.delete([P0], force=True)
    assert group.offsets.fetch(P0) is None


@pytest.mark.parametrize("ids", [False, True], ids=["no ids", "ids"])
@pytest.mark.parametrize("act", ["reset", "delete"])
def test_an_instance_that_registers_between_read_and_transaction_prevents_a_reset(
    group: Consumergroup, raw: Any, ids: bool, act: str
) -> None:
    raw.create(f"{ROOT}/0", b"5", makepath=True)
    if ids:
        raw.create(f"{GROUP}/ids")
    guard = NobodyRegistered(group.paths, group._context)
    raw.create(f"{GROUP}/ids/late", b"{}", ephemeral=True, makepath=True)
    before = dump(raw)
    calls: dict[str, Callable[[], object]] = {
        "reset": lambda: group.offsets._writer.write({P0: 2, P1: 3}, {}, backward=True, guard=guard),
        "delete": lambda: group.offsets._writer.transact([Delete(f"{ROOT}/0")], guard),
    }
    with pytest.raises(GroupInUseError, match="late"):
        calls[act]()
    assert dump(raw) == before


def test_an_instance_that_registers_in_a_missing_group_prevents_a_reset(group: Consumergroup, raw: Any) -> None:
    guard = NobodyRegistered(group.paths, group._context)
    raw.create(f"{GROUP}/ids/late", b"{}", ephemeral=True, makepath=True)
    with pytest.raises(GroupInUseError, match="late"):
        group.offsets._writer.write({P0: 2}, {}, backward=True, guard=guard)
    assert offsets(raw, "billing") == {}


@pytest.mark.parametrize("change", ["ids appear", "ids vanish", "the group appears"])
def test_directories_created_or_deleted_between_read_and_transaction_do_not_stop_a_reset(
    group: Consumergroup, raw: Any, change: str
) -> None:
    if change == "ids appear":
        raw.create(GROUP, makepath=True)
    if change == "ids vanish":
        raw.create(f"{GROUP}/ids", makepath=True)
    guard = NobodyRegistered(group.paths, group._context)
    if change == "ids vanish":
        raw.delete(f"{GROUP}/ids")
    else:
        raw.create(f"{GROUP}/ids", makepath=True)
    group.offsets._writer.write({P0: 2}, {}, backward=True, guard=guard)
    assert offsets(raw, "billing") == {"orders/0": b"2"}
    assert (raw.exists(f"{GROUP}/ids") is None) == (change == "ids vanish")


def test_a_commit_between_read_and_reset_is_a_conflict_and_is_kept(group: Consumergroup, raw: Any) -> None:
    group.offsets.set(P0, 5)
    for act in ("reset", "delete"):
        interrupted = Interrupted(group, lambda: raw.set(f"{ROOT}/0", b"100"))
        calls: dict[str, Callable[[], object]] = {
            "reset": lambda offsets=interrupted: offsets.reset({P0: 2}),
            "delete": lambda offsets=interrupted: offsets.delete([P0]),
        }
        with pytest.raises(OffsetConflictError, match="is now 100"):
            calls[act]()
        assert raw.get(f"{ROOT}/0")[0] == b"100"


def test_delete_removes_only_the_named_partitions(group: Consumergroup, raw: Any) -> None:
    group.offsets.set_many({P0: 5, P1: 6})
    raw.create(f"{ROOT}/2", b"what")
    group.offsets.delete([P0, P2, TopicPartition("unknown", 0)])
    assert offsets(raw, "billing") == {"orders/1": b"6"}
