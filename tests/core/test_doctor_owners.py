"""The doctor's checks of owners: orphans, blocked and persistent owners."""

from __future__ import annotations

import pytest

from zkgroups import Owner, Registration, Severity
from zkgroups.core.doctor.group_nodes import GroupNodes
from zkgroups.core.znodes.registration_codec import encode_registration
from zkgroups.core.znodes.values import (
    ForbiddenNode,
)

from .doctor_nodes import AT, PATHS, SESSION, bad_owner, codes, group, member, owner, the


@pytest.mark.parametrize("id", ["anna", "anna-0", "anna-17"])
def test_an_owner_registered_with_its_name_and_session_is_not_an_orphan(id: str) -> None:
    assert "orphan-owner" not in codes(group(member("anna"), owners=(owner(id),)))


def test_a_live_owner_that_does_not_subscribe_is_one_finding_that_may_be_intended() -> None:
    other = member("cron", encode_registration(Registration({"refunds": 1})))
    nodes = group(member("anna"), other, owners=(owner("cron"),), partitions={"orders": (0,)})
    finding = the("blocked-partition", nodes)
    assert (finding.severity, finding.path, finding.repairable) == (Severity.WARNING, PATHS.owner(AT), False)
    assert finding.fix.endswith("zkgroups release --expect-owner=cron --expect-session=0x1234 billing orders 0")
    assert codes(nodes) == ["blocked-partition"]


def test_a_blocked_partition_is_not_reported_by_two_checks() -> None:
    for nodes in (
        group(member("anna"), owners=(owner("ben"),), partitions={"orders": (0,)}),
        group(member("anna"), unreadable=(bad_owner(b"ben"),), partitions={"orders": (0,)}),
        group(member("anna"), unreadable=(bad_owner(b"", session=SESSION),), partitions={"orders": (0,)}),
    ):
        assert nodes.description.blocked
        assert "blocked-partition" not in codes(nodes)


@pytest.mark.parametrize("other", [owner("ben"), owner("anna", session=7), owner("anna-x")])
def test_an_owner_of_another_name_or_session_is_an_orphan(other: Owner) -> None:
    finding = the("orphan-owner", group(member("anna"), owners=(other,)))
    assert (finding.severity, finding.path, finding.repairable) == (Severity.ERROR, PATHS.owner(AT), False)
    assert finding.fix.endswith(
        f"zkgroups release --expect-owner={other.id} --expect-session={other.session:#x} billing orders 0"
    )


def test_two_owners_are_reported_at_the_node_in_the_usual_format() -> None:
    pykafka = Owner(AT, "py", SESSION, path=f"{PATHS.owners}/b'orders'/1-0")
    finding = the("two-owners", group(owners=(pykafka, owner("anna"))))
    assert finding.path == PATHS.owner(AT)
    assert "/b'orders'/1-0" in finding.what


@pytest.mark.parametrize(
    ("data", "unless"),
    [(b"gone", ("gone",)), (b"gone-0", ("gone-0", "gone")), (b"gone-x", ("gone-x",)), (b"-0", ("-0",))],
)
def test_a_persistent_owner_is_deleted_unless_its_name_is_registered(data: bytes, unless: tuple[str, ...]) -> None:
    finding = the("persistent-owner", group(unreadable=(bad_owner(data),)))
    assert finding.repair is not None
    assert finding.repair.unless == unless
    assert not any(
        the("persistent-owner", group(member(name), unreadable=(bad_owner(data),))).repairable for name in unless
    )


@pytest.mark.parametrize(
    "nodes",
    [
        group(unreadable=(bad_owner(b""),)),
        group(unreadable=(bad_owner(b"\xff"),)),
        group(unreadable=(bad_owner(b"a/b"),)),
        group(unreadable=(bad_owner(b"gone", partition="x"),)),
        group(unreadable=(bad_owner(b"gone"), ForbiddenNode(PATHS.ids))),
        group(unreadable=(bad_owner(b"gone"),), nested={PATHS.owner(AT): ("x",)}),
    ],
    ids=["names nobody", "no text", "no name", "no partition", "registrations hidden", "something below"],
)
def test_a_persistent_owner_that_may_be_in_use_is_not_repaired(nodes: GroupNodes) -> None:
    finding = the("persistent-owner", nodes)
    assert not finding.repairable
    assert finding.not_repaired


def test_a_live_unreadable_owner_is_not_repaired() -> None:
    finding = the("unreadable-owner", group(unreadable=(bad_owner(b"", session=SESSION),)))
    assert "0x1234" in finding.fix
    assert not finding.repairable


def test_unowned_partitions_are_one_finding_per_topic() -> None:
    nodes = group(member("anna"), owners=(owner("anna"),), partitions={"orders": tuple(range(20))})
    finding = the("unowned-partition", nodes)
    assert finding.path == PATHS.owned_topic("orders")
    assert "partitions 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 9 more of the subscribed topic 'orders'" in finding.what


@pytest.mark.parametrize("hidden", [PATHS.ids, PATHS.owners, PATHS.ids + "/x", PATHS.owners + "/orders"])
def test_forbidden_nodes_are_not_taken_for_missing(hidden: str) -> None:
    nodes = group(member("anna"), unreadable=(ForbiddenNode(hidden, "hidden"),), partitions={"orders": (0,)})
    assert codes(nodes) == ["no-permission"]
