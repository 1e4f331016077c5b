"""Checks on a real tree: problems are found with their paths."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from zkgroups import Checkup, Registry, Severity, TopicPartition
from zkgroups.core.doctor.all_checks import CHECKS
from zkgroups.exceptions import (
    InvalidNameError,
    InvalidOptionError,
    NotRegisteredError,
)
from zkgroups.testing import TcpProxy
from zkgroups.zookeeper.reading import doctor_reader
from zkgroups.zookeeper.requests import bulk_read

from ..releases import needs_multiread
from .doctor import findings, places, the
from .sick import CLOSED, HIDDEN, OURS, SCALA, Tree, plant, plant_healthy
from .tree import dump

pytestmark = pytest.mark.zookeeper


GET_ACL = 6


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
    deadline = time.monotonic() + 30
    while "stale-offset" not in {finding.code for finding in findings(registry, stale_after=0)}:
        assert time.monotonic() < deadline
    stale = the(findings(registry, stale_after=0), "stale-offset")
    assert (stale.severity, stale.path) == (Severity.INFO, "/consumers/billing/offsets/orders")


def test_an_offset_is_stale_although_the_clock_of_this_machine_is_behind(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_reader, "time", SimpleNamespace(time_ns=lambda: 0))
    offsets = registry.group("billing").offsets
    offsets.set(TopicPartition("refunds", 0), 5)
    deadline = time.monotonic() + 30
    while "stale-offset" not in {finding.code for finding in findings(registry, stale_after=0)}:
        assert time.monotonic() < deadline
        offsets.set(TopicPartition("orders", 0), 5)
    assert the(findings(registry, stale_after=0), "stale-offset").path == "/consumers/billing/offsets/refunds"


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


@pytest.mark.parametrize("data", [b"5", b"not an offset"], ids=["readable", "unreadable"])
def test_a_node_below_an_offset_is_found(registry: Registry, tree: Tree, data: bytes) -> None:
    tree.put("billing/offsets/orders/0", data)
    tree.put("billing/offsets/orders/0/below")
    nested = [each.path for each in findings(registry, "billing") if each.code == "nested-node"]
    assert nested == ["/consumers/billing/offsets/orders/0"]


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


def test_a_registration_is_shown_byte_by_byte(registry: Registry, tree: Tree) -> None:
    tree.member("billing", "anna", SCALA)
    assert registry.group("billing").raw_registration("anna") == SCALA
    with pytest.raises(NotRegisteredError):
        registry.group("billing").raw_registration("ben")
