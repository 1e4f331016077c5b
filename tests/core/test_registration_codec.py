"""The format of registrations, compared with models of the old clients."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from zkgroups.core.times import from_ms, to_ms
from zkgroups.core.znodes.registration_codec import (
    MOST_ASSIGNORS,
    MOST_TOPICS,
    decode_registration,
    encode_registration,
)
from zkgroups.core.znodes.values import (
    Dialect,
    MalformedNode,
    Pattern,
    Registration,
    UnevaluableRegistration,
)
from zkgroups.exceptions import InvalidInputError, InvalidNameError, InvalidOptionError

from . import old_clients
from .assertions import malformed
from .old_clients import INT, Poison, Reading
from .strategies import EXPRESSIONS, NAMES, NEARLY_REGISTRATIONS, TOPICS, anything_json

SCALA = b'{"version":1,"subscription":{"t6":2},"pattern":"static","timestamp":"1795255170109"}'
KAZOO_GO = b'{"pattern":"static","subscription":{"t6":1},"timestamp":1795255543,"version":1}'

SCALA_READERS = [
    pytest.param(lambda data: old_clients.scala_registration(data, jackson=False), id="Scala until 0.11"),
    pytest.param(lambda data: old_clients.scala_registration(data, jackson=True), id="Scala from 1.0"),
]
EVERY_READER = [*SCALA_READERS, pytest.param(old_clients.kazoo_go_registration, id="kazoo-go")]

Reader = Callable[[bytes], Reading]

STREAMS = st.integers(1, INT)
TIMES = (st.none() | st.integers(-(10**20), 10**20) | st.integers(0, INT * 1000)).map(lambda ms: from_ms(ms or 0))
STATIC = st.builds(Registration, st.dictionaries(NAMES, STREAMS, max_size=6), timestamp=TIMES)
BY_PATTERN = st.builds(
    Registration,
    st.dictionaries(EXPRESSIONS, STREAMS, max_size=1),
    st.sampled_from([Pattern.WHITE_LIST, Pattern.BLACK_LIST]),
    timestamp=TIMES,
)
REGISTRATIONS = STATIC | BY_PATTERN


def accepted(registration: Registration) -> bytes:
    """Encode the registration. Refused registrations have their own tests."""
    try:
        return encode_registration(registration)
    except InvalidInputError:
        assume(False)
        raise


# Encoding registrations


def test_a_registration_is_encoded_as_these_bytes() -> None:
    registration = Registration({"t6": 2, "größe": 1}, timestamp=from_ms(1795255543109))
    assert (
        encode_registration(registration)
        == (
            '{"version":1,"subscription":{"t6":2,"größe":1},"pattern":"static","timestamp":1795255543,"client":"zkgroups"}'
        ).encode()
    )


@pytest.mark.parametrize("pattern", ["white_list", "black_list"])
def test_a_pattern_is_encoded_unchanged(pattern: str) -> None:
    data = encode_registration(Registration({r"orders\.v[12],refunds.*": 3}, Pattern(pattern)))
    assert json.loads(data)["subscription"] == {r"orders\.v[12],refunds.*": 3}
    assert json.loads(data)["pattern"] == pattern


@pytest.mark.parametrize("read", EVERY_READER)
@given(registration=REGISTRATIONS)
def test_every_old_client_decodes_the_encoded_subscription(read: Reader, registration: Registration) -> None:
    reading = read(accepted(registration))
    assert reading.streams == registration.streams
    if registration.streams:  # an empty one counts for nothing, so Scala does not look at its pattern
        assert reading.pattern == registration.pattern


@given(registration=REGISTRATIONS, topic=TOPICS)
def test_pykafka_does_not_mistake_a_registration_for_a_topic_name(registration: Registration, topic: str) -> None:
    assert not old_clients.pykafka_participates(topic, accepted(registration))


@given(registration=REGISTRATIONS)
def test_a_registration_survives_encoding_and_decoding(registration: Registration) -> None:
    ms = to_ms(registration.timestamp)
    held = min(max(ms // 1000, 0), INT) * 1000 or None
    expected = Registration(registration.streams, registration.pattern, timestamp=from_ms(held or 0))
    assert decode_registration("/p", accepted(registration)) == expected


@pytest.mark.parametrize("read", EVERY_READER)
@pytest.mark.parametrize("ms", [None, -1, 0, 2**31 * 1000, 10**18, 10**40])
def test_a_wrong_clock_does_not_make_a_registration_malformed(read: Reader, ms: int | None) -> None:
    assert read(encode_registration(Registration({"t": 1}, timestamp=from_ms(ms or 0)))).streams == {"t": 1}


@pytest.mark.parametrize("streams", [0, -1, 1.0, 1.5, "1", True, None, [1], 2**31, pytest.param(10**5000, id="huge")])
@pytest.mark.parametrize("pattern", list(Pattern))
def test_a_number_of_streams_that_stops_scala_is_not_encoded(streams: Any, pattern: Pattern) -> None:
    with pytest.raises(InvalidOptionError, match="streams of 't'"):
        encode_registration(Registration({"t": streams}, pattern))


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "a\nb", "\ud800", 5, None, True])
def test_an_invalid_topic_name_is_not_encoded(name: Any) -> None:
    with pytest.raises(InvalidNameError):
        encode_registration(Registration({name: 1}))


def test_a_timestamp_without_a_time_zone_is_not_encoded() -> None:
    with pytest.raises(InvalidOptionError, match="time zone"):
        encode_registration(Registration({"t": 1}, timestamp=datetime(2026, 11, 24)))


def test_a_registration_with_too_many_topics_is_neither_evaluated_nor_encoded() -> None:
    most = {f"topic-{number}": 1 for number in range(MOST_TOPICS)}
    assert isinstance(decode_registration("/p", registration_json(subscription=most)), Registration)
    many = {**most, "one-more": 1}
    found = decode_registration("/p", registration_json(subscription=many))
    assert isinstance(found, UnevaluableRegistration)
    assert found.reason == "it names 5001 topics, and at most 5000 are looked up"
    assert found.registration.streams == many
    with pytest.raises(InvalidOptionError, match="use a pattern"):
        encode_registration(Registration(many))


def test_only_the_first_of_several_expressions_is_evaluated() -> None:
    data = registration_json(pattern="white_list", subscription={"t.*": 1, "(": 1, r"(a)\1": 1})
    assert isinstance(decode_registration("/p", data), Registration)


def test_a_list_of_too_many_assignors_is_ignored() -> None:
    fields = {"client": "zkgroups", "assignors": [f"a{number}" for number in range(MOST_ASSIGNORS + 1)]}
    found = decode_registration("/p", json.dumps({**json.loads(registration_json()), **fields}).encode())
    assert isinstance(found, Registration)
    assert found.assignors == ()


REFUSED_BY_JAVA = ["(", "a)", "*", "[a", "a{", "{", "a{,3}", "{a}", "a{2", "x{2,1}", "(?P<n>a)", "(?#a)b", r"\y", "\\"]
REFUSED_BY_JAVA += [
    r"\0",
    "[[a]",
    "a**",
    "[z-a]",
    r"[\b]",
    "(?a)b",
    "(?(1)a|b)",
    r"\U0001f600",
    "a{99999999999}",
    "a{2,3}",
    "a{2,}",
    "a{}",
    "{}",
]


@pytest.mark.parametrize("expression", REFUSED_BY_JAVA)
@pytest.mark.parametrize("pattern", ["white_list", "black_list"])
def test_an_expression_that_java_does_not_compile_is_malformed(expression: str, pattern: str) -> None:
    data = registration_json(pattern=pattern, subscription={expression: 1})
    with pytest.raises(Poison):
        old_clients.scala_registration(data, jackson=True)
    with pytest.raises(InvalidOptionError, match="topic pattern"):
        encode_registration(Registration({expression: 1}, Pattern(pattern)))
    malformed(decode_registration("/p", data), "/p", data)


@pytest.mark.parametrize(
    "expression", [r"\p{Alpha}+", "[a-c[x-z]]", "[a-z&&[^b]]", "[a&&b]", "[a||b]", "(a)\\1", "(?<n>a)", "{2}"]
)
def test_an_expression_that_only_java_compiles_is_unevaluable(expression: str) -> None:
    old_clients.JavaPattern(expression)
    registration = Registration({expression: 1}, Pattern.WHITE_LIST)
    with pytest.raises(InvalidOptionError):
        encode_registration(registration)
    data = json.dumps({"pattern": "white_list", "subscription": {expression: 1}}).encode()
    found = decode_registration("/p", data, session=5, version=6)
    assert isinstance(found, UnevaluableRegistration)
    assert (found.node.path, found.node.data, found.node.session, found.node.version) == ("/p", data, 5, 6)
    assert found.registration.streams == registration.streams
    assert found.node.reason.startswith("its subscription cannot be evaluated: ")


@pytest.mark.parametrize(
    "expression",
    [
        r"orders\..*",
        "a,b",
        "(?i)Orders",
        "a{2}",
        "^a$",
        "[a-z_.-]+",
        "(?:a|b)*?",
        "(?!__).*",
        r"\w+\d",
        "a}",
        "]",
        "",
    ],
)
def test_a_common_expression_is_encoded(expression: str) -> None:
    assert encode_registration(Registration({expression: 1}, Pattern.WHITE_LIST))


@pytest.mark.parametrize("expression", [5, None, b"a", True, "\ud800", "a\udfff"])
def test_an_expression_that_is_not_text_is_not_encoded(expression: Any) -> None:
    with pytest.raises(InvalidOptionError, match="topic pattern"):
        encode_registration(Registration({expression: 1}, Pattern.WHITE_LIST))


def test_a_second_expression_is_not_encoded_because_scala_ignores_it() -> None:
    with pytest.raises(InvalidOptionError, match="commas"):
        encode_registration(Registration({"a.*": 1, "b.*": 1}, Pattern.WHITE_LIST))


@pytest.mark.parametrize("jackson", [False, True])
@given(streams=STREAMS | anything_json(), name=NAMES | EXPRESSIONS, pattern=st.sampled_from(Pattern))
@settings(max_examples=200)
def test_a_subscription_that_stops_scala_is_refused(jackson: bool, streams: Any, name: str, pattern: Pattern) -> None:
    naive = {"version": 1, "subscription": {name: streams}, "pattern": pattern.value, "timestamp": 1}
    try:
        old_clients.scala_registration(json.dumps(naive).encode(), jackson=jackson)
    except Poison:
        with pytest.raises(InvalidInputError):
            encode_registration(Registration({name: streams}, pattern))


# Decoding registrations


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (SCALA, Registration({"t6": 2}, timestamp=from_ms(1795255170109), dialect=Dialect.SCALA)),
        (KAZOO_GO, Registration({"t6": 1}, timestamp=from_ms(1795255543000), dialect=Dialect.KAZOO_GO)),
        (b"t6", Registration({"t6": 1}, dialect=Dialect.PYKAFKA)),
        (b"123", Registration({"123": 1}, dialect=Dialect.PYKAFKA)),
        (b"null", Registration({"null": 1}, dialect=Dialect.PYKAFKA)),
        (
            b'{"version":1,"subscription":{"t.*":2},"pattern":"white_list","timestamp":"1795255170109"}',
            Registration({"t.*": 2}, Pattern.WHITE_LIST, timestamp=from_ms(1795255170109), dialect=Dialect.SCALA),
        ),
        (
            b'{"version":1,"subscription":{"t6|u.*":1},"pattern":"black_list","timestamp":"1795255170109"}',
            Registration({"t6|u.*": 1}, Pattern.BLACK_LIST, timestamp=from_ms(1795255170109), dialect=Dialect.SCALA),
        ),
    ],
    ids=["Scala", "kazoo-go", "pykafka", "pykafka, digits", "pykafka, a word of JSON", "white list", "black list"],
)
def test_registrations_of_all_old_clients_are_decoded(data: bytes, expected: Registration) -> None:
    assert decode_registration("/p", data) == expected


def registration_json(**changes: Any) -> bytes:
    fields = {"version": 1, "subscription": {"t6": 2}, "pattern": "static", "timestamp": "1795255170109"} | changes
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


HARMLESS = {
    "another version": {"version": 7},
    "no version": {"version": ...},
    "version of another type": {"version": "one"},
    "no timestamp": {"timestamp": ...},
    "timestamp null": {"timestamp": None},
    "timestamp of another type": {"timestamp": ["x"]},
    "timestamp a word": {"timestamp": "yesterday"},
    "an unknown pattern": {"pattern": "regex"},
    "an empty subscription": {"subscription": {}},
    "an empty subscription by pattern": {"subscription": {}, "pattern": "white_list"},
    "more fields": {"client": {"name": [1, {"a": None}]}},
}


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS.keys())
def test_a_registration_that_scala_accepts_is_decoded(change: dict[str, Any]) -> None:
    data = registration_json(**change)
    value = decode_registration("/p", data)
    assert isinstance(value, Registration), value
    assert value.streams == old_clients.scala_registration(data, jackson=True).streams
    assert value.version == (7 if change == {"version": 7} else 1)


def test_an_unknown_pattern_counts_as_static() -> None:
    value = decode_registration("/p", registration_json(pattern="regex"))
    assert isinstance(value, Registration)
    assert value.pattern is Pattern.STATIC


POISON = {
    "nothing": b"",
    "blank": b" ",
    "no JSON": b'{"version":1',
    "not UTF-8": b"\xff\xfe",
    "NaN, which is not JSON": registration_json(timestamp=float("nan")),
    "infinity, which is not JSON": registration_json(version=float("-inf")),
    "a list": b"[1]",
    "a text": b'"t6"',
    "no pattern": registration_json(pattern=...),
    "pattern null": registration_json(pattern=None),
    "pattern a number": registration_json(pattern=1),
    "no subscription": registration_json(subscription=...),
    "subscription null": registration_json(subscription=None),
    "subscription a list": registration_json(subscription=["t6"]),
    "subscription a text": registration_json(subscription="t6"),
    "streams 0": registration_json(subscription={"t6": 0}),
    "streams -1": registration_json(subscription={"t6": -1}),
    "streams a text": registration_json(subscription={"t6": "2"}),
    "streams a fraction": registration_json(subscription={"t6": 2.0}),
    "streams a power": b'{"pattern":"static","subscription":{"t6":1e0}}',
    "streams true": registration_json(subscription={"t6": True}),
    "streams null": registration_json(subscription={"t6": None}),
    "streams too many": registration_json(subscription={"t6": 2**31}),
    "streams absurd": b'{"pattern":"static","subscription":{"t6":%s}}' % (b"9" * 5000),
    "one bad topic among good ones": registration_json(subscription={"t6": 2, "u": 0}),
    "no regular expression": registration_json(subscription={"t(": 2}, pattern="white_list"),
    "no regular expression for Java": registration_json(subscription={"t{": 2}, pattern="black_list"),
}


@pytest.mark.parametrize("data", POISON.values(), ids=POISON.keys())
def test_a_registration_that_stops_scala_is_malformed(data: bytes) -> None:
    malformed(decode_registration("/p", data, session=5, version=6), "/p", data)
    with pytest.raises(Poison):
        old_clients.scala_registration(data, jackson=True)


@pytest.mark.parametrize("pattern", ["static", "white_list", "black_list"])
def test_a_registration_with_a_name_that_cannot_be_encoded_is_malformed(pattern: str) -> None:
    """Scala members ignore a second expression. But tables and pages could not show it."""
    data = registration_json(pattern=pattern, subscription={"orders": 1, "\ud800": 1})
    malformed(decode_registration("/p", data, session=5, version=6), "/p", data)


def test_a_malformed_registration_keeps_its_session_and_version() -> None:
    value = decode_registration("/p", b"", session=5, version=6)
    assert isinstance(value, MalformedNode)
    assert (value.session, value.version) == (5, 6)


@given(data=NEARLY_REGISTRATIONS.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=200)
@example(data=b'{"pattern":"static","subscription":{"a":1},"timestamp":NaN}')
def test_json_that_stops_scala_is_malformed_or_a_pykafka_topic(data: bytes) -> None:
    value = decode_registration("/p", data)
    try:
        old_clients.scala_registration(data, jackson=True)
    except Poison:
        assert isinstance(value, MalformedNode | UnevaluableRegistration) or value.dialect is Dialect.PYKAFKA


@pytest.mark.parametrize("topic", [b".", b"..", b"a/b", b"t 6", b"t6\n", "größe".encode(), b"t" * 250])
def test_text_that_is_not_a_kafka_topic_is_malformed(topic: bytes) -> None:
    malformed(decode_registration("/p", topic), "/p", topic)


@pytest.mark.parametrize("name", ["", "a//b", "/a", "a/", "a/..", ".", "..", "\x00", "\ud800", "\U0001f600", "\ue000"])
def test_a_subscription_to_an_invalid_topic_is_malformed(name: str) -> None:
    data = registration_json(subscription={name: 1})
    assert "topic" in malformed(decode_registration("/p", data), "/p", data)


def test_a_topic_with_a_slash_is_ignored_as_in_scala() -> None:
    found = decode_registration("/p", registration_json(subscription={"a/b": 1, "orders": 2}))
    assert isinstance(found, Registration)
    assert found.streams == {"orders": 2}


@pytest.mark.parametrize("text", ["0", "000000000000"])
def test_a_timestamp_of_zero_means_unknown(text: str) -> None:
    for timestamp in (0, text):
        value = decode_registration("/p", registration_json(timestamp=timestamp))
        assert isinstance(value, Registration)
        assert value.timestamp is None


# Announced assignors


def test_announced_assignors_are_decoded_and_ignored_by_old_clients() -> None:
    registration = Registration({"orders": 2}, assignors=("sticky", "range"), include_internal=True, moves=True)
    data = encode_registration(registration)
    assert data.endswith(b'"client":"zkgroups","assignors":["sticky","range"],"internal":true,"moves":true}')
    assert decode_registration("/ids/a", data) == replace(registration, timestamp=None)


@pytest.mark.parametrize("field", ["moves", "leaves", "internal"])
def test_what_a_member_does_on_a_move_is_believed_only_if_the_member_is_ours(field: str) -> None:
    def decoded(**fields: Any) -> Registration:
        found = decode_registration("/ids/a", registration_json(**fields))
        assert isinstance(found, Registration)
        return found

    name = "include_internal" if field == "internal" else field
    assert getattr(decoded(client="zkgroups", **{field: True}), name) is True
    assert getattr(decoded(client="another", **{field: True}), name) is False
    assert getattr(decoded(client="zkgroups", **{field: 1}), name) is False


@pytest.mark.parametrize("assignors", ["null", '"range"', "7", "[1]", '["range",null]', "{}"])
def test_an_invalid_list_of_assignors_is_ignored(assignors: str) -> None:
    text = f'{{"pattern":"static","subscription":{{"t":1}},"client":"zkgroups","assignors":{assignors}}}'
    found = decode_registration("/ids/a", text.encode())
    assert isinstance(found, Registration)
    assert found.assignors == ()


def test_assignors_of_other_clients_are_ignored() -> None:
    found = decode_registration("/ids/a", b'{"pattern":"static","subscription":{"t":1},"assignors":["sticky"]}')
    assert isinstance(found, Registration)
    assert found.assignors == ()


OF_GATEWAY = Registration(
    {"t6": 1}, dialect=Dialect.GATEWAY, assignors=("range",), client_id="app", client_host="/10.0.0.7"
)


@pytest.mark.parametrize("read", EVERY_READER)
def test_every_old_client_decodes_the_registration_of_a_gateway(read: Reader) -> None:
    data = encode_registration(OF_GATEWAY)
    assert decode_registration("/r", data) == OF_GATEWAY
    assert read(data) == Reading("static", {"t6": 1})


@pytest.mark.parametrize("fields", ['{"client_id":5,"host":null}', '{"client_id":"\\ud800"}', "{}"])
def test_an_invalid_client_of_a_gateway_has_no_name(fields: str) -> None:
    data = encode_registration(OF_GATEWAY).decode()
    start = data.index('"gateway":') + len('"gateway":')
    found = decode_registration("/r", f"{data[:start]}{fields}}}".encode())
    assert found == replace(OF_GATEWAY, client_id="", client_host="")


def test_the_gateway_of_another_client_is_ignored() -> None:
    data = SCALA[:-1] + b',"gateway":{"client_id":"app","host":"/10.0.0.7"}}'
    assert decode_registration("/r", data) == decode_registration("/r", SCALA)
