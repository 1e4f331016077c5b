"""A gateway follows the routes of groups: members leave, and requests are forwarded only with a permit."""

from __future__ import annotations

import logging

import pytest

from tests.waiting import eventually
from zkgroups import Consumergroup, Registry, TopicPartition
from zkgroups.core.znodes.own_nodes import RouteState
from zkgroups.exceptions import ConflictError, GroupMigratedError, OutcomeUnknownError
from zkgroups.gateway.zookeeper_storage import GroupSettings
from zkgroups.zookeeper.admin.migration_marks import change_route, permit_holders, read_route
from zkgroups.zookeeper.ownership.routes import GroupRoutes
from zkgroups.zookeeper.session.session import context_of

from .conftest import Connect, LoseReplies, Serve
from .kafka_member import KafkaMember
from .old_members import ALL

AT = TopicPartition("orders", 0)


def change(registry: Registry, state: RouteState | None) -> None:
    context = context_of(registry)
    change_route(context, read_route(context, "billing"), state, plan="p1", since_ms=1)


def committed(group: Consumergroup) -> int | None:
    found = group.offsets.fetch(AT)
    return None if found is None else found.offset


class CommittingMember(KafkaMember):
    """Commits before it joins again, as Kafka's clients do."""

    def on_revoked(self) -> None:
        self.commit(7, AT)


def test_members_commit_and_leave_when_their_group_is_moved_and_join_when_it_is_back(
    registry: Registry, group: Consumergroup, orders: None, serve: Serve
) -> None:
    with CommittingMember(serve(), "billing", "orders") as member:
        assert eventually(lambda: member.assigned == ALL)
        change(registry, RouteState.MOVING_TO_KAFKA)
        assert eventually(lambda: not group.instances())
        assert committed(group) == 7
        assert member.commit(9, AT)[AT] != "NONE"
        with pytest.raises(GroupMigratedError):
            group.instance("other").register()
        change(registry, None)
        assert eventually(lambda: member.assigned == ALL)
        assert member.commit(9, AT) == {AT: "NONE"}


def test_members_commit_and_leave_before_their_gateway_ends(group: Consumergroup, orders: None, serve: Serve) -> None:
    served = serve()
    assert served.storage.let_leave()  # there are no members
    served = serve()
    with CommittingMember(served, "billing", "orders") as member:
        assert eventually(lambda: member.assigned == ALL)
        served.storage._monitor.close()  # it would let them leave up to a second later
        member.pause()
        assert not served.storage.let_leave()
        member.go_on()
        assert eventually(served.storage.let_leave)
        assert group.instances() == []
        assert committed(group) == 7


def test_a_member_that_is_late_is_removed_from_a_group_that_is_moved(
    registry: Registry, group: Consumergroup, orders: None, serve: Serve
) -> None:
    served = serve(settings=GroupSettings(join_limit=0.5))
    with (
        KafkaMember(served, "billing", "orders", instance_id="static", session_timeout=60) as static,
        KafkaMember(served, "billing", "orders", client_id="late", session_timeout=60) as late,
    ):
        assert eventually(lambda: static.assigned | late.assigned == ALL and len(late.assigned) == 3)
        at = min(static.assigned)
        static.pause()
        late.pause()
        change(registry, RouteState.MOVING_TO_KAFKA)
        assert eventually(lambda: not group.instances())
        assert static.commit(9, at)[at] != "NONE"
        assert group.offsets.fetch(at) is None


@pytest.fixture
def routes(connect: Connect, group: Consumergroup) -> GroupRoutes:
    """The routes as a gateway with a session of its own knows them. The test calls `refresh`."""
    group.create()
    return GroupRoutes(context_of(connect()), "gateway-1", logging.getLogger("zkgroups.gateway"))


def test_a_gateway_forwards_only_with_a_permit_which_holds_up_the_way_back(
    registry: Registry, routes: GroupRoutes
) -> None:
    context = context_of(registry)
    for state in (None, RouteState.MOVING_TO_KAFKA):
        if state is not None:
            change(registry, state)
        routes.refresh()
        assert routes.state("billing") is state
        assert not routes.may_forward("billing")
    change(registry, RouteState.KAFKA)
    routes.refresh()
    assert not routes.may_forward("billing")  # it asks for a permit
    routes.refresh()
    assert routes.may_forward("billing")
    assert permit_holders(context, "billing") == ["gateway-1"]
    assert routes.begin_use("billing")
    change(registry, RouteState.MOVING_TO_ZOOKEEPER)
    routes.refresh()
    assert not routes.may_forward("billing")
    assert permit_holders(context, "billing") == ["gateway-1"]  # a commit was sent
    with pytest.raises(ConflictError, match="gateways or consumers still use"):
        change(registry, None)
    routes.end_use("billing")
    routes.refresh()
    assert permit_holders(context, "billing") == []
    change(registry, None)
    routes.refresh()
    assert routes.state("billing") is None


def test_a_gateway_that_has_not_read_a_route_again_gets_no_permit(registry: Registry, routes: GroupRoutes) -> None:
    change(registry, RouteState.MOVING_TO_KAFKA)
    change(registry, RouteState.KAFKA)
    routes.refresh()
    assert not routes.may_forward("billing")
    known, routes._seen = routes._routes, None
    change(registry, RouteState.MOVING_TO_ZOOKEEPER)
    routes._routes = known
    routes._create("billing")
    assert permit_holders(context_of(registry), "billing") == []


def test_a_permit_whose_creation_has_an_unknown_outcome_does_not_hold_up_the_way_back(
    registry: Registry, routes: GroupRoutes, lose_replies: LoseReplies
) -> None:
    """It was created without a reply, and no client has asked again."""
    for state in (RouteState.MOVING_TO_KAFKA, RouteState.KAFKA):
        change(registry, state)
    routes.refresh()
    assert not routes.may_forward("billing")
    with lose_replies(), pytest.raises(OutcomeUnknownError):
        routes.refresh()
    assert permit_holders(context_of(registry), "billing") == ["gateway-1"]
    change(registry, RouteState.MOVING_TO_ZOOKEEPER)
    routes.refresh()
    assert permit_holders(context_of(registry), "billing") == []
    change(registry, None)


def test_clients_of_a_group_with_a_malformed_route_wait(registry: Registry, routes: GroupRoutes) -> None:
    registry.client.create("/zkgroups/routes/billing", b"?", makepath=True)
    routes.refresh()
    assert routes.state("billing") is RouteState.MOVING_TO_KAFKA
    assert not routes.may_forward("billing")
