"""Bulk reads: order, names, sizes, number of requests, outages and the pace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.security import make_digest_acl

from zkgroups import ForbiddenNode, Registry
from zkgroups.testing import Op, TcpProxy
from zkgroups.zookeeper.requests import bulk_read
from zkgroups.zookeeper.requests.bulk_read import (
    ANSWER_BYTES,
    MAX_READ_REQUEST_BYTES,
    MOST,
    MOST_SINGLE,
    REQUESTS,
    BulkReadPace,
    Siblings,
)
from zkgroups.zookeeper.requests.multiread import Kind
from zkgroups.zookeeper.requests.node import Node

from ..releases import needs_multiread
from .conftest import Connect
from .helpers import ODD, data, each, plant, plant_offsets, shown

pytestmark = pytest.mark.zookeeper


# Requests and answers


@needs_multiread
def test_two_thousand_nodes_are_read_in_few_requests(proxied: Registry, proxy: TcpProxy, raw: Any) -> None:
    paths = plant(raw, [f"/t/{n}" for n in range(2_000)])
    before = proxy.requests_by_type
    assert data(bulk_read.nodes(proxied._context, paths)) == [b"7"] * 2_000
    spent = proxy.requests_by_type - before
    assert spent.keys() == {Op.MULTI_READ}
    assert spent[Op.MULTI_READ] <= 15


def test_a_few_nodes_are_read_without_probing_the_server(proxied: Registry, proxy: TcpProxy, raw: Any) -> None:
    paths = plant(raw, [f"/t/{n}" for n in range(8)])
    connections, before = proxy.connections, proxy.requests_by_type
    assert data(bulk_read.nodes(proxied._context, paths)) == [b"7"] * 8
    assert proxy.requests_by_type - before == {Op.GET_DATA: 8}
    assert proxy.connections == connections


@pytest.mark.parametrize("count", [8, 200], ids=["one by one", "together"])
def test_nodes_come_in_order_with_none_for_missing_ones_and_forbidden_ones_marked(
    registry: Registry, raw: Any, count: int
) -> None:
    """Nodes are read and listed, with duplicates, in any order, and with forbidden ones among them."""
    paths = plant(raw, [f"/t{n % 3}/{n}" for n in range(count)])
    plant(raw, [f"{path}/{name}" for path in paths for name in "ab"])
    each(raw.set_async(path, path.encode()) for path in paths)
    denied, gone = paths[1], paths[4]
    raw.set_acls(denied, [make_digest_acl("alice", "secret", all=True)])
    raw.delete(gone, recursive=True)
    asked = [*reversed(paths), paths[3], "/t9/never", "/t0"]
    found = list(bulk_read.nodes(registry._context, asked))
    below = list(bulk_read.children(registry._context, asked))
    assert len(found) == len(below) == len(asked)
    for path, node, names in zip(asked, found, below, strict=True):
        if path == denied:
            assert node == names == ForbiddenNode(denied)
        elif path in (gone, "/t9/never"):
            assert (node, names) == (None, None)
        elif path != "/t0":
            assert isinstance(node, Node)
            assert (node.path, node.data) == (path, path.encode())
            assert isinstance(names, list)
            assert sorted(names) == ["a", "b"]


# Names


@pytest.mark.parametrize("chroot", [True, False], ids=["chroot", "no chroot"])
def test_names_of_every_kind_are_returned_unchanged(zookeeper: Any, raw: Any, connect: Connect, chroot: bool) -> None:
    top = "" if chroot else raw.chroot
    registry = connect() if chroot else connect(zookeeper.address)
    paths = plant(raw, [f"/{above}/{name}" for above in ODD for name in ODD])
    each(raw.set_async(path, path.encode()) for path in paths)
    asked = [top + path for path in paths]
    found = list(bulk_read.nodes(registry._context, asked))
    assert [node.path for node in found if isinstance(node, Node)] == asked
    assert data(found) == [path.encode() for path in paths]
    for names in bulk_read.children(registry._context, [f"{top}/{above}" for above in ODD]):
        assert isinstance(names, list)
        assert sorted(names) == sorted(ODD)


def test_long_names_are_spread_over_requests_that_the_server_accepts(
    proxied: Registry, proxy: TcpProxy, raw: Any
) -> None:
    """One request for all would have 3 MB, on which the server drops the connection."""
    names = [f"{n}".ljust(10_000, "x") for n in range(300)]
    plant(raw, [f"/long/{name}" for name in names])
    blocks = list(bulk_read.read(proxied._context, Kind.NODE, [Siblings("key", "/long", names)]))
    assert [name for block in blocks for siblings in block.parts for name in siblings.names] == names
    assert all(siblings.key == "key" for block in blocks for siblings in block.parts)
    assert all(not isinstance(record, int) for block in blocks for record in block.records())
    assert 200_000 < max(block.length for block in blocks) <= MAX_READ_REQUEST_BYTES


# Servers without MultiRead


@pytest.fixture
def many(raw: Any) -> list[str]:
    return plant_offsets(raw, 12, 3, 10)


@pytest.mark.parametrize(
    "arm",
    [
        pytest.param(lambda proxy, n: proxy.cut_before_reply(n), id="answer lost"),
        pytest.param(lambda proxy, n: proxy.cut_before_request(n), id="request lost"),
        pytest.param(lambda proxy, n: proxy.cut_after_reply(n), id="connection lost in between"),
    ],
)
def test_a_connection_lost_at_any_point_does_not_change_the_result(
    arm: Callable[[TcpProxy, int], Any], proxied: Registry, proxy: TcpProxy, many: list[str]
) -> None:
    """After each cut a second connection probes the server, through the proxy, too."""
    assert shown(proxied.offsets()) == many
    before = proxy.requests
    assert shown(proxied.offsets()) == many
    requests = proxy.requests - before
    assert requests > 6
    for n in range(1, requests + 1, 1 + requests // 40):  # an old server answers hundreds of requests
        fault = arm(proxy, n)
        assert shown(proxied.offsets()) == many, f"cut at request {n}"
        assert fault.fired, f"request {n} of {requests} was never made"


LENGTHS = st.integers(0, 2**31) | st.integers(0, 300)


@given(st.lists(st.tuples(st.integers(0, MOST), LENGTHS), max_size=20), st.booleans())
def test_a_request_always_reads_between_one_and_the_maximum_number_of_nodes(
    answers: list[tuple[int, int]], one_by_one: bool
) -> None:
    pace = BulkReadPace()
    pace.set_together(not one_by_one)
    for reads, answer_bytes in answers:
        before = pace.size
        pace.answered(reads, answer_bytes)
        assert 1 <= pace.size <= min(2 * before, MOST_SINGLE if one_by_one else MOST)
        if reads:
            assert pace.requests == REQUESTS
            assert pace.size == 1 or pace.size * answer_bytes <= ANSWER_BYTES * reads
