"""Batches of single reads, for servers without MultiRead: their requests, and answers in every order of arrival.

No server but one that lies.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.protocol.serialization import GetChildren, GetData

from zkgroups import Registry
from zkgroups.exceptions import DamagedAnswerError
from zkgroups.testing.proxy.frames import Op, Xid
from zkgroups.zookeeper.kazoo_compat.read_batch import ReadBatch
from zkgroups.zookeeper.requests import bulk_read
from zkgroups.zookeeper.requests.multiread_format import Kind, single_read
from zkgroups.zookeeper.requests.node import Node

from ..seeds import seeds
from . import liar
from .liar import Liar, Lie, text

LAST = 2**31 - 1
PATHS = [f"/t/{number}" for number in range(300)]
EVENT = liar.framed(liar.header(Xid.WATCH_EVENT) + struct.pack(">ii", 3, 3) + text("/t/1"))
PING = liar.framed(liar.header(Xid.PING))


@given(st.sampled_from(Kind), st.lists(st.text(min_size=1, max_size=9), min_size=1), st.integers(1, LAST))
def test_a_batch_is_sent_as_kazoos_single_reads_with_consecutive_numbers(
    kind: Kind, names: list[str], first: int
) -> None:
    single = {Kind.NODE: GetData, Kind.CHILDREN: GetChildren}[kind]
    expected, xid = b"", first
    for name in names:
        expected += liar.framed(struct.pack(">ii", xid, kind) + single(f"/{name}", None).serialize())
        last, xid = xid, xid + 1 if xid < LAST else 1
    batch = ReadBatch(kind, [single_read(f"/{name}".encode()) for name in names])
    assert batch.frames(first) == expected
    assert batch.last_xid(first) == last


def read_all(lie: Lie) -> tuple[list[object], int]:
    """Read from an old server that lies about nodes. Return the nodes, and how many connections that took."""
    with Liar({Op.GET_DATA: lie}, version="3.4.14") as server:
        with Registry.connect(server.address, timeout=30.0) as registry:
            found = list(bulk_read.nodes(registry._context, PATHS))
            assert not registry.client._pending
        return found, server.connections - 1  # one asked for the version


def pieces(frame: bytes, draw: random.Random) -> Iterator[bytes]:
    while frame:
        length = draw.choice([1, 3, 4, 5, 40, 1000])
        yield frame[:length]
        frame = frame[length:]


def nth(number: int, lie: Lie) -> Lie:
    """Lie about this answer only."""
    numbers = count()
    return lambda frame: lie(frame) if next(numbers) == number else [frame]


@pytest.mark.parametrize("seed", seeds(3))
def test_answers_in_pieces_and_between_events_and_pings_are_read_in_order(seed: int) -> None:
    draw = random.Random(seed)

    def lie(frame: bytes) -> Iterator[bytes]:
        before = draw.choices([b"", EVENT, PING], weights=[8, 1, 1])[0]
        return pieces(before + frame, draw)

    found, connections = read_all(lie)
    assert [node.path for node in found if isinstance(node, Node)] == PATHS
    assert connections == 1


def test_a_node_of_several_chunks_is_read_between_small_ones() -> None:
    large = text(b"x" * 300_000) + liar.STAT
    found, _ = read_all(nth(70, liar.with_body(lambda _: large)))
    sizes = [len(node.data) for node in found if isinstance(node, Node)]
    assert sizes == [1] * 70 + [300_000] + [1] * 229


@pytest.mark.parametrize("number", [0, 63, 64, 100, 299])
def test_reads_that_are_lost_in_the_middle_of_a_batch_are_repeated(number: int) -> None:
    found, connections = read_all(nth(number, lambda _: None))
    assert [node.path for node in found if isinstance(node, Node)] == PATHS
    assert connections == 2


@pytest.mark.parametrize("number", [0, 70])
@pytest.mark.parametrize("lie", [liar.with_header(xid=1), liar.with_header(error=-99), liar.with_length(-7)])
def test_a_damaged_answer_in_the_middle_of_a_batch_is_an_error(number: int, lie: Lie) -> None:
    with pytest.raises(DamagedAnswerError):
        read_all(nth(number, lie))


@pytest.mark.parametrize("error", [-101, -102])
def test_a_missing_or_forbidden_node_in_a_batch_affects_no_other(error: int) -> None:
    found, _ = read_all(nth(100, liar.with_header(error=error)))
    assert [node.path for node in found if isinstance(node, Node)] == PATHS[:100] + PATHS[101:]
