"""The check of offsets that Kafka 1.1.0 has committed to a directory that nobody else reads."""

from __future__ import annotations

import pytest

from zkgroups import CommittedOffset, Finding, ForbiddenNode, Severity, TopicPartition
from zkgroups.core.doctor.group_nodes import Directory, GroupNodes
from zkgroups.core.layouts.kafka_1_1_0 import KAFKA_1_1_0
from zkgroups.core.layouts.layout import LayoutNode, LayoutOffset
from zkgroups.core.layouts.path_template import Field

from .doctor_nodes import PATHS, codes, group, the

DIRECTORY = f"{PATHS.root}/offset"


def singular(*values: bytes, topic: str = "orders") -> tuple[LayoutOffset, ...]:
    """The offsets of partitions 0, 1, ... in the directory of Kafka 1.1.0."""
    nodes = [
        LayoutNode(
            0,
            {Field.GROUP: "billing", Field.TOPIC: topic, Field.PARTITION: str(number)},
            f"{DIRECTORY}/{topic}/{number}",
            data,
        )
        for number, data in enumerate(values)
    ]
    return tuple(KAFKA_1_1_0.offsets("billing", nodes))


def compared(committed: tuple[int, ...], *values: bytes) -> GroupNodes:
    offsets = tuple(CommittedOffset("billing", TopicPartition("orders", n), each) for n, each in enumerate(committed))
    return group(offsets=offsets, singular=singular(*values))


def finding(committed: tuple[int, ...], *values: bytes) -> Finding:
    return the("singular-offset", compared(committed, *values))


def test_newer_offsets_are_a_warning_with_the_command_that_adopts_them() -> None:
    found = finding((5, 9, 7), b"6", b"8", b"7")
    assert (found.severity, found.path) == (Severity.WARNING, f"{DIRECTORY}/orders")
    assert "newer offsets here than in offsets (partition 0)" in found.what
    assert found.fix == "zkgroups offsets adopt --topic=orders billing"
    assert not found.repairable


def test_an_offset_that_is_only_there_is_newer() -> None:
    assert "(partitions 0, 1)" in finding((), b"0", b"7").what


@pytest.mark.parametrize(
    ("committed", "what"), [((6, 7), "older than those in offsets (partition 1)"), ((6, 6), "the same as in offsets")]
)
def test_offsets_that_are_not_newer_are_only_left_over(committed: tuple[int, ...], what: str) -> None:
    found = finding(committed, b"6", b"6")
    assert found.severity is Severity.INFO
    assert found.what.endswith(what)
    assert found.fix.endswith(f"zkCli.sh deleteall {DIRECTORY}/orders")


def test_an_unreadable_offset_is_named() -> None:
    found = finding((), b"abc")
    assert (found.severity, found.path) == (Severity.WARNING, f"{DIRECTORY}/orders/0")
    assert "not a plain decimal number (b'abc')" in found.what


def test_a_forbidden_directory_is_reported_as_for_all_nodes() -> None:
    hidden = LayoutOffset("billing", None, None, ForbiddenNode(DIRECTORY), None)
    assert codes(group(singular=(hidden,))) == ["no-permission"]


def test_a_group_with_only_such_offsets_is_not_empty() -> None:
    directories = (Directory(PATHS.root, ("offset",)),)
    assert codes(group(directories=directories)) == ["empty-group"]
    assert codes(group(directories=directories, singular=singular(b"5"))) == ["singular-offset"]
