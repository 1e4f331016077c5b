"""Members of zkgroups and real members of kazoo-go in one group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.waiting import eventually
from zkgroups import CommittedOffset, Consumergroup, Owner, Registration, TopicPartition
from zkgroups.consumer.events import EventKind
from zkgroups.core.znodes.values import Dialect
from zkgroups.exceptions import ClaimedByOtherError, GroupInUseError

from ..conftest import Run
from ..kazoo_go_member import KazooGoMember

pytestmark = [pytest.mark.zookeeper, pytest.mark.oldest, pytest.mark.timeout(1000)]

Partitions = frozenset[TopicPartition]


@pytest.fixture
def kazoo_go(zookeeper_hosts: str, group: Consumergroup, orders: Partitions) -> Iterator[Callable[[], KazooGoMember]]:
    """Start members of kazoo-go."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(KazooGoMember(zookeeper_hosts, group.name, "orders"))


def named(partitions: Partitions) -> set[str]:
    return {f"{at.topic}-{at.partition}" for at in partitions}


def committed(group: Consumergroup) -> dict[TopicPartition, int]:
    return {each.at: each.offset for each in group.offsets if isinstance(each, CommittedOffset)}


@pytest.mark.soak  # the program of kazoo-go gives up if its claim races with a release
def test_both_read_each_others_registrations_share_the_partitions_and_continue_at_each_others_offsets(
    run: Run, group: Consumergroup, orders: Partitions, kazoo_go: Callable[[], KazooGoMember]
) -> None:
    for at in orders:
        group.offsets.set(at, 5)
    mine = run(id="ours").until_holding(orders)

    theirs = kazoo_go()
    in_order = sorted(orders)
    share = frozenset(in_order[:3] if theirs.id < "ours" else in_order[3:])
    mine.until_holding(orders - share)
    assert eventually(lambda: theirs.partitions == named(share)), theirs.lines()
    assert theirs.seen >= {"ours 1", f"{theirs.id} 1"}
    assert set(theirs.read) == {f"{name}@5" for name in named(share)}
    mine.until(lambda: any("kazoo-go" in event.detail for event in mine.events if event.kind is EventKind.FOREIGN))

    theirs.kill()
    mine.until_holding(orders)
    starts = mine.generations[-1].partitions
    assert starts == {at: 15 if at in share else 5 for at in orders}

    again = kazoo_go()
    assert again.id
    mine.close()
    assert eventually(lambda: again.partitions == named(orders)), again.lines()
    assert eventually(lambda: set(committed(group).values()) <= {15, 25})
    again.leave()
    assert list(group.owners()) == []


def test_what_a_kazoo_go_member_owns_is_described_cannot_be_claimed_and_keeps_the_group_in_use(
    group: Consumergroup, orders: Partitions, kazoo_go: Callable[[], KazooGoMember]
) -> None:
    theirs = kazoo_go()
    assert eventually(lambda: theirs.partitions == named(orders)), theirs.lines()
    [instance] = group.instances()
    assert isinstance(instance.registration, Registration)
    assert (instance.id, instance.registration.dialect) == (theirs.id, Dialect.KAZOO_GO)
    assert {owner.id for owner in group.owners() if isinstance(owner, Owner)} == {theirs.id}
    with group.instance("me") as me:
        me.register(["orders"])
        kept = min(orders) if theirs.id < "me" else max(orders)
        with pytest.raises(ClaimedByOtherError) as caught:
            me.claim(kept)
    assert caught.value.owner.id == theirs.id
    with pytest.raises(GroupInUseError, match=theirs.id):
        group.delete()
