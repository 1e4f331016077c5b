"""How the three old clients decode znodes: small models, written independently of zkgroups.

Which expressions Java refuses is not in them: `test_java_regex.py` asks Java itself.

`Poison` is what makes a reader give up; a Scala member then gives up its rebalance, and so do all others of the group.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

INT = 2**31 - 1
LONG = 2**63 - 1


class Poison(Exception):
    """The reader fails."""


@dataclass(frozen=True)
class Reading:
    """A registration as a client understands it. `expression` is the regular expression of a white or black list."""

    pattern: str
    streams: dict[str, int]
    expression: str | None = None


# Scala


def scala_registration(data: bytes, *, jackson: bool) -> Reading:
    """Scala's ConsumerConnector. With `jackson` (Kafka 1.0 and later), numbers can exceed a Java int."""
    fields = _strict_json(data, integer=int if jackson else _java_int, fraction=float if jackson else _no_number)
    if not isinstance(fields, dict) or "pattern" not in fields or "subscription" not in fields:
        raise Poison("no pattern or no subscription")
    pattern, subscription = fields["pattern"], fields["subscription"]
    if not isinstance(pattern, str) or not isinstance(subscription, dict):
        raise Poison("the pattern is not text, or the subscription is not a map")
    for streams in subscription.values():
        if type(streams) is not int or not 1 <= streams <= INT:
            raise Poison("an assertion, or a class cast")
    if pattern not in ("white_list", "black_list") or not subscription:
        return Reading("static", subscription)
    head = next(iter(subscription))
    return Reading(pattern, {head: subscription[head]}, _topic_filter(head))


def scala_topics(reading: Reading, topics: list[str], matches: Callable[[str, str], bool]) -> dict[str, int]:
    """Return the topics of a static subscription, or the registered topics that a list chooses."""
    if reading.expression is None:
        return reading.streams
    [streams] = reading.streams.values()
    allowed = [topic for topic in topics if matches(reading.expression, topic) == (reading.pattern == "white_list")]
    return {topic: streams for topic in allowed if topic not in ("__consumer_offsets", "__transaction_state")}


def scala_offset(data: bytes) -> int:
    """`"…".toLong` of Java: an optional sign and digits, nothing around them."""
    text = data.decode()
    if not re.fullmatch(r"[+-]?[0-9]+", text) or not -LONG - 1 <= int(text) <= LONG:
        raise Poison("NumberFormatException")
    return int(text)


def scala_owner(data: bytes) -> str:
    """`<instance>-<stream>`: everything before the last dash."""
    return data.decode().rpartition("-")[0]


def _topic_filter(raw: str) -> str:
    while raw and raw[0] <= " ":
        raw = raw[1:]
    while raw and raw[-1] <= " ":
        raw = raw[:-1]
    return raw.replace(",", "|").replace(" ", "").lstrip("\"'").rstrip("\"'")


def _java_int(digits: str) -> int:
    if not -INT - 1 <= int(digits) <= INT:
        raise Poison("toInt")
    return int(digits)


def _no_number(text: str) -> Any:
    raise Poison(f"{text} is not a number here")


def _strict_json(data: bytes, *, integer: Callable[[str], Any], fraction: Callable[[str], Any]) -> Any:
    try:
        return json.loads(data.decode(), parse_int=integer, parse_float=fraction, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Poison("not JSON") from error


# kazoo-go


def kazoo_go_registration(data: bytes) -> Reading:
    """Go's encoding/json with typed fields: a value of the wrong type is an error, an unknown field is not."""
    fields = _strict_json(data, integer=int, fraction=_Fraction)
    if not isinstance(fields, dict):
        raise Poison("cannot unmarshal into Registration")
    for name, value in fields.items():
        if name.lower() in ("version", "timestamp") and value is not None:
            _go_int(value)
        if name.lower() == "pattern" and not isinstance(value, str | None):
            raise Poison("cannot unmarshal into string")
    subscription = fields.get("subscription") or {}
    if not isinstance(subscription, dict):
        raise Poison("cannot unmarshal into map[string]int")
    return Reading(fields.get("pattern") or "", {topic: _go_int(streams) for topic, streams in subscription.items()})


@dataclass(frozen=True)
class _Fraction:
    text: str


def _go_int(value: object) -> int:
    if type(value) is not int or not -LONG - 1 <= value <= LONG:
        raise Poison("cannot unmarshal into int")
    return value


def kazoo_go_owns(instance: str, data: bytes) -> bool:
    """True if the whole data of the owner node is the id."""
    return data.decode() == instance


# pykafka


def pykafka_participates(topic: str, data: bytes) -> bool:
    """True if the whole data of the registration is the topic name."""
    return data == topic.encode()
