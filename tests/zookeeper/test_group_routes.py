"""The route of a group changes together with its mark, in one transaction, and only from the state that was read."""

from __future__ import annotations

from typing import Any

import pytest

from zkgroups import Registry
from zkgroups.core.znodes.group_route import GroupRoute, RouteState, encode_route
from zkgroups.core.znodes.migration_mark import Mark, MarkState
from zkgroups.exceptions import ConflictError, GroupMigratedError, GroupNotFoundError, MalformedNodeError
from zkgroups.zookeeper.admin.group_routes import FoundRoute, change_route, permit_holders, read_route

pytestmark = pytest.mark.zookeeper

ROUTE = "/zkgroups/routes/billing"


def change(registry: Registry, state: RouteState | None, found: FoundRoute | None = None, *, since_ms: int = 7) -> None:
    context = registry._context
    change_route(context, found or read_route(context, "billing"), state, plan="p1", since_ms=since_ms)


def test_a_route_changes_together_with_its_mark(registry: Registry, raw: Any) -> None:
    group = registry.group("billing")
    group.create()
    for state, mark in (
        (RouteState.MOVING_TO_KAFKA, MarkState.MOVING),
        (RouteState.KAFKA, MarkState.MOVED),
        (RouteState.MOVING_TO_ZOOKEEPER, MarkState.MOVED),
    ):
        before = raw.exists("/zkgroups/routes")
        change(registry, state)
        found = read_route(registry._context, "billing")
        assert (found.state, found.route) == (state, GroupRoute("p1", state, 7))
        assert isinstance(found.mark, Mark)
        assert (found.mark.plan, found.mark.target, found.mark.state) == ("p1", "billing", mark)
        assert before is None or raw.exists("/zkgroups/routes").version == before.version + 1, "gateways watch it"
        with pytest.raises(GroupMigratedError):
            group.instance("me").register(["orders"])
    change(registry, None)
    assert read_route(registry._context, "billing") == FoundRoute("billing")
    group.instance("me").register(["orders"])


def test_a_route_that_was_changed_meanwhile_is_not_overwritten(registry: Registry, raw: Any) -> None:
    registry.group("billing").create()
    stale = read_route(registry._context, "billing")
    change(registry, RouteState.MOVING_TO_KAFKA)
    for state in (RouteState.KAFKA, RouteState.MOVING_TO_KAFKA):
        with pytest.raises(ConflictError):
            change(registry, state, stale)
    stale = read_route(registry._context, "billing")
    change(registry, RouteState.KAFKA)
    for new in (RouteState.MOVING_TO_ZOOKEEPER, None):
        with pytest.raises(ConflictError):
            change(registry, new, stale)
    assert read_route(registry._context, "billing").state is RouteState.KAFKA


def test_a_mark_that_was_changed_meanwhile_stops_the_change(registry: Registry, raw: Any) -> None:
    registry.group("billing").create()
    change(registry, RouteState.KAFKA)
    stale = read_route(registry._context, "billing")
    mark = "/consumers/billing/migration"
    assert raw.exists(mark)
    raw.set(mark, raw.get(mark)[0])
    for state in (RouteState.MOVING_TO_ZOOKEEPER, RouteState.MOVING_TO_KAFKA, None):
        with pytest.raises(ConflictError):
            change(registry, state, stale)
    assert read_route(registry._context, "billing").state is RouteState.KAFKA


def test_a_route_stays_while_gateways_forward_requests(registry: Registry, raw: Any) -> None:
    registry.group("billing").create()
    assert permit_holders(registry._context, "billing") == []
    change(registry, RouteState.KAFKA)
    for name, host in (("g1", b"host-b"), ("g2", b"host-a"), ("g3", b"")):
        raw.create(f"{ROUTE}/{name}", host, ephemeral=True)
    assert permit_holders(registry._context, "billing") == ["?", "host-a", "host-b"]
    change(registry, RouteState.MOVING_TO_ZOOKEEPER)
    with pytest.raises(ConflictError, match="gateways or consumers still use"):
        change(registry, None)
    for name in ("g1", "g2", "g3"):
        raw.delete(f"{ROUTE}/{name}")
    change(registry, None)
    assert raw.exists(ROUTE) is None


def test_a_group_that_does_not_exist_gets_no_route(registry: Registry, raw: Any) -> None:
    with pytest.raises(GroupNotFoundError):
        change(registry, RouteState.MOVING_TO_KAFKA)
    assert raw.exists(ROUTE) is None


def test_a_malformed_route_is_an_error(registry: Registry, raw: Any) -> None:
    raw.create(ROUTE, encode_route(GroupRoute("p1", RouteState.KAFKA, 7))[:-1], makepath=True)
    with pytest.raises(MalformedNodeError):
        read_route(registry._context, "billing")
