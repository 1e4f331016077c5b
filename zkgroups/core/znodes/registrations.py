"""Registrations, the nodes under `ids`: their JSON, and the topics that they subscribe to."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import compress, count
from typing import Any, Final

from ...exceptions import InvalidInputError, InvalidOptionError
from ..java_regex import BrokenExpressionError, ExpressionError, UnevaluableExpressionError
from ..times import from_ms, to_ms
from ..topic_filter import is_topic_of_kafka, topic_filter
from .codecs import DecodingError, decode_text, is_int, is_text, parse_json
from .topic_partition import check_topic
from .values import (
    ONLY_ZOOKEEPER,
    Dialect,
    MalformedNode,
    OffsetSides,
    Pattern,
    Registration,
    Side,
    UnevaluableRegistration,
)

# The host in the id of an instance. Old clients put it there, and nowhere else.


_SCALA: Final = re.compile(r"(.+)-[0-9]{13}-[0-9a-f]{1,8}")
_HOST_AND_UUID: Final = re.compile(r"(.+):[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def host_of_instance(group: str, id: str) -> str | None:
    """Return the host of an instance, or None if its client, or its user, has chosen an id without a host.

    Scala members are named `<group>_<host>-<milliseconds>-<8 hex>`, kazoo-go, pykafka and zkgroups `<host>:<uuid>`.

    >>> host_of_instance("billing", "billing_app-3-1795255170109-ab12cd34")
    'app-3'
    >>> host_of_instance("billing", "app-3:7d4f0d2a-5f6e-4b53-9c53-7f6d2f1c9a10")
    'app-3'
    >>> host_of_instance("billing", "billing_worker") is None
    True
    """
    if found := _HOST_AND_UUID.fullmatch(id):
        return found[1]
    own = id.removeprefix(f"{group}_")
    found = _SCALA.fullmatch(own) if own != id else None
    return found[1] if found else None


# The topics that a registration subscribes to. White and black lists have the same meaning as for Scala members.


INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Kafka's internal topics. Patterns of Scala members never match them."""


def check_expression(expression: object) -> str:
    """Return the expression, or raise `InvalidOptionError`: it must mean the same to every member."""
    if not isinstance(expression, str):
        raise InvalidOptionError("topic pattern", expression, "it must be text")
    try:
        topic_filter(expression)
    except ExpressionError as error:
        reason = f"it cannot be used as a regular expression: {error}"
        raise InvalidOptionError("topic pattern", expression, reason) from error
    return expression


def subscribed_topics(registration: Registration, topics: Iterable[str]) -> dict[str, int]:
    """Return the topics of a registration, each with its number of streams. Patterns choose from `topics`.

    A static subscription names its topics, whether they exist or not. Of several expressions, only the first counts, as
    in Scala.

    >>> subscribed_topics(Registration({"order.*": 2}, Pattern.WHITE_LIST), ["orders", "refunds"])
    {'orders': 2}
    """
    if registration.pattern is Pattern.STATIC:
        return dict(registration.streams)
    listed = registration.pattern is Pattern.WHITE_LIST
    for expression, streams in registration.streams.items():
        chosen = _verdicts().chosen(expression, list(topics), listed=listed)
        return {t: streams for t in chosen if registration.include_internal or t not in INTERNAL_TOPICS}
    return {}


class _Verdicts:
    """A cache of which names each expression matches: groups share topic names, and members read them repeatedly.

    It is thread-safe: numbers are never reused, and every thread computes the same verdict.
    """

    def __init__(self) -> None:
        self._next = count()
        self._numbers: dict[str, int] = {}
        self._known: OrderedDict[str, bytearray] = OrderedDict()
        """For each expression, the verdict for each name, at the index of the name's number."""

    @property
    def full(self) -> bool:
        return len(self._numbers) > _MOST_NAMES

    def chosen(self, expression: str, names: Sequence[str], *, listed: bool) -> Iterable[str]:
        """Return the valid names that match the expression; if `listed` is false, the valid names that do not."""
        try:
            verdicts = self._look_up(expression, names)
        except LookupError:
            verdicts = self._compute(expression, names)
        return compress(names, verdicts.translate(_LISTED if listed else _NOT_LISTED))

    def _look_up(self, expression: str, names: Sequence[str]) -> bytes:
        known = self._known[expression]
        self._known.move_to_end(expression)
        verdicts = bytes(map(known.__getitem__, map(self._numbers.__getitem__, names)))
        if _UNKNOWN in verdicts:
            raise LookupError(expression)
        return verdicts

    def _compute(self, expression: str, names: Sequence[str]) -> bytes:
        matches = topic_filter(expression).matches
        numbers = [self._number(name) for name in names]
        known = self._known.setdefault(expression, bytearray())
        known.extend(bytes(max(0, max(numbers, default=0) + 1 - len(known))))
        for name, number in zip(names, numbers, strict=True):
            if known[number] == _UNKNOWN:
                known[number] = (_MATCHES if matches(name) else _DIFFERS) if is_topic_of_kafka(name) else _INVALID
        self._forget_oldest()
        return bytes(map(known.__getitem__, numbers))

    def _number(self, name: str) -> int:
        number = self._numbers.get(name)
        return self._numbers.setdefault(name, next(self._next)) if number is None else number

    def _forget_oldest(self) -> None:
        size = sum(len(expression) + len(known) for expression, known in list(self._known.items()))
        while size > _MOST_BYTES and len(self._known) > 1:
            expression, known = self._known.popitem(last=False)
            size -= len(expression) + len(known)


def _verdicts() -> _Verdicts:
    global _cache
    if _cache.full:
        _cache = _Verdicts()
    return _cache


_UNKNOWN, _DIFFERS, _MATCHES, _INVALID = range(4)
_LISTED: Final = bytes(verdict == _MATCHES for verdict in range(256))
_NOT_LISTED: Final = bytes(verdict == _DIFFERS for verdict in range(256))
_MOST_NAMES: Final = 2**19
_MOST_BYTES: Final = 2**25

_cache = _Verdicts()


# Read and write the JSON of registrations.


MAX_STREAMS: Final = 2**31 - 1
"""Numbers in a registration are Java ints."""

MOST_TOPICS: Final = 5_000
"""Every member reads and watches every topic that a registration names, whether it exists or not."""

MOST_ASSIGNORS: Final = 100
"""Members compare their lists of assignors with each other."""

CLIENT: Final = "zkgroups"
"""The value of the `client` field in registrations written by zkgroups. Every old parser ignores the field."""

_BOTH: Final = "both"

_MAX_TIMESTAMP_MS: Final = 2**63 - 1
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class _Unevaluable(Exception):
    """A registration was decoded, but its subscription cannot be evaluated."""

    def __init__(self, registration: Registration, reason: str) -> None:
        super().__init__(reason)
        self.registration = registration


def encode_registration(registration: Registration) -> bytes:
    """Encode a registration so that Scala, kazoo-go and pykafka members can all read it.

    The timestamp is in seconds: kazoo-go requires a number, and Scala ignores the timestamp. It is limited to a Java
    int, because Scala members before Kafka 1.0 fail on any larger number.

    >>> noon = datetime.fromisoformat("2026-11-21T12:00:00Z")
    >>> encode_registration(Registration({"orders": 1}, timestamp=noon)).decode()
    '{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":1795262400,"client":"zkgroups"}'
    """
    _check_subscription(registration)
    fields = {
        "version": 1,
        "subscription": dict(registration.streams),
        "pattern": registration.pattern.value,
        "timestamp": min(max(_seconds(registration.timestamp), 0), MAX_STREAMS),
        "client": CLIENT,
    }
    if registration.assignors:
        fields["assignors"] = list(registration.assignors)
    if registration.include_internal:
        fields["internal"] = True
    if registration.moves:
        fields["moves"] = True
    if registration.leaves:
        fields["leaves"] = True
    fields |= _encode_sides(registration.offsets)
    if registration.dialect is Dialect.GATEWAY:
        fields["gateway"] = {"client_id": registration.client_id, "host": registration.client_host}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def _seconds(timestamp: datetime | None) -> int:
    if timestamp is None:
        return 0
    if timestamp.tzinfo is None:
        raise InvalidOptionError("timestamp", timestamp, "it must have a time zone")
    return to_ms(timestamp) // 1000


def _check_subscription(registration: Registration) -> None:
    """Reject subscriptions that would stop every Scala member, or that clients would interpret differently."""
    if registration.pattern is not Pattern.STATIC and len(registration.streams) > 1:
        expressions = list(registration.streams)
        raise InvalidOptionError("topic pattern", expressions, "Scala reads one expression only: join them with commas")
    if len(registration.streams) > MOST_TOPICS:
        raise InvalidOptionError(
            "topics", list(registration.streams), f"at most {MOST_TOPICS} topics can be named: use a pattern"
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
) -> Registration | UnevaluableRegistration | MalformedNode:
    """Decode a registration written in any of the dialects."""
    raw = data or b""
    try:
        return _cached_decode(raw) if len(raw) <= _CACHED_SIZE else _decode(raw)
    except _Unevaluable as found:
        reason = f"its subscription cannot be evaluated: {found}"
        node = MalformedNode(path, raw, reason, session=session, version=version)
        return UnevaluableRegistration(node, found.registration, str(found))
    except DecodingError as reason:
        return MalformedNode(path, raw, str(reason), session=session, version=version)


def _decode(data: bytes) -> Registration:
    text = decode_text(data)
    fields = parse_json(text)
    if not isinstance(fields, dict):
        if not _TOPIC.fullmatch(text) or text in {".", ".."}:
            raise DecodingError("neither a JSON object nor the name of a topic")
        return Registration({text: 1}, dialect=Dialect.PYKAFKA)
    pattern = _pattern(fields)
    registration = Registration(
        _subscription(fields, pattern),
        pattern,
        timestamp=_timestamp(fields),
        version=version if is_int(version := fields.get("version")) else 1,
        dialect=_dialect(fields),
        assignors=_assignors(fields),
        include_internal=fields.get("client") == CLIENT and fields.get("internal") is True,
        client_id=_of_gateway(fields, "client_id"),
        client_host=_of_gateway(fields, "host"),
        moves=fields.get("client") == CLIENT and fields.get("moves") is True,
        leaves=fields.get("client") == CLIENT and fields.get("leaves") is True,
        offsets=_decode_sides(fields),
    )
    _check_evaluable(registration)
    return registration


def _check_evaluable(registration: Registration) -> None:
    """Check the expression, the first one if there are several, as Scala does."""
    named = len(registration.streams)
    if registration.pattern is Pattern.STATIC and named > MOST_TOPICS:
        raise _Unevaluable(registration, f"it names {named} topics, and at most {MOST_TOPICS} are looked up")
    if registration.pattern is Pattern.STATIC or not named:
        return
    try:
        topic_filter(next(iter(registration.streams)))
    except BrokenExpressionError as error:
        raise DecodingError(f"the expression is not a regular expression: {error}") from error
    except UnevaluableExpressionError as error:
        raise _Unevaluable(registration, str(error)) from error


_CACHED_SIZE: Final = 1024
_cached_decode = lru_cache(maxsize=4096)(_decode)  # members read each other's registrations repeatedly


def _pattern(fields: Mapping[str, Any]) -> Pattern:
    if "pattern" not in fields:
        raise DecodingError("no pattern")
    if not isinstance(fields["pattern"], str):
        raise DecodingError("the pattern is not text")
    try:
        return Pattern(fields["pattern"])
    except ValueError:
        return Pattern.STATIC  # as Scala treats every unknown word


def _subscription(fields: Mapping[str, Any], pattern: Pattern) -> dict[str, int]:
    subscription = fields.get("subscription")
    if not isinstance(subscription, dict):
        raise DecodingError("the subscription is not an object" if "subscription" in fields else "no subscription")
    for streams in subscription.values():
        if not is_int(streams) or not 1 <= streams <= MAX_STREAMS:
            raise DecodingError(f"{streams!r:.40} is not a number of streams")
    if pattern is Pattern.STATIC and len(subscription) <= MOST_TOPICS:
        return {name: streams for name, streams in subscription.items() if _can_be_topic(name)}
    if not all(is_text(name) for name in subscription if name):
        raise DecodingError("the subscription has a name that is not text")
    return subscription


def _can_be_topic(name: str) -> bool:
    """False for a name with a slash: Scala members read it as a path, find no topic there, and ignore it."""
    try:
        for part in name.split("/"):
            check_topic(part)
    except InvalidInputError as error:
        raise DecodingError(str(error)) from error
    return "/" not in name


def _timestamp(fields: Mapping[str, Any]) -> datetime | None:
    """Text is milliseconds, as written by Scala; a number is seconds, as written by kazoo-go. 0 means unknown."""
    timestamp = fields.get("timestamp")
    if isinstance(timestamp, str) and re.fullmatch("[0-9]{1,18}", timestamp, re.ASCII):
        return from_ms(int(timestamp))
    if is_int(timestamp) and 0 < timestamp <= _MAX_TIMESTAMP_MS // 1000:
        return from_ms(timestamp * 1000)
    return None


def _dialect(fields: Mapping[str, Any]) -> Dialect:
    if fields.get("client") == CLIENT:
        return Dialect.GATEWAY if isinstance(fields.get("gateway"), dict) else Dialect.ZKGROUPS
    return Dialect.KAZOO_GO if is_int(fields.get("timestamp")) else Dialect.SCALA


def _of_gateway(fields: Mapping[str, Any], name: str) -> str:
    if _dialect(fields) is not Dialect.GATEWAY:
        return ""
    text = fields["gateway"].get(name)
    return text if is_text(text) else ""


def _encode_sides(sides: OffsetSides) -> dict[str, str]:
    if sides.both:
        return {"offsets": _BOTH, "truth": sides.truth}
    return {} if sides == ONLY_ZOOKEEPER else {"offsets": sides.truth}


def _decode_sides(fields: Mapping[str, Any]) -> OffsetSides:
    """Return where a consumer commits its offsets. Any unknown value means ZooKeeper, where all other clients do."""
    offsets, truth = fields.get("offsets"), fields.get("truth")
    if fields.get("client") != CLIENT:
        return ONLY_ZOOKEEPER
    if offsets == _BOTH and truth in list(Side):
        return OffsetSides(Side(truth), both=True)
    return OffsetSides(Side.KAFKA) if offsets == Side.KAFKA else ONLY_ZOOKEEPER


def _assignors(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the assignors that a zkgroups member announces, without duplicates; none if any entry is invalid."""
    names = fields.get("assignors")
    if fields.get("client") != CLIENT or not isinstance(names, list) or len(names) > MOST_ASSIGNORS:
        return ()
    if not all(map(is_text, names)):
        return ()
    return tuple(dict.fromkeys(names))
