"""The doctor on a real tree: findings, and repairs that touch nothing that changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from zkgroups import Checkup, Finding, Registry
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
    "padded-offset": {"offsets/orders/0": b"7 "},
    "missing-topic": {"owners/removed": b"", "offsets/orders/1": b"5"},
    "empty-group": {"ids": b""},
    "persistent-owner": {"owners/orders/0": b"gone-0"},
}
"""Nodes that give a group a repairable finding."""

OWNED = "/consumers/billing/owners/orders/0"


def anna_registers(tree: Tree) -> object:
    return tree.member("billing", "anna")


MEANWHILE: list[tuple[str, str, Callable[[Tree], object]]] = [
    ("padded-offset", "an instance registers", anna_registers),
    ("padded-offset", "an offset is committed", lambda t: t.client.set("/consumers/billing/offsets/orders/0", b"8")),
    ("padded-offset", "the offset is deleted", lambda t: t.client.delete("/consumers/billing/offsets/orders/0")),
    ("empty-group", "an instance registers", anna_registers),
    ("empty-group", "the first offset comes", lambda t: t.put("billing/offsets/orders/0", b"5")),
    ("empty-group", "the first owner comes", lambda t: t.owner("billing", "orders", "0", "anna")),
    ("empty-group", "something foreign comes", lambda t: t.put("billing/state", b"5")),
    ("empty-group", "the directory is written", lambda t: t.client.set("/consumers/billing/ids", b"x")),
    ("empty-group", "a directory is gone", lambda t: t.client.delete("/consumers/billing/ids")),
    ("missing-topic", "an instance registers", anna_registers),
    ("missing-topic", "an owner comes", lambda t: t.owner("billing", "removed", "0", "anna")),
    ("missing-topic", "the owners are gone", lambda t: t.client.delete("/consumers/billing/owners/removed")),
    ("persistent-owner", "its name registers", lambda t: t.member("billing", "gone-0")),
    ("persistent-owner", "its name without the stream registers", lambda t: t.member("billing", "gone")),
    (
        "persistent-owner",
        "a living member has claimed it",
        lambda t: (t.client.delete(OWNED), t.owner("billing", "orders", "0", "anna")),
    ),
    ("persistent-owner", "it was written", lambda t: t.client.set(OWNED, b"gone-0")),
    ("persistent-owner", "a node has come below it", lambda t: t.put("billing/owners/orders/0/x")),
    ("persistent-owner", "it is gone", lambda t: t.client.delete(OWNED)),
]


@pytest.mark.parametrize("late", [False, True], ids=["before", "at the last moment"])
@pytest.mark.parametrize(("code", "what", "change"), MEANWHILE)
def test_a_group_that_changes_meanwhile_is_not_repaired(
    registry: Registry,
    tree: Tree,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    what: str,
    change: Callable[[Tree], object],
    late: bool,
) -> None:
    for path, data in SICK[code].items():
        tree.put(f"billing/{path}", data)
    found = the(findings(registry), code)
    assert found.repairable
    session = registry._context.session
    transact, before = session.transact, dict[str, Any]()

    def change_and_transact(*arguments: Any, **options: Any) -> Any:
        if not before:
            change(tree)
            before.update(dump(tree.client))
        return transact(*arguments, **options)

    monkeypatch.setattr(session, "transact", change_and_transact)
    if not late:
        change(tree)
        before.update(dump(tree.client))
    with pytest.raises((GroupInUseError, ConflictError)):
        registry.repair(found)
    assert before
    assert dump(tree.client) == before
