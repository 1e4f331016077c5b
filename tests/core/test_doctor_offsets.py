"""The doctor's checks of offsets and topics: missing topics, malformed and stale offsets."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkgroups import Registration, Rewrite, Severity, TopicPartition
from zkgroups.core.doctor.all_checks import run_checks
from zkgroups.core.doctor.group_nodes import Directory, GroupNodes
from zkgroups.core.znodes.group_view import GroupView
from zkgroups.core.znodes.offset_codec import MAX_OFFSET, decode_offset
from zkgroups.core.znodes.paths import GroupPaths
from zkgroups.core.znodes.registration_codec import encode_registration
from zkgroups.core.znodes.values import (
    CommittedOffset,
    ForbiddenNode,
    MalformedNode,
    Pattern,
    UnreadableNode,
)

from .doctor_nodes import AT, PATHS, bad_offset, codes, group, member, offsets, owner, the
from .strategies import NAMES, TOPICS


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
def test_a_suggested_command_survives_the_shell_with_any_names(name: str, topic: str, number: int, id: str) -> None:
    at = TopicPartition(topic, number)
    paths = GroupPaths(name)
    view = GroupView(name, owners=(owner(id, at, group=name),))
    [finding] = [each for each in run_checks(GroupNodes(view)) if each.code == "orphan-owner"]
    words = shlex.split(finding.fix.partition(": ")[2])
    assert words[:2] == ["zkgroups", "release"]
    assert [word for word in words[2:] if word != "--"][-3:] == [name, topic, str(number)]
    assert f"--expect-owner={id}" in words
    assert finding.path == paths.owner(at)


def test_a_name_that_looks_like_an_option_is_not_taken_for_an_option() -> None:
    finding = the("orphan-owner", group(owners=(owner("anna", TopicPartition("-o", 0)),)))
    assert finding.fix.endswith(" -- billing -o 0")


@given(st.integers(0, MAX_OFFSET), st.text(" \t\r\n"), st.text(" \t\r\n"))
def test_blanks_around_a_number_are_removed_and_the_number_stays(number: int, before: str, after: str) -> None:
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
def test_an_offset_with_an_ambiguous_number_is_not_repaired(data: bytes) -> None:
    finding = the("unreadable-offset", group(unreadable=(bad_offset(data),)))
    assert (finding.severity, finding.repairable) == (Severity.ERROR, False)


def test_a_negative_offset_is_a_warning_and_not_repaired() -> None:
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
    old = [CommittedOffset("billing", TopicPartition("orders", n), 5, committed_ms=1000 * n) for n in range(3)]
    assert codes(group(offsets=tuple(old), now_ms=5000, stale_ms=3000)) == []
    assert codes(group(offsets=tuple(old), now_ms=5001, stale_ms=3000)) == ["stale-offset"]
