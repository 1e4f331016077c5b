"""Rule 6: for any bytes in a znode or a file, a decoder returns its own type or raises its own error."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zkgroups.audit.journal import AuditDescription, FinishedBatch, FollowedEnsemble
from zkgroups.core.doctor.member_checks import ScalaBlocker, scala_blocker
from zkgroups.core.ensemble_position import EnsemblePosition
from zkgroups.core.layouts.layout import Layout
from zkgroups.core.layouts.template import parse_layout
from zkgroups.core.offsets.files import FileFormat, OffsetRecord, format_offsets, parse_offsets
from zkgroups.core.rebalance.members import Stream
from zkgroups.core.rebalance.shared_plan import SharedPlan, decode_plan, encode_plan
from zkgroups.core.time_formats import parse_duration, parse_time
from zkgroups.core.times import from_ms
from zkgroups.core.znodes.codecs import decode_broker, decode_offset, decode_owner, decode_owner_path, decode_topic
from zkgroups.core.znodes.own_nodes import (
    CommitDetails,
    CoordinatorNode,
    GroupRoute,
    Mark,
    MarkState,
    RouteState,
    decode_coordinator,
    decode_details,
    decode_mark,
    decode_route,
    encode_coordinator,
    encode_details,
    encode_mark,
    encode_route,
)
from zkgroups.core.znodes.registrations import decode_registration, encode_registration
from zkgroups.core.znodes.topic_partition import TopicPartition, parse_partition
from zkgroups.core.znodes.values import (
    Broker,
    CommittedOffset,
    MalformedNode,
    Owner,
    Registration,
    Topic,
    UnevaluableRegistration,
)
from zkgroups.exceptions import InvalidInputError, InvalidOptionError
from zkgroups.kafka.properties import parse as parse_properties
from zkgroups.storage.files import FileList
from zkgroups.storage.snapshot_folder import Summary
from zkgroups.zookeeper.session import session_file
from zkgroups.zookeeper.session.security import SessionCredentials

from .core.layouts.written import WRITERS, read, trident_batch

AT = TopicPartition("orders", 3)


@dataclass(frozen=True)
class Decoder:
    """A decoder of bytes, the types it may return, the errors it may raise, and bytes that it accepts."""

    decode: Callable[[bytes], object]
    returns: tuple[type, ...]
    sample: bytes
    raises: tuple[type[Exception], ...] = ()


def _of_text(decode: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: decode(data.decode(errors="replace"))


def _of_layout(text: str, path: str) -> Callable[[bytes], object]:
    """Read the first offset of a node."""
    return lambda data: next((each.found for each in read(text, {path: data}, "a")), None)


def _read(form: FileFormat | None) -> Callable[[bytes], object]:
    return _of_text(lambda text: parse_offsets(text, form))


_RECORDS = [OffsetRecord("billing", AT, 5, None)]
_SUMMARY = {
    "schema": 1,
    "cluster": "zk1",
    "groups": 3,
    "shares": 1,
    "zxid": 7,
    "position": {"zxid": 7, "created_zxid": 3, "created_ms": 5},
    "tables": {
        name: {"rows": 1, "problems": 0, "digest": "a", "columns": "{}", "files": {"a": 1}}
        for name in ("offsets", "owners", "members")
    },
}
_SESSION = {
    "zkgroups": 1,
    "chroot": "",
    "pid": 7,
    "place": "boot 1:2",
    "session": SessionCredentials(17, bytes(16)).dump(),
    "timeout": 30.0,
}
_BATCH = {"/t/a/user/partition_3/6": trident_batch(AT, 5, 9)}
NONE = type(None)

DECODERS: dict[str, Decoder] = {
    "plan": Decoder(decode_plan, (SharedPlan, NONE), encode_plan(SharedPlan("f", "sticky", {AT: Stream("h:1", 0)}))),
    "registration": Decoder(
        lambda data: decode_registration("/r", data),
        (Registration, UnevaluableRegistration, MalformedNode),
        encode_registration(Registration({"orders": 1}, timestamp=from_ms(1_795_255_543_000), assignors=("sticky",))),
    ),
    "scala blocker": Decoder(scala_blocker, (ScalaBlocker, NONE), encode_registration(Registration({"orders": 1}))),
    "owner": Decoder(lambda data: decode_owner("/o", AT, data, session=1), (Owner, MalformedNode), b"h:1-0"),
    "owner path": Decoder(
        _of_text(lambda text: decode_owner_path(text[:9], text[9:])), (TopicPartition, NONE), b"b'orders'1001-3"
    ),
    "partition": Decoder(_of_text(parse_partition), (int, NONE), b"7"),
    "offset": Decoder(lambda data: decode_offset("/o", data), (int, MalformedNode), b"15"),
    "topic": Decoder(
        lambda data: decode_topic("/t", "orders", data), (Topic, MalformedNode), b'{"partitions":{"0":[1],"1":[1]}}'
    ),
    "broker": Decoder(
        lambda data: decode_broker("/b", "1", data),
        (Broker, MalformedNode),
        b'{"host":"h","port":9092,"endpoints":["PLAINTEXT://h:9092"],"version":4}',
    ),
    "mark": Decoder(
        lambda data: decode_mark("/m", "billing", data),
        (Mark, MalformedNode),
        encode_mark(Mark("billing", "p1", "accounts", MarkState.MOVED, 7)),
    ),
    **{
        f"offset of {text}": Decoder(_of_layout(text, path), (CommittedOffset, MalformedNode, NONE), data)
        for text in ("storm:/kafkastorm", "trident:/transactional", *list(WRITERS)[4:])
        for path, data in list(WRITERS[text]("a", {AT: 5}).items())[-1:]
    },
    "current transaction of Trident": Decoder(
        lambda data: read("trident:/t", _BATCH | {"/t/a/coordinator/currtx": data}, "a")[0].found,
        (CommittedOffset, MalformedNode),
        b"7",
    ),
    "layout": Decoder(
        _of_text(parse_layout), (Layout,), b"/x/{group}/{topic}-{partition} --value json:at", (InvalidOptionError,)
    ),
    "route": Decoder(
        lambda data: decode_route("/r", data),
        (GroupRoute, MalformedNode),
        encode_route(GroupRoute("p1", RouteState.KAFKA, 7)),
    ),
    "coordinator": Decoder(
        decode_coordinator, (CoordinatorNode,), encode_coordinator(CoordinatorNode("6f1c", "gateway-1", 19093, 19192))
    ),
    "details of a commit": Decoder(
        lambda data: decode_details(data, offset=17, version=2),
        (CommitDetails,),
        encode_details(CommitDetails("half of the file", 3), offset=17, version=2),
    ),
    "description of an audit": Decoder(
        _of_text(AuditDescription.from_json),
        (AuditDescription, NONE),
        AuditDescription("bill.*", None, FollowedEnsemble("zk1", EnsemblePosition(7, 3, 5)), 2).to_json().encode(),
    ),
    "finished batch of an audit": Decoder(
        _of_text(FinishedBatch.from_json),
        (FinishedBatch, NONE),
        FinishedBatch(3, EnsemblePosition(7, 3, 5), 9, ("billing",)).to_json().encode(),
    ),
    "list of files": Decoder(
        _of_text(FileList.from_json), (FileList,), b'{"rows":3,"files":{"part-0.parquet":4}}', (ValueError,)
    ),
    "session file": Decoder(session_file.decode_record, (tuple, NONE), json.dumps(_SESSION).encode()),
    "process of a session file": Decoder(session_file.pid_of_record, (int, NONE), json.dumps(_SESSION).encode()),
    "session credentials": Decoder(
        _of_text(SessionCredentials.load), (SessionCredentials,), b"0x11:" + b"0" * 32, (InvalidInputError,)
    ),
    "summary of a snapshot": Decoder(
        _of_text(Summary.from_json), (Summary,), json.dumps(_SUMMARY).encode(), (ValueError,)
    ),
    "time": Decoder(_of_text(parse_time), (int,), b"2026-01-31T12:00:00.500+01:00", (InvalidInputError,)),
    "short duration": Decoder(_of_text(parse_duration), (int,), b"90d", (InvalidInputError,)),
    "duration": Decoder(_of_text(parse_duration), (int,), b"P1DT2H3M0.5S", (InvalidInputError,)),
    "properties": Decoder(_of_text(parse_properties), (dict,), b"a=b\\\n c\\u0041\n#x\n", (InvalidInputError,)),
    "offsets in any form": Decoder(_read(None), (list,), b"orders,0,5\n", (InvalidInputError,)),
    **{
        f"offsets as {form}": Decoder(
            _read(form), (list,), "\n".join(format_offsets(_RECORDS, form)).encode(), (InvalidInputError,)
        )
        for form in FileFormat
    },
}

HOSTILE = [
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "-Infinity",
    "9" * 5_000,
    "-" + "9" * 5_000,
    "1.5",
    "-1",
    "-0",
    "2147483648",
    "9223372036854775808",
    "true",
    "null",
    '""',
    '"\\ud800"',
    '"\\u0000"',
    '"1e999"',
    '"a/b"',
    '"' + "9" * 5_000 + '"',
    '"' + "(" * 5_000 + '"',
    "[]",
    "{}",
    "[[]]",
    '{"a":1,"a":2}',
    '{"1e999":1e999}',
    '{"\\ud800":1}',
    "[" * 100_000,
    '{"a":' * 100_000,
    "[" * 5_000 + "]" * 5_000,
]
"""Texts in places where JSON should have other values."""


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, each in inner for place in _places(each, (*at, key)))]


def _replaced(value: Any, place: tuple[Any, ...], text: str) -> str:
    """Return the JSON of `value`, with a text in one of its places."""
    if not place:
        return text
    key, rest = place[0], place[1:]
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{_inner(v, k == key, rest, text)}" for k, v in value.items()) + "}"
    return "[" + ",".join(_inner(each, number == key, rest, text) for number, each in enumerate(value)) + "]"


def _inner(value: Any, chosen: bool, rest: tuple[Any, ...], text: str) -> str:
    return _replaced(value, rest, text) if chosen else json.dumps(value)


def check(decoder: Decoder, data: bytes) -> None:
    try:
        found = decoder.decode(data)
    except decoder.raises:
        return
    assert isinstance(found, decoder.returns), found


@pytest.fixture(params=DECODERS)
def decoder(request: pytest.FixtureRequest) -> Decoder:
    found: Decoder = DECODERS[request.param]
    return found


def test_each_decoder_accepts_its_sample(decoder: Decoder) -> None:
    found = decoder.decode(decoder.sample)
    assert isinstance(found, decoder.returns)
    assert not isinstance(found, MalformedNode)


def test_a_decoder_returns_or_raises_its_own_types_for_hostile_values_in_any_place(decoder: Decoder) -> None:
    try:
        good = json.loads(decoder.sample)
    except ValueError:
        good = 0
    for place in _places(good):
        for text in HOSTILE:
            check(decoder, _replaced(good, place, text).encode())


# One run for all decoders, because a call is cheaper than an example.
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_decoder_returns_or_raises_its_own_types_for_torn_and_random_bytes(data: st.DataObject) -> None:
    noise = data.draw(st.binary(max_size=40))
    text = data.draw(st.text(max_size=20)).encode(errors="surrogatepass")
    start, length = data.draw(st.integers(0, 200)), data.draw(st.integers(0, 8))
    for decoder in DECODERS.values():
        sample = decoder.sample
        at = start % (len(sample) + 1)
        for torn in (noise, text, sample[:at], sample[:at] + noise + sample[at + length :], sample[:at] + text):
            check(decoder, torn)
