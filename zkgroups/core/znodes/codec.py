"""What the znodes hold, byte by byte: written so that every old client can read it, read from what any of them wrote.

    |              | Scala                     | kazoo-go                 | pykafka                     |
    |--------------|---------------------------|--------------------------|-----------------------------|
    | registration | JSON, timestamp: text, ms | JSON, timestamp: seconds | the bare name of a topic    |
    | owner        | <instance>-<stream>       | <instance>               | <instance>, at b't'/<l>-<p> |
    | offset       | decimal text              | decimal text             | kept in Kafka               |

We write as kazoo-go does, and say in the registration who we are. Nothing read is trusted: a decoder returns a value,
or a `MalformedNode` with the path and the reason, and never raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeGuard

from ...exceptions import InvalidInputError, InvalidNameError, InvalidOptionError
from .java_regex import BrokenExpressionError, UnevaluableExpressionError, topic_filter
from .paths import check_instance, check_topic, parse_partition
from .subscription import check_expression
from .values import (
    Broker,
    Dialect,
    MalformedNode,
    Owner,
    Pattern,
    Registration,
    Topic,
    TopicPartition,
    UnevaluableRegistration,
)

MAX_OFFSET: Final = 2**63 - 1
"""Offsets are Java longs."""

MAX_STREAMS: Final = 2**31 - 1
"""Numbers in a registration are Java ints."""

MOST_TOPICS: Final = 5_000
"""Every member reads and watches every topic that a registration names, whether it exists or not."""

MOST_ASSIGNORS: Final = 100
"""Members compare their lists of assignors with each other."""

CLIENT: Final = "zkgroups"
"""How a registration of ours says so; every old parser ignores the field."""

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_OFFSET = re.compile(rb"\+?[0-9]+")
_PYKAFKA_TOPIC = re.compile(r"""b(['"])([a-zA-Z0-9._-]{1,249})\1""")
_PYKAFKA_PARTITION = re.compile(r"-?[0-9]+-([0-9]+)")


class _Unreadable(Exception):
    """Strictly private: why something cannot be decoded."""


class _Unevaluable(Exception):
    """Strictly private: a decoded registration that cannot be evaluated, with the reason."""

    def __init__(self, subscription: Registration, reason: str) -> None:
        super().__init__(reason)
        self.subscription = subscription


# Registrations


def encode_registration(registration: Registration) -> bytes:
    """The bytes of a registration that Scala members, kazoo-go and pykafka's readers all accept.

    The timestamp is a number of seconds, because kazoo-go insists on a number and Scala does not look at it; but
    before Kafka 1.0 Scala can read no number that is no Java int, so a clock that is further off is held back.

    >>> encode_registration(Registration({"orders": 1}, timestamp_ms=1795255543000)).decode()
    '{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":1795255543,"client":"zkgroups"}'
    """
    _check_subscription(registration)
    fields = {
        "version": 1,
        "subscription": dict(registration.streams),
        "pattern": registration.pattern.value,
        "timestamp": min(max((registration.timestamp_ms or 0) // 1000, 0), MAX_STREAMS),
        "client": CLIENT,
    }
    if registration.assignors:
        fields["assignors"] = list(registration.assignors)
    if registration.include_internal:
        fields["internal"] = True
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def _check_subscription(registration: Registration) -> None:
    """Refuse what would stop every Scala member of the group, or what each client would read differently."""
    if registration.pattern is not Pattern.STATIC and len(registration.streams) > 1:
        expressions = list(registration.streams)
        raise InvalidOptionError("topic pattern", expressions, "Scala reads one expression only: join them with commas")
    if len(registration.streams) > MOST_TOPICS:
        raise InvalidOptionError(
            "topics", list(registration.streams), f"at most {MOST_TOPICS} can be named: use a pattern"
        )
    for name, streams in registration.streams.items():
        if isinstance(streams, bool) or not isinstance(streams, int) or not 1 <= streams <= MAX_STREAMS:
            raise InvalidOptionError(f"streams of {name!r}", streams, "it must be a whole number of at least 1")
        if registration.pattern is Pattern.STATIC:
            check_topic(name)
        else:
            check_expression(name)


def decode_registration(
    path: str, data: bytes | None, *, session: int = 0, version: int = 0
) -> Registration | MalformedNode:
    """What an instance subscribes to, in any of the dialects."""
    raw = data or b""
    try:
        return _registration_again(raw) if len(raw) <= _WORTH_KEEPING else _registration(raw)
    except _Unevaluable as found:
        return UnevaluableRegistration(
            path,
            raw,
            f"its subscription cannot be evaluated: {found}",
            session=session,
            version=version,
            subscription=found.subscription,
            why=str(found),
        )
    except _Unreadable as reason:
        return MalformedNode(path, raw, str(reason), session=session, version=version)


def _registration(data: bytes) -> Registration:
    text = _text(data)
    fields = _json(text)
    if not isinstance(fields, dict):
        if not _TOPIC.fullmatch(text) or text in {".", ".."}:
            raise _Unreadable("neither a JSON object nor the name of a topic")
        return Registration({text: 1}, dialect=Dialect.PYKAFKA)
    pattern = _pattern(fields)
    registration = Registration(
        _subscription(fields, pattern),
        pattern,
        timestamp_ms=_timestamp_ms(fields),
        version=version if _is_int(version := fields.get("version")) else 1,
        dialect=_dialect(fields),
        assignors=_assignors(fields),
        include_internal=fields.get("client") == CLIENT and fields.get("internal") is True,
    )
    _check_evaluable(registration)
    return registration


def _check_evaluable(registration: Registration) -> None:
    """Check the expression. Of several only the first counts, as in Scala."""
    named = len(registration.streams)
    if registration.pattern is Pattern.STATIC and named > MOST_TOPICS:
        raise _Unevaluable(registration, f"it names {named} topics, and at most {MOST_TOPICS} are looked up")
    if registration.pattern is Pattern.STATIC or not named:
        return
    try:
        topic_filter(next(iter(registration.streams)))
    except BrokenExpressionError as error:
        raise _Unreadable(f"the expression is not a regular expression: {error}") from error
    except UnevaluableExpressionError as error:
        raise _Unevaluable(registration, str(error)) from error


_WORTH_KEEPING = 1024
_registration_again = lru_cache(maxsize=4096)(_registration)  # members read each other's again and again


def _pattern(fields: Mapping[str, Any]) -> Pattern:
    if "pattern" not in fields:
        raise _Unreadable("no pattern")
    if not isinstance(fields["pattern"], str):
        raise _Unreadable("the pattern is not text")
    try:
        return Pattern(fields["pattern"])
    except ValueError:
        return Pattern.STATIC  # as Scala takes every word it does not know


def _subscription(fields: Mapping[str, Any], pattern: Pattern) -> dict[str, int]:
    subscription = fields.get("subscription")
    if not isinstance(subscription, dict):
        raise _Unreadable("the subscription is not an object" if "subscription" in fields else "no subscription")
    for streams in subscription.values():
        if not _is_int(streams) or not 1 <= streams <= MAX_STREAMS:
            raise _Unreadable(f"{streams!r:.40} is no number of streams")
    if pattern is Pattern.STATIC and len(subscription) <= MOST_TOPICS:
        _check_topics(subscription)
    return subscription


def _check_topics(names: Iterable[str]) -> None:
    try:
        for name in names:
            check_topic(name)
    except InvalidInputError as error:
        raise _Unreadable(str(error)) from error


def _timestamp_ms(fields: Mapping[str, Any]) -> int | None:
    """Text is milliseconds, as Scala writes; a number is seconds, as kazoo-go does. 0 and the rest are no time."""
    timestamp = fields.get("timestamp")
    if isinstance(timestamp, str) and re.fullmatch("[0-9]{1,18}", timestamp, re.ASCII):
        return int(timestamp) or None
    if _is_int(timestamp) and 0 < timestamp <= MAX_OFFSET // 1000:
        return timestamp * 1000
    return None


def _dialect(fields: Mapping[str, Any]) -> Dialect:
    if fields.get("client") == CLIENT:
        return Dialect.ZKGROUPS
    return Dialect.KAZOO_GO if _is_int(fields.get("timestamp")) else Dialect.SCALA


def _assignors(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """What a member of ours announces; only names, each once, and nothing at all where there is anything else."""
    names = fields.get("assignors")
    if fields.get("client") != CLIENT or not isinstance(names, list) or len(names) > MOST_ASSIGNORS:
        return ()
    if not all(map(_is_text, names)):
        return ()
    return tuple(dict.fromkeys(names))


# Owners


def encode_owner(instance: str, stream: int | None = None) -> bytes:
    """The bytes of an owner node: the bare id, which kazoo-go compares as a whole, or with a stream's number, as Scala.

    >>> encode_owner("h:1"), encode_owner("h:1", 0)
    (b'h:1', b'h:1-0')
    """
    return check_instance(instance if stream is None else f"{instance}-{stream}").encode()


def decode_owned_topic(name: str) -> str:
    """The topic that `owners/<name>` means, pykafka's form included.

    >>> decode_owned_topic("b'orders'"), decode_owned_topic("orders")
    ('orders', 'orders')
    """
    pykafka = _PYKAFKA_TOPIC.fullmatch(name)
    return pykafka[2] if pykafka else name


def decode_owner_path(topic: str, name: str) -> TopicPartition | None:
    """The partition that `owners/<topic>/<name>` means, pykafka's form included; None if it means none.

    >>> decode_owner_path("b'orders'", "1001-3")
    TopicPartition(topic='orders', partition=3)
    """
    topic = decode_owned_topic(topic)
    if by_leader := _PYKAFKA_PARTITION.fullmatch(name):
        name = by_leader[1]
    return decode_offset_path(topic, name)


def decode_owner(
    path: str,
    at: TopicPartition | None,
    data: bytes | None,
    *,
    session: int,
    claimed_ms: int = 0,
    version: int = 0,
    czxid: int = 0,
) -> Owner | MalformedNode:
    """Who holds a partition; `at` is None where the path names no partition."""
    raw = data or b""
    try:
        text = _text(raw)
        if at is None:
            raise _Unreadable("its name is no partition")
        if not session:
            raise _Unreadable("it belongs to no session and will never go by itself")
        owner = check_instance(text)
    except (_Unreadable, InvalidNameError) as reason:
        return MalformedNode(path, raw, str(reason), session=session, version=version, created_ms=claimed_ms)
    return Owner(at, owner, session, claimed_ms, version, czxid, path)


# Offsets


def check_offset(offset: object) -> int:
    """Return an offset that may be written, or refuse it: everything else stops or rewinds an old client."""
    if isinstance(offset, bool) or not isinstance(offset, int):
        raise InvalidOptionError("offset", offset, "it must be a whole number")
    if not 0 <= offset <= MAX_OFFSET:
        raise InvalidOptionError("offset", offset, "it must be between 0 and 2^63-1")
    return offset


def encode_offset(offset: int) -> bytes:
    """The bytes of an offset: decimal text, with nothing around it.

    >>> encode_offset(5)
    b'5'
    """
    return str(check_offset(offset)).encode()


def decode_offset_path(topic: str, name: str) -> TopicPartition | None:
    """The partition that `offsets/<topic>/<name>` means; None if it means none."""
    partition = parse_partition(name)
    try:
        return None if partition is None else TopicPartition(topic, partition)
    except InvalidNameError:
        return None


def decode_offset(path: str, data: bytes | None, *, version: int = 0) -> int | MalformedNode:
    """The next message to read. As Scala reads it: `+4` is 4; spaces, a fraction or nothing at all is no offset.

    >>> decode_offset("/o", b"+4")
    4
    >>> decode_offset("/o", b"7 ").reason
    'not a plain decimal number'
    """
    raw = data or b""
    try:
        return _offset(raw)
    except _Unreadable as reason:
        return MalformedNode(path, raw, str(reason), version=version)


def is_negative_offset(data: bytes) -> bool:
    """Return whether these are the digits of a negative number."""
    return re.fullmatch(rb"-[0-9]+", data) is not None


def is_plain_offset(data: bytes) -> bool:
    """Whether these are so few decimal digits that nothing has to be looked at: `int(data)` is the offset."""
    return data.isdigit() and len(data) < len(str(MAX_OFFSET))


def _offset(raw: bytes) -> int:
    if not raw:
        raise _Unreadable("empty")
    if is_negative_offset(raw):
        raise _Unreadable("negative")
    if not _OFFSET.fullmatch(raw):
        raise _Unreadable("not a plain decimal number")
    digits = raw.lstrip(b"+0") or b"0"
    if len(digits) > 19 or int(digits) > MAX_OFFSET:  # Python itself refuses thousands of digits
        raise _Unreadable("larger than 2^63-1")
    return int(digits)


# Kafka's own nodes


def decode_topic(path: str, name: str, data: bytes | None) -> Topic | MalformedNode:
    """The partitions of a topic, from Kafka's node."""
    raw = data or b""
    try:
        fields = _json(_text(raw))
        partitions = fields.get("partitions") if isinstance(fields, dict) else None
        if not isinstance(partitions, dict):
            raise _Unreadable("no partitions")
        numbers = [parse_partition(partition) for partition in partitions]
        if None in numbers:
            raise _Unreadable("a partition that is no number")
        return Topic(name, tuple(sorted(number for number in numbers if number is not None)))
    except _Unreadable as reason:
        return MalformedNode(path, raw, str(reason))


def decode_broker(path: str, name: str, data: bytes | None) -> Broker | MalformedNode:
    """Where a broker listens, from its node."""
    raw = data or b""
    try:
        fields = _json(_text(raw))
        number = parse_partition(name)
        if number is None or not isinstance(fields, dict):
            raise _Unreadable("not the registration of a broker")
    except _Unreadable as reason:
        return MalformedNode(path, raw, str(reason))
    host, port, endpoints = fields.get("host"), fields.get("port"), fields.get("endpoints")
    return Broker(
        number,
        host if _is_text(host) else None,
        port if _is_int(port) and 0 < port < 65536 else None,
        tuple(endpoint for endpoint in endpoints if _is_text(endpoint)) if isinstance(endpoints, list) else (),
    )


# Shared by the decoders


def _text(data: bytes) -> str:
    if not data:
        raise _Unreadable("empty")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _Unreadable("not UTF-8") from error


def _json(text: str) -> Any:
    """The JSON value in `text`, or None; a number too long or nesting too deep is no reason to fall over."""
    try:
        return json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return None


def _no_json(constant: str) -> None:
    """Python alone takes NaN and Infinity for JSON."""
    raise ValueError(constant)


def _is_text(value: object) -> TypeGuard[str]:
    """Text that can be shown: JSON may carry halves of characters, which cannot be written anywhere."""
    return isinstance(value, str) and value != "" and not re.search("[\ud800-\udfff]", value)


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
