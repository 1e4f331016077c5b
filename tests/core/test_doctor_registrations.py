"""The doctor's checks of registrations: clients that cannot read each other, and dead sessions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups import RegisteredInstance, Registration, Remove, Repair, Severity
from zkgroups.core.doctor.scala_blockers import scala_blocker
from zkgroups.core.znodes.registration_codec import decode_registration
from zkgroups.core.znodes.values import (
    Dialect,
    ForbiddenNode,
)

from .doctor_nodes import GATEWAY, KAZOO_GO, OURS, PATHS, SCALA, bad_owner, codes, group, member, owner, the
from .strategies import EXPRESSIONS, NEARLY_REGISTRATIONS

POISON = {
    b"": "it is empty",
    b"orders": "it is not a JSON object",
    b"{nonsense": "it is not a JSON object",
    b"\xff\xfe": "it is not a JSON object",
    b"[1]": "it is not a JSON object",
    b'{"a":NaN}': "it is not a JSON object",
    b"[" * 100_000: "it is not a JSON object",
    b'{"subscription":{"orders":1}}': "it has no pattern",
    b'{"subscription":{"orders":1},"pattern":null}': "its pattern is null",
    b'{"subscription":{"orders":1},"pattern":1}': "its pattern is not a string",
    b'{"pattern":"static"}': "it has no subscription",
    b'{"pattern":"static","subscription":["orders"]}': "its subscription is not a JSON object",
    b'{"pattern":"static","subscription":null}': "its subscription is not a JSON object",
    b'{"pattern":"static","subscription":{"orders":0}}': "0 is not a number of streams",
    b'{"pattern":"static","subscription":{"orders":-1}}': "-1 is not a number of streams",
    b'{"pattern":"static","subscription":{"orders":"1"}}': "'1' is not a number of streams",
    b'{"pattern":"static","subscription":{"orders":1.0}}': "1.0 is not a number of streams",
    b'{"pattern":"static","subscription":{"orders":true}}': "True is not a number of streams",
    b'{"pattern":"static","subscription":{"orders":2147483648}}': "2147483648 is not a number of streams",
    b'{"pattern":"white_list","subscription":{"(":1}}': "'(' is not a valid regular expression",
    b'{"pattern":"black_list","subscription":{"*":1}}': "'*' is not a valid regular expression",
    b'{"pattern":"white_list","subscription":{"[a":1}}': "'[a' is not a valid regular expression",
}


HARMLESS = [
    b'{"pattern":"static","subscription":{}}',
    b'{"pattern":"static","subscription":{"orders":2},"version":"x","timestamp":[],"more":null}',
    b'{"pattern":"whatever","subscription":{"(":1}}',
    b'{"pattern":"static","subscription":{"(":1}}',
    b'{"pattern":"white_list","subscription":{"a|b,c.*":1}}',
    b'{"pattern":"white_list","subscription":{"\\\\p{Lu}+":1}}',
    b'{"pattern":"white_list","subscription":{"(?<name>a)":1}}',
    b'{"pattern":"white_list","subscription":{"[[a]":1}}'.replace(b"[[a]", b"[[a]]"),
    SCALA,
    KAZOO_GO,
    OURS,
]


@pytest.mark.parametrize("data", POISON, ids=lambda data: data[:40])
def test_a_scala_blocker_has_its_reason(data: bytes) -> None:
    assert str(scala_blocker(data)) == POISON[data]


@pytest.mark.parametrize("data", HARMLESS)
def test_a_registration_that_scala_reads_has_no_blocker(data: bytes) -> None:
    assert scala_blocker(data) is None


@given(NEARLY_REGISTRATIONS.map(lambda fields: json.dumps(fields).encode()) | st.binary())
def test_a_readable_registration_has_no_scala_blocker_unless_it_is_a_bare_name(data: bytes) -> None:
    found = decode_registration("/r", data)
    if isinstance(found, Registration) and found.dialect is not Dialect.PYKAFKA:
        assert scala_blocker(data) is None


@given(EXPRESSIONS)
def test_any_expression_is_judged_without_an_error(expression: str) -> None:
    fields = {"pattern": "white_list", "subscription": {expression: 1}}
    assert scala_blocker(json.dumps(fields).encode()) is None or not _compiles(expression)


def _compiles(expression: str) -> bool:
    found = decode_registration("/r", json.dumps({"pattern": "white_list", "subscription": {expression: 1}}).encode())
    return isinstance(found, Registration)


def test_a_scala_blocker_is_an_error_only_if_a_scala_member_is_known() -> None:
    with_scala = the("scala-cannot-read", group(member("bad", b""), member("scala", SCALA)))
    without = the("scala-cannot-read", group(member("bad", b""), member("go", KAZOO_GO)))
    assert (with_scala.severity, without.severity) == (Severity.ERROR, Severity.WARNING)
    assert (with_scala.path, with_scala.repairable) == (PATHS.ids + "/bad", False)
    assert "0x1234" in with_scala.fix


def test_a_bare_name_blocks_only_scala_members() -> None:
    assert "scala-cannot-read" in codes(group(member("py", b"orders"), member("scala", SCALA)))
    assert codes(group(member("py", b"orders"), member("pz", b"orders"))) == []


def test_an_expression_only_java_can_evaluate_is_not_a_scala_blocker() -> None:
    data = b'{"pattern":"white_list","subscription":{"\\\\p{Lu}+":1}}'
    nodes = group(member("java", data))
    assert codes(nodes) == ["unevaluable-subscription"]
    found = the("unevaluable-subscription", nodes)
    assert found.what.startswith(
        r"the white_list '\\p{Lu}+' cannot be evaluated: it has a part that only Java supports"
    )
    assert (found.severity, found.repair) == (Severity.WARNING, None)


def test_a_persistent_registration_is_found_and_a_forbidden_one_is_not_called_persistent() -> None:
    hidden = RegisteredInstance("x", 0, ForbiddenNode(PATHS.ids + "/x", "hidden"))
    assert codes(group(member("anna", session=0))) == ["persistent-registration"]
    assert codes(group(hidden)) == ["no-permission"]


def test_a_persistent_registration_is_removed_beside_registered_instances() -> None:
    finding = the("persistent-registration", group(member("gone", session=0), member("anna")))
    steps = (Remove(f"{PATHS.ids}/gone", 0, persistent=True),)
    assert finding.repair == Repair("delete the node", steps, is_always_safe=True)
    assert not Repair("delete the node", steps).is_always_safe


@pytest.mark.parametrize(
    "more",
    [
        {"owners": (owner("gone-0"),)},
        {"unreadable": (bad_owner(b"\xff", session=7),)},
        {"nested": {f"{PATHS.ids}/gone": ("b",)}},
    ],
    ids=["an owner", "an unknown owner", "nodes below"],
)
def test_a_persistent_registration_that_may_be_in_use_is_not_repaired(more: dict[str, Any]) -> None:
    assert not the("persistent-registration", group(member("gone", session=0), **more)).repairable


def test_a_persistent_registration_that_may_not_be_read_is_found_and_not_repaired() -> None:
    hidden = RegisteredInstance("gone", 0, ForbiddenNode(PATHS.ids + "/gone", "hidden", persistent=True))
    assert not the("persistent-registration", group(hidden)).repairable


MIXTURES = {
    (SCALA, SCALA): [],
    (SCALA, OURS): [],
    (KAZOO_GO, OURS): [],
    (SCALA, GATEWAY): [],
    (KAZOO_GO, GATEWAY): [],
    (OURS, GATEWAY): [],
    (GATEWAY, b"orders"): ["mixed-dialects"],
    (SCALA, KAZOO_GO): ["kazoo-go-cannot-read", "mixed-dialects"],
    (SCALA, b"orders"): ["scala-cannot-read", "mixed-dialects"],
    (KAZOO_GO, b"orders"): ["mixed-dialects"],
    (OURS, b"orders"): ["mixed-dialects"],
}


@pytest.mark.parametrize("mixture", MIXTURES)
def test_incompatible_kinds_of_clients_are_reported(mixture: tuple[bytes, ...]) -> None:
    members = [member(str(number), data) for number, data in enumerate(mixture)]
    assert codes(group(*members)) == MIXTURES[mixture]


def test_kazoo_go_reads_a_registration_without_a_timestamp() -> None:
    data = SCALA.replace(b',"timestamp":"1795255170109"', b"")
    assert "kazoo-go-cannot-read" not in codes(group(member("scala", data), member("go", KAZOO_GO)))
