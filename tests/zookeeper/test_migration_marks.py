"""Marks, routes and target locks of migrations: written by their own plan only, and obeyed by new members."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.security import make_acl, make_digest_acl

from tests.waiting import eventually
from zkgroups import Consumergroup, Digest, Registry
from zkgroups.core.znodes.own_nodes import GroupRoute, Mark, MarkState, RouteState
from zkgroups.core.znodes.values import MalformedNode
from zkgroups.exceptions import (
    ConflictError,
    GroupMigratedError,
    GroupNotFoundError,
    NoPermissionError,
    OutcomeUnknownError,
)
from zkgroups.testing import TcpProxy
from zkgroups.zookeeper.admin import migration_marks as marks
from zkgroups.zookeeper.admin.migration_marks import (
    FoundRoute,
    MigrationTargetLocks,
    change_route,
    permit_holders,
    read_route,
)
from zkgroups.zookeeper.requests.transaction import Create, Delete, Operation
from zkgroups.zookeeper.session.session import Session

from .conftest import Connect
from .helpers import P0
from .tree import dump

pytestmark = pytest.mark.zookeeper


MARK = "/consumers/billing/migration"


def put(registry: Registry, *groups: str, plan: str = "p1", state: MarkState = MarkState.MOVING) -> marks.Outcomes:
    return marks.put(registry._context, {group: f"new-{group}" for group in groups}, plan=plan, state=state)


def remove(registry: Registry, *groups: str, plan: str | None = "p1", force: bool = False) -> marks.Outcomes:
    return marks.remove(registry._context, groups, plan=plan, force=force)


# Writing and removing marks


def test_a_mark_is_written_changed_and_removed_only_by_its_own_plan(registry: Registry, group: Consumergroup) -> None:
    group.create()
    assert put(registry, "billing") == put(registry, "billing") == {"billing": None}
    found = marks.read(registry._context, ["billing", "nobody"])
    assert list(found) == ["billing"]
    mark = found["billing"]
    assert isinstance(mark, Mark)
    assert (mark.plan, mark.target, mark.state) == ("p1", "new-billing", MarkState.MOVING)
    for refused in (put(registry, "billing", plan="p2"), remove(registry, "billing", plan="p2")):
        assert isinstance(refused["billing"], GroupMigratedError)
        assert "is being moved to Kafka's own offsets as 'new-billing', by plan p1" in str(refused["billing"])
    assert put(registry, "billing", state=MarkState.MOVED) == {"billing": None}
    assert "was moved" in marks.read(registry._context, ["billing"])["billing"].shown
    assert remove(registry, "billing") == remove(registry, "billing") == {"billing": None}
    assert marks.read(registry._context, ["billing"]) == {}


def test_each_of_many_groups_is_marked_or_has_a_reason_why_not(registry: Registry, raw: Any) -> None:
    names = [f"g{number}" for number in range(300)]
    for name in names:
        raw.create(f"/consumers/{name}", makepath=True)
    raw.create("/consumers/g7/migration", b"\xff")
    put(registry, "g8", plan="p2")
    outcomes = put(registry, *names, "nobody")
    assert isinstance(outcomes.pop("nobody"), GroupNotFoundError)
    assert {name for name, error in outcomes.items() if isinstance(error, GroupMigratedError)} == {"g7", "g8"}
    assert {name for name, error in outcomes.items() if error is None} == {*names} - {"g7", "g8"}
    assert len(marks.read(registry._context, names)) == 300
    outcomes = remove(registry, *names, plan=None)
    assert [name for name, error in outcomes.items() if error is not None] == ["g7"]
    assert remove(registry, "g7", force=True) == {"g7": None}
    assert marks.read(registry._context, names) == {}


def test_a_mark_written_between_read_and_write_is_read_again(
    registry: Registry, group: Consumergroup, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another plan writes its mark between the read and the write, and then removes it."""
    group.create()
    before = [lambda: put_raw(raw, b'{"version":1,"plan":"p2","target":"t","state":"moved","since":1}')]
    transact = registry._context.session.transact

    def late(*args: Any, **options: Any) -> Any:
        while before:
            before.pop()()
        return transact(*args, **options)

    monkeypatch.setattr(registry._context.session, "transact", late)
    refused = put(registry, "billing")["billing"]
    assert isinstance(refused, GroupMigratedError)
    assert refused.plan == "p2"
    before.append(lambda: raw.set(MARK, b'{"version":1,"plan":"p3","target":"t","state":"moved","since":1}'))
    assert isinstance(remove(registry, "billing", plan="p2")["billing"], GroupMigratedError)
    raw.set(MARK, b'{"version":1,"plan":"p2","target":"t","state":"moved","since":1}')
    before.append(lambda: raw.delete(MARK))
    assert remove(registry, "billing", plan="p2") == {"billing": None}


def put_raw(raw: Any, data: bytes) -> None:
    raw.create(MARK, data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"version":2,"plan":"p","target":"t","state":"moved","since":1}',
        b'{"version":1,"plan":"","target":"t","state":"moved","since":1}',
        b'{"version":1,"plan":"p","target":"\\ud800","state":"moved","since":1}',
        b'{"version":1,"plan":"p","target":"t","state":"gone","since":1}',
        b'{"version":1,"plan":"p","target":"t","state":"moved","since":true}',
    ],
)
def test_rule_6_an_unreadable_mark_prevents_registrations_until_it_is_removed_by_force(
    registry: Registry, group: Consumergroup, raw: Any, data: bytes
) -> None:
    group.create()
    raw.create(MARK, data)
    assert isinstance(marks.read(registry._context, ["billing"])["billing"], MalformedNode)
    with pytest.raises(GroupMigratedError, match=r"cannot be read.*unmark --force billing"):
        group.instance("me").register(["orders"])
    assert isinstance(remove(registry, "billing", plan=None)["billing"], GroupMigratedError)
    assert remove(registry, "billing", plan=None, force=True) == {"billing": None}
    group.instance("me").register(["orders"])


# Obeying marks


@pytest.mark.oldest
def test_a_mark_prevents_new_registrations_and_existing_instances_continue(registry: Registry, raw: Any) -> None:
    group = registry.group("billing")
    before = registry.group("other").instance("me")
    before.register(["orders"])  # the directories did not exist
    assert raw.get_children("/consumers/other") == ["ids"]
    group.create()
    already = group.instance("already")
    already.register(["orders"])
    put(registry, "billing")
    late = group.instance("late")
    with pytest.raises(GroupMigratedError) as caught:
        late.register(["orders"])
    assert (caught.value.group, caught.value.plan, caught.value.target) == ("billing", "p1", "new-billing")
    assert "`zkgroups migrate unmark billing` to let members join again" in str(caught.value)
    assert not late.registered
    assert raw.get_children("/consumers/billing/ids") == ["already"]
    with already.claim(P0) as claim:  # a registered instance continues
        claim.commit(5)
    already.update(["orders", "refunds"])
    remove(registry, "billing")
    late.register(["orders"])
    assert sorted(raw.get_children("/consumers/billing/ids")) == ["already", "late"]
    assert sorted(raw.get_children("/consumers/billing")) == ["ids", "offsets", "owners"]


def test_a_mark_is_checked_in_the_transaction_that_registers(
    registry: Registry, group: Consumergroup, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark appears after all reads, just before the registration is sent."""
    group.create()
    transact = registry._context.session.transact

    def late(*args: Any, **options: Any) -> Any:
        if not raw.exists(MARK):
            raw.create(MARK, b'{"version":1,"plan":"p1","target":"billing","state":"moving","since":1}')
        return transact(*args, **options)

    monkeypatch.setattr(registry._context.session, "transact", late)
    with pytest.raises(GroupMigratedError):
        group.instance("me").register(["orders"])
    assert raw.get_children("/consumers/billing/ids") == []


@pytest.mark.parametrize("arm", [TcpProxy.cut_before_reply, TcpProxy.cut_before_request])
def test_rule_3_a_lost_reply_does_not_change_the_effect_of_a_mark(
    arm: Callable[[TcpProxy, int], Any], proxied: Registry, proxy: TcpProxy, raw: Any, registry: Registry
) -> None:
    group = proxied.group("billing")
    group.create()
    arm(proxy, 1)
    group.instance("one").register(["orders"])
    assert raw.get_children("/consumers/billing/ids") == ["one"]
    assert raw.exists(MARK) is None
    arm(proxy, 1)
    assert put(proxied, "billing") == {"billing": None}
    arm(proxy, 1)
    with pytest.raises(GroupMigratedError):
        group.instance("two").register(["orders"])
    assert raw.get_children("/consumers/billing/ids") == ["one"]
    for request in (1, 2):
        arm(proxy, request)
        assert remove(proxied, "billing") == {"billing": None}
        put(registry, "billing")


# With few permissions


@pytest.fixture
def guarded(raw: Any) -> Any:
    """A group in which only alice creates nodes, and other users may register."""
    raw.add_auth("digest", "alice:secret")
    alice = make_digest_acl("alice", "secret", all=True)
    raw.create("/consumers/billing/ids", makepath=True)
    raw.set_acls("/consumers/billing", [alice, make_acl("world", "anyone", read=True)])
    return raw


def test_an_instance_that_may_only_register_obeys_a_mark(registry: Registry, connect: Connect, guarded: Any) -> None:
    admin = connect(auth=[Digest("alice", "secret")])
    me = registry.group("billing").instance("me")
    me.register(["orders"])
    me.deregister()
    assert put(admin, "billing") == {"billing": None}
    assert isinstance(put(registry, "billing", plan="p2")["billing"], GroupMigratedError)
    assert isinstance(remove(registry, "billing")["billing"], NoPermissionError)
    with pytest.raises(GroupMigratedError):
        me.register(["orders"])
    assert not me.registered
    assert guarded.get_children("/consumers/billing/ids") == []
    guarded.set_acls(MARK, [make_digest_acl("alice", "secret", all=True)])
    with pytest.raises(NoPermissionError):
        me.register(["orders"])
    assert guarded.get_children("/consumers/billing/ids") == []
    remove(admin, "billing")
    assert isinstance(put(registry, "billing")["billing"], NoPermissionError)
    me.register(["orders"])
    me.deregister()


# Other reads of groups


def test_a_mark_is_deleted_with_its_group_not_copied_and_not_reported_as_damage(
    registry: Registry, group: Consumergroup, raw: Any
) -> None:
    group.create()
    group.offsets.set(P0, 5)
    put(registry, "billing", state=MarkState.MOVED)
    [clean] = registry.check(["billing"])
    remove(registry, "billing")
    [same] = registry.check(["billing"])
    assert [found.code for found in clean.findings] == [found.code for found in same.findings]
    put(registry, "billing", state=MarkState.MOVED)
    group.copy("copy")
    assert marks.read(registry._context, ["billing", "copy"]).keys() == {"billing"}
    group.delete()
    assert raw.get_children("/consumers") == ["copy"]


def test_pruning_removes_the_mark_of_a_moved_group_but_not_of_a_group_that_is_being_moved(
    registry: Registry, group: Consumergroup, raw: Any
) -> None:
    group.offsets.set(P0, 5)
    [offset] = registry.offsets(["billing"])
    put(registry, "billing")
    before = dump(raw)
    with pytest.raises(GroupMigratedError):
        group.prune([offset])
    assert dump(raw) == before
    put(registry, "billing", state=MarkState.MOVED)
    group.prune([offset])
    assert not group.exists()


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


TARGETS = "/zkgroups/targets"


def take(registry: Registry, *targets: str, plan: str = "p1", cluster: str | None = "c") -> dict[str, Any]:
    return MigrationTargetLocks(registry._context, cluster=cluster, plan=plan).take(targets)


def test_a_target_is_locked_by_one_plan_until_the_plan_releases_it(registry: Registry, raw: Any) -> None:
    assert take(registry, "a", "b", "größe") == {"a": None, "b": None, "größe": None}
    assert take(registry, "a") == {"a": None}, "its own"
    refused = take(registry, "a", "c", plan="p2")
    assert isinstance(refused["a"], ConflictError)
    assert str(refused["a"]) == "plan p1 is writing to 'a': try again later"
    assert refused["c"] is None
    assert take(registry, "a", plan="p2", cluster="other") == {"a": None}
    MigrationTargetLocks(registry._context, cluster="c", plan="p1").release(["a", "c"])
    assert sorted(raw.get_children(TARGETS)) == ["c:b", "c:c", "c:größe", "other:a"]
    assert take(registry, "a", plan="p2") == {"a": None}


@pytest.mark.parametrize("lost", [Create, Delete])
def test_a_lock_that_could_not_be_released_does_not_stop_the_next_run_in_the_same_session(
    registry: Registry, connect: Connect, raw: Any, monkeypatch: pytest.MonkeyPatch, lost: type[Operation]
) -> None:
    """The connection was lost while the lock was taken, or before it was released."""
    transact = Session.transact

    def fail(self: Session, operations: Any, **options: Any) -> Any:
        if not isinstance(operations[0], lost):
            return transact(self, operations, **options)
        if lost is Create:
            transact(self, operations, **options)
        raise OutcomeUnknownError("the connection was lost")

    apply = MigrationTargetLocks(registry._context, cluster="c", plan="p1")
    take(registry, "other")  # creates the directory
    with monkeypatch.context() as patched:
        patched.setattr(Session, "transact", fail)
        if lost is Delete:
            apply.take(["a"])
        with pytest.raises(OutcomeUnknownError):
            (apply.take if lost is Create else apply.release)(["a"])
    assert "c:a" in raw.get_children(TARGETS)
    rollback = MigrationTargetLocks(registry._context, cluster="c", plan="p1", rollback=True)
    with connect() as other:
        assert isinstance(take(other, "a", plan="p2")["a"], ConflictError)
    assert rollback.take(["a"]) == {"a": None}
    assert (rollback.lost(["a"]), isinstance(take(registry, "a")["a"], ConflictError)) == ([], True)
    rollback.release(["a"])
    assert take(registry, "a") == {"a": None}
    assert isinstance(rollback.take(["a"])["a"], ConflictError)


def test_without_permission_to_create_locks_a_plan_continues_without_them_and_logs_it(
    registry: Registry, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    raw.create("/zkgroups", acl=[make_acl("world", "anyone", read=True)])

    with caplog.at_level(logging.WARNING, "zkgroups"):
        assert take(registry, "a") == {"a": None}

    assert "targets a are not locked (no permission on /zkgroups/targets: log in" in caplog.text
    assert "run no other plan that writes to them" in caplog.text


def test_a_lock_of_an_earlier_session_of_the_plan_is_replaced_and_survives_that_session(
    registry: Registry, connect: Connect, raw: Any
) -> None:
    with connect() as first:
        of_first = MigrationTargetLocks(first._context, cluster="c", plan="p1")
        assert of_first.take(["a", "b"]) == {"a": None, "b": None}
        of_registry = MigrationTargetLocks(registry._context, cluster="c", plan="p1")
        assert of_registry.take(["a"]) == {"a": None}
        assert (of_first.lost(["a", "b", "never"]), of_registry.lost(["a", "b"])) == (["a"], [])
        of_first.release(["a"])
    assert eventually(lambda: raw.get_children(TARGETS) == ["c:a"])
    assert isinstance(take(registry, "a", plan="p2")["a"], ConflictError)
    assert of_registry.take(["a"]) == {"a": None}
    assert of_registry.lost(["a"]) == []
