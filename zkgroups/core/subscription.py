"""Which topics a registration means, as the Scala client reads white lists and black lists."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from ..exceptions import InvalidOptionError
from .expression import ExpressionError, is_topic_of_kafka, topic_filter
from .model import Pattern, Registration

INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})
"""Kafka's own topics, which no pattern of a Scala member matches."""


def check_expression(expression: object) -> str:
    """Return the expression, or refuse it if zkgroups cannot evaluate it: it must mean the same to every member."""
    if not isinstance(expression, str):
        raise InvalidOptionError("topic pattern", expression, "it must be text")
    try:
        topic_filter(expression)
    except ExpressionError as error:
        reason = f"it cannot be used as a regular expression: {error}"
        raise InvalidOptionError("topic pattern", expression, reason) from error
    return expression


def subscribed_topics(registration: Registration, topics: Iterable[str]) -> dict[str, int]:
    """The topics a registration means, with the streams for each; `topics` are all that a pattern can choose from.

    A static subscription names its topics, whether they exist or not. Of several expressions Scala takes the first.

    >>> subscribed_topics(Registration({"order.*": 2}, Pattern.WHITE_LIST), ["orders", "refunds"])
    {'orders': 2}
    """
    if registration.pattern is Pattern.STATIC:
        return dict(registration.streams)
    listed = registration.pattern is Pattern.WHITE_LIST
    for expression, streams in registration.streams.items():
        chosen = _chosen(expression, listed, tuple(topics))
        return {t: streams for t in chosen if registration.include_internal or t not in INTERNAL_TOPICS}
    return {}


@lru_cache(maxsize=32)  # members look repeatedly, and many groups match against the same topics
def _chosen(expression: str, listed: bool, topics: tuple[str, ...]) -> tuple[str, ...]:
    matches = topic_filter(expression).matches
    return tuple(topic for topic in topics if is_topic_of_kafka(topic) and matches(topic) is listed)
