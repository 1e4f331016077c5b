"""Commits for a client of a gateway: which offsets may go back, and the details of a commit."""

from __future__ import annotations

from typing import Any

import pytest

from zkgroups import Registry
from zkgroups.core.znodes.commit_details import CommitDetails
from zkgroups.exceptions import NoPermissionError, NotClaimedError, OffsetWouldGoBackError
from zkgroups.zookeeper.member_instance import MemberInstance
from zkgroups.zookeeper.reading.commit_details import read_details

from .access import only_alice
from .rules import OFFSET, P0, P1

pytestmark = pytest.mark.zookeeper

NOTE = CommitDetails("half of the file", 3)


@pytest.fixture
def me(registry: Registry, raw: Any) -> MemberInstance:
    """A member with a claim on P0, whose offset was committed before, and on P1, which has none."""
    raw.create(OFFSET, b"50", makepath=True)
    instance = MemberInstance(registry.group("billing").paths, registry._context, "me")
    instance.register(["orders"])
    instance.claim_many([P0, P1])
    return instance


def test_an_offset_may_go_back_from_one_that_was_committed_before_the_claim(me: MemberInstance, raw: Any) -> None:
    me.commit_for_client({P0: 10, P1: 7}, {})
    assert raw.get(OFFSET)[0] == b"10"
    me.commit_for_client({P0: 20, P1: 6}, {})
    me.commit_for_client({P0: 5}, {})
    assert raw.get(OFFSET)[0] == b"5"
    assert raw.get("/consumers/billing/offsets/orders/1")[0] == b"6"


def test_an_offset_never_goes_back_from_one_that_another_client_has_committed_since(
    me: MemberInstance, raw: Any
) -> None:
    raw.set(OFFSET, b"60")
    for _ in range(2):
        with pytest.raises(OffsetWouldGoBackError):
            me.commit_for_client({P0: 10}, {})
    assert raw.get(OFFSET)[0] == b"60"
    me.commit_for_client({P0: 61}, {})
    me.commit_for_client({P0: 11}, {})
    assert raw.get(OFFSET)[0] == b"11"


def test_only_claimed_partitions_are_committed(me: MemberInstance, raw: Any) -> None:
    me.release_all()
    with pytest.raises(NotClaimedError):
        me.commit_for_client({P0: 70}, {})
    assert raw.get(OFFSET)[0] == b"50"


def test_details_are_read_for_the_commit_that_they_belong_to(me: MemberInstance, registry: Registry, raw: Any) -> None:
    group = registry.group("billing")

    def details() -> dict[Any, CommitDetails]:
        offsets = [each for each in group.offsets.fetch_many([P0, P1]).values() if each is not None]
        return read_details(registry._context, group.paths, offsets)

    raw.create("/consumers/billing/offsets/paid/0", b"1", makepath=True)
    assert details() == {}
    me.commit_for_client({P0: 10, P1: 7}, {P0: NOTE})
    assert details() == {P0: NOTE}
    for offset in (11, 3):
        me.commit_for_client({P0: offset}, {P0: CommitDetails(f"at {offset}")})
        assert details()[P0] == CommitDetails(f"at {offset}")
    raw.set(OFFSET, b"12")
    assert details()[P0] == CommitDetails()


def test_details_that_may_not_be_read_are_not_overwritten(me: MemberInstance, alice: Any, raw: Any) -> None:
    path = me._ownership.paths.details_of(P0)
    alice.create(path, b"of alice", acl=only_alice(), makepath=True)
    with pytest.raises(NoPermissionError, match=path):
        me.commit_for_client({P0: 70}, {P0: NOTE})
    assert raw.get(OFFSET)[0] == b"50"
    assert alice.get(path)[0] == b"of alice"
