"""`--layout` of the commands for offsets and lag, `offsets adopt`, and `layouts detect`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from zkgroups import Registry, TopicPartition
from zkgroups.testing import KafkaBroker

from ..core.layouts.written import WRITERS, Tree, storm_of_one_topic
from .conftest import Zkgroups

pytestmark = pytest.mark.zookeeper

STORM = "storm:/kafkastorm"
TEMPLATE = "/x/{group}/{topic}/{partition}"
ORDERS = {TopicPartition("orders", number): 50 + number for number in range(2)}


@pytest.fixture
def put(kazoo: KazooClient) -> Callable[[Tree], None]:
    def put(tree: Tree) -> None:
        for path, data in tree.items():
            kazoo.create(path, data, makepath=True)

    return put


# offsets get, export and diff


def test_offsets_of_another_system_are_shown_like_those_of_a_group(zkgroups: Zkgroups, put: Any) -> None:
    put(storm_of_one_topic("spout", ORDERS) | {"/kafkastorm/other/partition_7": b"{}"})
    ended = zkgroups("offsets", "get", "--layout", STORM)
    assert (ended.code, ended.err) == (0, "")
    assert [line.split()[:4] for line in ended.lines[1:]] == [
        ["other", "-", "-", "-"],
        ["spout", "orders", "0", "50"],
        ["spout", "orders", "1", "51"],
    ]
    assert ended.lines[1].split(maxsplit=4)[4] == "partition_7: it has no field 'offset': '{}'"
    chosen = zkgroups("offsets", "get", "spout", "--layout", STORM, "--topic", "orders:1", "-o", "json")
    assert [(row["partition"], row["offset"]) for row in chosen.json["offsets"]] == [(1, 51)]
    assert zkgroups("offsets", "get", "--groups", "o.*", "--layout", STORM).code == 10


def test_an_export_of_another_system_is_imported_into_a_legacy_group(
    zkgroups: Zkgroups, put: Any, registry: Registry, cluster: None, tmp_path: Path
) -> None:
    put(storm_of_one_topic("spout", ORDERS))
    exported = zkgroups("offsets", "export", "spout", "--layout", STORM, "--format", "path")
    assert exported.lines == ["/consumers/spout/offsets/orders/0:50", "/consumers/spout/offsets/orders/1:51"]
    file = tmp_path / "spout"
    file.write_text(exported.out)
    assert zkgroups("offsets", "import", file, "--execute").code == 0
    assert {each.at: each.offset for each in registry.group("spout").offsets} == ORDERS  # type: ignore[union-attr]
    equal = zkgroups("offsets", "diff", "spout", f"@{file}", "--layout", STORM)
    assert (equal.code, equal.err) == (0, "The offsets are equal.\n")


# lag


@pytest.mark.kafka
def test_the_lag_of_another_system_is_that_of_its_next_message(
    zkgroups: Zkgroups, put: Any, kafka_broker: KafkaBroker
) -> None:
    kafka_broker.create_topic("storm-lag", 2)
    kafka_broker.write("storm-lag", 0, 20)
    at = [TopicPartition("storm-lag", number) for number in range(2)]
    broken = {"/kafkastorm/spout/partition_7": b"{}"}
    put(WRITERS[STORM]("spout", {at[0]: 15, at[1]: 0}) | broken)
    ended = zkgroups("-b", kafka_broker.address, "lag", "--layout", STORM, "-o", "json")
    assert [(row["partition"], row["offset"], row["lag"]) for row in ended.json["lags"]] == [
        (0, 15, 5),
        (1, 0, 0),
    ]
    assert (ended.code, "/kafkastorm/spout/partition_7" in ended.err) == (9, True)
    total = zkgroups("-b", kafka_broker.address, "lag", "spout", "--layout", STORM, "--summary", "--fail-over", "4")
    assert (total.code, "Groups with a lag above 4: spout." in total.err) == (9, True)
    missing = zkgroups("-b", kafka_broker.address, "lag", "other", "--layout", STORM)
    assert (missing.code, "group 'other' does not exist" in missing.err) == (3, True)


# offsets adopt


def test_offsets_are_adopted_only_when_asked_and_never_from_unreadable_nodes(
    zkgroups: Zkgroups, put: Any, registry: Registry, kazoo: KazooClient
) -> None:
    put({f"/consumers/billing/offset/orders/{n}": data for n, data in enumerate([b"7", b"8", b"x"])})
    put({"/consumers/billing/offset/orders/y": b"5"})
    shown = zkgroups("offsets", "adopt", "--groups", "b.*", "--topic", "orders:0,2", "-o", "json")
    assert [(row["partition"], row["old"], row["new"], row["done"]) for row in shown.json["changes"]] == [
        (0, None, 7, False)
    ]
    assert (shown.code, "/consumers/billing/offset/orders/2" in shown.err) == (9, True)
    assert list(registry.offsets()) == []
    done = zkgroups("offsets", "adopt", "billing", "--execute")
    assert done.code == 9
    assert {each.at.partition: each.offset for each in registry.offsets()} == {0: 7, 1: 8}  # type: ignore[union-attr]
    assert kazoo.get("/consumers/billing/offset/orders/0")[0] == b"7"


def test_offsets_are_not_adopted_into_a_group_that_is_in_use_or_was_moved(
    zkgroups: Zkgroups, put: Any, billing: Any, registry: Registry
) -> None:
    put({"/consumers/billing/offset/orders/0": b"700"})
    ended = zkgroups("offsets", "adopt", "billing", "--execute")
    assert (ended.code, "anna, ben" in ended.err) == (4, True)
    assert billing.offsets.fetch(TopicPartition("orders", 0)).offset == 100
    assert zkgroups("offsets", "adopt", "billing", "--execute", "--force").code == 0
    assert billing.offsets.fetch(TopicPartition("orders", 0)).offset == 700


# layouts detect


def test_layouts_are_found_with_the_options_to_use(zkgroups: Zkgroups, put: Any, zookeeper_hosts: str) -> None:
    """tests/core/layouts/test_layouts.py shows which are found."""
    put(WRITERS[STORM]("a", ORDERS) | WRITERS["legacy"]("a", ORDERS))
    put({"/other/consumers/c/offset/orders/0": b"5", "/kafkastorm/b/orders/partition_9": b"x"})
    ended = zkgroups("layouts", "detect", "-o", "json")
    rows = [(row["layout"], row["groups"], row["offsets"], row["unreadable"]) for row in ended.json["layouts"]]
    assert (ended.code, ended.err, {"legacy", STORM} < {name for name, *_ in rows}) == (0, "", True)
    [found] = [row for row in ended.json["layouts"] if row["layout"] == STORM]
    assert (found["groups"], found["offsets"], found["unreadable"]) == (2, 2, 1)
    again = zkgroups("offsets", "get", "-o", "json", *shlex.split(found["options"]))
    assert sum(row["offset"] is not None for row in again.json["offsets"]) == 2
    [other] = [row for row in ended.json["layouts"] if "other" in row["example"]]
    assert (other["chroot"], other["options"]) == ("/other", "--layout kafka-1.1.0")
    below = ("-z", f"{zookeeper_hosts}/other", "offsets", "get", "-o", "json", *shlex.split(other["options"]))
    assert [row["offset"] for row in zkgroups(*below).json["offsets"]] == [5]


def test_the_search_is_bounded_and_says_so(zkgroups: Zkgroups, put: Any, kazoo: KazooClient) -> None:
    transaction = kazoo.transaction()
    for path in ("/kafkastorm", "/kafkastorm/spout", "/noise"):
        transaction.create(path)
    for number in range(300):
        transaction.create(f"/noise/{number}")
        data = json.dumps({"offset": number, "topic": "orders", "broker": {}}).encode()
        transaction.create(f"/kafkastorm/spout/partition_{number}", data)
    transaction.commit()
    ended = zkgroups("layouts", "detect", "-o", "json")
    [found] = ended.json["layouts"]
    assert (found["layout"], found["offsets"]) == (STORM, 300)
    assert "a part of the tree" in ended.err
    few = zkgroups("layouts", "detect", "--nodes", "3")
    assert "No offsets were found.\nLooked at 3 nodes" in few.err
    assert len(zkgroups("layouts", "detect", "/kafkastorm").lines) == 2
    missing = zkgroups("layouts", "detect", "/nowhere")
    assert (missing.code, "/nowhere does not exist" in missing.err) == (3, True)
    assert zkgroups("layouts", "detect", "nowhere").code == 2
