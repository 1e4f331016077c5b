"""Checks and repairs on a real tree: problems are found with their paths, and only safe repairs are made."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.client import KazooClient

from zkgroups import Checkup, Finding, Registry, Severity, TopicPartition
from zkgroups.core.doctor.all_checks import CHECKS
from zkgroups.exceptions import (
    ConflictError,
    GroupInUseError,
    GroupNotFoundError,
    InvalidNameError,
    InvalidOptionError,
    NoPermissionError,
    NotRegisteredError,
    ReadOnlyError,
    RefusedError,
)
from zkgroups.testing import TcpProxy
from zkgroups.zookeeper.reading import doctor_reader
from zkgroups.zookeeper.requests import bulk_read

from .conftest import Connect
from .sick import CLOSED, HIDDEN, OURS, PADDED, SCALA, Place, Tree, plant, plant_healthy
from .tree import dump

pytestmark = pytest.mark.zookeeper

GET_ACL = 6


@pytest.fixture
def tree(raw: KazooClient) -> Tree:
    return Tree(raw)


def findings(registry: Registry, *groups: str, **options: Any) -> list[Finding]:
    return [finding for checkup in registry.check(groups or None, **options) for finding in checkup.findings]


def places(found: list[Finding]) -> set[Place]:
    return {(finding.code, finding.path) for finding in found}


def the(found: list[Finding], code: str) -> Finding:
    [finding] = [finding for finding in found if finding.code == code]
    return finding


# Findings


def test_every_planted_problem_is_found_by_code_and_path(registry: Registry, tree: Tree) -> None:
    planted = plant(tree)
    before = dump(tree.client)
    found = findings(registry)
    assert planted - places(found) == set()
    assert {code for code, _path in planted} == {check.code for check in CHECKS} - {"stale-offset"}
    assert dump(tree.client) == before


def test_only_planted_problems_are_found(registry: Registry, tree: Tree) -> None:
    planted = plant(tree)
    # Consequences of planted problems: an invalid owner leaves its partition unowned; some offsets have two findings.
    follows = {"open-acl", "unowned-partition", "orphan-owner", "mixed-dialects", "scala-cannot-read"}
    assert {code for code, _path in places(findings(registry)) - planted} <= follows
    assert {path for code, path in places(findings(registry)) - planted if code == "scala-cannot-read"} == {
        "/consumers/mixed/ids/pykafka"
    }


def test_in_a_healthy_group_nothing_is_found(registry: Registry, tree: Tree) -> None:
    plant_healthy(tree)
    assert list(registry.check()) == [Checkup("healthy", exists=True)]


def test_a_group_of_zkgroups_has_no_finding_but_its_open_acls(registry: Registry, raw: Any) -> None:
    raw.create("/brokers/topics/orders", b'{"version":1,"partitions":{"0":[0]}}', makepath=True)
    with registry.group("billing").instance("anna") as anna:
        anna.register(["orders"])
        with anna.claim(TopicPartition("orders", 0)) as claim:
            claim.commit(5)
            assert [(each.code, each.severity) for each in findings(registry)] == [("open-acl", Severity.INFO)]


def test_the_worst_comes_first_and_the_order_is_stable(registry: Registry, tree: Tree) -> None:
    plant(tree)
    for examined in registry.check():
        severities = [list(Severity).index(finding.severity) for finding in examined.findings]
        assert severities == sorted(severities)
    assert list(registry.check()) == list(registry.check())
    assert [examined.group for examined in registry.check(["stopper", "go"])] == ["stopper", "go"]


def test_every_finding_has_advice_and_a_repair_or_a_reason_against_it(registry: Registry, tree: Tree) -> None:
    plant(tree)
    for finding in findings(registry):
        assert finding.what
        assert finding.fix
        assert finding.repairable == (finding.not_repaired is None)


def test_an_offset_is_stale_after_the_given_time(registry: Registry) -> None:
    registry.group("billing").offsets.set(TopicPartition("orders", 0), 5)
    assert "stale-offset" not in {finding.code for finding in findings(registry, stale_after=60)}
    deadline = time.monotonic() + 10
    while "stale-offset" not in {finding.code for finding in findings(registry, stale_after=0)}:
        assert time.monotonic() < deadline
    stale = the(findings(registry, stale_after=0), "stale-offset")
    assert (stale.severity, stale.path) == (Severity.INFO, "/consumers/billing/offsets/orders")


def test_without_registered_topics_no_topic_counts_as_deleted(registry: Registry, raw: Any) -> None:
    raw.create("/consumers/storm/offsets/orders/0", b"5", makepath=True)
    assert {finding.code for finding in findings(registry)} == {"open-acl"}
    raw.ensure_path("/brokers/topics")
    assert {finding.code for finding in findings(registry)} == {"open-acl", "missing-topic"}


def test_a_topic_in_pykafkas_format_does_not_count_as_deleted(registry: Registry, tree: Tree) -> None:
    tree.member("py", "py", b"orders")
    for partition in range(6):
        tree.owner("py", "b'orders'", f"1001-{partition}", "py")
    assert {finding.code for finding in findings(registry)} == {"open-acl"}


def test_with_forbidden_registrations_no_owner_counts_as_an_orphan(registry: Registry, tree: Tree) -> None:
    tree.put("hidden")
    tree.put("hidden/ids", acl=HIDDEN)
    tree.owner("hidden", "orders", "0", "somebody-0")
    assert {finding.code for finding in findings(registry)} == {"no-permission", "open-acl"}


@pytest.mark.parametrize("directory", ["", "/ids", "/owners", "/offsets"])
def test_each_directory_that_all_clients_may_change_is_named(registry: Registry, tree: Tree, directory: str) -> None:
    for each in ("", "/ids", "/owners", "/offsets"):
        tree.put(f"billing{each}", acl=None if each == directory else CLOSED)
    assert the(findings(registry), "open-acl").what == (
        f"every client may change {directory.removeprefix('/') or 'the group'}"
    )


def test_a_missing_group_has_no_findings_and_is_marked(registry: Registry) -> None:
    assert list(registry.check(["nobody"])) == [Checkup("nobody", exists=False)]


def test_bad_names_and_times_are_refused_before_anything_is_read(registry: Registry) -> None:
    with pytest.raises(InvalidNameError):
        registry.check(["a/ids"])
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidOptionError):
            registry.check(stale_after=bad)


def test_an_owner_whose_registration_was_created_after_the_read_is_not_an_orphan(
    registry: Registry, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.owner("billing", "orders", "0", "late")
    tree.owner("billing", "orders", "1", "gone")
    between_looks(monkeypatch, lambda: tree.member("billing", "late", OURS))
    found = findings(registry, "billing")
    assert [each.path for each in found if each.code == "orphan-owner"] == ["/consumers/billing/owners/orders/1"]


def test_a_transient_finding_counts_only_if_both_reads_show_it(
    registry: Registry, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.owner("billing", "orders", "1", "gone")
    between_looks(monkeypatch, lambda: tree.owner("billing", "orders", "2", "new"))
    found = findings(registry, "billing")
    assert [each.path for each in found if each.code == "orphan-owner"] == ["/consumers/billing/owners/orders/1"]


def test_a_group_deleted_between_two_reads_is_left_out(
    registry: Registry, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.owner("billing", "orders", "1", "gone")
    between_looks(monkeypatch, lambda: tree.client.delete("/consumers/billing", recursive=True))
    assert list(registry.check(["billing"])) == [Checkup("billing", exists=False)]


def test_a_group_deleted_during_a_read_does_not_affect_others(
    registry: Registry, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.put("a/ids")
    tree.put("b/ids")
    nodes = bulk_read.nodes

    def vanish_and_read(context: Any, paths: Any) -> Any:
        paths = list(paths)
        if "/consumers/a" in paths:
            tree.client.delete("/consumers/a", recursive=True)
        return nodes(context, paths)

    monkeypatch.setattr(bulk_read, "nodes", vanish_and_read)
    assert [(each.path, each.repairable) for each in findings(registry) if each.code == "empty-group"] == [
        ("/consumers/a", False),
        ("/consumers/b", True),
    ]


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


def test_a_registration_is_shown_byte_by_byte(registry: Registry, tree: Tree) -> None:
    tree.member("billing", "anna", SCALA)
    assert registry.group("billing").raw_registration("anna") == SCALA
    with pytest.raises(NotRegisteredError):
        registry.group("billing").raw_registration("ben")
