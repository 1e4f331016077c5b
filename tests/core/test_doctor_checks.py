"""The doctor's checks as functions of the nodes of a group: findings, severities and repairs."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups import Finding, Owner, RegisteredInstance, Registration, Remove, Repair, Rewrite, Severity, TopicPartition
from zkgroups.core.doctor.all_checks import CHECKS, run_checks
from zkgroups.core.doctor.group_nodes import Directory, GroupNodes
from zkgroups.core.doctor.scala_blockers import scala_blocker
from zkgroups.core.znodes.group_view import GroupView
from zkgroups.core.znodes.offset_codec import MAX_OFFSET, decode_offset
from zkgroups.core.znodes.owner_codec import decode_owner
from zkgroups.core.znodes.paths import GroupPaths
from zkgroups.core.znodes.registration_codec import decode_registration, encode_registration
from zkgroups.core.znodes.values import (
    CommittedOffset,
    Dialect,
    ForbiddenNode,
    MalformedNode,
    Pattern,
    UnreadableNode,
    unreadable_part,
)

from .strategies import EXPRESSIONS, NAMES, NEARLY_REGISTRATIONS, TOPICS

SESSION = 0x1234
PATHS = GroupPaths("billing")
AT = TopicPartition("orders", 0)
SCALA = b'{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":"1795255170109"}'
KAZOO_GO = b'{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":1795255543}'
OURS = encode_registration(Registration({"orders": 1}))


def member(id: str, data: bytes = OURS, *, session: int = SESSION) -> RegisteredInstance:
    registration = decode_registration(PATHS.ids + "/" + id, data, session=session)
    return RegisteredInstance(id, session, registration)


def owner(id: str, at: TopicPartition = AT, *, session: int = SESSION, group: str = "billing") -> Owner:
    return Owner(at, id, session, path=GroupPaths(group).owner(at))


def bad_owner(data: bytes, *, session: int = 0, partition: str = "0") -> UnreadableNode:
    at = TopicPartition("orders", int(partition)) if partition.isdigit() else None
    found = decode_owner(f"{PATHS.owners}/orders/{partition}", at, data, session=session)
    assert isinstance(found, UnreadableNode)
    return found


def bad_offset(data: bytes, name: str = "0") -> UnreadableNode:
    found = decode_offset(f"{PATHS.offsets}/orders/{name}", data, version=3)
    assert isinstance(found, UnreadableNode)
    return found


def group(*instances: RegisteredInstance, **fields: Any) -> GroupNodes:
    """A group with these members; what they could not be read for is malformed, as a reader says."""
    unreadable = [node for each in instances if (node := unreadable_part(each.registration)) is not None]
    of_nodes = {name: fields.pop(name) for name in list(fields) if name not in GroupView.__dataclass_fields__}
    view = GroupView("billing", instances=instances, **fields)
    return GroupNodes(replace(view, unreadable=(*view.unreadable, *unreadable)), **of_nodes)


def codes(nodes: GroupNodes) -> list[str]:
    return [finding.code for finding in run_checks(nodes)]


def the(code: str, nodes: GroupNodes) -> Finding:
    [finding] = [finding for finding in run_checks(nodes) if finding.code == code]
    return finding


# The table


def test_the_codes_are_words_for_machines_and_each_is_there_once() -> None:
    names = [check.code for check in CHECKS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[a-z]+(-[a-z]+)*", name) for name in names)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)
def test_each_check_says_what_it_means_why_it_is_left_and_has_a_function_of_its_own(check: Any) -> None:
    assert check.meaning
    assert check.not_repaired
    assert check.find.__doc__
    assert [each.code for each in CHECKS if each.find is check.find] == [check.code]


def test_nothing_is_found_in_nothing() -> None:
    assert run_checks(GroupNodes(GroupView("billing", offsets=(CommittedOffset("billing", AT, 5),)))) == []


# Owners


@pytest.mark.parametrize("id", ["anna", "anna-0", "anna-17"])
def test_an_owner_registered_with_its_name_and_session_is_not_an_orphan(id: str) -> None:
    assert "orphan-owner" not in codes(group(member("anna"), owners=(owner(id),)))


def test_a_living_owner_that_does_not_subscribe_is_found_once_and_may_be_meant() -> None:
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


def test_two_owners_are_reported_at_the_node_that_has_the_usual_form() -> None:
    pykafka = Owner(AT, "py", SESSION, path=f"{PATHS.owners}/b'orders'/1-0")
    finding = the("two-owners", group(owners=(pykafka, owner("anna"))))
    assert finding.path == PATHS.owner(AT)
    assert "/b'orders'/1-0" in finding.what


@pytest.mark.parametrize(
    ("data", "unless"),
    [(b"gone", ("gone",)), (b"gone-0", ("gone-0", "gone")), (b"gone-x", ("gone-x",)), (b"-0", ("-0",))],
)
def test_a_persistent_owner_goes_unless_its_name_is_registered(data: bytes, unless: tuple[str, ...]) -> None:
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


def test_an_owner_that_cannot_be_read_and_lives_is_left_to_its_session() -> None:
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


# Registrations

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
    assert found.what.startswith(r"the white_list '\\p{Lu}+' cannot be evaluated: it has a part that only Java knows")
    assert (found.severity, found.repair) == (Severity.WARNING, None)


def test_a_registration_of_no_session_is_found_and_one_that_is_hidden_is_not_called_that() -> None:
    hidden = RegisteredInstance("x", 0, ForbiddenNode(PATHS.ids + "/x", "hidden"))
    assert codes(group(member("anna", session=0))) == ["persistent-registration"]
    assert codes(group(hidden)) == ["no-permission"]


def test_a_registration_of_no_session_is_removed_beside_whoever_is_registered() -> None:
    finding = the("persistent-registration", group(member("gone", session=0), member("anna")))
    assert finding.repair == Repair(
        "delete the node", (Remove(f"{PATHS.ids}/gone", 0, persistent=True),), is_always_safe=True
    )


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


MIXTURES = {
    (SCALA, SCALA): [],
    (SCALA, OURS): [],
    (KAZOO_GO, OURS): [],
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


# Topics


def offsets(topic: str, *names: str, data: bytes = b"") -> Directory:
    return Directory(f"{PATHS.offsets}/{topic}", names, data, version=3)


def test_a_topic_is_missing_if_kafka_has_other_topics_only() -> None:
    offset = CommittedOffset("billing", AT, 5)
    for topics, found in ((None, []), (["orders"], []), (["others"], ["missing-topic"])):
        nodes = group(offsets=(offset,), directories=(offsets("orders", "0"),), topics=topics)
        assert codes(nodes) == found


def test_partitions_of_a_missing_topic_are_not_reported_as_unowned() -> None:
    offset = CommittedOffset("billing", AT, 5)
    assert "unowned-partition" in codes(group(member("anna"), offsets=(offset,), topics=["orders"]))
    assert "unowned-partition" not in codes(group(member("anna"), offsets=(offset,), topics=[]))


def test_a_topic_that_looks_like_a_choice_of_partitions_is_named_exactly() -> None:
    for topic, option in (("plain", "plain"), ("a:1", "a:1:"), ("a:b", "a:b:")):
        finding = the("missing-topic", group(directories=(offsets(topic, "0"),), topics=[]))
        assert f"--topic={option}" in shlex.split(finding.fix)


def test_a_static_subscription_to_a_missing_topic_is_reported_but_not_a_pattern() -> None:
    pattern = encode_registration(Registration({"gone.*": 1}, Pattern.WHITE_LIST))
    assert codes(group(member("anna"), topics=[])) == ["missing-topic"]
    assert codes(group(member("anna", pattern), topics=[])) == []


@pytest.mark.parametrize(
    ("directory", "fields", "repairable"),
    [
        (offsets("gone"), {}, True),
        (Directory(f"{PATHS.owners}/b'gone'"), {}, True),
        (offsets("gone", "0"), {}, False),
        (offsets("gone", data=b"5"), {}, False),
        (offsets("gone"), {"owners": (owner("anna"),)}, False),
        (offsets("gone"), {"unreadable": (ForbiddenNode(PATHS.ids),)}, False),
    ],
)
def test_only_an_empty_directory_of_a_missing_topic_is_repaired(
    directory: Directory, fields: dict[str, Any], repairable: bool
) -> None:
    nodes = group(offsets=(CommittedOffset("billing", AT, 5),), directories=(directory,), topics=["orders"], **fields)
    finding = the("missing-topic", nodes)
    assert (finding.path, finding.repairable) == (directory.path, repairable)


def test_an_offset_of_an_unknown_partition_comes_with_the_command_to_delete_it() -> None:
    offset = CommittedOffset("billing", TopicPartition("orders", 3), 5)
    finding = the("unknown-partition", group(offsets=(offset,), partitions={"orders": (0, 1, 5)}))
    assert finding.fix == "zkgroups offsets delete --topic=orders:3 billing"


@given(NAMES, TOPICS, st.integers(0, 2**31 - 1), NAMES)
def test_a_line_to_type_survives_the_shell_whatever_the_names(name: str, topic: str, number: int, id: str) -> None:
    at = TopicPartition(topic, number)
    paths = GroupPaths(name)
    view = GroupView(name, owners=(owner(id, at, group=name),))
    [finding] = [each for each in run_checks(GroupNodes(view)) if each.code == "orphan-owner"]
    words = shlex.split(finding.fix.partition(": ")[2])
    assert words[:2] == ["zkgroups", "release"]
    assert [word for word in words[2:] if word != "--"][-3:] == [name, topic, str(number)]
    assert f"--expect-owner={id}" in words
    assert finding.path == paths.owner(at)


def test_a_name_that_looks_like_an_option_is_not_taken_for_one() -> None:
    finding = the("orphan-owner", group(owners=(owner("anna", TopicPartition("-o", 0)),)))
    assert finding.fix.endswith(" -- billing -o 0")


# Offsets


@given(st.integers(0, MAX_OFFSET), st.text(" \t\r\n"), st.text(" \t\r\n"))
def test_blanks_around_a_number_are_taken_away_and_the_number_stays(number: int, before: str, after: str) -> None:
    data = f"{before}{number}{after}".encode()
    if before or after:
        finding = the("padded-offset", group(unreadable=(bad_offset(data),)))
        assert finding.repair is not None
        assert finding.repair.steps == (Rewrite(PATHS.offset(AT), data, str(number).encode(), 3),)


@given(st.binary(max_size=24) | st.text("0123456789+-. \n", max_size=24).map(str.encode))
def test_any_malformed_offset_is_found_once_and_rewritten_only_as_a_plain_number(data: bytes) -> None:
    found = decode_offset(PATHS.offset(AT), data)
    if isinstance(found, UnreadableNode):
        [finding] = run_checks(group(unreadable=(found,)))
        assert finding.code in {"padded-offset", "unreadable-offset", "negative-offset"}
        for step in finding.repair.steps if finding.repair else ():
            assert isinstance(step, Rewrite)
            assert decode_offset("/o", step.data) == int(data)


@pytest.mark.parametrize("data", [b"", b"abc", b"1.0", b"7 8", b"+4 ", b"9223372036854775808 ", b"7\xc2\xa0", b"7\x0b"])
def test_an_offset_whose_number_is_not_plain_is_left_to_a_person(data: bytes) -> None:
    finding = the("unreadable-offset", group(unreadable=(bad_offset(data),)))
    assert (finding.severity, finding.repairable) == (Severity.ERROR, False)


def test_a_negative_offset_is_a_warning_and_left_to_a_person() -> None:
    finding = the("negative-offset", group(unreadable=(bad_offset(b"-1"),)))
    assert (finding.severity, finding.repairable) == (Severity.WARNING, False)


def test_an_offset_with_an_invalid_partition_name_is_misnamed() -> None:
    node = MalformedNode(f"{PATHS.offsets}/orders/01", b"7 ", "its name is not a partition")
    assert codes(group(unreadable=(node,))) == ["misnamed-offset"]


@pytest.mark.parametrize("fields", [{"owners": (owner("x"),)}, {"unreadable": (ForbiddenNode(PATHS.owners),)}])
def test_a_padded_offset_is_not_rewritten_if_the_group_may_be_in_use(fields: dict[str, Any]) -> None:
    malformed = (bad_offset(b"7 "), *fields.pop("unreadable", ()))
    assert not the("padded-offset", group(unreadable=malformed, **fields)).repairable
    assert not the("padded-offset", group(member("anna"), unreadable=malformed)).repairable


def test_a_topic_is_stale_when_its_youngest_offset_is() -> None:
    old = [CommittedOffset("billing", TopicPartition("orders", n), 5, _committed_ms=1000 * n) for n in range(3)]
    assert codes(group(offsets=tuple(old), now_ms=5000, stale_ms=3000)) == []
    assert codes(group(offsets=tuple(old), now_ms=5001, stale_ms=3000)) == ["stale-offset"]


# The group as a whole


def litter(**fields: Any) -> GroupNodes:
    root = fields.pop("root", Directory(PATHS.root, ("ids", "owners")))
    owned = fields.pop("owned", Directory(PATHS.owners + "/orders", version=2))
    return group(directories=(root, Directory(PATHS.ids), Directory(PATHS.owners, ("orders",)), owned), **fields)


def test_empty_directories_are_deleted_from_the_bottom_up_each_as_it_was_seen() -> None:
    repair = the("empty-group", litter(topics=[])).repair
    assert repair is not None
    assert [(step.path, step.version) for step in repair.steps] == [
        (PATHS.owners + "/orders", 2),
        (PATHS.ids, 0),
        (PATHS.owners, 0),
        (PATHS.root, 0),
    ]


def test_an_empty_group_is_one_finding() -> None:
    assert codes(litter(topics=[])) == ["empty-group"]


@pytest.mark.parametrize(
    "fields",
    [
        {"root": Directory(PATHS.root, ("ids", "owners", "state"))},
        {"root": Directory(PATHS.root, ("ids", "owners"), b"x")},
        {"owned": Directory(PATHS.owners + "/orders", data=b"x")},
    ],
    ids=["something else", "data", "data below"],
)
def test_an_empty_group_with_unknown_nodes_is_not_repaired(fields: dict[str, Any]) -> None:
    assert not the("empty-group", litter(**fields)).repairable


@pytest.mark.parametrize(
    "fields",
    [
        {"offsets": (CommittedOffset("billing", AT, 5),)},
        {"owners": (owner("anna"),)},
        {"unreadable": (bad_offset(b"x"),)},
        {"unreadable": (ForbiddenNode(PATHS.offsets),)},
        {"owned": Directory(PATHS.owners + "/orders", ("0",))},
    ],
)
def test_a_group_with_any_content_is_not_empty(fields: dict[str, Any]) -> None:
    assert "empty-group" not in codes(litter(**fields))
    assert "empty-group" not in codes(group(member("anna")))


def test_many_nested_nodes_are_reported_in_short() -> None:
    finding = the("nested-node", group(nested={PATHS.offset(AT): ("a", "b", "c", "d")}))
    assert finding.what.endswith("'a', 'b', 'c' and 1 more")


def test_open_directories_are_one_finding_for_the_group() -> None:
    finding = the("open-acl", group(open_to_all=(PATHS.root, PATHS.offsets)))
    assert (finding.severity, finding.path) == (Severity.INFO, PATHS.root)
    assert finding.what.endswith("may change the group, offsets")


def test_the_worst_comes_first_and_within_that_the_order_of_the_table() -> None:
    nodes = group(
        member("scala", SCALA),
        member("bad", b""),
        owners=(owner("nobody"),),
        partitions={"orders": (0,)},
        open_to_all=(PATHS.root,),
    )
    assert codes(nodes) == ["orphan-owner", "scala-cannot-read", "unowned-partition", "open-acl"]
