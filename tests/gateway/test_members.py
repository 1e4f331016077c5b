"""Members of a gateway are registered as the old clients are, own their partitions by owner nodes, and share them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.testing.waiting import eventually
from zkgroups import Consumergroup, Owner, Registration, Registry, TopicPartition
from zkgroups.core.znodes.values import Dialect

from .conftest import Serve
from .kafka_member import KafkaMember
from .old_members import create_topic
from .served import Served

pytestmark = pytest.mark.zookeeper

Join = Callable[..., KafkaMember]


def orders(*numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("orders", number) for number in numbers)


@pytest.fixture(autouse=True)
def topic(registry: Registry) -> None:
    create_topic(registry.client, "orders", 6)


@pytest.fixture
def served(serve: Serve) -> Served:
    return serve()


@pytest.fixture
def join(served: Served) -> Iterator[Join]:
    with ExitStack() as stack:
        yield lambda *topics, **options: stack.enter_context(
            KafkaMember(served, "billing", *(topics or ("orders",)), **options)
        )


def owners(group: Consumergroup) -> dict[int, str]:
    return {owner.at.partition: owner.id for owner in group.owners() if isinstance(owner, Owner)}


def test_a_member_is_registered_and_owns_its_partitions(group: Consumergroup, join: Join, served: Served) -> None:
    member = join(client_id="my/app")
    assert eventually(lambda: member.assigned == orders(*range(6)))
    [instance] = group.instances()
    assert instance.id == member.member_id.replace("/", "_")
    assert isinstance(instance.registration, Registration)
    assert dict(instance.registration.streams) == {"orders": 1}
    assert instance.registration.dialect is Dialect.GATEWAY
    assert (instance.registration.client_id, instance.registration.client_host) == ("my/app", "/10.0.0.7")
    assert owners(group) == dict.fromkeys(range(6), f"{instance.id}-0")
    assert served.list() == {"billing": "Stable"}
    [described] = served.describe("billing").members
    assert described.member_id == member.member_id


def test_members_share_and_take_over(group: Consumergroup, join: Join) -> None:
    first = join(client_id="a")
    assert eventually(lambda: len(first.assigned) == 6)
    second = join(client_id="b")
    assert eventually(lambda: (first.assigned, second.assigned) == (orders(0, 1, 2), orders(3, 4, 5)))
    first.leave()
    assert eventually(lambda: second.assigned == orders(*range(6)))
    second.leave()
    assert eventually(lambda: (group.instances(), owners(group)) == ([], {}))


def test_closing_the_storage_lets_all_members_leave(registry: Registry, group: Consumergroup) -> None:
    with Served(registry) as served, KafkaMember(served, "billing", "orders") as member:
        assert eventually(lambda: len(member.assigned) == 6)
        member.kill()
    assert (group.instances(), owners(group)) == ([], {})


def test_offsets_are_committed_with_their_details(group: Consumergroup, join: Join, served: Served) -> None:
    member = join()
    assert eventually(lambda: len(member.assigned) == 6)
    at = TopicPartition("orders", 3)
    assert member.commit(17, at, metadata="half of the file", leader_epoch=4) == {at: "NONE"}
    found = group.offsets.fetch(at)
    assert found is not None
    assert found.offset == 17
    value = served.fetch("billing", at)[at]
    assert (value.offset, value.metadata, value.leader_epoch) == (17, "half of the file", 4)
    assert member.commit(18, at) == {at: "NONE"}
    assert served.fetch("billing")[at].metadata == ""
