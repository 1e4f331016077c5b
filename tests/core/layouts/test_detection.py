"""Guessing layouts from some nodes of a tree."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zkgroups import TopicPartition
from zkgroups.core.layouts.detection import DetectedLayout, SampledNode, detect
from zkgroups.core.layouts.parse_layout import parse_layout

from ..strategies import TOPICS
from .test_any_layout import VALUES
from .written import WRITERS, Tree, numbers, read

ORDERS = {TopicPartition("orders", number): 40 + number for number in range(3)}
REFUNDS = {TopicPartition("refunds", 0): 7}


def found(tree: Tree, topics: tuple[str, ...] = ()) -> list[DetectedLayout]:
    return detect([SampledNode(path, data) for path, data in tree.items()], topics)


def options(tree: Tree, topics: tuple[str, ...] = ()) -> list[str]:
    return [" ".join(each.options) for each in found(tree, topics)]


@pytest.mark.parametrize("text", [text for text in WRITERS if not text.startswith("/app")])
def test_each_layout_is_found_and_reads_all_of_its_offsets(text: str) -> None:
    groups = {"billing": ORDERS, "invoices": REFUNDS}
    tree = {path: data for group, offsets in groups.items() for path, data in WRITERS[text](group, offsets).items()}
    [detected] = found(tree, ("orders", "refunds"))
    assert {group: numbers(read(detected.layout.text, tree, group)) for group in groups} == groups


def test_the_options_of_each_system() -> None:
    tree = {path: data for write in WRITERS.values() for path, data in write("billing", ORDERS).items()}
    shown = options(tree, ("orders",))
    assert [each for each in shown if "/app" not in each] == [
        "--layout kafka-1.1.0",
        "",
        "--layout spark:/spark/billing --stored from|until",
        "--layout storm:/kafkastorm",
        "--layout trident:/transactional",
    ]


def test_groups_of_kafka_below_a_chroot_are_found_with_the_chroot() -> None:
    [detected] = found({"/kafka/eu/consumers/a/offset/orders/0": b"5"})
    assert (detected.name, detected.chroot, detected.options) == (
        "kafka-1.1.0",
        "/kafka/eu",
        ("--layout", "kafka-1.1.0"),
    )
    assert detected.layout == parse_layout("/kafka/eu/consumers/{group}/offset/{topic}/{partition}")


def test_a_name_that_differs_is_the_group() -> None:
    values = {f"/apps/{app}/state/orders/{number}": b"5" for app in ("a", "b", "c") for number in range(2)}
    assert options(values) == ["--layout /apps/{group}/state/{topic}/{partition}"]
    assert options({"/apps/a/state/orders/0": b"5"}) == ["--layout /apps/a/state/{topic}/{partition}"]


def test_the_name_that_differs_most_is_the_group() -> None:
    tree = {f"/{place}/{app}/orders/0": b"5" for place in ("eu", "us") for app in ("a", "b", "c")}
    assert options(tree) == ["--layout /eu/{group}/{topic}/{partition}", "--layout /us/{group}/{topic}/{partition}"]


def test_a_field_with_any_name_is_taken_only_if_it_is_the_only_number_and_the_topic_is_known() -> None:
    one, two = b'{"last":40,"at":"2026-01-31"}', b'{"last":40,"port":9092}'
    assert options({"/jobs/nightly/orders/0": one}, ("orders",)) == [
        "--layout /jobs/nightly/{topic}/{partition} --value json:last"
    ]
    assert options({"/jobs/nightly/orders/0": two}, ("orders",)) == []
    assert options({"/jobs/nightly/orders/0": one}) == []


def test_known_topics_are_found_anywhere_in_the_path() -> None:
    tree = {f"/apps/orders/{group}/p{number}": b'{"position":5}' for group in "ab" for number in range(2)}
    assert options(tree, ("orders",)) == ["--layout /apps/{topic}/{group}/p{partition} --value json:position"]
    assert options({"/apps/a/orders-3": b"5", "/apps/b/orders-3": b"5"}, ("orders",)) == [
        "--layout /apps/{group}/{topic}-{partition}"
    ]


def test_numbers_elsewhere_are_no_offsets_if_the_topics_are_known() -> None:
    tree = {"/locks/leader/lock-0000000017": b"5", "/app/version/1": b"7"}
    assert options(tree, ("orders",)) == []
    assert len(options(tree)) == 1, "without topics, only a number with a leading zero is none"


def test_other_nodes_of_a_system_are_not_taken_for_another_layout() -> None:
    tree = WRITERS["trident:/transactional"]("billing", ORDERS)
    assert options(tree) == ["--layout trident:/transactional"]


def test_owners_and_registrations_are_no_offsets() -> None:
    tree = {
        "/consumers/a/owners/orders/0": b"17",
        "/consumers/a/ids/host-1": b"5",
        "/consumers/a/details/orders/0": b"1",
    }
    assert options(tree) == []


PATHS = st.lists(TOPICS | st.sampled_from(["consumers", "offset", "user", "partition_1", "7"]), min_size=1, max_size=6)


@given(st.dictionaries(PATHS.map(lambda names: "/" + "/".join(names)), VALUES | st.just(b"5"), max_size=8))
@example({"/a/user/partition_0/b": b'{"offset":1,"nextOffset":2}'})
def test_any_tree_can_be_looked_at(tree: Tree) -> None:
    for detected in found(tree):
        assert parse_layout(detected.layout.text) == detected.layout
        assert any(detected.layout.place(path) for path in tree)
