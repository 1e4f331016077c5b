"""The formats: every old client can read what we write, we can read what they write, and nothing read is trusted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from zkgroups.core.times import from_ms, to_ms
from zkgroups.core.znodes.broker_codec import decode_broker, decode_topic
from zkgroups.core.znodes.names import check_name
from zkgroups.core.znodes.offset_codec import MAX_OFFSET, decode_offset, decode_offset_path, encode_offset
from zkgroups.core.znodes.owner_codec import decode_owner, decode_owner_path, encode_owner
from zkgroups.core.znodes.registration_codec import (
    MOST_ASSIGNORS,
    MOST_TOPICS,
    decode_registration,
    encode_registration,
)
from zkgroups.core.znodes.topic_partition import TopicPartition
from zkgroups.core.znodes.values import (
    Broker,
    Dialect,
    MalformedNode,
    Owner,
    Pattern,
    Registration,
    Topic,
    UnevaluableRegistration,
)
from zkgroups.exceptions import InvalidInputError, InvalidNameError, InvalidOptionError

from . import old_clients
from .old_clients import INT, LONG, Poison, Reading
from .strategies import EXPRESSIONS, NAMES, NEARLY_REGISTRATIONS, TOPICS, anything_json

T6_3 = TopicPartition("t6", 3)

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
    """What we would write; cases that we refuse to write are another test's."""
    try:
        return encode_registration(registration)
    except InvalidInputError:
        assume(False)
        raise


def malformed(value: object, path: str, data: bytes) -> str:
    """The reason of a malformed node, which must name its path, keep its bytes, and fit into one line."""
    value = value.node if isinstance(value, UnevaluableRegistration) else value
    assert isinstance(value, MalformedNode), value
    assert (value.path, value.data) == (path, data)
    assert value.reason
    assert value.reason.isprintable()
    assert len(value.reason) <= 400
    return value.reason


# Registrations: what we write


def test_a_registration_is_written_in_exactly_these_bytes() -> None:
    registration = Registration({"t6": 2, "größe": 1}, timestamp=from_ms(1795255543109))
    assert (
        encode_registration(registration)
        == (
            '{"version":1,"subscription":{"t6":2,"größe":1},"pattern":"static","timestamp":1795255543,"client":"zkgroups"}'
        ).encode()
    )


@pytest.mark.parametrize("pattern", ["white_list", "black_list"])
def test_a_pattern_is_written_as_the_user_gave_it(pattern: str) -> None:
    data = encode_registration(Registration({r"orders\.v[12],refunds.*": 3}, Pattern(pattern)))
    assert json.loads(data)["subscription"] == {r"orders\.v[12],refunds.*": 3}
    assert json.loads(data)["pattern"] == pattern


@pytest.mark.parametrize("read", EVERY_READER)
@given(registration=REGISTRATIONS)
def test_every_old_client_reads_the_subscription_we_write(read: Reader, registration: Registration) -> None:
    reading = read(accepted(registration))
    assert reading.streams == registration.streams
    if registration.streams:  # an empty one counts for nothing, so Scala does not look at its pattern
        assert reading.pattern == registration.pattern


@given(registration=REGISTRATIONS, topic=TOPICS)
def test_a_pykafka_member_does_not_take_our_registration_for_the_name_of_a_topic(
    registration: Registration, topic: str
) -> None:
    assert not old_clients.pykafka_participates(topic, accepted(registration))


@given(registration=REGISTRATIONS)
def test_what_is_written_is_read_back_as_the_same_registration(registration: Registration) -> None:
    ms = to_ms(registration.timestamp)
    held = min(max(ms // 1000, 0), INT) * 1000 or None
    expected = Registration(registration.streams, registration.pattern, timestamp=from_ms(held or 0))
    assert decode_registration("/p", accepted(registration)) == expected


@pytest.mark.parametrize("read", EVERY_READER)
@pytest.mark.parametrize("ms", [None, -1, 0, 2**31 * 1000, 10**18, 10**40])
def test_a_clock_that_is_far_off_does_not_make_a_registration_unreadable(read: Reader, ms: int | None) -> None:
    assert read(encode_registration(Registration({"t": 1}, timestamp=from_ms(ms or 0)))).streams == {"t": 1}


@pytest.mark.parametrize("streams", [0, -1, 1.0, 1.5, "1", True, None, [1], 2**31, pytest.param(10**5000, id="huge")])
@pytest.mark.parametrize("pattern", list(Pattern))
def test_a_number_of_streams_that_poisons_scala_is_not_written(streams: Any, pattern: Pattern) -> None:
    with pytest.raises(InvalidOptionError, match="streams of 't'"):
        encode_registration(Registration({"t": streams}, pattern))


@pytest.mark.parametrize("name", ["", "a/b", ".", "..", "a\nb", "\ud800", 5, None, True])
def test_a_topic_that_can_be_no_znode_is_not_written(name: Any) -> None:
    with pytest.raises(InvalidNameError):
        encode_registration(Registration({name: 1}))


# Each of them was given to Java 17; commas become `|` before Java sees them.
def test_a_registration_with_very_many_topics_is_not_evaluated_nor_written() -> None:
    most = {f"topic-{number}": 1 for number in range(MOST_TOPICS)}
    assert isinstance(decode_registration("/p", registration_json(subscription=most)), Registration)
    many = {**most, "one-more": 1}
    found = decode_registration("/p", registration_json(subscription=many))
    assert isinstance(found, UnevaluableRegistration)
    assert found.reason == "it names 5001 topics, and at most 5000 are looked up"
    assert found.registration.streams == many
    with pytest.raises(InvalidOptionError, match="use a pattern"):
        encode_registration(Registration(many))


def test_of_several_expressions_only_the_first_is_evaluated() -> None:
    data = registration_json(pattern="white_list", subscription={"t.*": 1, "(": 1, r"(a)\1": 1})
    assert isinstance(decode_registration("/p", data), Registration)


def test_very_many_assignors_count_for_none() -> None:
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
def test_what_java_does_not_compile_is_not_written_and_malformed_where_it_is(expression: str, pattern: str) -> None:
    data = registration_json(pattern=pattern, subscription={expression: 1})
    with pytest.raises(Poison):
        old_clients.scala_registration(data, jackson=True)
    with pytest.raises(InvalidOptionError, match="topic pattern"):
        encode_registration(Registration({expression: 1}, Pattern(pattern)))
    malformed(decode_registration("/p", data), "/p", data)


@pytest.mark.parametrize(
    "expression", [r"\p{Alpha}+", "[a-c[x-z]]", "[a-z&&[^b]]", "[a&&b]", "[a||b]", "(a)\\1", "(?<n>a)", "{2}"]
)
def test_what_only_java_compiles_is_neither_written_nor_guessed_at(expression: str) -> None:
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
def test_an_expression_people_use_is_written(expression: str) -> None:
    assert encode_registration(Registration({expression: 1}, Pattern.WHITE_LIST))


@pytest.mark.parametrize("expression", [5, None, b"a", True, "\ud800", "a\udfff"])
def test_an_expression_that_is_no_text_is_not_written(expression: Any) -> None:
    with pytest.raises(InvalidOptionError, match="topic pattern"):
        encode_registration(Registration({expression: 1}, Pattern.WHITE_LIST))


def test_a_second_expression_which_scala_would_not_see_is_not_written() -> None:
    with pytest.raises(InvalidOptionError, match="commas"):
        encode_registration(Registration({"a.*": 1, "b.*": 1}, Pattern.WHITE_LIST))


@pytest.mark.parametrize("jackson", [False, True])
@given(streams=STREAMS | anything_json(), name=NAMES | EXPRESSIONS, pattern=st.sampled_from(Pattern))
@settings(max_examples=200)
def test_what_would_poison_a_scala_member_is_refused(jackson: bool, streams: Any, name: str, pattern: Pattern) -> None:
    naive = {"version": 1, "subscription": {name: streams}, "pattern": pattern.value, "timestamp": 1}
    try:
        old_clients.scala_registration(json.dumps(naive).encode(), jackson=jackson)
    except Poison:
        with pytest.raises(InvalidInputError):
            encode_registration(Registration({name: streams}, pattern))


# Registrations: what others write


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
def test_each_form_the_old_clients_write_is_read(data: bytes, expected: Registration) -> None:
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
def test_what_is_harmless_for_scala_is_read(change: dict[str, Any]) -> None:
    data = registration_json(**change)
    value = decode_registration("/p", data)
    assert isinstance(value, Registration), value
    assert value.streams == old_clients.scala_registration(data, jackson=True).streams


def test_an_unknown_pattern_counts_as_static() -> None:
    value = decode_registration("/p", registration_json(pattern="regex"))
    assert isinstance(value, Registration)
    assert value.pattern is Pattern.STATIC


POISON = {
    "nothing": b"",
    "blank": b" ",
    "no JSON": b'{"version":1',
    "not UTF-8": b"\xff\xfe",
    "NaN, which is no JSON": registration_json(timestamp=float("nan")),
    "infinity, which is no JSON": registration_json(version=float("-inf")),
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
def test_what_poisons_scala_is_malformed(data: bytes) -> None:
    malformed(decode_registration("/p", data, session=5, version=6), "/p", data)
    with pytest.raises(Poison):
        old_clients.scala_registration(data, jackson=True)


def test_a_malformed_registration_keeps_its_session_and_version() -> None:
    value = decode_registration("/p", b"", session=5, version=6)
    assert isinstance(value, MalformedNode)
    assert (value.session, value.version) == (5, 6)


@given(data=NEARLY_REGISTRATIONS.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=200)
@example(data=b'{"pattern":"static","subscription":{"a":1},"timestamp":NaN}')
def test_any_json_that_poisons_scala_is_malformed_or_the_bare_topic_of_pykafka(data: bytes) -> None:
    value = decode_registration("/p", data)
    try:
        old_clients.scala_registration(data, jackson=True)
    except Poison:
        assert isinstance(value, MalformedNode | UnevaluableRegistration) or value.dialect is Dialect.PYKAFKA


@pytest.mark.parametrize("topic", [b".", b"..", b"a/b", b"t 6", b"t6\n", "größe".encode(), b"t" * 250])
def test_a_bare_text_that_is_no_topic_of_kafka_is_malformed(topic: bytes) -> None:
    malformed(decode_registration("/p", topic), "/p", topic)


@pytest.mark.parametrize("name", ["", "a//b", "/a", "a/", "a/..", ".", "..", "\x00", "\ud800", "\U0001f600", "\ue000"])
def test_a_subscription_to_what_can_be_no_topic_is_malformed(name: str) -> None:
    data = registration_json(subscription={name: 1})
    assert "topic" in malformed(decode_registration("/p", data), "/p", data)


def test_a_topic_with_a_slash_is_left_out_as_scala_members_go_on_without_it() -> None:
    found = decode_registration("/p", registration_json(subscription={"a/b": 1, "orders": 2}))
    assert isinstance(found, Registration)
    assert found.streams == {"orders": 2}


@pytest.mark.parametrize("text", ["0", "000000000000"])
def test_a_timestamp_of_zero_is_no_time(text: str) -> None:
    for timestamp in (0, text):
        value = decode_registration("/p", registration_json(timestamp=timestamp))
        assert isinstance(value, Registration)
        assert value.timestamp is None


# Owners


@given(instance=NAMES)
def test_an_owner_is_the_bare_id_which_kazoo_go_compares_whole(instance: str) -> None:
    data = encode_owner(instance)
    assert old_clients.kazoo_go_owns(instance, data)
    assert decode_owner("/p", T6_3, data, session=7) == Owner(T6_3, instance, 7, path="/p")


@given(instance=NAMES, stream=st.integers(0, 99))
def test_the_owner_of_a_stream_is_the_instance_that_scala_means(instance: str, stream: int) -> None:
    data = f"{instance}-{stream}".encode()
    owner = decode_owner("/p", T6_3, data, session=7)
    assert isinstance(owner, Owner)
    assert owner.instance({instance}) == instance == old_clients.scala_owner(data)


def test_an_owner_keeps_what_its_node_says() -> None:
    owner = decode_owner("/p", T6_3, b"g_h-1795255170109-ab12cd34-0", session=7, claimed_ms=8, version=9, czxid=10)
    assert owner == Owner(T6_3, "g_h-1795255170109-ab12cd34-0", 7, 8, 9, 10, "/p")


@pytest.mark.parametrize("data", [b"", None, b"\xff", b"a/b", b"..", b"a\nb", "\U0001f600".encode()])
def test_an_owner_that_can_be_no_instance_is_malformed(data: bytes | None) -> None:
    malformed(decode_owner("/p", T6_3, data, session=7), "/p", data or b"")


def test_an_owner_of_no_session_is_malformed() -> None:
    assert "session" in malformed(decode_owner("/p", T6_3, b"me", session=0), "/p", b"me")


def test_an_owner_of_no_partition_is_malformed() -> None:
    assert "partition" in malformed(decode_owner("/p", None, b"me", session=7), "/p", b"me")


@pytest.mark.parametrize("instance", ["", "a/b", ".", "\ud800", None, 5, b"me"])
def test_an_id_that_can_be_no_znode_is_not_written_as_an_owner(instance: Any) -> None:
    with pytest.raises(InvalidNameError, match="instance"):
        encode_owner(instance)


@pytest.mark.parametrize(
    ("topic", "name", "expected"),
    [
        ("t6", "3", T6_3),
        ("b't6'", "1001-3", T6_3),
        ('b"t6"', "0-3", T6_3),
        ("b't6'", "-1-3", T6_3),
        ("t6", "1001-3", T6_3),
        ("b't6'", "3", T6_3),
        ("b't6\"", "3", TopicPartition("b't6\"", 3)),
        ("b'a b'", "3", TopicPartition("b'a b'", 3)),
        ("b''", "3", TopicPartition("b''", 3)),
        ("t6", "03", None),
        ("t6", "+3", None),
        ("t6", "1001-03", None),
        ("t6", "1-2-3", None),
        ("t6", "1001-", None),
        ("t6", "-3", None),
        ("t6", "٣", None),
        ("t6", "1-٣", None),
        ("t6", "3\n", None),
        ("t6", "", None),
        ("b'..'", "3", None),
    ],
)
def test_a_path_of_an_owner_means_its_partition_in_either_form(
    topic: str, name: str, expected: TopicPartition | None
) -> None:
    assert decode_owner_path(topic, name) == expected


@given(topic=TOPICS, partition=st.integers(0, INT), leader=st.integers(-1, INT))
def test_pykafka_s_path_of_any_partition_is_read(topic: str, partition: int, leader: int) -> None:
    assert decode_owner_path(repr(topic.encode()), f"{leader}-{partition}") == TopicPartition(topic, partition)


# Offsets


@given(offset=st.integers(0, MAX_OFFSET))
@example(offset=0)
@example(offset=MAX_OFFSET)
def test_an_offset_is_written_as_plain_digits_that_scala_reads_and_we_read_back(offset: int) -> None:
    data = encode_offset(offset)
    assert data == b"%d" % offset
    assert old_clients.scala_offset(data) == decode_offset("/p", data) == offset


@pytest.mark.parametrize("offset", [-1, 2**63, pytest.param(10**5000, id="huge"), 1.0, "5", True, None, b"5"])
def test_an_offset_that_would_stop_or_rewind_an_old_client_is_not_written(offset: Any) -> None:
    with pytest.raises(InvalidOptionError, match="offset"):
        encode_offset(offset)


@pytest.mark.parametrize(
    ("data", "expected"), [(b"5", 5), (b"+4", 4), (b"007", 7), (b"+0", 0), (b"0" * 5000, 0), (b"0" * 30 + b"1", 1)]
)
def test_an_offset_is_read_as_scala_reads_it(data: bytes, expected: int) -> None:
    assert decode_offset("/p", data) == expected


@pytest.mark.parametrize("data", [b"", None, b"7 ", b" 7", b"3\n", b"abc", b"1.0", b"+", b"++4", b"1_0", "٣".encode()])
def test_an_offset_that_stops_scala_from_starting_is_malformed(data: bytes | None) -> None:
    malformed(decode_offset("/p", data), "/p", data or b"")


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"-1", "negative"), (b"%d" % 2**63, "larger"), (b"9" * 5000, "larger"), (b"-" + b"9" * 5000, "negative")],
)
def test_an_offset_out_of_range_is_malformed_and_says_how(data: bytes, reason: str) -> None:
    assert reason in malformed(decode_offset("/p", data), "/p", data)


@given(data=st.binary() | st.text("0123456789+- \n._ex٣", max_size=24).map(str.encode))
def test_an_offset_is_read_exactly_when_scala_reads_a_number_that_is_one(data: bytes) -> None:
    value = decode_offset("/p", data, version=3)
    try:
        number = old_clients.scala_offset(data)
    except (Poison, UnicodeDecodeError):
        malformed(value, "/p", data)
    else:
        assert value == number if not data.startswith(b"-") else isinstance(value, MalformedNode)


@pytest.mark.parametrize(
    ("topic", "name"), [("t", "x"), ("t", "01"), ("", "1"), ("a/b", "1"), ("\ud800", "1"), ("t", "b'1'")]
)
def test_a_path_that_is_no_partition_means_none(topic: str, name: str) -> None:
    assert decode_offset_path(topic, name) is None
    assert decode_owner_path(topic, name) is None


def test_the_form_of_pykafka_is_none_among_offsets() -> None:
    assert decode_offset_path("t6", "1001-3") is None
    assert decode_offset_path("b't6'", "3") == TopicPartition("b't6'", 3)


# Kafka's own nodes


def test_a_topic_is_read_with_its_partitions_sorted_as_numbers() -> None:
    data = b'{"version":1,"partitions":{"10":[1],"2":[2,1],"0":[1]}}'
    assert decode_topic("/p", "t6", data) == Topic("t6", (0, 2, 10))


@pytest.mark.parametrize(
    "data",
    [b"", None, b"t6", b"[]", b"{}", b'{"partitions":[0]}', b'{"partitions":{"x":[1]}}', b'{"partitions":{"01":[1]}}'],
)
def test_a_topic_without_partitions_that_are_numbers_is_malformed(data: bytes | None) -> None:
    malformed(decode_topic("/p", "t6", data), "/p", data or b"")


def test_a_broker_is_read_from_its_address_or_from_its_endpoints_alone() -> None:
    data = b'{"jmx_port":-1,"host":"kafka1","timestamp":"1","port":9092,"version":4,"endpoints":["PLAINTEXT://kafka1:9092"]}'
    assert decode_broker("/p", "7", data) == Broker(7, "kafka1", 9092, ("PLAINTEXT://kafka1:9092",))
    data = b'{"host":null,"port":-1,"version":4,"endpoints":["SSL://kafka1:9093","SASL_SSL://kafka1:9094"]}'
    assert decode_broker("/p", "7", data) == Broker(7, None, None, ("SSL://kafka1:9093", "SASL_SSL://kafka1:9094"))


@pytest.mark.parametrize(
    "fields",
    [
        {"host": 5, "port": "9092", "endpoints": {}},
        {"host": "", "port": True, "endpoints": [None, 1, [], ""]},
        {"host": "\ud800", "port": 65536, "endpoints": ["\udfff"]},
    ],
)
def test_what_a_broker_says_of_itself_that_is_no_address_is_left_out(fields: dict[str, Any]) -> None:
    assert decode_broker("/p", "7", json.dumps(fields).encode()) == Broker(7, None, None, ())


@pytest.mark.parametrize(("name", "data"), [("7", b""), ("7", b"[]"), ("7", b"\xff"), ("x", b"{}"), ("07", b"{}")])
def test_a_node_that_is_no_broker_is_malformed(name: str, data: bytes) -> None:
    malformed(decode_broker("/p", name, data), "/p", data)


# Nothing read is trusted


def registration_of(data: bytes) -> object:
    return decode_registration("/p", data)


def owner_of(data: bytes) -> object:
    return decode_owner("/p", T6_3, data, session=1)


def offset_of(data: bytes) -> object:
    value = decode_offset("/p", data)
    return value if isinstance(value, MalformedNode) else Topic("an offset", (value,))


def topic_of(data: bytes) -> object:
    return decode_topic("/p", "t6", data)


def broker_of(data: bytes) -> object:
    return decode_broker("/p", "1", data)


EVERY_DECODER = [registration_of, owner_of, offset_of, topic_of, broker_of]

PLAUSIBLE = [
    "version",
    "subscription",
    "pattern",
    "timestamp",
    "client",
    "partitions",
    "host",
    "port",
    "endpoints",
    "0",
]

HOSTILE = [
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"endpoints":[' + b"[" * 900 + b"]" * 900 + b"]}",
    b'{"pattern":"static","subscription":{"a":' + b"[" * 900 + b"]" * 900 + b"}}",
    b'{"pattern":"white_list","subscription":{"' + b"(" * 20_000 + b'":1}}',
    b'{"pattern":"white_list","subscription":{"a{4294967295}":1}}',
    b'{"pattern":"white_list","subscription":{"[[a]":1}}',
    b'{"pattern":"white_list","subscription":{"[\\u001b-\\u0001]":1}}',
    b'{"pattern":"white_list","subscription":{"' + b"x(" * 200_000 + b'":1}}',
    b'{"pattern":"static","subscription":{"' + b"x" * 500_000 + b'":1}}',
    b'{"pattern":"static","subscription":{"a":1,"a":0}}',
    b'{"version":1e999,"timestamp":1e999,"port":1e999}',
    b'{"version":' + b"9" * 5000 + b"}",
    b'{"partitions":{"' + b"9" * 5000 + b'":[1]}}',
    b'{"partitions":{"\\ud800":[1]}}',
    b'{"\\ud800":1}',
    b"\xef\xbb\xbf{}",
    b"\x00",
    b"9" * 5000,
    b"x" * 1_000_000,
]


@pytest.mark.parametrize("decode", EVERY_DECODER)
@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_data_is_a_value_or_malformed(decode: Callable[[bytes], object], data: bytes) -> None:
    value = decode(data)
    if isinstance(value, MalformedNode):
        malformed(value, "/p", data)
    assert hash(value) == hash(value)


@pytest.mark.parametrize("decode", EVERY_DECODER)
@given(data=st.binary() | anything_json(PLAUSIBLE).map(lambda value: json.dumps(value).encode()))
def test_anything_decodes_to_a_value_or_to_a_malformed_node(decode: Callable[[bytes], object], data: bytes) -> None:
    value = decode(data)
    if isinstance(value, MalformedNode):
        malformed(value, "/p", data)
    str(value).encode()  # and a value can be shown
    assert hash(value) == hash(value)


@given(fields=NEARLY_REGISTRATIONS)
def test_what_nearly_is_a_registration_is_one_or_malformed(fields: dict[str, Any]) -> None:
    data = json.dumps(fields).encode()
    value = registration_of(data)
    if isinstance(value, MalformedNode):
        malformed(value, "/p", data)
    else:
        str(value).encode()


@given(topic=st.text(), name=st.text() | st.text("0123456789-+'b٣"))
def test_any_path_of_an_owner_or_an_offset_means_a_partition_or_none(topic: str, name: str) -> None:
    for at in (decode_owner_path(topic, name), decode_offset_path(topic, name)):
        assert at is None or check_name("topic", at.topic)


def test_the_longest_a_long_can_be_is_what_scala_can_read() -> None:
    assert MAX_OFFSET == LONG


# What members of ours announce


def test_what_a_member_announces_is_read_back_and_old_parsers_see_what_they_know() -> None:
    registration = Registration({"orders": 2}, assignors=("sticky", "range"), include_internal=True)
    data = encode_registration(registration)
    assert data.endswith(b'"client":"zkgroups","assignors":["sticky","range"],"internal":true}')
    assert decode_registration("/ids/a", data) == replace(registration, timestamp=None)


@pytest.mark.parametrize("assignors", ["null", '"range"', "7", "[1]", '["range",null]', "{}"])
def test_an_announcement_that_is_no_list_of_names_counts_as_none(assignors: str) -> None:
    text = f'{{"pattern":"static","subscription":{{"t":1}},"client":"zkgroups","assignors":{assignors}}}'
    found = decode_registration("/ids/a", text.encode())
    assert isinstance(found, Registration)
    assert found.assignors == ()


def test_nobody_else_announces_anything() -> None:
    found = decode_registration("/ids/a", b'{"pattern":"static","subscription":{"t":1},"assignors":["sticky"]}')
    assert isinstance(found, Registration)
    assert found.assignors == ()


def test_an_owner_with_a_stream_is_read_as_its_instance() -> None:
    owner = decode_owner("/o", TopicPartition("t", 0), encode_owner("h:1", 3), session=9)
    assert isinstance(owner, Owner)
    assert owner.instance({"h:1"}) == "h:1"
