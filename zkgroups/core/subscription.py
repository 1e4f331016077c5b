"""Which topics a registration means, as the Scala client reads white lists and black lists."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ..exceptions import InvalidOptionError
from .model import Pattern, Registration

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Kafka's own topics, which no pattern of a Scala member matches."""


def topic_expression(expression: str) -> str:
    """The regular expression that the Scala client makes of a white or black list: commas are alternatives.

    >>> topic_expression("orders, refunds.*")
    'orders|refunds.*'
    """
    stripped = expression.strip().replace(",", "|").replace(" ", "")
    return re.sub(r"""["']+$""", "", re.sub(r"""^["']+""", "", stripped))


def check_expression(expression: str) -> str:
    """Return an expression that can be compiled, or refuse it."""
    try:
        expression.encode()
        re.compile(topic_expression(expression))
    except (re.error, UnicodeEncodeError, OverflowError, RecursionError) as error:
        raise InvalidOptionError("topic pattern", expression, f"it is no regular expression: {error}") from error
    return expression


def subscribed_topics(registration: Registration, topics: Iterable[str]) -> dict[str, int]:
    """The topics a registration means, with the streams for each; `topics` are all that a pattern can choose from.

    A static subscription names its topics, whether they exist or not.

    >>> subscribed_topics(Registration({"order.*": 2}, Pattern.WHITE_LIST), ["orders", "refunds"])
    {'orders': 2}
    """
    if registration.pattern is Pattern.STATIC:
        return dict(registration.streams)
    found: dict[str, int] = {}
    for expression, streams in registration.streams.items():
        matches = re.compile(topic_expression(expression)).fullmatch
        listed = registration.pattern is Pattern.WHITE_LIST
        for topic in topics:
            if topic not in INTERNAL_TOPICS and bool(matches(topic)) is listed:
                found[topic] = streams
    return found
