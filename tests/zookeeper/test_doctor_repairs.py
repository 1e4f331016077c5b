"""Repairs on a real tree: only safe repairs are made, and nothing that changed meanwhile is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from zkgroups import Finding, Registry
from zkgroups.exceptions import (
    ConflictError,
    GroupInUseError,
    GroupNotFoundError,
    NoPermissionError,
    ReadOnlyError,
    RefusedError,
)

from .conftest import Connect
from .doctor import findings, the
from .sick import CLOSED, PADDED, Tree, plant
from .tree import dump

pytestmark = pytest.mark.zookeeper


# Repairs


def repaired(registry: Registry, found: list[Finding]) -> list[str]:
    """Make all possible repairs, and return the repaired paths."""
    paths = []
    for finding in found:
        if finding.repairable:
            registry.repair(finding)
            paths.append(finding.path)
    return paths


def test_repairs_change_only_what_is_safe(registry: Registry, tree: Tree) -> None:
    plant(tree)
    tree.put("emptied/owners/removed")
    tree.put("emptied/owners/orders")
    tree.put("emptied/offsets/orders/0", b"5")
    before = dump(tree.client)
    repaired(registry, findings(registry))
    after = dump(tree.client)
    removed = {
        "/consumers/persistent/owners/orders/0",
        "/consumers/persistent/owners/b'orders'/1001-1",
        "/consumers/for-ever/ids/for-ever_h-1-ab",
        "/consumers/emptied/owners/removed",
        "/consumers/litter/owners/orders",
        "/consumers/litter/owners",
        "/consumers/litter/ids",
        "/consumers/litter",
    }
    written = {
        f"/consumers/padded/offsets/orders/{partition}": (data.strip(), False, 1) for partition, data in PADDED.items()
    }
    made = {"/consumers/emptied/ids", "/consumers/padded/ids"}
    assert after == {path: node for path, node in before.items() if path not in removed} | written
    assert not made & after.keys()


def test_a_repaired_problem_is_no_longer_found(registry: Registry, tree: Tree) -> None:
    plant(tree)
    paths = repaired(registry, findings(registry))
    assert paths
    assert not [finding.path for finding in findings(registry) if finding.path in paths and finding.repairable]


def test_an_unsafe_repair_is_refused_and_changes_nothing(registry: Registry, tree: Tree) -> None:
    plant(tree)
    before = dump(tree.client)
    for finding in findings(registry):
        if not finding.repairable:
            with pytest.raises(RefusedError, match="is not repaired: "):
                registry.repair(finding)
    assert dump(tree.client) == before


def test_a_persistent_owner_is_deleted_beside_living_members(registry: Registry, tree: Tree) -> None:
    tree.put("billing/owners/orders/0", b"gone-0")
    tree.member("billing", "anna")
    registry.repair(the(findings(registry), "persistent-owner"))
    assert sorted(dump(tree.client, "/consumers/billing")) == [
        "/consumers/billing",
        "/consumers/billing/ids",
        "/consumers/billing/ids/anna",
        "/consumers/billing/owners",
        "/consumers/billing/owners/orders",
    ]


@pytest.mark.parametrize("id", ["gone-0", "gone"])
def test_a_persistent_owner_that_names_a_registered_instance_is_not_repaired(
    registry: Registry, tree: Tree, id: str
) -> None:
    tree.put("billing/owners/orders/0", b"gone-0")
    tree.member("billing", id)
    assert not the(findings(registry), "persistent-owner").repairable


def test_a_padded_offset_is_not_repaired_while_a_member_is_registered(registry: Registry, tree: Tree) -> None:
    tree.put("a/offsets/orders/0", b"7 ")
    tree.member("a", "anna")
    tree.put("b/offsets/orders/0", b"7 ")
    tree.owner("b", "orders", "0", "anna-0")
    assert [each.repairable for each in findings(registry) if each.code == "padded-offset"] == [False, False]


@pytest.mark.parametrize("more", ["state", "ids/x/y", "offsets/orders/x"])
def test_a_group_with_any_other_node_is_not_deleted_as_unused(registry: Registry, tree: Tree, more: str) -> None:
    tree.put("litter/owners/orders")
    tree.put(f"litter/{more}")
    assert not [each for each in findings(registry) if each.code == "empty-group" and each.repairable]


def test_directories_that_hold_data_are_not_deleted(registry: Registry, tree: Tree) -> None:
    tree.put("litter/offsets/orders", b"5")
    tree.put("gone/offsets/removed", b"5")
    tree.put("gone/offsets/orders/0", b"5")
    codes = {"empty-group", "missing-topic"}
    assert [each.repairable for each in findings(registry) if each.code in codes] == [False, False]


# Changes between the check and the repair

SICK = {
    "padded-offset": ("offsets/orders/0", b"7 "),
    "missing-topic": ("owners/removed", b""),
    "empty-group": ("ids", b""),
}
"""Nodes that give a group a repairable finding. `missing-topic` needs an offset in addition."""


def sick(registry: Registry, tree: Tree, code: str) -> Finding:
    path, data = SICK[code]
    tree.put(f"billing/{path}", data)
    if code == "missing-topic":
        tree.put("billing/offsets/orders/1", b"5")
    found = the(findings(registry), code)
    assert found.repairable
    return found


def at_the_last_moment(registry: Registry, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Call a function after all reads, just before the transaction is sent."""
    session = registry._context.session
    transact = session.transact
    moments = iter([True])

    def act_and_transact(*arguments: Any, **options: Any) -> Any:
        if next(moments, False):
            act()
        return transact(*arguments, **options)

    monkeypatch.setattr(session, "transact", act_and_transact)


@pytest.mark.parametrize("late", [False, True], ids=["before", "at the last moment"])
@pytest.mark.parametrize("code", SICK)
def test_a_group_is_not_repaired_if_an_instance_registers_meanwhile(
    registry: Registry, tree: Tree, monkeypatch: pytest.MonkeyPatch, code: str, late: bool
) -> None:
    found = sick(registry, tree, code)
    before: dict[str, Any] = {}

    def register() -> None:
        tree.member("billing", "anna")
        before.update(dump(tree.client))

    if late:
        at_the_last_moment(registry, monkeypatch, register)
    else:
        register()
    with pytest.raises((GroupInUseError, ConflictError)):
        registry.repair(found)
    assert before
    assert dump(tree.client) == before


MEANWHILE: dict[str, tuple[str, Callable[[Tree], object]]] = {
    "an offset is committed": ("padded-offset", lambda t: t.client.set("/consumers/billing/offsets/orders/0", b"8")),
    "the offset is deleted": ("padded-offset", lambda t: t.client.delete("/consumers/billing/offsets/orders/0")),
    "the first offset comes": ("empty-group", lambda t: t.put("billing/offsets/orders/0", b"5")),
    "the first owner comes": ("empty-group", lambda t: t.owner("billing", "orders", "0", "anna")),
    "something foreign comes": ("empty-group", lambda t: t.put("billing/state", b"5")),
    "the directory is written": ("empty-group", lambda t: t.client.set("/consumers/billing/ids", b"x")),
    "a directory is gone": ("empty-group", lambda t: t.client.delete("/consumers/billing/ids")),
    "an owner comes": ("missing-topic", lambda t: t.owner("billing", "removed", "0", "anna")),
    "the owners are gone": ("missing-topic", lambda t: t.client.delete("/consumers/billing/owners/removed")),
}


@pytest.mark.parametrize("late", [False, True], ids=["before", "at the last moment"])
@pytest.mark.parametrize("what", MEANWHILE)
def test_a_node_that_changes_meanwhile_is_not_overwritten(
    registry: Registry, tree: Tree, monkeypatch: pytest.MonkeyPatch, what: str, late: bool
) -> None:
    code, change = MEANWHILE[what]
    found = sick(registry, tree, code)
    before: dict[str, Any] = {}

    def act() -> None:
        change(tree)
        before.update(dump(tree.client))

    if late:
        at_the_last_moment(registry, monkeypatch, act)
    else:
        act()
    with pytest.raises(ConflictError, match="has changed since the check; nothing was repaired"):
        registry.repair(found)
    assert before
    assert dump(tree.client) == before


def test_an_offset_recreated_with_the_same_version_is_not_overwritten(registry: Registry, tree: Tree) -> None:
    found = sick(registry, tree, "padded-offset")
    tree.client.delete("/consumers/billing/offsets/orders/0")
    tree.client.create("/consumers/billing/offsets/orders/0", b"9")
    with pytest.raises(ConflictError):
        registry.repair(found)
    assert tree.client.get("/consumers/billing/offsets/orders/0")[0] == b"9"


OWNED = "/consumers/billing/owners/orders/0"


TAKEN: dict[str, tuple[type[Exception], Callable[[Tree], object]]] = {
    "its name registers": (GroupInUseError, lambda t: t.member("billing", "gone-0")),
    "its name without the stream registers": (GroupInUseError, lambda t: t.member("billing", "gone")),
    "a living member has claimed it": (
        ConflictError,
        lambda t: (t.client.delete(OWNED), t.owner("billing", "orders", "0", "anna")),
    ),
    "it was written": (ConflictError, lambda t: t.client.set(OWNED, b"gone-0")),
    "a node has come below it": (ConflictError, lambda t: t.put("billing/owners/orders/0/x")),
    "it is gone": (ConflictError, lambda t: t.client.delete(OWNED)),
}


@pytest.mark.parametrize("ids", [False, True], ids=["without ids", "with ids"])
@pytest.mark.parametrize("what", TAKEN)
def test_a_new_claim_is_never_deleted_as_a_persistent_owner(
    registry: Registry, tree: Tree, monkeypatch: pytest.MonkeyPatch, what: str, ids: bool
) -> None:
    error, change = TAKEN[what]
    tree.put("billing/owners/orders/0", b"gone-0")
    if ids:
        tree.put("billing/ids")
    found = the(findings(registry), "persistent-owner")
    before: dict[str, Any] = {}

    def act() -> None:
        change(tree)
        before.update(dump(tree.client))

    at_the_last_moment(registry, monkeypatch, act)
    with pytest.raises(error):
        registry.repair(found)
    assert before
    assert dump(tree.client) == before


def test_repairing_a_deleted_group_does_not_recreate_it(registry: Registry, tree: Tree) -> None:
    found = sick(registry, tree, "padded-offset")
    tree.client.delete("/consumers/billing", recursive=True)
    with pytest.raises(GroupNotFoundError):
        registry.repair(found)
    assert not tree.client.exists("/consumers/billing")


def test_without_permission_nothing_is_repaired(registry: Registry, tree: Tree) -> None:
    tree.put("billing", acl=CLOSED)
    tree.put("billing/ids", acl=CLOSED)
    tree.put("billing/offsets/orders/0", b"7 ", acl=CLOSED)
    before = dump(tree.client)
    with pytest.raises(NoPermissionError):
        registry.repair(the(findings(registry), "padded-offset"))
    assert dump(tree.client) == before


def test_a_read_only_registry_repairs_nothing(connect: Connect, tree: Tree) -> None:
    tree.put("billing/offsets/orders/0", b"7 ")
    reader = connect(read_only=True)
    with pytest.raises(ReadOnlyError):
        reader.repair(the(findings(reader), "padded-offset"))
