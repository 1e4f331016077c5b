"""Nodes as other systems write them, from their documented formats."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from zkgroups import CommittedOffset, MalformedNode, TopicPartition
from zkgroups.core.layouts.layout import Fields, Layout, LayoutNode, LayoutOffset, in_order
from zkgroups.core.layouts.template import parse_layout

Offsets = Mapping[TopicPartition, int]
Tree = dict[str, bytes]
"""The data of each node by path."""


def json_bytes(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def decimal(directory: str) -> Callable[[str, Offsets], Tree]:
    def write(group: str, offsets: Offsets) -> Tree:
        return {f"/consumers/{group}/{directory}/{at}": str(offset).encode() for at, offset in offsets.items()}

    return write


def storm_value(at: TopicPartition, offset: int) -> dict[str, Any]:
    return {
        "topology": {"id": "orders-1-1442", "name": "orders"},
        "offset": offset,
        "partition": at.partition,
        "broker": {"host": "kafka1", "port": 9092},
        "topic": at.topic,
    }


def storm(group: str, offsets: Offsets) -> Tree:
    return {
        f"/kafkastorm/{group}/{at.topic}/partition_{at.partition}": json_bytes(storm_value(at, offset))
        for at, offset in offsets.items()
    }


def storm_of_one_topic(group: str, offsets: Offsets) -> Tree:
    """A spout of one topic, whose paths do not name it."""
    return {
        f"/kafkastorm/{group}/partition_{at.partition}": json_bytes(storm_value(at, offset))
        for at, offset in offsets.items()
    }


def trident_batch(at: TopicPartition, offset: int, following: int) -> bytes:
    return json_bytes(storm_value(at, offset) | {"nextOffset": following, "instanceId": "orders-1-1442"})


def trident(group: str, offsets: Offsets) -> Tree:
    """Transaction 6 is committed; 7 is only emitted."""
    tree = {f"/transactional/{group}/coordinator": b"", f"/transactional/{group}/coordinator/currtx": b"7"}
    for at, offset in offsets.items():
        directory = f"/transactional/{group}/user/{at.topic}/partition_{at.partition}"
        tree |= {directory: b"7", f"{directory}/6": trident_batch(at, max(0, offset - 3), offset)}
        tree[f"{directory}/7"] = trident_batch(at, offset, offset + 5)
    return tree


def spark(group: str, offsets: Offsets) -> Tree:
    """One node of each topic."""
    topics: dict[str, list[str]] = {}
    for at, offset in offsets.items():
        topics.setdefault(at.topic, []).append(f"{at.partition}:{offset}")
    return {f"/spark/{group}/{topic}": ",".join(some).encode() for topic, some in topics.items()}


def spark_of_one_node(group: str, offsets: Offsets) -> Tree:
    return {f"/spark/{group}": ",".join(f"{at.topic}:{at.partition}:{each}" for at, each in offsets.items()).encode()}


def last_in_json(group: str, offsets: Offsets) -> Tree:
    """The last processed message, or no node if there is none."""
    return {
        f"/app/{group}/{at.topic}-{at.partition}": json_bytes({"at": offset - 1, "host": "a"})
        for at, offset in offsets.items()
        if offset
    }


def in_text(group: str, offsets: Offsets) -> Tree:
    return {f"/app/{at.topic}/{group}/{at.partition}": f"v=1;at={each};x".encode() for at, each in offsets.items()}


WRITERS: dict[str, Callable[[str, Offsets], Tree]] = {
    "legacy": decimal("offsets"),
    "kafka-1.1.0": decimal("offset"),
    "storm:/kafkastorm": storm,
    "trident:/transactional": trident,
    "spark:/spark/{group} --stored until": spark,
    "spark:/spark/{group} --stored from": spark_of_one_node,
    "/app/{group}/{topic}-{partition} --stored last --value json:at": last_in_json,
    "/app/{topic}/{group}/{partition} --value regex:at=([0-9]+)": in_text,
}
"""By layout. All of them have the group in their paths."""


def layout_nodes(layout: Layout, tree: Tree) -> dict[str, list[LayoutNode]]:
    """The nodes of each group, as a reader finds them. The zxids are in the order of the tree."""
    groups: dict[str, list[LayoutNode]] = {}
    for zxid, (path, data) in enumerate(tree.items(), 1):
        for number, fields in matches(layout, path):
            group = layout.group_of(fields)
            assert group is not None
            groups.setdefault(group, []).append(LayoutNode(number, fields, path, data, zxid, 1000, 2000, 5))
    return groups


def matches(layout: Layout, path: str) -> Iterator[tuple[int, Fields]]:
    for number, template in enumerate(layout.templates):
        if (fields := template.match(path)) is not None:
            yield number, fields


def read(text: str, tree: Tree, group: str) -> list[LayoutOffset]:
    """The offsets of a group in a tree."""
    layout = parse_layout(text)
    return in_order(layout.offsets(group, layout_nodes(layout, tree).get(group, [])))


def numbers(found: list[LayoutOffset]) -> dict[TopicPartition, int]:
    """The offsets, all of which must be valid."""
    offsets = [each.found for each in found]
    assert all(isinstance(each, CommittedOffset) for each in offsets), offsets
    return {each.at: each.offset for each in offsets if isinstance(each, CommittedOffset)}


def reasons(found: list[LayoutOffset]) -> dict[str, str]:
    """Why nodes are malformed, by path."""
    return {each.found.path: each.found.reason for each in found if isinstance(each.found, MalformedNode)}
