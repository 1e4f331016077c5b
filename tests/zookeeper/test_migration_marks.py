"""Marks of migrations: written and removed for many groups at once, and obeyed by new members."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.security import make_acl, make_digest_acl

from tests.testing.waiting import eventually
from zkgroups import Consumergroup, Digest, Registry, TopicPartition
from zkgroups.core.znodes.migration_mark import Mark, MarkState
from zkgroups.core.znodes.values import MalformedNode
from zkgroups.exceptions import ConflictError, GroupMigratedError, GroupNotFoundError, NoPermissionError
from zkgroups.testing import TcpProxy
from zkgroups.zookeeper.admin import migration_marks as marks
from zkgroups.zookeeper.requests import bulk_read
from zkgroups.zookeeper.requests.node import Node

from .conftest import Connect
from .tree import dump

pytestmark = pytest.mark.zookeeper

P0 = TopicPartition("orders", 0)
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


def test_a_mark_that_was_not_expected_is_read_and_changes_only_the_outcome_of_its_group(registry: Registry) -> None:
    for name in ("taken", "own", "free"):
        registry.group(name).create()
    put(registry, "taken", plan="p2")
    put(registry, "own")
    targets = {name: f"new-{name}" for name in ("taken", "own", "free", "nobody")}

    found = marks.put(registry._context, targets, plan="p1", state=MarkState.MOVED, unmarked=True)

    assert isinstance(found["taken"], GroupMigratedError)
    assert isinstance(found["nobody"], GroupNotFoundError)
    assert (found["own"], found["free"]) == (None, None)
    now = marks.read(registry._context, targets)
    assert {name: (mark.plan, mark.state) for name, mark in now.items() if isinstance(mark, Mark)} == {
        "taken": ("p2", MarkState.MOVING),
        "own": ("p1", MarkState.MOVED),
        "free": ("p1", MarkState.MOVED),
    }


def test_a_mark_is_only_replaced_or_only_removed_in_one_state_on_request(
    registry: Registry, group: Consumergroup
) -> None:
    group.create()
    target: dict[str, str] = {"billing": "accounts"}
    options: dict[str, Any] = {"plan": "p1", "state": MarkState.MOVED}
    refused = marks.put(registry._context, target, replace=True, **options)
    assert isinstance(refused["billing"], ConflictError)
    assert marks.read(registry._context, ["billing"]) == {}

    put(registry, "billing")
    assert marks.put(registry._context, target, replace=True, **options) == {"billing": None}
    kept = marks.remove(registry._context, ["billing"], plan="p1", state=MarkState.MOVING)
    assert kept == {"billing": None}
    assert "was moved" in marks.read(registry._context, ["billing"])["billing"].shown
    assert marks.remove(registry._context, ["billing"], **options) == {"billing": None}
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


def obeys(registry: Registry, raw: Any) -> None:
    """The behaviour of registrations on all releases."""
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


def test_a_mark_prevents_new_registrations_and_existing_instances_continue(registry: Registry, raw: Any) -> None:
    obeys(registry, raw)


def test_on_old_releases_a_mark_prevents_new_registrations_and_existing_instances_continue(
    connect: Connect, old_hosts: str
) -> None:
    registry = connect(old_hosts)
    obeys(registry, registry.client)


def test_many_instances_that_try_cannot_register_under_a_mark(connect: Connect, zookeeper_hosts: str) -> None:
    nobody_comes(connect, zookeeper_hosts)


def test_on_old_releases_many_instances_that_try_cannot_register_under_a_mark(connect: Connect, old_hosts: str) -> None:
    nobody_comes(connect, old_hosts)


def nobody_comes(connect: Connect, hosts: str) -> None:
    """Members join and leave all the time. Every registration that exists beside a mark is older than the mark."""
    registry, over = connect(hosts), threading.Event()
    registry.group("billing").create()
    refused = [0] * 6
    registries = [connect(hosts) for _ in refused]

    def come_and_go(number: int) -> None:
        me = registries[number].group("billing").instance(f"m{number}")
        while not over.is_set():
            try:
                me.register(["orders"])
                me.deregister()
            except GroupMigratedError:
                refused[number] += 1

    threads = [threading.Thread(target=come_and_go, args=[number]) for number in range(len(refused))]
    for thread in threads:
        thread.start()
    try:
        for _ in range(40):
            assert put(registry, "billing") == {"billing": None}
            made = registry.client.get(MARK)[1].czxid
            for _ in range(3):
                nodes = bulk_read.nodes(
                    registry._context, [f"/consumers/billing/ids/m{n}" for n in range(len(refused))]
                )
                assert all(node.czxid < made for node in nodes if isinstance(node, Node))
            assert remove(registry, "billing") == {"billing": None}
        assert put(registry, "billing") == {"billing": None}
        assert eventually(lambda: all(refused))
    finally:
        over.set()
        for thread in threads:
            thread.join()


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


def test_checking_for_a_mark_takes_no_additional_request(proxied: Registry, proxy: TcpProxy) -> None:
    group = proxied.group("billing")
    group.create()
    before = proxy.requests
    group.instance("me").register(["orders"])
    assert proxy.requests - before == 1


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


def test_a_description_has_the_mark_of_its_group(registry: Registry, group: Consumergroup, raw: Any) -> None:
    group.create()
    registry.group("other").create()
    assert group.describe().mark is None
    put(registry, "billing")
    [billing, other] = registry.describe(["billing", "other"])
    assert isinstance(billing.mark, Mark)
    assert (billing.mark.target, other.mark) == ("new-billing", None)
    raw.set(MARK, b"x")
    assert isinstance(group.describe().mark, MalformedNode)


def test_a_group_with_only_a_mark_is_not_an_empty_group(registry: Registry, group: Consumergroup) -> None:
    group.create()
    put(registry, "billing")
    [found] = registry.check(["billing"])
    assert "empty-group" not in [finding.code for finding in found.findings]


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
