"""The format of reads and their answers, compared with kazoo, and the size of transactions."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.protocol import serialization
from kazoo.protocol.serialization import (
    Exists,
    GetChildren,
    GetData,
    MultiHeader,
    int_struct,
    stat_struct,
    write_buffer,
    write_string,
)
from kazoo.protocol.states import ZnodeStat

from zkgroups import Consumergroup, Registry, TopicPartition
from zkgroups.core.znodes.codecs import is_plain_offset
from zkgroups.exceptions import TooLargeError
from zkgroups.testing import ZooKeeperServer
from zkgroups.testing.proxy import Op, Xid
from zkgroups.zookeeper.kazoo_compat.requests import ReadBatch
from zkgroups.zookeeper.requests import bulk_read, transaction
from zkgroups.zookeeper.requests.multiread import (
    DATA_AT,
    DENIED,
    END,
    GONE,
    GOOD_HEAD,
    STAT_BYTES,
    Kind,
    MultiRead,
    PlainOffsets,
    listings,
    operations,
    plain_offsets,
    records,
    single_read,
)
from zkgroups.zookeeper.requests.node import Node
from zkgroups.zookeeper.requests.pinned_request import _on_the_wire
from zkgroups.zookeeper.requests.transaction import (
    ENVELOPE_BYTES,
    MAX_BATCH_BYTES,
    MAX_REQUEST_BYTES,
    SMALLEST_LIMIT,
    Check,
    Create,
    Delete,
    Operation,
    RequestLimit,
    Set,
    batches,
    fits,
    size,
)

from ..core.strategies import NAMES
from ..seeds import seeds
from . import liar
from .liar import Liar, Lie, text

KINDS = st.sampled_from(Kind)


DIRECTORIES = st.lists(NAMES, max_size=3).map(lambda names: "".join(f"/{name}" for name in names))


INT = st.integers(-(2**31), 2**31 - 1)


BIG = st.integers(-(2**63), 2**63 - 1)


STATS = st.builds(ZnodeStat, BIG, BIG, BIG, BIG, INT, INT, INT, BIG, INT, INT, BIG)


DATA = st.none() | st.binary(max_size=40) | st.integers(0, 70_000).map(bytes)


PLAIN = st.integers(0, 10**18 - 1).map(lambda number: b"%d" % number)


ODD_OFFSETS = st.sampled_from([b"", b"-1", b"+4", b"1 ", b"007", b"9" * 18, b"9" * 19, b"1.5"])


FAILURES = st.sampled_from([GONE, DENIED, -1, -110])


ROUND = MultiHeader(-1, True, -1).serialize()


def part(kind: Kind, body: Any) -> bytes:
    """Encode a part of an answer as a server does: a body, or an error code."""
    if isinstance(body, int):
        return bytes(MultiHeader(-1, False, body).serialize() + int_struct.pack(body))
    return bytes(MultiHeader(kind, False, 0).serialize() + body)


def node(data: bytes | None, stat: ZnodeStat) -> bytes:
    return bytes(write_buffer(data) + stat_struct.pack(*stat))


def names_of(names: list[str]) -> bytes:
    return bytes(int_struct.pack(len(names)) + b"".join(map(write_string, names)))


@given(KINDS, DIRECTORIES, st.lists(NAMES | NAMES.map(lambda name: name * 20), max_size=12))
def test_a_request_is_kazoos_single_reads_after_their_headers(kind: Kind, directory: str, names: list[str]) -> None:
    single = {Kind.NODE: GetData, Kind.CHILDREN: GetChildren}[kind]
    expected = b"".join(
        MultiHeader(kind, False, -1).serialize() + single(f"{directory}/{name}", None).serialize() for name in names
    )
    assert operations(kind, directory.encode(), names) == expected


@given(st.lists(st.tuples(DATA, STATS) | FAILURES, max_size=12))
def test_nodes_are_decoded_as_by_kazoo_and_errors_are_codes(nodes: list[Any]) -> None:
    bodies = [found if isinstance(found, int) else node(*found) for found in nodes]
    answer = b"".join([*(part(Kind.NODE, body) for body in bodies), ROUND])
    expected: list[Any] = []
    for body in bodies:
        if isinstance(body, int):
            expected.append(body)
        else:
            data, stat = GetData.deserialize(body, 0)
            kept = (stat.czxid, stat.mzxid, stat.ctime, stat.mtime, stat.version, stat.ephemeralOwner)
            expected.append((data or b"", *kept))
    assert list(records(answer, len(nodes))) == expected


def offsets_of(found: list[Any]) -> PlainOffsets | None:
    """Return what `plain_offsets` should, from records that were decoded one by one."""
    if any(isinstance(each, int) or not is_plain_offset(each[0]) for each in found):
        return None
    return PlainOffsets([int(each[0]) for each in found], [each[2] for each in found], [each[4] for each in found])


@given(st.lists(st.tuples(PLAIN, STATS), max_size=12), st.none() | st.tuples(DATA | ODD_OFFSETS, STATS) | FAILURES)
def test_offsets_are_decoded_as_columns_unless_one_is_not_a_plain_number(nodes: list[Any], odd: Any) -> None:
    for them in (nodes, nodes if odd is None else [*nodes[1:], odd, *nodes[:1]]):
        bodies = [found if isinstance(found, int) else node(*found) for found in them]
        answer = b"".join([*(part(Kind.NODE, body) for body in bodies), ROUND])
        expected = offsets_of(list(records(answer, len(them))))
        found = plain_offsets(answer, len(them))
        assert (found and [*map(list, found)]) == (expected and [*map(list, expected)])
        for damaged in (answer[:-1], answer[:-50], answer[: len(answer) // 2], answer + b"x"):
            assert not them or plain_offsets(damaged, len(them)) is None


@given(st.lists(st.lists(NAMES, max_size=5) | FAILURES, max_size=12))
def test_names_are_decoded_as_by_kazoo_and_errors_are_codes(lists: list[Any]) -> None:
    bodies = [found if isinstance(found, int) else names_of(found) for found in lists]
    answer = b"".join([*(part(Kind.CHILDREN, body) for body in bodies), ROUND])
    expected = [body if isinstance(body, int) else GetChildren.deserialize(body, 0) for body in bodies]
    assert list(listings(answer, len(lists))) == expected == lists


@given(st.binary(max_size=300), STATS)
def test_the_constants_of_the_record_format_are_right(data: bytes, stat: ZnodeStat) -> None:
    record = part(Kind.NODE, node(data, stat))
    assert record[DATA_AT:-STAT_BYTES] == data
    assert record.startswith(GOOD_HEAD) == (len(data) < 256)
    assert record[DATA_AT - 1] == len(data) % 256
    assert END == ROUND


def test_support_is_checked_once_at_the_moment_of_sending() -> None:
    """kazoo reads the type several times while it sends, so the result must not change in between."""
    for understood in (True, False):
        answers = iter([understood, not understood])
        request = MultiRead(b"questions", lambda answers=answers: next(answers))  # type: ignore[misc]
        assert [request.type, request.type] == [22 if understood else Exists.type] * 2
        assert request.serialize() == (b"questions" + END if understood else Exists("/", None).serialize())


LAST = 2**31 - 1


READ = [f"/t/{number}" for number in range(300)]


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
            found = list(bulk_read.nodes(registry._context, READ))
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
    assert [node.path for node in found if isinstance(node, Node)] == READ
    assert connections == 1


@pytest.mark.parametrize("number", [0, 63, 64, 100, 299])
def test_reads_that_are_lost_in_the_middle_of_a_batch_are_repeated(number: int) -> None:
    found, connections = read_all(nth(number, lambda _: None))
    assert [node.path for node in found if isinstance(node, Node)] == READ
    assert connections == 2


OPERATIONS = [
    Create("/größe", b"abc"),
    Create("/x", b"", ephemeral=True),
    Set("/x", b"12", 3),
    Delete("/x"),
    Check("/xy", 3),
]


UNIT = [Set("/x", b"12", 3)]


COST = size(UNIT[0])


@pytest.mark.parametrize("operation", OPERATIONS, ids=repr)
def test_the_size_of_an_operation_is_exact(operation: Operation) -> None:
    empty, one = (len(serialization.Transaction(each).serialize()) for each in ([], [_on_the_wire("", operation)]))
    assert size(operation) == one - empty


def test_operations_fit_up_to_the_limit() -> None:
    total = ENVELOPE_BYTES + sum(map(size, OPERATIONS))
    assert fits(OPERATIONS, limit=total)
    assert not fits(OPERATIONS, limit=total - 1)
    assert fits(OPERATIONS, chroot="/é", limit=total + 3 * len(OPERATIONS))
    assert not fits(OPERATIONS, chroot="/é", limit=total + 3 * len(OPERATIONS) - 1)


@pytest.mark.parametrize(("spare", "expected"), [(0, [2, 2, 1]), (COST - 1, [2, 2, 1]), (COST, [3, 2])])
def test_units_are_grouped_up_to_the_limit(spare: int, expected: list[int]) -> None:
    overhead = [Check("/fence", 1)]
    limit = ENVELOPE_BYTES + size(overhead[0]) + 2 * COST + spare
    found = list(batches([UNIT] * 5, overhead=overhead, limit=limit))
    assert [len(batch) for batch in found] == expected
    longer = list(batches([UNIT] * 5, overhead=overhead, chroot="/abc", limit=limit + 3 * 4))
    assert [len(batch) for batch in longer[:1]] == [2]


def test_a_unit_is_never_split_or_left_out() -> None:
    large = [Set("/x", bytes(1000), 3)] * 2
    assert list(batches([UNIT, large, UNIT], limit=100)) == [[UNIT], [large], [UNIT]]
    assert list(batches([], limit=100)) == []


def test_the_number_of_operations_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "MAX_BATCH_OPERATIONS", 4)
    assert [len(batch) for batch in batches([UNIT * 2] * 5)] == [2, 2, 1]
    assert [len(batch) for batch in batches([UNIT * 3] * 2)] == [1, 1]


def test_a_lost_request_halves_the_limit_of_its_session_only() -> None:
    limit = RequestLimit()
    assert (limit.bytes(1), limit.most(1)) == (MAX_BATCH_BYTES, MAX_REQUEST_BYTES)
    limit.lost_twice(40_000, session_id=1)
    assert (limit.bytes(1), limit.most(1)) == (20_000, 20_000)
    assert (limit.bytes(2), limit.most(2)) == (MAX_BATCH_BYTES, MAX_REQUEST_BYTES)
    limit.lost_twice(60_000, session_id=1)
    assert limit.bytes(1) == 20_000
    limit.lost_twice(SMALLEST_LIMIT, session_id=1)
    assert limit.bytes(1) == SMALLEST_LIMIT


def test_an_answered_request_raises_the_limit_again() -> None:
    limit = RequestLimit()
    limit.lost_twice(40_000, session_id=1)
    for size_, session_id in ((20_000, 1), (30_000, 2)):
        limit.accepted(size_, session_id=session_id)
        assert limit.bytes(1) == 20_000
    limit.accepted(30_000, session_id=1)
    assert limit.bytes(1) == 30_000
    limit.accepted(39_999, session_id=1)
    assert limit.bytes(1) == 39_999
    limit.accepted(40_000, session_id=1)
    assert limit.bytes(1) == MAX_BATCH_BYTES


BOUND = 16_384


MANY = 900


@pytest.fixture(scope="module")
def small() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(jvm_options=[f"-Djute.maxbuffer={BOUND}"]) as server:
        yield server


@pytest.fixture
def group(small: ZooKeeperServer, request: pytest.FixtureRequest) -> Iterator[Consumergroup]:
    with Registry.connect(small.address) as registry:
        yield registry.group(request.node.name)


@pytest.mark.zookeeper
def test_a_learned_request_limit_is_kept_for_the_session(group: Consumergroup) -> None:
    with group.instance("a") as me:
        me.register(["payments"])
        many = [TopicPartition("payments", number) for number in range(MANY)]
        me.claim_many(many).release()
        connected: list[str] = []
        group._context.session.client.add_listener(connected.append)
        claims = me.claim_many(many)
        claims.commit(dict.fromkeys(many, 5))
        claims.release()
        assert connected == []
        assert claims.held is False
    assert sum(1 for _ in group.offsets) == MANY


@pytest.mark.zookeeper
def test_a_single_registration_that_is_too_large_raises_an_error_with_the_cause(group: Consumergroup) -> None:
    topics = [f"topic-{number:05}" for number in range(1_500)]
    with group.instance("a") as me, pytest.raises(TooLargeError, match=r"jute\.maxbuffer") as caught:
        me.register(topics)
    assert caught.value.size is not None
    assert caught.value.size > BOUND
    assert not group.exists() or group.instances() == []
