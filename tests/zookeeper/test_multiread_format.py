"""The format of MultiRead, compared with kazoo's serialization of single reads. No server."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
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

from zkgroups.core.znodes.offset_codec import is_plain_offset
from zkgroups.zookeeper.requests.multiread_format import (
    DATA_AT,
    DENIED,
    END,
    GONE,
    GOOD_HEAD,
    STAT_BYTES,
    Kind,
    MultiRead,
    PlainOffsets,
    encode_error,
    encode_result,
    listings,
    operations,
    plain_offsets,
    records,
    single_read,
)

from ..core.strategies import NAMES

KINDS = st.sampled_from(Kind)
DIRECTORIES = st.lists(NAMES, max_size=3).map(lambda names: "".join(f"/{name}" for name in names))
LONG = st.integers(-(2**63), 2**63 - 1)
INT = st.integers(-(2**31), 2**31 - 1)
STATS = st.builds(ZnodeStat, LONG, LONG, LONG, LONG, INT, INT, INT, LONG, INT, INT, LONG)
DATA = st.none() | st.binary(max_size=40) | st.integers(0, 70_000).map(bytes)
OFFSETS = st.integers(0, 10**18 - 1).map(lambda number: b"%d" % number)
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


@given(KINDS, DIRECTORIES, NAMES)
def test_a_single_read_equals_kazoos_byte_by_byte(kind: Kind, directory: str, name: str) -> None:
    kazoos = {Kind.NODE: GetData, Kind.CHILDREN: GetChildren}[kind](f"{directory}/{name}", None)
    assert (kind, single_read(f"{directory}/{name}".encode())) == (kazoos.type, kazoos.serialize())


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


@given(st.lists(st.tuples(OFFSETS, STATS), max_size=12), st.none() | st.tuples(DATA | ODD_OFFSETS, STATS) | FAILURES)
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


def test_a_null_list_has_no_names() -> None:
    assert list(listings(part(Kind.CHILDREN, int_struct.pack(-1)), 1)) == [[]]


@given(st.lists(st.tuples(DATA, STATS) | FAILURES, max_size=8))
def test_encoded_single_answers_equal_one_answer_to_many_reads(nodes: list[Any]) -> None:
    bodies = [found if isinstance(found, int) else node(*found) for found in nodes]
    singles = [encode_error(body) if isinstance(body, int) else encode_result(Kind.NODE, body) for body in bodies]
    assert b"".join([*singles, END]) == b"".join([*(part(Kind.NODE, body) for body in bodies), ROUND])


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
        assert not request.withheld
        assert [request.type, request.type] == [22 if understood else Exists.type] * 2
        assert request.serialize() == (b"questions" + END if understood else Exists("/", None).serialize())
        assert request.withheld is not understood
