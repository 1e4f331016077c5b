"""Persistent registrations: they block nothing, and no live member is taken for one."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.security import make_digest_acl

from zkgroups import CommittedOffset, Consumergroup, GroupState, InstanceState, Registry, TopicPartition
from zkgroups.exceptions import ConflictError, GroupInUseError, NoPermissionError, RefusedError
from zkgroups.migration.current_state import read_sources
from zkgroups.zookeeper.admin.transaction_guards import NobodyRegistered
from zkgroups.zookeeper.requests.transaction import TransactionFailed

from ..releases import HIDDEN_NODES, since
from .tree import dump

pytestmark = pytest.mark.zookeeper


AT, LAST = TopicPartition("orders", 0), TopicPartition("orders", 1)


GONE = "/consumers/billing/ids/gone"


SCALA = b'{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":"1795255170109"}'


@pytest.fixture
def billing(group: Consumergroup, raw: Any) -> Consumergroup:
    """A group with an offset and one persistent registration."""
    group.create()
    group.offsets.set(AT, 100)
    raw.create(GONE, SCALA)
    return group


def test_the_group_is_empty_and_the_registration_is_shown_as_dead(billing: Consumergroup) -> None:
    description = billing.describe()
    assert description.state is GroupState.EMPTY
    assert [(each.id, each.state) for each in description.instances] == [("gone", InstanceState.DEAD)]
    assert [each.id for each in billing.instances()] == ["gone"]
    assert billing.living() == []


def test_offsets_are_reset_and_deleted_and_the_registration_stays_as_it_was(billing: Consumergroup, raw: Any) -> None:
    raw.set(GONE, SCALA)  # so that its version differs from that of a recreated node
    acl, _ = raw.get_acls(GONE)
    billing.offsets.reset({AT: 5})
    billing.offsets.reset({AT: 3, LAST: 7})
    billing.offsets.delete([LAST])
    assert [(each.at, each.offset) for each in billing.offsets if isinstance(each, CommittedOffset)] == [(AT, 3)]
    data, stat = raw.get(GONE)
    assert (data, stat.ephemeralOwner, raw.get_acls(GONE)[0]) == (SCALA, 0, acl)


def test_beside_a_live_member_nothing_is_changed_and_only_that_member_is_named(
    billing: Consumergroup, raw: Any
) -> None:
    raw.create("/consumers/billing/ids/anna", SCALA, ephemeral=True)
    before = dump(raw)
    for act in (lambda: billing.offsets.reset({AT: 5}), billing.delete):
        with pytest.raises(GroupInUseError) as refused:
            act()
        assert refused.value.instances == ("anna",)
    assert dump(raw) == before


@pytest.mark.parametrize("of_owner", ["gone", "gone-0"])
def test_while_an_owner_node_has_its_name_it_counts_as_alive(
    billing: Consumergroup, registry: Registry, raw: Any, of_owner: str
) -> None:
    raw.create("/consumers/billing/owners/orders/0", of_owner.encode(), ephemeral=True, makepath=True)
    with pytest.raises(GroupInUseError):
        billing.offsets.reset({AT: 5})
    assert [each.id for each in billing.living()] == ["gone"]
    assert read_sources(registry, ["billing"])["billing"].instances == ("gone",)
    assert not _finding(registry).repairable


def test_nodes_below_the_registration_keep_it_in_use(billing: Consumergroup, raw: Any) -> None:
    """The id of a client may contain a slash. Then the registration is below, and this node is only its directory."""
    raw.create(f"{GONE}/really", SCALA, ephemeral=True)
    before = dump(raw)
    with pytest.raises(GroupInUseError):
        billing.offsets.reset({AT: 5})
    assert dump(raw) == before


def test_an_instance_that_registers_below_the_registration_meanwhile_is_never_deleted(
    billing: Consumergroup, registry: Registry, raw: Any
) -> None:
    raw.create(f"{GONE}/really", SCALA)
    guard = NobodyRegistered(billing.paths, registry._context)
    raw.delete(f"{GONE}/really")
    raw.create(f"{GONE}/really", SCALA, ephemeral=True)
    before = dump(raw)
    with pytest.raises(TransactionFailed) as failed:
        registry._context.session.transact(guard.operations(), deadline=registry._context.deadline())
    with pytest.raises(GroupInUseError, match="gone/really"):
        guard.handle_failure(failed.value)
    assert dump(raw) == before


@pytest.mark.parametrize("change", ["ephemeral", "written", "below"])
def test_the_doctor_does_not_remove_a_registration_that_changed_meanwhile(
    billing: Consumergroup, registry: Registry, raw: Any, change: str
) -> None:
    finding = _finding(registry)
    if change == "ephemeral":
        raw.delete(GONE)
        raw.create(GONE, SCALA, ephemeral=True)
    elif change == "written":
        raw.set(GONE, SCALA)
    else:
        raw.create(f"{GONE}/really", SCALA, ephemeral=True)
    before = dump(raw)
    with pytest.raises(ConflictError):
        registry.repair(finding)
    assert dump(raw) == before


ALICE = [make_digest_acl("alice", "secret", all=True)]


def test_a_forbidden_registration_is_dead_if_the_server_reports_that_it_is_persistent(old_hosts: str) -> None:
    with Registry.connect(old_hosts) as registry:
        group = registry.group("billing")
        group.create()
        group.offsets.set(AT, 100)
        registry.client.create(GONE, SCALA, acl=ALICE)
        description = group.describe()
        assert description.state is GroupState.EMPTY
        assert [(each.id, each.state) for each in description.instances] == [("gone", InstanceState.DEAD)]
        assert group.living() == []
        assert read_sources(registry, ["billing"])["billing"].instances == ()


def test_a_forbidden_registration_is_named_by_the_doctor_and_by_every_call_that_must_delete_it(old_hosts: str) -> None:
    with Registry.connect(old_hosts) as registry:
        group = registry.group("billing")
        group.create()
        group.offsets.set(AT, 100)
        registry.client.create(GONE, SCALA, acl=ALICE)
        for act in (lambda: group.offsets.reset({AT: 5}), group.delete):
            with pytest.raises(NoPermissionError) as refused:
                act()
            assert refused.value.path == GONE
        with pytest.raises(RefusedError):
            registry.repair(_finding(registry))
        registry.client.create("/consumers/billing/ids/anna", SCALA, ephemeral=True)
        with pytest.raises(GroupInUseError, match="in use by anna"):
            group.delete()


@pytest.mark.parametrize("alive", ["ephemeral", "owner", "below"])
def test_a_forbidden_registration_that_may_be_alive_keeps_the_group_in_use(old_hosts: str, alive: str) -> None:
    with Registry.connect(old_hosts) as registry:
        group = registry.group("billing")
        group.create()
        registry.client.create(GONE, SCALA, acl=None if alive == "below" else ALICE, ephemeral=alive == "ephemeral")
        if alive == "owner":
            registry.client.create(f"{group.paths.owners}/orders/0", b"gone-0", ephemeral=True, makepath=True)
        if alive == "below":
            registry.client.create(f"{GONE}/really", SCALA, ephemeral=True)
            registry.client.set_acls(GONE, ALICE)
        assert [each.id for each in group.living()] == ["gone"]
        assert read_sources(registry, ["billing"])["billing"].instances == ("gone",)
        with pytest.raises(GroupInUseError):
            group.delete()


@since(HIDDEN_NODES, "hidden nodes")
def test_a_forbidden_registration_is_in_use_if_the_server_reports_nothing(group: Consumergroup, raw: Any) -> None:
    """ZooKeeper 3.9 and later answer nothing about a node without permission to read it."""
    group.create()
    raw.create(GONE, SCALA, acl=ALICE)
    assert [each.id for each in group.living()] == ["gone"]
    with pytest.raises(GroupInUseError):
        group.delete()


def _finding(registry: Registry) -> Any:
    [checkup] = registry.check(["billing"])
    [found] = [each for each in checkup.findings if each.code == "persistent-registration"]
    return found
