"""Members of a gateway in one group with members of other clients: the same shares, and no partition held by two."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.world import World
from tests.waiting import eventually
from zkgroups import Consumergroup, Registry
from zkgroups.coordinator import RebalanceNeeded
from zkgroups.core.znodes.own_nodes import MarkState
from zkgroups.gateway.zookeeper_storage import GroupSettings
from zkgroups.zookeeper.admin import migration_marks
from zkgroups.zookeeper.session.session import context_of

from .conftest import Connect, Join, Serve
from .old_members import ALL, claim, orders, owners, register
from .served import Served

LAST = "billing_~last"
PATIENT = GroupSettings(claim_patience=60.0)


@pytest.fixture
def other(connect: Connect) -> Registry:
    """The registry of another client."""
    return connect()


def within(served: Served) -> list[float | None]:
    return [event.within for event in served.events if isinstance(event, RebalanceNeeded)]


def test_a_member_of_another_client_gets_its_share(
    group: Consumergroup, other: Registry, alone: Join, served: Served
) -> None:
    member = alone()
    register(other.client, "billing", LAST, {"orders": 1})
    assert eventually(lambda: member.assigned == orders(0, 1, 2))
    assert eventually(lambda: sorted(owners(group)) == [0, 1, 2])
    assert within(served) == [5.0]
    claim(other.client, "billing", f"{LAST}-0", "orders", 3, 4, 5)
    assert served.describe("billing").state == "Stable"
    other.close()
    assert eventually(lambda: member.assigned == ALL)
    assert within(served) == [5.0, None]


def test_a_partition_is_given_to_a_member_when_another_client_has_released_it(
    group: Consumergroup, other: Registry, join: Join, serve: Serve, orders: None
) -> None:
    register(other.client, "billing", LAST, {"orders": 1})
    claim(other.client, "billing", f"{LAST}-0", "orders", *range(6))
    member = join(served=serve(settings=PATIENT))
    assert eventually(lambda: len(group.instances()) == 2)
    for number in (0, 1, 2):
        assert member.assigned == frozenset()
        other.client.delete(f"/consumers/billing/owners/orders/{number}")
    assert eventually(lambda: {at.partition for at in member.assigned} == {0, 1, 2})
    assert len(member.history) == 1


def test_a_partition_of_a_pykafka_member_is_waited_for(world: World, other: Registry, join: Join, serve: Serve) -> None:
    """Its owner node has another path, so a claim would succeed beside it."""
    other.client.create("/consumers/billing/ids/app:1", b"orders", ephemeral=True, makepath=True)
    pykafka = "/consumers/billing/owners/b'orders'/1-3"
    other.client.create(pykafka, b"app:1", ephemeral=True, makepath=True)
    member = join(served=serve(settings=PATIENT), client_id="z")
    world.machine.sleep(30)
    assert not member.assigned
    other.client.delete(pykafka)
    assert eventually(lambda: member.assigned == orders(3, 4, 5))


def test_a_partition_that_another_client_does_not_release_follows_later(
    group: Consumergroup, other: Registry, join: Join, serve: Serve
) -> None:
    register(other.client, "billing", LAST, {"orders": 1})
    claim(other.client, "billing", f"{LAST}-0", "orders", 1, 3, 4, 5)
    member = join(served=serve())
    assert eventually(lambda: member.assigned == orders(0, 2))
    other.client.delete("/consumers/billing/owners/orders/1")
    assert eventually(lambda: member.assigned == orders(0, 1, 2))
    assert owners(group) == {n: f"{member.member_id if n < 3 else LAST}-0" for n in range(6)}


def test_a_member_that_does_not_join_in_time_loses_its_partitions_while_another_client_waits(
    group: Consumergroup, other: Registry, alone: Join
) -> None:
    slow = alone(session_timeout=60.0)
    slow.pause()
    register(other.client, "billing", LAST, {"orders": 1})
    assert eventually(lambda: owners(group) == {})
    claim(other.client, "billing", f"{LAST}-0", "orders", *range(6))
    assert set(slow.commit(9).values()) == {"UNKNOWN_MEMBER_ID"}
    assert list(group.offsets) == []
    slow.go_on()
    for number in range(3):
        other.client.delete(f"/consumers/billing/owners/orders/{number}")
    assert eventually(lambda: slow.assigned == orders(0, 1, 2))


def test_a_change_that_moves_nothing_disturbs_no_member_and_one_that_leaves_causes_one_rebalance(
    other: Registry, join: Join, alone: Join, served: Served
) -> None:
    member = alone()
    register(other.client, "billing", LAST, {"payments": 1})
    second = join(client_id="zz")
    assert eventually(lambda: (len(member.assigned), len(second.assigned)) == (3, 3))
    before = len(member.history)
    second.leave()
    assert eventually(lambda: member.assigned == ALL)
    assert len(member.history) == before + 1
    assert within(served) == []


def test_partitions_for_another_client_are_free_before_it_hears_of_a_new_member(other: Registry, join: Join) -> None:
    """Scala members claim all or nothing, and wait two seconds after each failure."""
    register(other.client, "billing", "billing_m", {"orders": 1})
    first = join(client_id="a")
    assert eventually(lambda: first.assigned == orders(0, 1, 2))
    claims: list[Any] = []

    def claim_at_once(_event: Any) -> None:
        claims.append(other.client.create_async("/consumers/billing/owners/orders/2", b"billing_m-0", ephemeral=True))

    other.client.get_children("/consumers/billing/ids", watch=claim_at_once)
    second = join(client_id="z")
    assert eventually(lambda: (first.assigned, second.assigned) == (orders(0, 1), orders(4, 5)))
    assert eventually(lambda: claims)  # its client hears of the new member on a thread of its own
    assert claims[0].get(timeout=30)


def test_a_marked_group_waits_for_the_end_of_its_migration(
    world: World, registry: Registry, group: Consumergroup, join: Join, served: Served
) -> None:
    assert served.fetch("billing") == {}
    group.create()
    context = context_of(registry)
    assert migration_marks.put(context, {"billing": "billing"}, plan="p", state=MarkState.MOVING) == {"billing": None}
    member = join(client_id="b")
    world.machine.sleep(30)
    assert not member.assigned
    migration_marks.remove(context, ["billing"], plan="p")
    assert eventually(lambda: member.assigned == ALL)
