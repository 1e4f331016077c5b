"""Reading real trees in any layout: complete, in bulk, and with bad nodes beside good ones; and writing back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from zkgroups import CommittedOffset, ForbiddenNode, Registry, TopicPartition
from zkgroups.core.layouts.layout import OneOffsetPerNode
from zkgroups.core.layouts.legacy import LEGACY
from zkgroups.core.layouts.template import parse_layout
from zkgroups.exceptions import (
    ConflictError,
    GroupInUseError,
    InvalidNameError,
    InvalidOptionError,
    MalformedNodeError,
    NoPermissionError,
    NoRegistryError,
    NotFoundError,
)
from zkgroups.testing import TcpProxy
from zkgroups.zookeeper.offsets import advance_offsets
from zkgroups.zookeeper.reading import layouts
from zkgroups.zookeeper.reading.layouts import Detection, detect_layouts
from zkgroups.zookeeper.session.session import context_of

from ..core.layouts.written import WRITERS, Tree, trident_batch
from ..releases import needs_multiread
from .helpers import plant as plant_nodes
from .sick import Tree as SickTree
from .sick import plant

pytestmark = pytest.mark.zookeeper


ALICE = [make_digest_acl("alice", "secret", all=True)]


TEMPLATE = "/x/{group}/{topic}/{partition}"


ORDERS = {TopicPartition("orders", number): 40 + number for number in (0, 2, 10)}


REFUNDS = {TopicPartition("refunds", 7): 1}


def put(client: KazooClient, tree: Tree, **options: Any) -> None:
    for path, data in tree.items():
        if client.exists(path):
            client.set(path, data)
        else:
            client.create(path, data, makepath=True, **options)


def found(registry: Registry, text: str, *groups: str) -> list[tuple[str, TopicPartition, int]]:
    """The offsets of some or all groups, all of which must be valid."""
    offsets = [*registry.offsets(groups or None, layout=text)]
    assert all(isinstance(each, CommittedOffset) for each in offsets), offsets
    return [(each.group, each.at, each.offset) for each in offsets if isinstance(each, CommittedOffset)]


def rows(group: str, offsets: Mapping[TopicPartition, int]) -> list[tuple[str, TopicPartition, int]]:
    return [(group, at, offset) for at, offset in sorted(offsets.items())]


@pytest.mark.oldest
@pytest.mark.parametrize("text", WRITERS)
def test_all_offsets_are_read_group_by_group_in_order(text: str, registry: Registry, raw: Any) -> None:
    groups = {"billing": {**ORDERS, **REFUNDS}, "accounts": REFUNDS, "ä b": ORDERS}
    for group, offsets in groups.items():
        put(raw, WRITERS[text](group, offsets))
    assert registry.groups(text) == sorted(groups)
    assert found(registry, text) == [row for group in sorted(groups) for row in rows(group, groups[group])]
    assert found(registry, text, "billing", "missing") == rows("billing", groups["billing"])
    described = {each.group: each for each in registry.describe(layout=text)}
    assert {name: each.offsets for name, each in described.items()} == {name: len(o) for name, o in groups.items()}


def test_an_offset_of_trident_that_changes_while_it_is_read_has_a_later_zxid_afterwards(
    registry: Registry, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an audit, which compares zxids, would miss it."""
    at, directory = TopicPartition("orders", 0), "/t/a/user/partition_0"
    batch = {number: trident_batch(at, 10 * number, 10 * number + 10) for number in range(6, 9)}
    put(raw, {f"{directory}/{number}": batch[number] for number in (6, 7)} | {"/t/a/coordinator/currtx": b"7"})
    read = layouts._nodes

    def commit_two_transactions(*arguments: Any) -> Iterator[Any]:
        found = list(read(*arguments))
        monkeypatch.setattr(layouts, "_nodes", read)
        put(raw, {f"{directory}/8": batch[8], "/t/a/coordinator/currtx": b"9"})
        return iter(found)

    monkeypatch.setattr(layouts, "_nodes", commit_two_transactions)
    meanwhile, afterwards = (list(registry.offsets(layout="trident:/t")) for _ in range(2))
    [before], [after] = meanwhile, afterwards
    assert isinstance(before, CommittedOffset)
    assert isinstance(after, CommittedOffset)
    assert (before.offset, after.offset) == (70, 90)
    assert before.zxid < after.zxid


# As fast and as careful as the reader of legacy groups


def test_both_readers_read_the_same_from_damaged_legacy_groups(registry: Registry, raw: Any) -> None:
    plant(SickTree(raw))
    names = registry.groups()
    read = layouts.read_offsets(registry._context, LEGACY, names)
    assert {repr(each.found) for _group, some in read for each in some} == {*map(repr, registry.offsets())}
    assert sum(len(some) for _group, some in layouts.read_offsets(registry._context, LEGACY, names)) > 20


@needs_multiread
@pytest.mark.parametrize(("text", "path"), [("kafka-1.1.0", "/consumers/{}/offset/{}"), (TEMPLATE, "/x/{}/{}")])
def test_many_groups_are_read_in_few_requests(
    text: str, path: str, proxied: Registry, proxy: TcpProxy, raw: Any
) -> None:
    places = [f"t{topic}/{number}" for topic in range(3) for number in range(10)]
    plant_nodes(raw, [path.format(f"g{group:02}", place) for group in range(40) for place in places])
    list(proxied.offsets(layout=text))
    before = proxy.requests
    assert len(found(proxied, text)) == 1200
    assert proxy.requests - before <= 20


# Permissions


def test_a_forbidden_node_does_not_hide_others(registry: Registry, raw: Any) -> None:
    put(raw, {"/x/a/orders/0": b"5"})
    put(raw, {"/x/a/orders/1": b"6"}, acl=ALICE)
    put(raw, {"/x/a/secret/0": b"7"})
    raw.set_acls("/x/a/secret", ALICE)
    found = list(registry.offsets(layout=TEMPLATE))
    assert [each.path for each in found if isinstance(each, ForbiddenNode)] == ["/x/a/orders/1", "/x/a/secret"]
    assert [each.offset for each in found if isinstance(each, CommittedOffset)] == [5]


@pytest.mark.parametrize("text", [TEMPLATE, "/x/{topic}/{group}/{partition}"])
def test_a_forbidden_directory_above_the_groups_is_an_error(text: str, registry: Registry, raw: Any) -> None:
    """Its groups are unknown, so an empty result would be wrong."""
    put(raw, {"/x/a/orders/0": b"5"})
    raw.set_acls("/x/a" if "{topic}/{group}" in text else "/x", ALICE)
    with pytest.raises(NoPermissionError):
        list(registry.offsets(layout=text))


# Mistakes


def test_a_missing_root_is_reported_and_a_bad_name_is_refused(registry: Registry, raw: Any) -> None:
    with pytest.raises(NoRegistryError, match=r"/nowhere does not exist below the chroot /.* check the path and the"):
        registry.require_root("storm:/nowhere")
    put(raw, {"/kafkastorm": b""})
    registry.require_root("storm:/kafkastorm")
    with pytest.raises(NoRegistryError, match="neither /consumers nor /brokers"):
        registry.require_root("kafka-1.1.0")
    with pytest.raises(InvalidNameError):
        registry.offsets(["a/b"], layout="storm:/kafkastorm")
    with pytest.raises(InvalidOptionError):
        registry.offsets(layout="strom:/kafkastorm")


# Writing back


@pytest.mark.parametrize("meanwhile", [b"at=60", None])
def test_an_offset_that_another_client_changes_meanwhile_is_not_overwritten(
    registry: Registry, raw: Any, monkeypatch: pytest.MonkeyPatch, meanwhile: bytes | None
) -> None:
    layout = parse_layout(f"{TEMPLATE} --value regex:at=([0-9]+)")
    assert isinstance(layout, OneOffsetPerNode)
    put(raw, {f"/x/a/orders/{number}": b"at=40" for number in range(2)})
    read = layouts.read_offsets

    def change_after_the_read(*arguments: Any) -> Iterator[Any]:
        yield from list(read(*arguments))
        raw.delete("/x/a/orders/0") if meanwhile is None else raw.set("/x/a/orders/0", meanwhile)

    monkeypatch.setattr(layouts, "read_offsets", change_after_the_read)
    wanted = {TopicPartition("orders", number): 50 for number in range(2)}
    answered = advance_offsets(context_of(registry), layout, "a", wanted)
    assert [type(error) for error in answered.values()] == [ConflictError, type(None)]
    assert (raw.get("/x/a/orders/0")[0] if raw.exists("/x/a/orders/0") else None) == meanwhile
    assert raw.get("/x/a/orders/1")[0] == b"at=50"


def test_offsets_are_only_moved_forward_and_only_in_nodes_that_exist_and_can_be_read(
    registry: Registry, raw: Any
) -> None:
    layout = parse_layout(f"{TEMPLATE} --stored last")
    assert isinstance(layout, OneOffsetPerNode)
    put(raw, {f"/x/a/orders/{number}": data for number, data in enumerate((b"49", b"50", b"48", b"x"))})
    versions = {number: raw.get(f"/x/a/orders/{number}")[1].version for number in range(4)}
    wanted = {TopicPartition("orders", number): 50 for number in range(5)}
    answered = advance_offsets(context_of(registry), layout, "a", wanted)
    assert [type(error) for error in answered.values()] == [
        *[type(None)] * 3,
        MalformedNodeError,
        NotFoundError,
    ]
    assert [raw.get(f"/x/a/orders/{number}")[0] for number in range(4)] == [b"49", b"50", b"49", b"x"]
    written = [number for number in range(4) if raw.get(f"/x/a/orders/{number}")[1].version != versions[number]]
    assert written == [2]
    assert raw.exists("/x/a/orders/4") is None


def test_offsets_of_kafka_1_1_0_are_not_written_while_an_instance_is_registered(registry: Registry, raw: Any) -> None:
    layout = parse_layout("kafka-1.1.0")
    assert isinstance(layout, OneOffsetPerNode)
    put(raw, WRITERS[layout.text]("billing", REFUNDS))
    with registry.group("billing").instance("anna") as anna:
        anna.register(["refunds"])
        with pytest.raises(GroupInUseError, match="anna"):
            advance_offsets(context_of(registry), layout, "billing", dict.fromkeys(REFUNDS, 50))
    assert advance_offsets(context_of(registry), layout, "billing", dict.fromkeys(REFUNDS, 50)) == {
        TopicPartition("refunds", 7): None
    }
    assert numbers_of(registry, "kafka-1.1.0") == [50]


def numbers_of(registry: Registry, text: str) -> list[int]:
    return [offset for _group, _at, offset in found(registry, text)]


def detected(registry: Registry, *paths: str, most_nodes: int = 1000) -> Detection:
    """Look at a tree with these nodes, which hold numbers."""
    for path in paths:
        registry.client.ensure_path(path)
        registry.client.set(path, b"7")
    return detect_layouts(context_of(registry), "/", most_nodes=most_nodes)


@pytest.mark.parametrize(("children", "is_complete"), [(24, True), (25, False)])
def test_of_more_than_24_children_only_some_are_looked_at(registry: Registry, children: int, is_complete: bool) -> None:
    found = detected(registry, *(f"/consumers/g/offsets/t/{number}" for number in range(children)))
    above = len(["/", "/consumers", "/consumers/g", "/consumers/g/offsets", "/consumers/g/offsets/t"])
    assert (found.is_complete, found.nodes) == (is_complete, above + 24)
    [layout] = found.layouts
    assert (layout.groups, layout.offsets, layout.is_complete) == (1, children, True)


@pytest.mark.parametrize(("depth", "is_complete"), [(9, True), (10, False)])
def test_a_tree_is_looked_at_to_a_depth_of_nine_names(registry: Registry, depth: int, is_complete: bool) -> None:
    assert detected(registry, "/deep" + "/d" * (depth - 1)).is_complete == is_complete
