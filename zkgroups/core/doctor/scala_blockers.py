"""Which registrations stop the Scala members of a group: each of them gives up its rebalances until the node goes.

Scala's `ConsumerConnector` reads the registrations of all members, and one that it cannot read is an exception in the
middle of that. Harmless to it are any version, any timestamp, a pattern it does not know, and an empty subscription.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from ..java_regex.errors import BrokenExpressionError, UnevaluableExpressionError
from ..java_regex.topic_filter import topic_filter

MAX_STREAMS: Final = 2**31 - 1

_EXPRESSIONS: Final = {"white_list", "black_list"}


def poison(data: bytes) -> str | None:
    """Why Scala members cannot read the registration; None where they can, or where only Java could tell.

    >>> poison(b"orders")
    'it is no JSON object'
    """
    if not data:
        return "it is empty"
    fields = _object(data)
    if fields is None:
        return "it is no JSON object"
    if "subscription" not in fields:
        return "it has no subscription"
    if not isinstance(fields["subscription"], dict):
        return "its subscription is no object"
    return _poison_in_pattern(fields) or _poison_in_subscription(fields["subscription"], fields["pattern"])


def _object(data: bytes) -> Mapping[str, Any] | None:
    try:
        found = json.loads(data.decode(errors="replace"), parse_constant=_no_json)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _no_json(constant: str) -> None:
    """Python alone takes NaN and Infinity for JSON."""
    raise ValueError(constant)


def _poison_in_pattern(fields: Mapping[str, Any]) -> str | None:
    if "pattern" not in fields:
        return "it has no pattern"
    if fields["pattern"] is None:
        return "its pattern is null"
    return None if isinstance(fields["pattern"], str) else "its pattern is no text"


def _poison_in_subscription(subscription: Mapping[str, Any], pattern: str) -> str | None:
    for streams in subscription.values():
        if isinstance(streams, bool) or not isinstance(streams, int) or not 1 <= streams <= MAX_STREAMS:
            return f"{streams!r:.40} is no number of streams"
    expression = next(iter(subscription), "")  # the only one that Scala compiles
    if pattern in _EXPRESSIONS and _is_broken(expression):
        return f"{expression!r:.80} is no regular expression"
    return None


def _is_broken(expression: str) -> bool:
    try:
        topic_filter(expression)
    except BrokenExpressionError:
        return True
    except UnevaluableExpressionError:
        return False
    return False
