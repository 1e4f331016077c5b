"""The format of registrations, compared with models of the old clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from zkgroups import Dialect, MalformedNode, Pattern, Registration
from zkgroups.core.times import from_ms, to_ms
from zkgroups.core.znodes.registrations import MOST_ASSIGNORS, MOST_TOPICS, decode_registration, encode_registration
from zkgroups.core.znodes.values import ONLY_ZOOKEEPER, OffsetSides, Side, UnevaluableRegistration
from zkgroups.exceptions import InvalidInputError, InvalidNameError, InvalidOptionError

from ..groups import malformed
from ..strategies import EXPRESSIONS, NAMES, NEARLY_REGISTRATIONS, TOPICS, anything_json
from . import old_clients
from .old_clients import INT, Poison, Reading

STREAMS = st.integers(1, INT)
TIMES = (st.none() | st.integers(-(10**20), 10**20) | st.integers(0, INT * 1000)).map(lambda ms: from_ms(ms or 0))
LISTS = [Pattern.WHITE_LIST, Pattern.BLACK_LIST]
REGISTRATIONS = st.builds(Registration, st.dictionaries(NAMES, STREAMS, max_size=6), timestamp=TIMES) | st.builds(
    Registration, st.dictionaries(EXPRESSIONS, STREAMS, max_size=1), st.sampled_from(LISTS), timestamp=TIMES
)


def read_by_all(data: bytes) -> Iterator[Reading]:
    """What Scala until 0.11, Scala from 1.0, and kazoo-go read."""
    yield old_clients.scala_registration(data, jackson=False)
    yield old_clients.scala_registration(data, jackson=True)
    yield old_clients.kazoo_go_registration(data)


def registration_json(**changes: Any) -> bytes:
    """A registration as Scala writes it, with changes. `...` stands for no field."""
    fields = {"version": 1, "subscription": {"t6": 2}, "pattern": "static", "timestamp": "1795255170109"} | changes
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


def decoded(**changes: Any) -> Registration:
    found = decode_registration("/p", registration_json(**changes))
    assert isinstance(found, Registration), found
    return found


def by_pattern(expression: str, pattern: str = "white_list") -> bytes:
    return registration_json(subscription={expression: 1}, pattern=pattern)


# Encoding


def test_a_registration_is_encoded_as_these_bytes() -> None:
    written = (
        '{"version":1,"subscription":{"t6":2,"größe":1},"pattern":"static","timestamp":1795255543,"client":"zkgroups"}'
    )
    registration = Registration({"t6": 2, "größe": 1}, timestamp=from_ms(1795255543109))
    assert encode_registration(registration).decode() == written
    for pattern in LISTS:
        fields = json.loads(encode_registration(Registration({r"orders\.v[12],refunds.*": 3}, pattern)))
        assert (fields["subscription"], fields["pattern"]) == ({r"orders\.v[12],refunds.*": 3}, pattern)


@given(registration=REGISTRATIONS, topic=TOPICS)
def test_every_old_client_and_zkgroups_decode_the_encoded_subscription(registration: Registration, topic: str) -> None:
    try:
        data = encode_registration(registration)
    except InvalidInputError:
        assume(False)
    for reading in read_by_all(data):
        assert reading.streams == registration.streams
        # An empty subscription counts for nothing, so Scala does not look at its pattern.
        assert not registration.streams or reading.pattern == registration.pattern
    assert not old_clients.pykafka_participates(topic, data)
    held = min(max(to_ms(registration.timestamp) // 1000, 0), INT) * 1000
    assert decode_registration("/p", data) == replace(registration, timestamp=from_ms(held))


@pytest.mark.parametrize("ms", [0, -1, 2**31 * 1000, 10**18, 10**40])
def test_a_wrong_clock_does_not_make_a_registration_malformed(ms: int) -> None:
    for reading in read_by_all(encode_registration(Registration({"t": 1}, timestamp=from_ms(ms)))):
        assert reading.streams == {"t": 1}


@pytest.mark.parametrize("streams", [0, -1, 1.0, "1", True, None, [1], 2**31, pytest.param(10**5000, id="huge")])
def test_a_number_of_streams_that_stops_scala_is_not_encoded(streams: Any) -> None:
    for pattern in Pattern:
        with pytest.raises(InvalidOptionError, match="streams of 't'"):
            encode_registration(Registration({"t": streams}, pattern))


def test_names_and_expressions_that_old_clients_cannot_read_are_not_encoded() -> None:
    for name in ("", "a/b", ".", "..", "a\nb", "\ud800", 5, None, True):
        with pytest.raises(InvalidNameError):
            encode_registration(Registration({name: 1}))  # type: ignore[dict-item]
    for expression in (5, None, b"a", True, "\ud800", "a\udfff"):
        with pytest.raises(InvalidOptionError, match="topic pattern"):
            encode_registration(Registration({expression: 1}, Pattern.WHITE_LIST))  # type: ignore[dict-item]
    with pytest.raises(InvalidOptionError, match="commas"):  # Scala ignores the second one
        encode_registration(Registration({"a.*": 1, "b.*": 1}, Pattern.WHITE_LIST))
    with pytest.raises(InvalidOptionError, match="time zone"):
        encode_registration(Registration({"t": 1}, timestamp=datetime(2026, 11, 24)))


def test_a_registration_with_too_many_topics_is_neither_evaluated_nor_encoded() -> None:
    most = {f"topic-{number}": 1 for number in range(MOST_TOPICS)}
    assert decoded(subscription=most).streams == most
    many = {**most, "one-more": 1}
    found = decode_registration("/p", registration_json(subscription=many))
    assert isinstance(found, UnevaluableRegistration)
    assert found.reason == "it names 5001 topics, and at most 5000 are looked up"
    assert found.registration.streams == many
    encode_registration(Registration(most))
    with pytest.raises(InvalidOptionError, match="use a pattern"):
        encode_registration(Registration(many))


# Expressions


def test_an_expression_that_java_refuses_is_malformed_and_one_that_only_java_compiles_unevaluable() -> None:
    """`test_java_regex.py` shows which these are."""
    for pattern in LISTS:
        for expression in ("(", "*", "[a", "a{,3}", "x{2,1}", "(?P<n>a)", "\\", "a{99999999999}"):
            with pytest.raises(InvalidOptionError, match="topic pattern"):
                encode_registration(Registration({expression: 1}, pattern))
            data = by_pattern(expression, pattern)
            malformed(decode_registration("/p", data), "/p", data)
        for expression in (r"\p{Alpha}+", "[a-z&&[^b]]", "(a)\\1", "(?<n>a)"):
            with pytest.raises(InvalidOptionError):
                encode_registration(Registration({expression: 1}, pattern))
            data = by_pattern(expression, pattern)
            found = decode_registration("/p", data, session=5, version=6)
            assert isinstance(found, UnevaluableRegistration)
            reason = f"its subscription cannot be evaluated: {found.reason}"
            assert found.node == MalformedNode("/p", data, reason, session=5, version=6)
            assert found.registration.streams == {expression: 1}
        for expression in (r"orders\..*", "a,b", "(?i)Orders", "(?!__).*", "a}", ""):
            assert encode_registration(Registration({expression: 1}, pattern))
    assert decoded(pattern="white_list", subscription={"t.*": 1, "(": 1, r"(a)\1": 1}), "only the first one counts"


@given(
    jackson=st.booleans(),
    streams=STREAMS | anything_json(),
    name=NAMES | EXPRESSIONS,
    pattern=st.sampled_from(Pattern),
)
@settings(max_examples=200)
def test_a_subscription_that_stops_scala_is_refused(jackson: bool, streams: Any, name: str, pattern: Pattern) -> None:
    naive = {"version": 1, "subscription": {name: streams}, "pattern": pattern.value, "timestamp": 1}
    try:
        old_clients.scala_registration(json.dumps(naive).encode(), jackson=jackson)
    except Poison:
        with pytest.raises(InvalidInputError):
            encode_registration(Registration({name: streams}, pattern))


# Decoding


def of(streams: dict[str, int], dialect: Dialect, pattern: Pattern = Pattern.STATIC, ms: int = 0) -> Registration:
    return Registration(streams, pattern, timestamp=from_ms(ms), dialect=dialect)


def test_registrations_of_all_old_clients_are_decoded() -> None:
    scala, lists = "1795255170109", {"white_list": {"t.*": 2}, "black_list": {"t6|u.*": 1}}
    found = {
        registration_json(): of({"t6": 2}, Dialect.SCALA, ms=int(scala)),
        registration_json(timestamp=1795255543): of({"t6": 2}, Dialect.KAZOO_GO, ms=1795255543000),
        **{word.encode(): of({word: 1}, Dialect.PYKAFKA) for word in ("t6", "123", "null")},
        **{
            registration_json(pattern=pattern, subscription=streams): of(
                streams, Dialect.SCALA, Pattern(pattern), int(scala)
            )
            for pattern, streams in lists.items()
        },
    }
    assert {data: decode_registration("/p", data) for data in found} == found
    for topic in (b".", b"..", b"a/b", b"t 6", b"t6\n", "größe".encode(), b"t" * 250):
        malformed(decode_registration("/p", topic), "/p", topic)


HARMLESS: list[dict[str, Any]] = [
    {"version": 7},
    {"version": ...},
    {"version": "one"},
    *({"timestamp": value} for value in (..., None, ["x"], "yesterday")),
    {"pattern": "regex"},
    {"subscription": {}},
    {"subscription": {}, "pattern": "white_list"},
    {"client": {"name": [1, {"a": None}]}},
    {"assignors": ["sticky"]},
    {"gateway": {"client_id": "app", "host": "/10.0.0.7"}},
]


@pytest.mark.parametrize("change", HARMLESS, ids=str)
def test_a_registration_that_scala_accepts_is_decoded(change: dict[str, Any]) -> None:
    value = decoded(**change)
    assert value.streams == old_clients.scala_registration(registration_json(**change), jackson=True).streams
    assert value.version == (7 if change == {"version": 7} else 1)
    assert value.pattern == (change["pattern"] if change.get("pattern") == "white_list" else Pattern.STATIC)
    assert (value.dialect, value.assignors, value.client_id) == (Dialect.SCALA, (), "")


POISON = [
    b"",
    b" ",
    b'{"version":1',
    b"\xff\xfe",
    b"[1]",
    b'"t6"',
    registration_json(timestamp=float("nan")),
    registration_json(version=float("-inf")),
    *(registration_json(pattern=value) for value in (..., None, 1)),
    *(registration_json(subscription=value) for value in (..., None, ["t6"], "t6", {"t6": 2, "u": 0})),
    *(registration_json(subscription={"t6": value}) for value in (0, -1, "2", 2.0, True, None, 2**31)),
    b'{"pattern":"static","subscription":{"t6":1e0}}',
    b'{"pattern":"static","subscription":{"t6":%s}}' % (b"9" * 5000),
]


@pytest.mark.parametrize("data", POISON, ids=range(len(POISON)))
def test_a_registration_that_stops_scala_is_malformed(data: bytes) -> None:
    value = decode_registration("/p", data, session=5, version=6)
    malformed(value, "/p", data)
    assert isinstance(value, MalformedNode)
    assert (value.session, value.version) == (5, 6)
    with pytest.raises(Poison):
        old_clients.scala_registration(data, jackson=True)


@given(data=NEARLY_REGISTRATIONS.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=200)
@example(data=b'{"pattern":"static","subscription":{"a":1},"timestamp":NaN}')
def test_json_that_stops_scala_is_malformed_or_a_pykafka_topic(data: bytes) -> None:
    value = decode_registration("/p", data)
    try:
        old_clients.scala_registration(data, jackson=True)
    except Poison:
        assert isinstance(value, MalformedNode | UnevaluableRegistration) or value.dialect is Dialect.PYKAFKA


def test_a_subscription_to_an_invalid_topic_is_malformed_and_one_with_a_slash_is_ignored_as_in_scala() -> None:
    for name in ("", "a//b", "/a", "a/", "a/..", ".", "..", "\x00", "\ud800", "\U0001f600", "\ue000"):
        data = registration_json(subscription={name: 1})
        assert "topic" in malformed(decode_registration("/p", data), "/p", data)
    for pattern in Pattern:  # Scala ignores a second expression, but tables and pages could not show it
        data = registration_json(pattern=pattern, subscription={"orders": 1, "\ud800": 1})
        malformed(decode_registration("/p", data), "/p", data)
    assert decoded(subscription={"a/b": 1, "orders": 2}).streams == {"orders": 2}


def test_a_timestamp_of_zero_means_unknown() -> None:
    assert {decoded(timestamp=timestamp).timestamp for timestamp in (0, "0", "000000000000", -1, 2**63)} == {None}


# Fields of our own members


def test_announced_assignors_are_decoded_and_ignored_by_old_clients() -> None:
    registration = Registration({"orders": 2}, assignors=("sticky", "range"), include_internal=True, moves=True)
    data = encode_registration(registration)
    assert data.endswith(b'"client":"zkgroups","assignors":["sticky","range"],"internal":true,"moves":true}')
    assert decode_registration("/ids/a", data) == replace(registration, timestamp=None)
    many = [f"a{number}" for number in range(MOST_ASSIGNORS + 1)]
    assert decoded(client="zkgroups", assignors=[*many[1:], "a1"][:MOST_ASSIGNORS]).assignors == tuple(many[1:])
    for invalid in (None, "range", 7, [1], ["range", None], {}, many):
        assert decoded(client="zkgroups", assignors=invalid).assignors == ()


@pytest.mark.parametrize("field", ["moves", "leaves", "internal"])
def test_what_a_member_does_on_a_move_is_believed_only_if_the_member_is_ours(field: str) -> None:
    name = "include_internal" if field == "internal" else field
    said = [("zkgroups", True), ("another", True), ("zkgroups", 1)]
    found = [getattr(decoded(client=client, **{field: value}), name) for client, value in said]
    assert found == [True, False, False]


@pytest.mark.parametrize(
    "sides", [OffsetSides(side, both=both) for side, both in product(Side, (True, False))], ids=str
)
def test_where_a_member_commits_is_believed_only_if_the_member_is_ours(sides: OffsetSides) -> None:
    data = encode_registration(Registration({"t6": 1}, offsets=sides))
    for written, expected in ((data, sides), (data.replace(b"zkgroups", b"another"), ONLY_ZOOKEEPER)):
        found = decode_registration("/r", written)
        assert isinstance(found, Registration)
        assert found.offsets == expected


def test_every_old_client_decodes_the_registration_of_a_gateway() -> None:
    registration = Registration(
        {"t6": 1}, dialect=Dialect.GATEWAY, assignors=("range",), client_id="app", client_host="/10.0.0.7"
    )
    data = encode_registration(registration)
    assert decode_registration("/r", data) == registration
    assert list(read_by_all(data)) == [Reading("static", {"t6": 1})] * 3
    nameless = replace(registration, client_id="", client_host="")
    for gateway in ({"client_id": 5, "host": None}, {"client_id": "\ud800"}, {}):
        assert decode_registration("/r", json.dumps(json.loads(data) | {"gateway": gateway}).encode()) == nameless
