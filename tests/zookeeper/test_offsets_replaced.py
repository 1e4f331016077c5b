"""`Offsets.replace`: replaces the offsets that were shown before, if they are unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from kazoo.security import make_acl, make_digest_acl

from zkgroups import CommittedOffset, Consumergroup, ForbiddenNode, MalformedNode, Registry, TopicPartition
from zkgroups.core.znodes.values import CurrentOffset
from zkgroups.exceptions import GroupInUseError, InvalidOptionError, NoPermissionError
from zkgroups.zookeeper.requests import request_size

from .test_offsets import Interrupted
from .tree import dump, offsets

pytestmark = pytest.mark.zookeeper

P0, P1, P2, P3 = (TopicPartition("orders", number) for number in range(4))
ROOT = "/consumers/billing/offsets/orders"


@pytest.fixture
def shown(group: Consumergroup, raw: Any) -> Mapping[TopicPartition, CurrentOffset]:
    """The offsets 5 and 6, a malformed offset, and a missing one."""
    group.offsets.set_many({P0: 5, P1: 6})
    raw.create(f"{ROOT}/2", b"many")
    return group.offsets.fetch_many([P0, P1, P2, P3])


def test_offsets_are_moved_created_and_deleted_in_one_call(
    group: Consumergroup, raw: Any, shown: Mapping[TopicPartition, CurrentOffset]
) -> None:
    assert group.offsets.replace({P0: 1, P1: None, P2: 7, P3: 0}, expected=shown) == {}
    assert offsets(raw, "billing") == {"orders/0": b"1", "orders/2": b"7", "orders/3": b"0"}


def test_offsets_read_with_fetch_all_can_be_expected_too(
    group: Consumergroup, raw: Any, shown: Mapping[TopicPartition, CurrentOffset]
) -> None:
    everything = list(group.offsets)
    found = {each.at: each for each in everything if isinstance(each, CommittedOffset)}
    [malformed] = [each for each in everything if isinstance(each, MalformedNode)]
    assert group.offsets.replace({P0: 1, P1: 1, P2: 1}, expected={**found, P2: malformed}) == {}
    assert set(offsets(raw, "billing").values()) == {b"1"}


@pytest.mark.parametrize("new", [9, None])
def test_a_changed_offset_is_left_unchanged_and_returned_and_the_others_are_written(
    group: Consumergroup, raw: Any, shown: Mapping[TopicPartition, CurrentOffset], new: int | None
) -> None:
    raw.set(f"{ROOT}/0", b"100")
    raw.set(f"{ROOT}/2", b"more")
    raw.create(f"{ROOT}/3", b"4")
    conflicts = group.offsets.replace(dict.fromkeys(shown, new), expected=shown)
    assert list(conflicts) == [P0, P2, P3]
    assert str(conflicts[P0]).startswith("offset of orders/0 was changed by another client and is now 100: ")
    left = {"orders/0": b"100", "orders/2": b"more", "orders/3": b"4"}
    assert offsets(raw, "billing") == left | ({} if new is None else {"orders/1": b"9"})


def test_the_same_number_written_again_is_another_offset(
    group: Consumergroup, raw: Any, shown: Mapping[TopicPartition, CurrentOffset]
) -> None:
    raw.set(f"{ROOT}/0", b"5")
    raw.set(f"{ROOT}/2", b"many")
    raw.delete(f"{ROOT}/1")
    raw.create(f"{ROOT}/1", b"6")
    assert list(group.offsets.replace({P0: 1, P1: 1, P2: 1}, expected=shown)) == [P0, P1, P2]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("new", [9, None])
def test_an_offset_changed_between_read_and_write_is_left_unchanged_and_the_others_are_written(
    group: Consumergroup, raw: Any, shown: Mapping[TopicPartition, CurrentOffset], new: int | None, force: bool
) -> None:
    def meanwhile() -> None:
        raw.set(f"{ROOT}/0", b"100")
        raw.delete(f"{ROOT}/2")
        raw.create(f"{ROOT}/3", b"4")

    conflicts = Interrupted(group, meanwhile).replace({P0: new, P1: new, P2: new, P3: 9}, expected=shown, force=force)
    assert sorted(conflicts) == [P0, P2, P3]
    assert "was deleted" in str(conflicts[P2])
    left = {"orders/0": b"100", "orders/3": b"4"}
    assert offsets(raw, "billing") == left | ({} if new is None else {"orders/1": b"9"})


def test_a_registered_instance_prevents_all_writes_unless_forced(
    group: Consumergroup, raw: Any, shown: Mapping[TopicPartition, CurrentOffset]
) -> None:
    raw.create("/consumers/billing/ids/late", b"{}", ephemeral=True, makepath=True)
    before = dump(raw)
    for new in (1, None):
        with pytest.raises(GroupInUseError, match="late"):
            group.offsets.replace({P0: new}, expected=shown)
    assert dump(raw) == before
    assert group.offsets.replace({P0: 1, P1: None}, expected=shown, force=True) == {}
    assert raw.exists(f"{ROOT}/1") is None
    # A forced change makes instances read the offsets again, because a recreated node may have the version that they
    # know.
    assert raw.get("/consumers/billing/ids/late")[1].version == 1


def test_an_invalid_offset_is_refused_before_any_write(
    group: Consumergroup, raw: Any, shown: Mapping[TopicPartition, CurrentOffset]
) -> None:
    before = dump(raw)
    with pytest.raises(InvalidOptionError):
        group.offsets.replace({P0: 7, P1: -1}, expected=shown)
    assert dump(raw) == before


def test_a_forbidden_offset_is_not_overwritten(group: Consumergroup, raw: Any) -> None:
    raw.add_auth("digest", "alice:sesame")
    raw.create(ROOT, makepath=True)
    raw.create(f"{ROOT}/0", b"5", acl=[make_digest_acl("alice", "sesame", all=True)])
    [hidden] = group.offsets
    assert isinstance(hidden, ForbiddenNode)
    with pytest.raises(NoPermissionError):
        group.offsets.replace({P0: 9}, expected={P0: None}, force=True)
    assert raw.get(f"{ROOT}/0")[0] == b"5"


def test_thousands_are_written_in_batches(group: Consumergroup) -> None:
    many = {TopicPartition("orders", number): number for number in range(4500)}
    assert group.offsets.replace(many, expected=dict.fromkeys(many)) == {}
    assert {each.at: each.offset for each in group.offsets if isinstance(each, CommittedOffset)} == many


def test_the_offsets_of_several_groups_are_returned_group_by_group_in_the_given_order(registry: Registry) -> None:
    for name in ("a", "b", "c"):
        registry.group(name).offsets.set_many({P1: 1, P0: 0})
    found = list(registry.offsets(["c", "none", "a"]))
    assert [(each.group, each.at) for each in found if isinstance(each, CommittedOffset)] == [
        ("c", P0),
        ("c", P1),
        ("a", P0),
        ("a", P1),
    ]
    assert list(registry.offsets([])) == []


def test_an_error_after_the_first_batch_is_returned_for_each_unwritten_partition(
    group: Consumergroup, raw: Any, shown: Mapping[TopicPartition, CurrentOffset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error alone would mean that nothing was written, and a retry would move some offsets twice."""
    monkeypatch.setattr(request_size, "MAX_BATCH_OPERATIONS", 1)
    raw.set_acls(f"{ROOT}/1", [make_acl("world", "anyone", read=True)])
    unchanged = group.offsets.replace({P0: 9, P1: 9, P2: 9}, expected=shown)
    assert list(unchanged) == [P1, P2]
    assert all(isinstance(error, NoPermissionError) for error in unchanged.values())
    assert offsets(raw, "billing") == {"orders/0": b"9", "orders/1": b"6", "orders/2": b"many"}
    with pytest.raises(NoPermissionError):
        group.offsets.replace({P1: 9, P0: 10}, expected=group.offsets.fetch_many([P0, P1]))
