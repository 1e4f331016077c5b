"""Find the reason why Scala members cannot read a registration.

Scala's `ConsumerConnector` reads the registrations of all members. If it cannot read one of them, every Scala member
of the group abandons its rebalances until that node is deleted. Any version, any timestamp, an unknown pattern and an
empty subscription are harmless.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ..java_regex.errors import BrokenExpressionError, UnevaluableExpressionError
from ..java_regex.topic_filter import topic_filter

MAX_STREAMS: Final = 2**31 - 1

_EXPRESSIONS: Final = {"white_list", "black_list"}


class ScalaProblem(StrEnum):
    """The part of a registration that Scala members cannot read, as text in which `{value}` is the offending value."""

    EMPTY = "it is empty"
    NOT_AN_OBJECT = "it is not a JSON object"
    NO_SUBSCRIPTION = "it has no subscription"
    SUBSCRIPTION_NOT_AN_OBJECT = "its subscription is not a JSON object"
    NO_PATTERN = "it has no pattern"
    PATTERN_NULL = "its pattern is null"
    PATTERN_NOT_TEXT = "its pattern is not a string"
    INVALID_STREAMS = "{value:.40} is not a number of streams"
    INVALID_EXPRESSION = "{value:.80} is not a valid regular expression"


@dataclass(frozen=True, slots=True)
class ScalaBlocker:
    """The reason why Scala members cannot read a registration, with the offending value as Python writes it."""

    problem: ScalaProblem
    value: str = ""

    def __str__(self) -> str:
        return self.problem.format(value=self.value)


def scala_blocker(data: bytes) -> ScalaBlocker | None:
    """Return the reason why Scala members cannot read the registration. None if they can, or if only Java can tell.

    >>> print(scala_blocker(b"orders"))
    it is not a JSON object
    """
    if not data:
        return ScalaBlocker(ScalaProblem.EMPTY)
    fields = _object(data)
    if fields is None:
        return ScalaBlocker(ScalaProblem.NOT_AN_OBJECT)
    if "subscription" not in fields:
        return ScalaBlocker(ScalaProblem.NO_SUBSCRIPTION)
    if not isinstance(fields["subscription"], dict):
        return ScalaBlocker(ScalaProblem.SUBSCRIPTION_NOT_AN_OBJECT)
    return _in_pattern(fields) or _in_subscription(fields["subscription"], fields["pattern"])


def _object(data: bytes) -> Mapping[str, Any] | None:
    try:
        found = json.loads(data.decode(errors="replace"), parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _reject_constant(constant: str) -> None:
    """Reject NaN and Infinity, which only Python accepts as JSON."""
    raise ValueError(constant)


def _in_pattern(fields: Mapping[str, Any]) -> ScalaBlocker | None:
    if "pattern" not in fields:
        return ScalaBlocker(ScalaProblem.NO_PATTERN)
    if fields["pattern"] is None:
        return ScalaBlocker(ScalaProblem.PATTERN_NULL)
    return None if isinstance(fields["pattern"], str) else ScalaBlocker(ScalaProblem.PATTERN_NOT_TEXT)


def _in_subscription(subscription: Mapping[str, Any], pattern: str) -> ScalaBlocker | None:
    for streams in subscription.values():
        if isinstance(streams, bool) or not isinstance(streams, int) or not 1 <= streams <= MAX_STREAMS:
            return ScalaBlocker(ScalaProblem.INVALID_STREAMS, repr(streams))
    expression = next(iter(subscription), "")  # Scala compiles only the first one
    if pattern in _EXPRESSIONS and _is_broken(expression):
        return ScalaBlocker(ScalaProblem.INVALID_EXPRESSION, repr(expression))
    return None


def _is_broken(expression: str) -> bool:
    try:
        topic_filter(expression)
    except BrokenExpressionError:
        return True
    except UnevaluableExpressionError:
        return False
    return False
