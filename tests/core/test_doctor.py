"""The doctor's checks: what each finds, what it suggests, and what may be repaired."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups import (
    CommittedOffset,
    Finding,
    ForbiddenNode,
    MalformedNode,
    Owner,
    Pattern,
    Registration,
    Remove,
    Repair,
    Rewrite,
    TopicPartition,
)
from zkgroups.core.doctor.all_checks import run_checks
from zkgroups.core.doctor.group_nodes import Directory, GroupNodes, in_use, unreadable_nodes
from zkgroups.core.doctor.member_checks import scala_blocker
from zkgroups.core.layouts.layout import Field, LayoutNode, LayoutOffset
from zkgroups.core.layouts.legacy import KAFKA_1_1_0
from zkgroups.core.znodes.codecs import decode_offset
from zkgroups.core.znodes.paths import GroupPaths
from zkgroups.core.znodes.registrations import decode_registration
from zkgroups.core.znodes.values import Dialect

from .groups import (
    AT,
    GATEWAY,
    KAZOO_GO,
    OURS,
    PATHS,
    SCALA,
    bad_offset,
    bad_owner,
    described,
    examined,
    member,
    offset,
    owner,
    view,
)
from .strategies import NAMES, NEARLY_REGISTRATIONS, TOPICS

ORDERS = {"orders": (0,)}
HIDDEN = ForbiddenNode(PATHS.ids)
UNEVALUABLE = b'{"pattern":"white_list","subscription":{"\\\\p{Lu}+":1}}'
BY_PATTERN = Registration({"gone.*": 1}, Pattern.WHITE_LIST)
PYKAFKA_OWNER = owner("orders/0", "py", path=f"{PATHS.owners}/b'orders'/1-0")
UNOWNED = {"warning unowned-partition owners/orders": ""}
RELEASE = "zkgroups release --expect-owner="


def directory(topic: str, *names: str, data: bytes = b"") -> Directory:
    return Directory(f"{PATHS.offsets}/{topic}", names, data, version=3)


def empty(*nodes: CommittedOffset | Owner | MalformedNode | ForbiddenNode, **changed: Directory) -> GroupNodes:
    """A group that consists of empty directories, except for these nodes."""
    root = changed.get("root", Directory(PATHS.root, ("ids", "owners")))
    owned = changed.get("owned", Directory(f"{PATHS.owners}/orders", version=2))
    return examined(
        *nodes, directories=(root, Directory(PATHS.ids), Directory(PATHS.owners, ("orders",)), owned), topics=[]
    )


def singular(*values: bytes) -> tuple[LayoutOffset, ...]:
    """The offsets of partitions 0, 1, ... in the directory of Kafka 1.1.0."""
    names = {Field.GROUP: "billing", Field.TOPIC: "orders"}
    nodes = [
        LayoutNode(0, names | {Field.PARTITION: str(number)}, f"{PATHS.root}/offset/orders/{number}", data)
        for number, data in enumerate(values)
    ]
    return tuple(KAFKA_1_1_0.offsets("billing", nodes))


def gone(directory: Directory, *nodes: Owner | ForbiddenNode) -> GroupNodes:
    """A group that also has a directory of a topic that Kafka does not have."""
    return examined(offset("orders/0"), *nodes, directories=(directory,), topics=["orders"])


def stale(now_ms: int) -> GroupNodes:
    """Offsets that were committed at 0, 1000 and 2000 ms. They are stale after 3000 ms."""
    return examined(*(offset(f"orders/{n}", committed_ms=1000 * n) for n in range(3)), now_ms=now_ms, stale_ms=3000)


# What is found: severity, code and path, and "!" if it may be repaired. Then a part of what is said.
SCENES: dict[str, tuple[GroupNodes, dict[str, str]]] = {
    "nothing is wrong": (examined(offset("orders/0")), {}),
    "an owner with its name and session": (examined(member("anna"), owner("orders/0", "anna")), {}),
    "an owner with a stream": (examined(member("anna"), owner("orders/0", "anna-17")), {}),
    # Owners
    "an owner that is not registered": (
        examined(member("anna"), owner("orders/0", "ben", 0x1234), partitions=ORDERS),
        {"error orphan-owner owners/orders/0": f"{RELEASE}ben --expect-session=0x1234 billing orders 0", **UNOWNED},
    ),
    "an owner of another session": (
        examined(member("anna"), owner("orders/0", "anna", 7)),
        {"error orphan-owner owners/orders/0": f"{RELEASE}anna --expect-session=0x7 billing orders 0", **UNOWNED},
    ),
    "an owner with a stream that is no number": (
        examined(member("anna"), owner("orders/0", "anna-x")),
        {"error orphan-owner owners/orders/0": "", **UNOWNED},
    ),
    "a name that looks like an option": (
        examined(owner("-o/0", "anna")),
        {"error orphan-owner owners/-o/0": " -- billing -o 0"},
    ),
    "an owner that does not subscribe, which may be intended": (
        examined(member("anna"), member("cron", ["refunds"]), owner("orders/0", "cron"), partitions=ORDERS),
        {"warning blocked-partition owners/orders/0": f"{RELEASE}cron --expect-session=0x1 billing orders 0"},
    ),
    "two owners, at the node in the usual format": (
        examined(member("anna"), member("py"), PYKAFKA_OWNER, owner("orders/0", "anna")),
        {"error two-owners owners/orders/0": "/b'orders'/1-0"},
    ),
    "a partition that an owner node without a session blocks": (
        examined(member("anna"), bad_owner(b"ben"), partitions=ORDERS),
        {"error persistent-owner owners/orders/0 !": "", **UNOWNED},
    ),
    "a partition that an unreadable owner node blocks": (
        examined(member("anna"), bad_owner(b"", session=0x1234), partitions=ORDERS),
        {"warning unreadable-owner owners/orders/0": "0x1234", **UNOWNED},
    ),
    "an owner node without a session that names nobody": (
        examined(bad_owner(b"")),
        {"error persistent-owner owners/orders/0": ""},
    ),
    "an owner node without a session that is no text": (
        examined(bad_owner(b"\xff")),
        {"error persistent-owner owners/orders/0": ""},
    ),
    "an owner node without a session that has no name": (
        examined(bad_owner(b"a/b")),
        {"error persistent-owner owners/orders/0": ""},
    ),
    "an owner node without a session of no partition": (
        examined(bad_owner(b"gone", partition="x")),
        {"error persistent-owner owners/orders/x": ""},
    ),
    "an owner node without a session beside hidden registrations": (
        examined(bad_owner(b"gone"), HIDDEN),
        {"error persistent-owner owners/orders/0": "", "warning no-permission ids": ""},
    ),
    "an owner node without a session with nodes below": (
        examined(bad_owner(b"gone"), nested={PATHS.owner(AT): ("x",)}),
        {"error persistent-owner owners/orders/0": "", "warning nested-node owners/orders/0": "'x'"},
    ),
    "unowned partitions, once for each topic": (
        examined(member("anna"), owner("orders/0", "anna"), partitions={"orders": range(20)}),
        {"warning unowned-partition owners/orders": "partitions 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 9 more of the"},
    ),
    # Registrations
    "a registration that stops Scala": (
        examined(member("bad", b"", session=0x1234), member("scala", SCALA)),
        {"error scala-cannot-read ids/bad": "0x1234"},
    ),
    "one without Scala members": (
        examined(member("bad", b""), member("go", KAZOO_GO)),
        {"warning scala-cannot-read ids/bad": ""},
    ),
    "bare names": (examined(member("py", b"orders"), member("pz", b"orders")), {}),
    "an expression that only Java can evaluate": (
        examined(member("java", UNEVALUABLE)),
        {
            "warning unevaluable-subscription ids/java": r"the white_list '\\p{Lu}+' cannot be evaluated: it has a part"
            " that only Java supports"
        },
    ),
    "a registration without a session beside an instance": (
        examined(member("gone", session=0), member("anna")),
        {"error persistent-registration ids/gone !": "zkgroups doctor --repair --execute billing"},
    ),
    "one that has an owner": (
        examined(member("gone", session=0), owner("orders/0", "gone-0", 0)),
        {"error persistent-registration ids/gone": "zkCli.sh delete /consumers/billing/ids/gone"},
    ),
    "one that may have an owner": (
        examined(member("gone", session=0), bad_owner(b"\xff", session=7)),
        {"error persistent-registration ids/gone": "", "warning unreadable-owner owners/orders/0": ""},
    ),
    "one that has nodes below": (
        examined(member("gone", session=0), nested={f"{PATHS.ids}/gone": ("b",)}),
        {"error persistent-registration ids/gone": "", "warning nested-node ids/gone": "'b'"},
    ),
    "one that may not be read": (
        examined(member("gone", ForbiddenNode(f"{PATHS.ids}/gone", persistent=True), session=0)),
        {"error persistent-registration ids/gone": "", "warning no-permission ids/gone": ""},
    ),
    "a registration that may not be read": (
        examined(member("x", ForbiddenNode(f"{PATHS.ids}/x"), session=0)),
        {"warning no-permission ids/x": ""},
    ),
    # Topics
    "offsets of a topic that Kafka may have": (
        examined(offset("orders/0"), directories=(directory("orders", "0"),)),
        {},
    ),
    "offsets of a topic that Kafka has": (gone(directory("orders", "0")), {}),
    "offsets of a topic that Kafka does not have": (
        gone(directory("gone", "0")),
        {"warning missing-topic offsets/gone": "zkgroups offsets delete --topic=gone billing"},
    ),
    "a topic that looks like a choice of partitions": (
        gone(directory("a:1", "0")),
        {"warning missing-topic offsets/a:1": "--topic=a:1: "},
    ),
    "a topic with a colon": (gone(directory("a:b", "0")), {"warning missing-topic offsets/a:b": "--topic=a:b: "}),
    "an empty directory of a missing topic": (gone(directory("gone")), {"info missing-topic offsets/gone !": ""}),
    "one of pykafka": (
        gone(Directory(f"{PATHS.owners}/b'gone'")),
        {"info missing-topic owners/b'gone' !": ""},
    ),
    "one with data": (gone(directory("gone", data=b"5")), {"info missing-topic offsets/gone": ""}),
    "one of a group with owners": (
        gone(directory("gone"), owner("orders/0", "anna")),
        {"error orphan-owner owners/orders/0": "", "info missing-topic offsets/gone": ""},
    ),
    "one of a group that may have instances": (
        gone(directory("gone"), HIDDEN),
        {"warning no-permission ids": "", "info missing-topic offsets/gone": ""},
    ),
    "a subscription to a missing topic, whose partitions nobody can own": (
        examined(member("anna"), offset("orders/0"), topics=[]),
        {"warning missing-topic ids/anna": ""},
    ),
    "a pattern without a topic": (examined(member("anna", BY_PATTERN), topics=[]), {}),
    "partitions of an existing topic that nobody owns": (
        examined(member("anna"), offset("orders/0"), topics=["orders"]),
        {"warning unowned-partition owners/orders": ""},
    ),
    "an offset of an unknown partition": (
        examined(offset("orders/3"), partitions={"orders": (0, 1, 5)}),
        {"warning unknown-partition offsets/orders/3": "zkgroups offsets delete --topic=orders:3 billing"},
    ),
    # Offsets
    "whitespace around a number": (
        examined(bad_offset(b"7 ")),
        {"error padded-offset offsets/orders/0 !": "zkgroups offsets set --backward billing orders 0 7"},
    ),
    "whitespace in a group with instances": (
        examined(bad_offset(b"7 "), member("anna")),
        {"error padded-offset offsets/orders/0": "zkgroups offsets set --backward --force billing orders 0 7"},
    ),
    "whitespace in a group with owners": (
        examined(bad_offset(b"7 "), owner("orders/1", "x")),
        {"error orphan-owner owners/orders/1": "", "error padded-offset offsets/orders/0": ""},
    ),
    "whitespace in a group that may have owners": (
        examined(bad_offset(b"7 "), ForbiddenNode(PATHS.owners)),
        {"error padded-offset offsets/orders/0": "", "warning no-permission owners": ""},
    ),
    **{
        f"the offset {data!r}": (examined(bad_offset(data)), {"error unreadable-offset offsets/orders/0": ""})
        for data in (b"", b"abc", b"1.0", b"7 8", b"+4 ", b"9223372036854775808 ", b"7\xc2\xa0", b"7\x0b")
    },
    "a negative offset": (examined(bad_offset(b"-1")), {"warning negative-offset offsets/orders/0": ""}),
    "an offset that is no partition": (
        examined(MalformedNode(f"{PATHS.offsets}/orders/01", b"7 ", "its name is not a partition")),
        {"warning misnamed-offset offsets/orders/01": ""},
    ),
    "an offset that will be stale": (stale(5000), {}),
    "a topic whose youngest offset is stale": (
        stale(5001),
        {"info stale-offset offsets/orders": "1970-01-01T00:00:02Z"},
    ),
    # Offsets of Kafka 1.1.0
    "newer offsets of Kafka 1.1.0": (
        examined(offset("orders/0"), offset("orders/1", 9), offset("orders/2", 7), singular=singular(b"6", b"8", b"7")),
        {"warning singular-offset offset/orders": "newer offsets here than in offsets (partition 0)"},
    ),
    "offsets that only Kafka 1.1.0 has": (
        examined(singular=singular(b"0", b"7")),
        {"warning singular-offset offset/orders": "(partitions 0, 1): "},
    ),
    "older offsets of Kafka 1.1.0": (
        examined(offset("orders/0", 6), offset("orders/1", 7), singular=singular(b"6", b"6")),
        {"info singular-offset offset/orders": "older than those in offsets (partition 1); "},
    ),
    "the same offsets of Kafka 1.1.0": (
        examined(offset("orders/0", 6), singular=singular(b"6")),
        {"info singular-offset offset/orders": "the same as in offsets; if no broker of Kafka 1.1.0 is left: zkCli.sh"},
    ),
    "an unreadable offset of Kafka 1.1.0": (
        examined(singular=singular(b"abc")),
        {"warning singular-offset offset/orders/0": "not a decimal number ('abc')"},
    ),
    "offsets of Kafka 1.1.0 that may not be read": (
        examined(singular=(LayoutOffset("billing", None, None, ForbiddenNode(f"{PATHS.root}/offset"), None),)),
        {"warning no-permission offset": ""},
    ),
    # The group
    "an empty group": (empty(), {"info empty-group  !": ""}),
    "an empty group with something else": (
        empty(root=Directory(PATHS.root, ("ids", "owners", "state"))),
        {"info empty-group ": ""},
    ),
    "an empty group with data": (empty(root=Directory(PATHS.root, ("ids", "owners"), b"x")), {"info empty-group ": ""}),
    "an empty group with data below": (
        empty(owned=Directory(f"{PATHS.owners}/orders", data=b"x")),
        {"info empty-group ": ""},
    ),
    "a group with only a directory of Kafka 1.1.0": (
        examined(directories=(Directory(PATHS.root, ("offset",)),)),
        {"info empty-group ": ""},
    ),
    "a group with only offsets of Kafka 1.1.0": (
        examined(directories=(Directory(PATHS.root, ("offset",)),), singular=singular(b"5")),
        {"warning singular-offset offset/orders": ""},
    ),
    "a group with a new owner": (
        empty(owned=Directory(f"{PATHS.owners}/orders", ("0",))),
        {"warning missing-topic owners/orders": ""},
    ),
    "many nested nodes": (
        examined(offset("orders/0"), nested={PATHS.offset(AT): ("a", "b", "c", "d")}),
        {"warning nested-node offsets/orders/0": "'a', 'b', 'c' and 1 more"},
    ),
    "open directories": (
        examined(offset("orders/0"), open_to_all=(PATHS.root, PATHS.offsets)),
        {"info open-acl ": "may change the group, offsets"},
    ),
    "the worst comes first, and then the order of the table": (
        examined(
            member("scala", SCALA),
            member("bad", b""),
            owner("orders/0", "nobody"),
            partitions=ORDERS,
            open_to_all=(PATHS.root,),
        ),
        {
            "error orphan-owner owners/orders/0": "",
            "error scala-cannot-read ids/bad": "",
            "warning unowned-partition owners/orders": "",
            "info open-acl ": "",
        },
    ),
}


def short(finding: Finding) -> str:
    path = finding.path.removeprefix(PATHS.root).removeprefix("/")
    return f"{finding.severity} {finding.code} {path}{' !' if finding.repairable else ''}"


@pytest.mark.parametrize("scene", SCENES)
def test_the_doctor_finds(scene: str) -> None:
    nodes, expected = SCENES[scene]
    found = run_checks(nodes)
    assert [short(finding) for finding in found] == list(expected)
    for finding, said in zip(found, expected.values(), strict=True):
        assert said in f"{finding.what}; {finding.fix} "
        assert (finding.not_repaired is None) == finding.repairable


@pytest.mark.parametrize("more", [offset("orders/0"), owner("orders/0", "a"), bad_offset(b"x"), HIDDEN], ids=str)
def test_a_group_with_any_content_is_not_empty(more: CommittedOffset | Owner | MalformedNode | ForbiddenNode) -> None:
    assert "empty-group" not in codes(empty(more))


@pytest.mark.parametrize("hidden", ["ids", "owners", "ids/x", "owners/orders"])
def test_forbidden_nodes_are_not_taken_for_missing(hidden: str) -> None:
    nodes = examined(member("anna"), ForbiddenNode(f"{PATHS.root}/{hidden}"), partitions=ORDERS)
    assert codes(nodes) == ["no-permission"]


@pytest.mark.parametrize(
    ("mixture", "found"),
    [
        ((SCALA, SCALA), []),
        ((SCALA, OURS), []),
        ((KAZOO_GO, OURS), []),
        ((SCALA, GATEWAY), []),
        ((KAZOO_GO, GATEWAY), []),
        ((OURS, GATEWAY), []),
        ((GATEWAY, b"orders"), ["mixed-dialects"]),
        ((SCALA, KAZOO_GO), ["kazoo-go-cannot-read", "mixed-dialects"]),
        ((SCALA.replace(b',"timestamp":"1795255170109"', b""), KAZOO_GO), ["mixed-dialects"]),
        ((SCALA, b"orders"), ["scala-cannot-read", "mixed-dialects"]),
        ((KAZOO_GO, b"orders"), ["mixed-dialects"]),
        ((OURS, b"orders"), ["mixed-dialects"]),
    ],
)
def test_incompatible_kinds_of_clients_are_found(mixture: tuple[bytes, ...], found: list[str]) -> None:
    assert codes(examined(*(member(str(number), data) for number, data in enumerate(mixture)))) == found


def codes(nodes: GroupNodes) -> list[str]:
    return [finding.code for finding in run_checks(nodes)]


def repair_of(nodes: GroupNodes) -> Repair:
    [finding] = run_checks(nodes)
    assert finding.repair is not None
    return finding.repair


# Repairs


def test_empty_directories_are_deleted_from_the_bottom_up_each_as_it_was_seen() -> None:
    assert [(step.path, step.version) for step in repair_of(empty()).steps] == [
        (f"{PATHS.owners}/orders", 2),
        (PATHS.ids, 0),
        (PATHS.owners, 0),
        (PATHS.root, 0),
    ]


@pytest.mark.parametrize(
    ("data", "unless"),
    [(b"gone", ["gone"]), (b"gone-0", ["gone-0", "gone"]), (b"gone-x", ["gone-x"]), (b"-0", ["-0"])],
)
def test_a_persistent_owner_is_deleted_unless_its_name_is_registered(data: bytes, unless: list[str]) -> None:
    assert list(repair_of(examined(bad_owner(data))).unless) == unless
    for name in unless:
        [finding] = run_checks(examined(member(name, [], session=3), bad_owner(data)))
        assert not finding.repairable


def test_a_persistent_registration_is_removed_whoever_is_registered() -> None:
    steps = (Remove(f"{PATHS.ids}/gone", 0, persistent=True),)
    repair = repair_of(examined(member("gone", session=0), member("anna")))
    assert repair == Repair("delete the node", steps, is_always_safe=True)
    assert not Repair("delete the node", steps).is_always_safe


@given(st.binary(max_size=24) | st.text("0123456789+-. \n", max_size=24).map(str.encode))
def test_any_malformed_offset_is_found_once_and_rewritten_only_as_a_plain_number(data: bytes) -> None:
    found = decode_offset(PATHS.offset(AT), data)
    if isinstance(found, MalformedNode):
        [finding] = run_checks(examined(found))
        assert finding.code in {"padded-offset", "unreadable-offset", "negative-offset"}
        for step in finding.repair.steps if finding.repair else ():
            assert isinstance(step, Rewrite)
            assert decode_offset("/o", step.data) == int(data)


@given(NAMES, TOPICS, st.integers(0, 2**31 - 1), NAMES)
def test_a_suggested_command_survives_the_shell_with_any_names(name: str, topic: str, number: int, id: str) -> None:
    at = TopicPartition(topic, number)
    orphan = Owner(at, id, 1, path=GroupPaths(name).owner(at))
    [finding] = run_checks(GroupNodes(replace(view(), group=name, owners=(orphan,))))
    words = shlex.split(finding.fix.partition(": ")[2])
    assert words[:2] == ["zkgroups", "release"]
    assert [word for word in words[2:] if word != "--"][-3:] == [name, topic, str(number)]
    assert f"--expect-owner={id}" in words
    assert finding.path == orphan.path


# What stops Scala members


BLOCKERS = {
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
    b'{"pattern":"static","subscription":{"orders":"1"}}': "'1' is not a number of streams",
    b'{"pattern":"static","subscription":{"orders":1.0}}': "1.0 is not a number of streams",
    b'{"pattern":"static","subscription":{"orders":true}}': "True is not a number of streams",
    b'{"pattern":"static","subscription":{"orders":2147483648}}': "2147483648 is not a number of streams",
    b'{"pattern":"white_list","subscription":{"(":1}}': "'(' is not a valid regular expression",
    b'{"pattern":"black_list","subscription":{"[a":1}}': "'[a' is not a valid regular expression",
}
HARMLESS = [
    b'{"pattern":"static","subscription":{}}',
    b'{"pattern":"static","subscription":{"orders":2},"version":"x","timestamp":[],"more":null}',
    b'{"pattern":"whatever","subscription":{"(":1}}',
    b'{"pattern":"static","subscription":{"(":1}}',
    b'{"pattern":"white_list","subscription":{"a|b,c.*":1}}',
    b'{"pattern":"white_list","subscription":{"(?<name>a)":1}}',
    b'{"pattern":"white_list","subscription":{"[[a]]":1}}',
    UNEVALUABLE,
    SCALA,
    KAZOO_GO,
    OURS,
]


def test_a_scala_blocker_has_its_reason_and_a_registration_that_scala_reads_has_none() -> None:
    assert {data: str(scala_blocker(data)) for data in BLOCKERS} == BLOCKERS
    assert {scala_blocker(data) for data in HARMLESS} == {None}


def blocked_and_read(data: bytes) -> tuple[bool, object]:
    return scala_blocker(data) is not None, decode_registration("/r", data)


@given(NEARLY_REGISTRATIONS.map(lambda fields: json.dumps(fields).encode()) | st.binary())
def test_a_readable_registration_has_no_scala_blocker_unless_it_is_a_bare_name(data: bytes) -> None:
    is_blocked, found = blocked_and_read(data)
    assert not is_blocked or not isinstance(found, Registration) or found.dialect is Dialect.PYKAFKA


# Groups in use


def test_a_group_is_in_use_if_it_may_have_a_living_instance_or_has_an_owner() -> None:
    assert not in_use(described(offset("orders/0")))
    assert not in_use(described(member("gone", session=0)))
    for node in (
        member("anna", []),
        member("anna", MalformedNode(f"{PATHS.ids}/anna", b"", "empty")),
        owner("orders/0", "anna"),
        owner("orders/0", "anna", 0),
    ):
        assert in_use(described(node))


def test_only_unreadable_nodes_below_the_group_count() -> None:
    mine = MalformedNode(PATHS.offset(AT), b"", "empty"), ForbiddenNode(PATHS.root)
    others = [
        MalformedNode(path, b"", "empty") for path in (f"{PATHS.root}-blue/offsets/orders/0", "/brokers/topics/a")
    ]
    assert unreadable_nodes(described(*others, *mine)) == mine
