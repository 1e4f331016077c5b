"""The doctor on a real tree: findings, and repairs that touch nothing that changed meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from zkgroups import Checkup, Finding, Registry, Severity, TopicPartition
from zkgroups.core.doctor.all_checks import CHECKS
from zkgroups.exceptions import (
    ConflictError,
    GroupInUseError,
)
from zkgroups.testing import TcpProxy
from zkgroups.zookeeper.reading import doctor_reader

from ..releases import needs_multiread
from .helpers import findings, the
from .sick import PADDED, Tree, plant
from .tree import dump

pytestmark = pytest.mark.zookeeper


GET_ACL = 6


def test_every_planted_problem_is_found_by_code_and_path(registry: Registry, tree: Tree) -> None:
    planted = plant(tree)
    before = dump(tree.client)
    found = findings(registry)
    assert planted - {(finding.code, finding.path) for finding in found} == set()
    assert {code for code, _path in planted} == {check.code for check in CHECKS} - {"stale-offset"}
    assert dump(tree.client) == before


def test_an_offset_is_stale_after_the_given_time(registry: Registry) -> None:
    registry.group("billing").offsets.set(TopicPartition("orders", 0), 5)
    assert "stale-offset" not in {finding.code for finding in findings(registry, stale_after=60)}
    deadline = time.monotonic() + 30
    while "stale-offset" not in {finding.code for finding in findings(registry, stale_after=0)}:
        assert time.monotonic() < deadline
    stale = the(findings(registry, stale_after=0), "stale-offset")
    assert (stale.severity, stale.path) == (Severity.INFO, "/consumers/billing/offsets/orders")


def test_a_transient_finding_counts_only_if_both_reads_show_it(
    registry: Registry, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.owner("billing", "orders", "1", "gone")
    between_looks(monkeypatch, lambda: tree.owner("billing", "orders", "2", "new"))
    found = findings(registry, "billing")
    assert [each.path for each in found if each.code == "orphan-owner"] == ["/consumers/billing/owners/orders/1"]


def between_looks(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Call a function after the first read."""
    look = doctor_reader._read_and_examine
    looks = iter([True])

    def look_and_act(*arguments: Any, **options: Any) -> list[Checkup]:
        found = look(*arguments, **options)
        if next(looks, False):
            act()
        return found

    monkeypatch.setattr(doctor_reader, "_read_and_examine", look_and_act)


@needs_multiread
def test_many_groups_are_examined_in_few_requests(proxied: Registry, proxy: TcpProxy, raw: Any) -> None:
    raw.create("/brokers/topics/orders", b'{"version":1,"partitions":{"0":[0]}}', makepath=True)
    for group in range(30):
        for partition in range(20):
            raw.create(f"/consumers/g{group}/offsets/orders/{partition}", b"5", makepath=True)
    list(proxied.check(["g0"]))
    before = proxy.requests_by_type
    assert len(findings(proxied)) == 30 * 20  # 19 partitions too many in each, and open
    spent = dict(proxy.requests_by_type - before)
    assert spent.pop(GET_ACL) == 30 * 4  # no request reads several access control lists
    assert sum(spent.values()) <= 40


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
